# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The config file and its drop-ins: which files there are, and what all of them together say."""

from __future__ import annotations

import os
import typing as t

from .._errors import ConfigError
from .config_file import EXEMPT_RANGES, Document, Source, parse, read
from .policy import RESERVED_CIDRS, RFC1918_CIDRS, UNITED, file_key
from .values import show

#: How the names of drop-ins end.
SUFFIXES = (".json", ".yaml", ".yml")


def read_directory(directory: str, main: t.Optional[str] = None) -> t.Tuple[Source, ...]:
    """Read ``config`` and the drop-ins ``config.d/*.{json,yaml,yml}`` of a directory, in name order.

    :param main: text that is going to be ``config``, and is taken in its place.
    :raises ConfigError: one of them cannot be read, as of ``read``.
    """
    config, *drop_ins = config_paths(directory)
    sources = [read(config) if main is None else Source(config, main, 0.0)] + [read(path) for path in drop_ins]
    return tuple(source for source in sources if source is not None)


def merge(sources: t.Iterable[Source]) -> Document:
    """Merge the values of files.

    Lists of ranges and of interfaces are united, in order and without duplicates; of other values the last one wins,
    with a note where two drop-ins disagree. A drop-in that replaces the default list, because ``config`` names none, is
    noted too.

    :raises ConfigError: as ``parse``, for whichever file is broken.
    """
    values: t.Dict[str, t.Any] = {}
    origin: t.Dict[str, str] = {}
    notes: t.List[str] = []
    lists: t.List[str] = []
    empty: t.List[str] = []
    for path, text, _changed in sources:
        document = parse(text, path)
        notes += document.notes
        empty += document.empty
        if EXEMPT_RANGES in document.values:
            lists.append(path)
        for option, value in document.values.items():
            if option in UNITED and isinstance(value, list) and isinstance(values.get(option), list):
                # Entries may be anything yet, also what cannot be put into a set.
                known = {repr(entry) for entry in values[option]}
                values[option] = values[option] + [entry for entry in value if repr(entry) not in known]
            else:
                # That a drop-in overrides ``config`` is what it is there for; two that disagree may be a mistake.
                if option in values and values[option] != value and is_drop_in(origin[option]):
                    notes.append(
                        "%s: %s is %s here and %s in %s; the last one read wins"
                        % (path, file_key(option), show(value), show(values[option]), origin[option])
                    )
                values[option] = value
            origin[option] = path
    if lists and is_drop_in(lists[0]):
        default = RESERVED_CIDRS if values.get("nomasq_all_reserved_ranges") is True else RFC1918_CIDRS
        config = os.path.join(os.path.dirname(os.path.dirname(lists[0])), "config")
        notes.append(
            "%s: nonMasqueradeCIDRs replaces the default list (%s), because %s has no nonMasqueradeCIDRs; to add to "
            "the default list, list its ranges there" % (lists[0], ", ".join(default), config)
        )
    return Document(values, tuple(notes), tuple(empty))


def name_culprit(
    sources: t.Sequence[Source], check: t.Callable[[t.Dict[str, t.Any]], t.Any], error: ConfigError
) -> str:
    """Return the message of an error with the file that has the bad value.

    :param sources: files whose merged values ``check`` refused with ``error``.
    :returns: the message that ``check`` has for one file, if that file alone and together with the others is wrong
        about the same option; else, as with values of several files, the message of ``error`` with all of them.
    """
    documents = [(source.path, parse(source.text, source.path).values) for source in sources]
    last = {option: path for path, values in documents for option in values}
    merged = merge(sources).values

    def refusal(values: t.Dict[str, t.Any]) -> str:
        try:
            check(values)
        except ConfigError as exc:
            if str(exc).partition(":")[0] == str(error).partition(":")[0]:
                return str(exc)
        return ""

    for path, values in documents:
        effective = {option: value for option, value in values.items() if option in UNITED or last[option] == path}
        # Alone, a file lacks what others allow it: enableIPv6, cidrLimit.
        text = refusal(effective) and refusal({**merged, **effective})
        if text:
            return "%s: %s" % (path, text)
    return "%s: %s" % (", ".join(path for path, _values in documents), error)


def config_paths(directory: str) -> t.List[str]:
    """Return the files that make up the configuration of a directory, in the order in which they are read.

    :raises ConfigError: the drop-in directory cannot be listed.
    """
    drop_ins = os.path.join(directory, "config.d")
    try:
        names = sorted(name for name in os.listdir(drop_ins) if name.endswith(SUFFIXES))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as exc:
        raise ConfigError("%s cannot be listed: %s" % (drop_ins, exc.strerror or exc)) from None
    # An editor's hidden file is not a drop-in yet.
    return [os.path.join(directory, "config")] + [
        os.path.join(drop_ins, name) for name in names if not name.startswith(".")
    ]


def is_drop_in(path: str) -> bool:
    """Return whether one of the ``config_paths`` is a drop-in; only ``config`` itself has no suffix."""
    return os.path.basename(path) != "config"
