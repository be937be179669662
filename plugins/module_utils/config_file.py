# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Config files on the node, with the keys and the semantics of ip-masq-agent's own file.

JSON needs nothing but Python; YAML is read where PyYAML is installed. Text that begins with C({) or C([) is JSON and
nothing else: YAML would give damaged JSON another meaning. What the reference agent accepts silently is reported here:
an unknown key is a note, a duplicate one an error. A file that is damaged or huge costs seconds at most: sizes, numbers
and nesting are limited, and no value is built by PyYAML.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import typing as t

from .config import file_key, find_file_key, nearest_file_key, show
from .errors import ConfigError

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]

#: bytes; a list of 10,000 CIDRs takes about 300,000
SIZE_LIMIT = 4 * 1024 * 1024

#: Characters of YAML. PyYAML reads about 100,000 a second, and half of that where every second one is a value.
YAML_LIMIT = 1024 * 1024

#: Levels of lists and mappings inside each other; a policy has two. PyYAML's time grows with the square of it.
DEPTH_LIMIT = 32

#: Keys of a file; a policy has twelve, and the nearest known key is looked for with each of the others.
KEY_LIMIT = 100

#: The option whose values in several files are united.
UNITED = "non_masquerade_cidrs"

#: Digits of an integer (a 64-bit one has 19), and characters of any other value in YAML.
DIGIT_LIMIT = 20
VALUE_LIMIT = 4096

#: Plain scalars of YAML 1.1 (https://yaml.org/type/) that are no text, less the other notations of numbers: what one
#: reader takes for 64 is 100 to another.
_YAML_WORDS: t.Dict[str, t.Optional[bool]] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_YAML_WORDS.update((form, True) for word in ("true", "yes", "on") for form in (word, word.title(), word.upper()))
_YAML_WORDS.update((form, False) for word in ("false", "no", "off") for form in (word, word.title(), word.upper()))
_YAML_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")
_YAML_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z")


class Source(t.NamedTuple):
    """One file of the configuration, as it was read."""

    path: str
    text: str
    #: seconds since the epoch when it was written, renamed or replaced last (st_ctime, which nobody sets back)
    changed: float


class Document(t.NamedTuple):
    """What files say: values by option name (not validated yet), and notes for the operator."""

    values: t.Dict[str, t.Any]
    notes: t.Tuple[str, ...] = ()
    #: files that say nothing at all, not even C({})
    empty: t.Tuple[str, ...] = ()


def load(path: str) -> Document:
    """Read one config file; one that is not there says nothing, as in the reference agent.

    :raises ConfigError: not readable, huge, not a file, or as :func:`parse`.
    """
    source = read(path)
    return Document({}) if source is None else parse(source.text, path)


def read_directory(directory: str, main: t.Optional[str] = None) -> t.Tuple[Source, ...]:
    """Read C(config) and the drop-ins C(config.d/*.{json,yaml,yml}) of a directory, in name order.

    :param main: text that is going to be C(config), and is taken in its place.
    :raises ConfigError: one of them cannot be read, as of :func:`read`.
    """
    config, *drop_ins = config_paths(directory)
    sources = [read(config) if main is None else Source(config, main, 0.0)] + [read(path) for path in drop_ins]
    return tuple(source for source in sources if source is not None)


def merge(sources: t.Iterable[Source]) -> Document:
    """What files say together.

    Lists of ranges are united, in order and without duplicates; of other values the last one wins, with a note.

    :raises ConfigError: as :func:`parse`, for whichever file is broken.
    """
    values: t.Dict[str, t.Any] = {}
    origin: t.Dict[str, str] = {}
    notes: t.List[str] = []
    empty: t.List[str] = []
    for path, text, _changed in sources:
        document = parse(text, path)
        notes += document.notes
        empty += document.empty
        for option, value in document.values.items():
            if option == UNITED and isinstance(value, list) and isinstance(values.get(option), list):
                # Entries may be anything yet, also what cannot be put into a set.
                known = {repr(entry) for entry in values[option]}
                values[option] = values[option] + [entry for entry in value if repr(entry) not in known]
            else:
                if option in values and values[option] != value:
                    notes.append(
                        "%s: %s is %s here and %s in %s; the last one read wins"
                        % (path, file_key(option), show(value), show(values[option]), origin[option])
                    )
                values[option] = value
            origin[option] = path
    return Document(values, tuple(notes), tuple(empty))


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


def read(path: str) -> t.Optional[Source]:
    """Read a config file; none where there is no file.

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
        return Source(path, raw.decode("utf-8-sig"), about.st_ctime)
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise ConfigError("%s is not UTF-8 text (line %d)" % (path, line)) from None


def parse(text: str, name: str) -> Document:
    """Read the text of a config file.

    :param name: how messages call the file.
    :raises ConfigError: neither JSON nor YAML (with the line), not a mapping, a duplicate key, or beyond a limit.
    """
    try:
        return _as_document(_parse_text(text), name)
    except ConfigError as exc:
        raise ConfigError("%s: %s" % (name, exc)) from None


def _as_document(data: t.Any, name: str) -> Document:
    if data is None:
        return Document({}, (), (name,))
    if not isinstance(data, dict):
        raise ConfigError("must be a mapping with keys such as nonMasqueradeCIDRs, not a %s" % _kind(data))
    if len(data) > KEY_LIMIT:
        raise ConfigError("%d keys are more than the %d that are read: is it the right file?" % (len(data), KEY_LIMIT))
    values: t.Dict[str, t.Any] = {}
    notes = []
    for written, value in data.items():
        key = find_file_key(written)
        if key is None:
            notes.append(
                "%s: the key %s is not known and has no effect; the nearest known key is %s"
                % (name, show(written), nearest_file_key(written))
            )
            continue
        if key.option in values:
            raise ConfigError("duplicate key %s: keep one" % key.file_key)
        values[key.option] = value
    for option, value in list(values.items()):
        if value is None and option == UNITED:
            values[option] = []
        elif value is None and option != "resync_interval":
            # Null leaves a Go field as it was, and so the default in force.
            del values[option]
    return Document(values, tuple(notes))


def _parse_text(text: str) -> t.Any:
    if _is_blank(text):
        return None
    if text.lstrip()[:1] in ("{", "["):
        return _parse_json(text)
    if yaml is None:
        raise ConfigError(
            "is not JSON, and for YAML this node's Python has no yaml module: install it (python3-yaml), or write JSON"
        )
    return _parse_yaml(text)


def _is_blank(text: str) -> bool:
    """Whether a file says nothing: empty lines and comments, as YAML has them.

    :raises ConfigError: it is a JSON document that one C(#), before its brace or in the place of it, makes a comment.
    """
    lines = (line.strip(" \r") for line in text.split("\n"))
    if not all(not line or line.startswith("#") for line in lines):
        return False
    behind = text.lstrip(" \r\n")[1:]
    if _is_json_object(behind) or _is_json_object("{" + behind):
        raise ConfigError("a '#' makes a comment of a JSON document: remove it, or write {} for the defaults")
    return True


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (RecursionError, ValueError):
        return False


def _parse_json(text: str) -> t.Any:
    try:
        return json.loads(text, object_pairs_hook=_mapping, parse_int=_integer, parse_constant=_no_constant)
    except RecursionError:
        raise ConfigError("nested too deeply") from None
    except ValueError as exc:
        raise ConfigError("invalid JSON, line %d: %s" % (getattr(exc, "lineno", 1), getattr(exc, "msg", exc))) from None


def _no_constant(word: str) -> t.Any:
    raise ConfigError("invalid JSON: %s is not a value" % word)


def _integer(text: str) -> int:
    if len(text) > DIGIT_LIMIT:
        raise ConfigError("%s is too long for a number (%d characters)" % (show(text), len(text)))
    return int(text)


def _mapping(pairs: t.Sequence[t.Tuple[str, t.Any]]) -> t.Dict[str, t.Any]:
    result: t.Dict[str, t.Any] = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError("duplicate key %s: keep one" % show(key))
        result[key] = value
    return result


def _parse_yaml(text: str) -> t.Any:
    if len(text) > YAML_LIMIT:
        raise ConfigError(
            "%d characters of YAML are more than the %d that are read: write JSON" % (len(text), YAML_LIMIT)
        )
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        found = [_node(next(events), events) for event in events if isinstance(event, yaml.DocumentStartEvent)]
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = ", line %d" % (mark.line + 1) if mark else ""
        problem = getattr(exc, "problem", None) or " ".join(str(exc).split())
        raise ConfigError("invalid YAML%s: %s" % (where, problem)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        # PyYAML's scanner lets these through, for an escape beyond Unicode or a directive of thousands of digits.
        raise ConfigError("invalid YAML: %s" % exc) from None
    if len(found) > 1:
        raise ConfigError("%d YAML documents, of which none can be preferred: keep one" % len(found))
    return found[0] if found else None


def _node(event: t.Any, events: t.Iterator[t.Any], depth: int = 0) -> t.Any:
    """The value that begins with an event, and ends with the last one that this takes.

    PyYAML's own constructors would resolve what nobody asks for (dates, sexagesimal numbers in quadratic time).
    """
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        raise ConfigError("line %d: aliases (*name) are not supported; write the value" % line)
    if event.tag is not None:
        raise ConfigError("line %d: tags (%s) are not supported; write the value" % (line, show(event.tag)))
    if isinstance(event, yaml.ScalarEvent):
        if len(event.value) > VALUE_LIMIT:
            raise ConfigError("line %d: a value of %d characters is too long" % (line, len(event.value)))
        return _plain_scalar(event.value) if event.implicit[0] else event.value
    if depth == DEPTH_LIMIT:
        raise ConfigError("line %d: nested too deeply" % line)
    inside = itertools.takewhile(lambda child: not isinstance(child, yaml.CollectionEndEvent), events)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_node(child, events, depth + 1) for child in inside]
    return _mapping([(_key(child), _node(next(events), events, depth + 1)) for child in inside])


def _key(event: t.Any) -> str:
    line = event.start_mark.line + 1
    if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
        raise ConfigError("line %d: a key must be text" % line)
    if event.value == "<<":
        raise ConfigError("line %d: merge keys (<<) are not supported; write the keys" % line)
    return t.cast(str, event.value)


def _plain_scalar(text: str) -> t.Any:
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if _YAML_INTEGER.match(text):
        return _integer(text.replace("_", ""))
    return float(text.replace("_", "")) if _YAML_FLOAT.match(text) else text


def _kind(data: t.Any) -> str:
    return {list: "list", str: "text", bool: "boolean"}.get(type(data), "number")
