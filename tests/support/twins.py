# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Twins of the namespace in which a process is."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import intervals
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Runner, run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state, twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import NotAvailable
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.packet_policy import (
    NODE,
    POD,
    Entry,
    Policy,
    Promise,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.rules import Match


def build(runner: Runner = run) -> twin.Twin:
    """Build the twin of where this process is.

    :param runner: starts programs for it.
    :raises AssertionError: there is none.
    """
    made = twin.build(node_state.read(runner), runner)
    assert not isinstance(made, NotAvailable), made
    return made


def exempt(networks: t.Sequence[t.Any], sources: t.Sequence[t.Any] = (), others: t.Optional[str] = NODE) -> Policy:
    """Return the usual policy: what goes to some ranges shows the pod, all else shows the node.

    :param sources: networks of pods that are meant; empty: all.
    :param others: what is said of all else.
    """
    entries = {}
    for family in FAMILIES:
        own = [one for one in sources if one.version == family.version]
        source = intervals.of_networks(own) if own else None
        ranges = intervals.of_networks(one for one in networks if one.version == family.version)
        entries[family] = (
            Entry(Match(source=source, destination=ranges), Promise(POD)),
            Entry(Match(source=source), Promise(others) if others else None),
        )
    return Policy(entries, pods=tuple(sources))
