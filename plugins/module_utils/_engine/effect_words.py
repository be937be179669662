# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The effects of a change on one line each, from what modules return of them: on nodes and on the controller."""

from __future__ import annotations

import typing as t

from .._system import pod_names
from .._system.printable import first_of
from . import range_words

#: Packets of an effect that belong to no connection.
WITHOUT_CONNECTION = "without a connection"

#: Beside effects, of a change of the place of the rules.
MOVED = "the rules get another place among those of other programs; what that means for packets was not compared"

#: As RETURN of the module ip_masq documents it.
Returned = t.Mapping[str, t.Any]


def line(effect: Returned) -> str:
    """Return an effect with the names of its pods and its open connections."""
    sources = pod_names.beside(effect["sources"], effect.get("pods", {}))
    text = change({**effect, "sources": sources})
    if effect["packets"].startswith(WITHOUT_CONNECTION):
        return text
    return "%s, %s" % (text, connections(effect["open_connections"]))


def change(effect: Returned) -> str:
    """Return an effect without pods and open connections: the same on all nodes with the same change."""
    parts = [_ranges(effect, "destinations")]
    if effect["sources"]:
        parts.append("from " + _ranges(effect, "sources"))
    for word, key, noun in (("over", "out_interfaces", "interfaces"), ("for", "services", "services")):
        if effect[key]:
            parts.append("%s %s" % (word, _listed(effect[key], noun)))
    if effect["packets"]:
        parts.append("packets " + effect["packets"])
    text = "%s: %s -> %s" % (" ".join(parts), effect["before"], effect["after"])
    # Of an older program, or as they are without a change of ports.
    before, after = effect.get("ports_before") or 0, effect.get("ports_after") or 0
    return text + " (%s source ports in place of %s)" % (format(after, ","), format(before, ",")) * (after < before)


def connections(number: t.Optional[int]) -> str:
    """Return a number of open connections."""
    if number is None:
        return "open connections not counted"
    return "%s open connection%s" % (format(number, ","), "" if number == 1 else "s")


def _ranges(effect: Returned, key: str) -> str:
    return range_words.words(effect[key], effect[key + "_except"], effect[key + "_omitted"])


def _listed(entries: t.Sequence[str], noun: str) -> str:
    if not entries[0].startswith("!"):
        return first_of([one.replace("!", "not ") for one in entries])
    return "all %s except %s" % (
        noun,
        first_of([one[1:] if one[0] == "!" else "not " + one for one in entries]),
    )
