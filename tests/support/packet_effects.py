# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the effects that are reported a packet has."""

from __future__ import annotations

import typing as t

from strange import policies

Effect = t.Dict[str, t.Any]


def is_in(address: str, networks: t.Iterable[str]) -> bool:
    """Return whether one of the networks has it."""
    return policies.within(address, networks) >= 0


def effect_of(
    effects: t.Sequence[Effect], source: str, destination: str, protocol: str, port: int, link: str
) -> t.Optional[Effect]:
    """Return the effect that a packet without a mark has; None: nothing changes for it."""
    found = [
        one
        for one in effects
        if one["packets"] == ""
        and is_in(destination, one["destinations"])
        and not is_in(destination, one["destinations_except"])
        and (not one["sources"] or is_in(source, one["sources"]))
        and not is_in(source, one["sources_except"])
        and leaves_by(link, one["out_interfaces"])
        and _is_one(protocol, port, one["services"])
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def leaves_by(link: str, names: t.Sequence[str]) -> bool:
    """Return whether a list has an interface: of several entries that match, the last counts."""
    state = not names or names[0].startswith("!")
    for entry in names:
        name = entry.lstrip("!")
        if link == name or (name[-1] == "*" and link.startswith(name[:-1])):
            state = not entry.startswith("!")
    return state


def _is_one(protocol: str, port: int, services: t.Sequence[str]) -> bool:
    state = not services or services[0].startswith("!")
    for entry in services:
        name, _slash, ports = entry.lstrip("!").partition("/")
        first, _dash, last = ports.partition("-")
        if name == protocol and (not ports or int(first) <= port <= int(last or first)):
            return not state if entry.startswith("!") else True
    return state
