# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every backend keeps the contract of support.backend_contract, and one more is one line in the registry.

Here over simulated nodes, where there is a simulation; tests/kernel/test_backend_contract.py has all of them, for real.
"""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import backends
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import BackendType
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import reconcile
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ProgramMissingError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, IPV4, IPV6
from support.backend_contract import CONTRACT, Place
from support.machine import LEGACY, NFT, Machine
from support.memory_backend import MemoryType

REGISTERED = {kind.name: kind for kind in backends.BACKENDS}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryType:
    """A third kind of backend, registered in the one place there is."""
    kind = MemoryType()
    monkeypatch.setattr(backends, "BACKENDS", (*backends.BACKENDS, t.cast(BackendType, kind)))
    return kind


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [NFT, LEGACY])
@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_iptables(machine: Machine, name: str, family: str, promise: t.Callable[[Place], None]) -> None:
    def everything() -> str:
        nat = machine.nat[name, family]
        return repr((nat.chains, machine.legacy_tables, len(nat.commits)) if name == NFT else nat.chains)

    promise(Place(REGISTERED[name], machine.node(), family, lambda argv: machine.run(argv).stdout, everything))


@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_a_third_one(machine: Machine, memory: MemoryType, promise: t.Callable[[Place], None]) -> None:
    place = Place(memory, machine.node(), IPV4, lambda argv: memory.run(argv).stdout, lambda: repr(memory.rules))
    promise(place)


def test_a_third_one_is_chosen_and_used(machine: Machine, memory: MemoryType) -> None:
    config = policy.build({"enable_ipv6": True})
    done = reconcile(machine.node(), config)
    assert (done.backend, done.version, done.errors) == ("memory", "7.0", ())
    assert sorted(memory.rules) == [IPV4, IPV6] and machine.writes() == []
    assert "memory forgets" in done.notes
    assert not reconcile(machine.node(), config).changed and memory.writes == 2
    assert reconcile(machine.node(), config._replace(backend=NFT)).backend == NFT
    assert memory.rules == {}, "left-over rules stayed"


def test_a_third_one_that_lacks_what_is_asked_for_is_refused(machine: Machine, memory: MemoryType) -> None:
    reason = "no backend is available .* for exemption enforce: install the package nftables"
    with pytest.raises(ProgramMissingError, match=reason) as refused:
        backends.choose(machine.node(), "auto", "enforce")
    assert refused.value.package == "nftables"


def test_the_policy_has_the_registered_backends_as_choices() -> None:
    assert policy.BACKENDS == ("auto", *REGISTERED)
    supported = {exemption for kind in REGISTERED.values() for exemption in kind.exemptions}
    assert supported == set(policy.EXEMPTIONS)
