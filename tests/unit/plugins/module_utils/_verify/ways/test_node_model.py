# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node as values."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing.routing_lookups import Lookups
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.node_model import NodeModel
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.packet_policy import Policy
from support.node_states import state


def test_types_of_addresses_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made of all local routes."""
    computed: t.List[Lookups] = []
    types = Lookups.types
    monkeypatch.setattr(Lookups, "types", lambda self: computed.append(self) or types(self))
    NodeModel(state(), IPV4, Policy({}))
    assert len(computed) == 1
