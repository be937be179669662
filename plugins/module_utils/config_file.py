# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Config files on the node, with the keys and the semantics of ip-masq-agent's own file.

JSON needs nothing but Python; YAML is read where PyYAML is installed. What the reference agent takes silently (unknown
keys, a key given twice) is said here: an unknown key is a remark, a double one an error.
"""

from __future__ import annotations

import json
import os
import stat
import typing as t

from .config import file_key, find_file_key, nearest_file_key
from .errors import ConfigError

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]

#: bytes; a list of 10,000 CIDRs takes about 300,000
SIZE_LIMIT = 4 * 1024 * 1024

#: Levels of lists and mappings inside each other; a policy has two. PyYAML's time grows with the square of it.
DEPTH_LIMIT = 32


class Document(t.NamedTuple):
    """What one file says: values by option name (not validated yet), and remarks for the operator."""

    values: t.Dict[str, t.Any]
    notes: t.Tuple[str, ...] = ()


def load(path: str) -> Document:
    """Read one config file; one that is not there says nothing, as in the reference agent.

    :raises ConfigError: not readable, huge, not a file, or as :func:`parse`.
    """
    text = read_text(path)
    return Document({}) if text is None else parse(text, path)


def load_directory(directory: str, main: t.Optional[str] = None) -> t.Tuple[Document, t.Tuple[str, ...]]:
    """Read ``config`` and the drop-ins ``config.d/*.{json,yaml,yml}`` of a directory, in name order.

    Lists are united, in order and without duplicates; of scalars the last one wins, and a conflict is remarked on.

    :param main: text that is going to be ``config``, and is taken in its place.
    :returns: what they say together, and the paths that were read.
    :raises ConfigError: as :func:`load`, for whichever file is broken.
    """
    values: t.Dict[str, t.Any] = {}
    origin: t.Dict[str, str] = {}
    notes: t.List[str] = []
    read: t.List[str] = []
    paths = config_paths(directory)
    for path in paths:
        text = main if main is not None and path == paths[0] else read_text(path)
        if text is None:
            continue
        read.append(path)
        document = parse(text, path)
        notes += document.notes
        for option, value in document.values.items():
            if isinstance(value, list) and isinstance(values.get(option), list):
                values[option] = values[option] + [entry for entry in value if entry not in values[option]]
            else:
                if option in values and values[option] != value:
                    notes.append(
                        "%s: %s is %s here and %s in %s; the last one read wins"
                        % (path, file_key(option), ascii(value), ascii(values[option]), origin[option])
                    )
                values[option] = value
            origin[option] = path
    return Document(values, tuple(notes)), tuple(read)


def config_paths(directory: str) -> t.List[str]:
    """The files that make up the configuration of a directory, in the order in which they are read.

    :raises ConfigError: the drop-in directory cannot be listed.
    """
    drop_ins = os.path.join(directory, "config.d")
    try:
        names = sorted(name for name in os.listdir(drop_ins) if name.endswith((".json", ".yaml", ".yml")))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as exc:
        raise ConfigError("%s cannot be listed: %s" % (drop_ins, exc.strerror or exc)) from None
    # An editor's hidden file is not a drop-in yet.
    return [os.path.join(directory, "config")] + [
        os.path.join(drop_ins, name) for name in names if not name.startswith(".")
    ]


def read_text(path: str) -> t.Optional[str]:
    """The text of a config file; none where there is no file.

    :raises ConfigError: not readable, too large, not a regular file, not UTF-8.
    """
    try:
        # Not blocking: a named pipe must be refused, not waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
            about = os.fstat(handle.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ConfigError("%s is not a regular file: give the path of a YAML or JSON file" % path)
            raw = handle.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ConfigError("%s cannot be read: %s" % (path, exc.strerror or exc)) from None
    except ValueError:
        raise ConfigError("%s is not a path" % ascii(path)) from None
    if len(raw) > SIZE_LIMIT:
        raise ConfigError(
            "%s is larger than %d bytes, which no policy needs: is it the right file?" % (path, SIZE_LIMIT)
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise ConfigError("%s is not UTF-8 text (line %d)" % (path, line)) from None


def parse(text: str, name: str) -> Document:
    """Read the text of a config file.

    :param name: how messages call the file.
    :raises ConfigError: neither JSON nor YAML (with the line), not a mapping, or a key that is given twice.
    """
    data = _parse_text(text, name)
    if data is None:
        return Document({})
    if not isinstance(data, dict):
        raise ConfigError("%s holds a %s, not a mapping: write keys such as nonMasqueradeCIDRs" % (name, _kind(data)))
    values: t.Dict[str, t.Any] = {}
    notes = []
    for written, value in data.items():
        key = find_file_key(written) if isinstance(written, str) else None
        if key is None:
            notes.append(
                "%s: the key %s is not known and has no effect; the nearest known key is %s"
                % (name, ascii(written), nearest_file_key(str(written)))
            )
            continue
        if key.option in values:
            raise ConfigError("%s: the key %s is given twice: keep one" % (name, key.file_key))
        values[key.option] = value
    for option, value in list(values.items()):
        if value is None and option == "non_masquerade_cidrs":
            values[option] = []
        elif value is None and option != "resync_interval":
            # Null leaves a Go field as it was, and so the default in force.
            del values[option]
    return Document(values, tuple(notes))


def _parse_text(text: str, name: str) -> t.Any:
    if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
        return None
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _mapping(pairs, name))
    except RecursionError:
        raise ConfigError("%s is nested too deeply" % name) from None
    except ValueError as exc:
        line = getattr(exc, "lineno", 1)
        problem = "%s does not parse as JSON, line %d: %s" % (name, line, getattr(exc, "msg", exc))
    if yaml is None:
        if text.lstrip()[:1] not in ("{", "["):
            problem += (
                ". If it is YAML: this node's Python has no yaml module; install it (python3-yaml), or write JSON"
            )
        raise ConfigError(problem)
    try:
        return _parse_yaml(text, name)
    except ConfigError as exc:
        raise ConfigError(problem if text.lstrip()[:1] in ("{", "[") else str(exc)) from None


def _mapping(pairs: t.Sequence[t.Tuple[t.Any, t.Any]], name: str) -> t.Dict[t.Any, t.Any]:
    result: t.Dict[t.Any, t.Any] = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError("%s: the key %s is given twice: keep one" % (name, ascii(key)))
        result[key] = value
    return result


def _parse_yaml(text: str, name: str) -> t.Any:
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1
                raise ConfigError("%s, line %d: aliases (*name) are not supported; write the value" % (name, line))
            if depth > DEPTH_LIMIT:
                raise ConfigError("%s is nested too deeply (line %d)" % (name, event.start_mark.line + 1))
        return yaml.load(text, Loader=_loader(name))
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = ", line %d" % (mark.line + 1) if mark else ""
        problem = getattr(exc, "problem", None) or " ".join(str(exc).split())
        raise ConfigError("%s does not parse as YAML%s: %s" % (name, where, problem)) from None
    except RecursionError:
        raise ConfigError("%s is nested too deeply" % name) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        # PyYAML's constructors let these through for scalars that a tag or a resolver misreads.
        raise ConfigError("%s does not parse as YAML: a value is malformed (%s)" % (name, exc)) from None


def _loader(name: str) -> t.Any:
    """A SafeLoader that refuses a key given twice, which PyYAML's own lets win silently."""

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: t.Any, deep: bool = False) -> t.Dict[t.Any, t.Any]:
            return _mapping(
                [(self.construct_object(k, deep=True), self.construct_object(v, deep=True)) for k, v in node.value],
                name,
            )

    return Loader


def _kind(data: t.Any) -> str:
    return {list: "list", str: "text", bool: "boolean"}.get(type(data), "number")
