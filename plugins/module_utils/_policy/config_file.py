# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Config files on the node, with the keys and the semantics of ip-masq-agent's own file.

JSON needs nothing but Python; YAML is read where PyYAML is installed. Text that begins with ``{`` or ``[`` is JSON and
nothing else: YAML would give damaged JSON another meaning. For the same reason a comment that ends with JSON, in a file
of comments, and a key of YAML that looks like JSON are errors. What the reference agent accepts silently is reported
here: an unknown key is a note; a duplicate one is an error, and so is a file of which no key is known. A
file that is damaged or huge costs seconds at most: sizes, numbers and nesting are limited.
"""

from __future__ import annotations

import json
import os
import re
import typing as t

from .._errors import ConfigError
from .._system.files import NotRegularFile, open_regular
from .policy import UNITED, build, file_key, find_file_key
from .values import KEY_LIMIT, naming, parse_integer, show, split_entries, unique

#: bytes; a list of 10,000 CIDRs takes about 300,000
SIZE_LIMIT = 4 * 1024 * 1024

# Patterns are text: a start that compiled all of them took 2.8 % longer.
#: How a JSON object begins that has a key.
_JSON_OBJECT = r"\{[ \t]*\""

#: The option whose default is a list that is not empty.
EXEMPT_RANGES = "non_masquerade_cidrs"


class Source(t.NamedTuple):
    """One file of the configuration, as it was read."""

    path: str
    text: str
    #: seconds since the epoch when it was written, renamed or replaced last (st_ctime, which nobody sets back)
    changed: float


class Document(t.NamedTuple):
    """The content of files: values by option name (not validated yet), and notes for the operator."""

    values: t.Dict[str, t.Any]
    notes: t.Tuple[str, ...] = ()
    #: empty files, without even ``{}``
    empty: t.Tuple[str, ...] = ()


def load(path: str) -> Document:
    """Read one config file; one that is not there is empty, as in the reference agent.

    :raises ConfigError: not readable, huge, not a file, or as ``parse``.
    """
    source = read(path)
    return Document({}) if source is None else parse(source.text, path)


def config_text(config: t.Mapping[str, t.Any]) -> str:
    """Return the text of a file ``config`` with these keys.

    Without nonMasqueradeCIDRs it names the default list, so that a drop-in adds to that and does not replace it.

    :raises ConfigError: a key is not known, or a value is wrong.
    """
    written = dict(config)
    for name, value in config.items():
        key = find_file_key(name)
        if key is None:
            from .foreign_file import advice

            raise ConfigError("config: the key %s is not known; %s" % (show(name), advice(name, value)))
        if key.name in UNITED:
            written[name] = split_entries(value)
    values = parse(_as_json(written), "config").values
    policy = build(values, label=file_key)
    if EXEMPT_RANGES not in values:
        default = [str(network) for network in policy.non_masquerade_cidrs]
        written = dict({file_key(EXEMPT_RANGES): default}, **written)
    return _as_json(written)


def _as_json(config: t.Mapping[str, t.Any]) -> str:
    try:
        return json.dumps(config, indent=2) + "\n"
    except (TypeError, ValueError) as exc:
        raise ConfigError("config: a value cannot be written as JSON: %s" % exc) from None


def read(path: str) -> t.Optional[Source]:
    """Read a config file; None if there is no file.

    :raises ConfigError: not readable, too large, not a regular file, not UTF-8.
    """
    try:
        with open_regular(path) as handle:
            changed = os.fstat(handle.fileno()).st_ctime
            raw = handle.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        return None
    except NotRegularFile:
        raise ConfigError("%s is not a regular file: give the path of a YAML or JSON file" % path) from None
    except OSError as exc:
        raise ConfigError("%s cannot be read: %s" % (path, exc.strerror or exc)) from None
    except ValueError:
        raise ConfigError("%s is not a path" % ascii(path)) from None
    if len(raw) > SIZE_LIMIT:
        raise ConfigError("%s is larger than %d bytes: is it the right file?" % (path, SIZE_LIMIT))
    try:
        return Source(path, raw.decode("utf-8-sig"), changed)
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise ConfigError("%s is not UTF-8 text (line %d)" % (path, line)) from None


def parse(text: str, name: str) -> Document:
    """Read the text of a config file.

    :param name: how messages call the file.
    :raises ConfigError: neither JSON nor YAML (with the line), not a mapping, a duplicate key, or beyond a limit.
    """
    with naming(name):
        return _as_document(_parse_text(text), name)


def _as_document(data: t.Any, name: str) -> Document:
    if data is None:
        return Document({}, (), (name,))
    if not isinstance(data, dict):
        kind = {list: "list", str: "text", bool: "boolean"}.get(type(data), "number")
        raise ConfigError("must be a mapping with keys such as nonMasqueradeCIDRs, not a %s" % kind)
    if len(data) > KEY_LIMIT:
        raise ConfigError("%d keys are more than the %d that are read: is it the right file?" % (len(data), KEY_LIMIT))
    values: t.Dict[str, t.Any] = {}
    unknown = {}
    for written, value in data.items():
        key = find_file_key(written)
        if key is None:
            unknown[written] = value
            continue
        if key.name in values:
            raise ConfigError("duplicate key %s: keep one" % key.key)
        values[key.name] = value
    notes = _about_unknown(unknown, not values, name) if unknown else ()
    for option, value in list(values.items()):
        if value is None and option == EXEMPT_RANGES:
            values[option] = []
        elif value is None and option != "resync_interval":
            # Null leaves a Go field as it was, with its default.
            del values[option]
    return Document(values, notes)


def _about_unknown(keys: t.Dict[str, t.Any], all_of_them: bool, name: str) -> t.Tuple[str, ...]:
    """Return a note about each unknown key of a file.

    :raises ConfigError: the file has no other keys; the default policy would take the place of the one that is meant.
    """
    # Not at the top: most files have no such key.
    from .foreign_file import advice, refusal

    if all_of_them:
        raise ConfigError(refusal(keys))
    return tuple(
        "%s: the key %s is not known and has no effect; %s" % (name, show(key), advice(key, value))
        for key, value in keys.items()
    )


def _parse_text(text: str) -> t.Any:
    if _is_blank(text):
        return None
    content = _content(text)
    if content.lstrip()[:1] in ("{", "["):
        return parse_json(content)
    # Not at the top: most files are JSON, and PyYAML takes 10 ms of each start, beside 80 ms of a sync.
    from . import yaml_text

    return yaml_text.parse(text)


def _content(text: str) -> str:
    """Return text without comments and empty lines before the content.

    With these before it, JSON that is damaged must not be taken for YAML either: an empty template value would be an
    empty list. Who begins with the marker ``---`` means YAML.
    """
    lines = text.lstrip("\ufeff").split("\n")
    for number, line in enumerate(lines):
        content = line.strip(" \t\r")
        if content and not content.startswith("#"):
            # Empty lines in place of what was before it: messages name lines.
            return "\n".join([""] * number + lines[number:])
    return ""


def _is_blank(text: str) -> bool:
    """Return whether a file has no value: empty lines and comments, as YAML has them.

    :raises ConfigError: one of the comments ends with a JSON document: a ``#`` before its brace or in the place of it,
        or the end of the line before it is missing.
    """
    lines = [line.strip(" \r") for line in text.split("\n")]
    if not all(not line or line.startswith("#") for line in lines):
        return False
    for number, line in enumerate(lines, 1):
        braced, quoted = re.search(_JSON_OBJECT, line), line.find('"')
        found = (line[braced.start() :] if braced else "", "{" + line[quoted:] if quoted > 0 else "")
        if any(map(_is_json_object, found)):
            text = "line %d: a '#' makes a comment of a JSON document: remove it, or write {} for the defaults"
            raise ConfigError(text % number)
    return True


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (RecursionError, ValueError):
        return False


def parse_json(text: str) -> t.Any:
    """Parse JSON, strictly: no key twice, no NaN, no number of more than 20 digits.

    :raises ConfigError: with the line.
    """
    try:
        return json.loads(text, object_pairs_hook=unique, parse_int=parse_integer, parse_constant=_no_constant)
    except RecursionError:
        raise ConfigError("nested too deeply") from None
    except ValueError as exc:
        raise ConfigError("invalid JSON, line %d: %s" % (getattr(exc, "lineno", 1), getattr(exc, "msg", exc))) from None


def _no_constant(word: str) -> t.Any:
    raise ConfigError("invalid JSON: %s is not a value" % word)
