# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Config files in YAML, where PyYAML is installed: its parser, and values of our own.

PyYAML's constructors resolve what no policy needs (dates, objects, sexagesimal integers in quadratic time).
"""

from __future__ import annotations

import itertools
import re
import sys
import typing as t

from .._errors import ConfigError
from .foreign_file import several_documents
from .values import KEY_LIMIT, parse_integer, show, unique

try:
    if sys.flags.no_site:
        # The agent starts without the directories of packages, which others may fill; see program_modules. site.main()
        # would look up root's home, for which libc asks nscd, by a socket in /var that may not answer.
        import site

        site.addsitepackages(site.venv(None) or set())
    import yaml
except (Exception, SystemExit):
    # Whatever stands in its place.
    yaml = None  # type: ignore[assignment]

#: Characters of a file. PyYAML reads about 100,000 a second, and half of that where every second one is a value.
LIMIT = 1024 * 1024

#: Levels of lists and mappings inside each other; a policy has two. PyYAML's time grows with the square of it.
DEPTH_LIMIT = 32

#: Characters of a value.
VALUE_LIMIT = 4096

#: Plain scalars of YAML 1.1 (https://yaml.org/type/) that are no text, less the other notations of numbers: what one
#: reader takes for 64 is 100 to another.
_WORDS: t.Dict[str, t.Optional[bool]] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS.update((form, True) for word in ("true", "yes", "on") for form in (word, word.title(), word.upper()))
_WORDS.update((form, False) for word in ("false", "no", "off") for form in (word, word.title(), word.upper()))
# Patterns are text: a start that compiled all of them took 2.8 % longer.
_INTEGER = r"[-+]?(?:0|[1-9][0-9_]*)\Z"
_FLOAT = r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?\Z"

#: What a key of YAML without quotation marks does not have.
_OF_JSON = r"[\[\]{}\"]"


def parse(text: str) -> t.Any:
    """Parse a file with one YAML document; None for one without.

    :raises ConfigError: PyYAML is not installed; invalid YAML (with the line); or what is not supported, or too much.
    """
    if yaml is None:
        raise ConfigError("is not JSON, and for YAML Python has no yaml module: install python3-yaml, or write JSON")
    if len(text) > LIMIT:
        raise ConfigError("%d characters of YAML are more than the %d that are read: write JSON" % (len(text), LIMIT))
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
        raise ConfigError(several_documents(found))
    return found[0] if found else None


def _node(event: t.Any, events: t.Iterator[t.Any], depth: int = 0) -> t.Any:
    """Return the value that begins with an event, and ends with the last one that this takes."""
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        raise ConfigError("line %d: aliases (*name) are not supported; write the value" % line)
    if event.tag is not None:
        raise ConfigError("line %d: tags (%s) are not supported; write the value" % (line, show(event.tag)))
    if isinstance(event, yaml.ScalarEvent):
        if len(event.value) > VALUE_LIMIT:
            remedy = ": if it is the text of a ConfigMap, write only that text" if "\n" in event.value else ""
            raise ConfigError("line %d: a value of %d characters is too long%s" % (line, len(event.value), remedy))
        return _plain_scalar(event.value) if event.implicit[0] else event.value
    if depth == DEPTH_LIMIT:
        raise ConfigError("line %d: nested too deeply" % line)
    inside = itertools.takewhile(lambda child: not isinstance(child, yaml.CollectionEndEvent), events)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_node(child, events, depth + 1) for child in inside]
    pairs: t.List[t.Tuple[str, t.Any]] = []
    for child in inside:
        if len(pairs) == KEY_LIMIT:
            # Here and not when all is read: PyYAML takes seconds for 100,000 keys, and the agent reads at each tick.
            raise ConfigError("line %d: more than %d keys: is it the right file?" % (line, KEY_LIMIT))
        pairs.append((_key(child), _node(next(events), events, depth + 1)))
    return unique(pairs)


def _key(event: t.Any) -> str:
    line = event.start_mark.line + 1
    if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
        raise ConfigError("line %d: a key must be text" % line)
    if event.value == "<<":
        raise ConfigError("line %d: merge keys (<<) are not supported; write the keys" % line)
    if event.style is None and re.search(_OF_JSON, event.value):
        # One character in front of {"key": true} makes YAML of it, with a key that no policy has.
        why = "line %d: %s is not a key of YAML: if the file is JSON, remove what is before its first brace"
        raise ConfigError(why % (line, show(event.value)))
    return event.value


def _plain_scalar(text: str) -> t.Any:
    if text in _WORDS:
        return _WORDS[text]
    if re.match(_INTEGER, text):
        return parse_integer(text.replace("_", ""))
    return float(text.replace("_", "")) if re.match(_FLOAT, text) else text
