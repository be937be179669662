# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A short text that differs if anything differs that the result of a verification depends on.

All that a verification looks at is in the state that was read and in the policy. What packets and time alone change is
left out: counters, lifetimes, elements that rules add to sets. A result that depends on these is never complete, as
conditions about them are unknown.
"""

from __future__ import annotations

import hashlib
import os
import typing as t

from ..._system import ipsets, nf_tables, xtables
from ..._twin import routing
from ..._twin.node_state import NodeState
from ..ways.packet_policy import Policy

_BOOT = "/proc/sys/kernel/random/boot_id"
_NETWORK = "/proc/self/ns/net"
#: What of a state is taken apart here, because packets or time change something in it, or because it has no order.
_IN_PARTS = frozenset(("tables", "sets", "legacy", "routing", "neighbours", "settings"))


def fingerprint(state: NodeState, policy: Policy, program: str) -> t.Optional[str]:
    """Return the text; None if the state changes with time alone, or if it cannot be read.

    :param program: what the result depends on besides: the program that makes it.
    """
    if _is_timed(state):
        return None
    try:
        with open(_BOOT, encoding="ascii") as boot:
            place = (boot.read(), os.stat(_NETWORK))
    except OSError:
        return None
    made = hashlib.sha256()
    for part in _parts(state):
        made.update(b"%d:" % len(part))
        made.update(part)
    namespace = (place[1].st_dev, place[1].st_ino)
    parts = (sorted(policy.entries.items()), policy.pods, policy.leaks, sorted(policy.hidden.items()))
    made.update(repr((program, place[0], namespace, *parts)).encode())
    return made.hexdigest()


def _is_timed(state: NodeState) -> bool:
    return (
        any(map(nf_tables.is_timed, state.tables))
        or any(map(ipsets.is_timed, state.sets))
        or any(xtables.has(table, "time") for table in state.legacy)
    )


def _parts(state: NodeState) -> t.Iterator[bytes]:
    for table in state.tables:
        yield from nf_tables.lasting(table)
    for one in state.sets:
        yield from ipsets.lasting(one)
    for legacy in state.legacy:
        yield from xtables.lasting(legacy)
    yield from routing.lasting(state.routing)
    known = state.neighbours
    listed = [sorted(state.settings.items()), sorted(known.hardware.items()), sorted(known.ports.items())]
    # All else that a state has, now or later, as it is.
    rest = [(name, getattr(state, name)) for name in state._fields if name not in _IN_PARTS]
    yield repr((listed, rest)).encode("utf-8", "surrogateescape")
