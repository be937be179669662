# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A strict reader of the Prometheus text format 0.0.4, as promtool check metrics would have it. Python 3.8."""

from __future__ import annotations

import re
import typing as t

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(r"# HELP (%s) (\S.*)\Z" % _NAME)
_TYPE = re.compile(r"# TYPE (%s) (counter|gauge)\Z" % _NAME)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"')
_SAMPLE = re.compile(r"(%s)(?:\{(.*)\})? (\S+)\Z" % _NAME)

Labels = t.Tuple[t.Tuple[str, str], ...]


class Metrics(t.NamedTuple):
    """Values by name and labels, and the type of each name."""

    values: t.Dict[t.Tuple[str, Labels], float]
    types: t.Dict[str, str]


def parse(text: str) -> Metrics:
    """Read a file of metrics.

    :raises AssertionError: what a strict reader refuses: no newline at the end, a sample without or apart from
        its HELP and TYPE, a name or a series told twice, a malformed label or value.
    """
    assert text.endswith("\n") and not text.endswith("\n\n"), "the file must end in one newline"
    found = Metrics({}, {})
    helped: t.Set[str] = set()
    current = ""
    for line in text[:-1].split("\n"):
        about, kind, sample = _HELP.match(line), _TYPE.match(line), _SAMPLE.match(line)
        if about:
            current = about.group(1)
            assert current not in helped, "told twice: " + line
            helped.add(current)
        elif kind:
            assert kind.group(1) == current and current not in found.types, "out of place: " + line
            found.types[current] = kind.group(2)
        else:
            assert sample, "not a line of this format: %r" % line
            assert sample.group(1) == current and current in found.types, "apart from its HELP and TYPE: " + line
            key = (current, _labels(sample.group(2)))
            assert key not in found.values, "told twice: " + line
            found.values[key] = float(sample.group(3))
    assert set(found.types) == helped, "HELP without TYPE"
    return found


def _labels(text: t.Optional[str]) -> Labels:
    if text is None:
        return ()
    found = _LABEL.findall(text)
    assert ",".join('%s="%s"' % label for label in found) == text, "malformed labels: {%s}" % text
    assert len({name for name, _value in found}) == len(found), "a label told twice: {%s}" % text
    return tuple(sorted(found))
