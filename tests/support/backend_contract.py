# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every registered backend promises, whatever it is made of. Judged over a simulated node and over the kernel."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import (
    Backend,
    BackendType,
    CommitRefused,
    Managed,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import converge
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nf_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node

from .engine import same

CHAIN = "IP-MASQ-AGENT"


class Place(t.NamedTuple):
    """One family of one type of backend, on a node that has none of our rules."""

    kind: BackendType
    node: Node
    family: Family
    #: runs a command and returns its output
    run: t.Callable[[t.Sequence[str]], str]
    #: all rules of the node, read by the test's own eyes
    everything: t.Callable[[], str]

    def backend(self) -> Backend:
        """Make a backend that knows nothing of an earlier one."""
        made = self.kind.make(self.node, self.family, Managed(CHAIN))
        assert made is not None
        assert (made.name, made.family) == (self.kind.name, self.family)
        return made

    def wanted(self, **options: t.Any) -> Ruleset:
        """Return the rules of a policy."""
        options = {"non_masquerade_cidrs": ["10.0.0.0/8", "fd00::/8"], **options, "enable_ipv6": True}
        return from_config(build(options), self.family)

    def put(self, **options: t.Any) -> None:
        """Have the rules of a policy."""
        converge(self.backend(), self.wanted(**options))


def undo_restores_the_previous_state(place: Place) -> None:
    for options in ({}, {"random_fully": False}):
        backend = place.backend()
        previous = backend.observe()
        place.put(to_ports="5000-6000")
        backend.commit(backend.undo(backend.observe(), previous))
        assert place.backend().observe() == previous
        place.put(**options)


def a_refused_commit_changes_nothing(place: Place) -> None:
    for _state in ("none", "rules"):
        backend = place.backend()
        state, before = backend.observe(), place.everything()
        transaction = backend.plan(state, place.wanted(to_ports="7000")).transaction
        with pytest.raises(CommitRefused):
            backend.commit(transaction[:-1] + (_refused(transaction[-1], place.family),))
        assert backend.observe() == state
        assert place.everything() == before
        place.put()


def _refused(step: t.Any, family: Family) -> t.Any:
    if isinstance(step, str):
        return "no such command\n" + step
    return step._replace(changes=(*step.changes, nf_tables.change(nf_tables.DELETE_TABLE, family.number, "missing")))


def a_write_by_another_program_is_noticed(place: Place) -> None:
    backend = place.backend()
    before = backend.observe()
    transaction = backend.plan(before, place.wanted()).transaction
    backend.commit(transaction)
    place.put(random_fully=False)
    assert not backend.is_alone(before, transaction, backend.observe())


def the_fingerprint_changes_with_the_rules_and_not_otherwise(place: Place) -> None:
    def fingerprint() -> t.List[str]:
        backend = place.backend()
        backend.observe()
        return [place.run(command) for command in backend.fingerprint()]

    place.put()
    first = fingerprint()
    assert first and fingerprint() == first
    place.backend().observe()
    converge(place.backend(), place.wanted())
    assert fingerprint() == first
    place.put(random_fully=False)
    assert fingerprint() != first


def rules_about_leaks_are_planned_undone_and_removed_with_the_rest(place: Place) -> None:
    sources = ["10.244.0.0/16", "10.9.0.0/16", "fd00:10:244::/48"]
    for leaks in ("drop", "count", "ignore", "drop"):
        backend, wanted = place.backend(), place.wanted(leaks=leaks, source_cidrs=sources)
        previous = backend.observe()
        plan = backend.plan(previous, wanted)
        assert plan.actions and place.backend().observe() == previous
        converge(backend, wanted)
        again = place.backend().plan(place.backend().observe(), wanted)
        assert not again.actions and again.before == plan.after
        assert (
            again.found.ruleset is not None and again.found.ruleset.leaks == leaks and same(wanted, again.found.ruleset)
        )
        backend.commit(backend.undo(backend.observe(), previous))
        assert place.backend().observe() == previous
        converge(backend, wanted)
    other = place.wanted(leaks="drop", source_cidrs=["10.9.0.0/16", "fd00:9::/32"])
    assert converge(place.backend(), other).plan.actions and not converge(place.backend(), other).plan.actions
    assert converge(place.backend(), None).plan.actions
    backend = place.backend()
    assert backend.plan(backend.observe(), None).before == ()


def a_fixed_address_that_is_missing_is_read_back(place: Place) -> None:
    sources = ["10.244.0.0/16", "fd00:10:244::/48"]
    snat = [{"address": one, "source_cidrs": [pods]} for one, pods in zip(("192.0.2.7", "2001:db8::7"), sources)]
    config = build({"enable_ipv6": True, "source_cidrs": sources, "snat": snat})
    dropped = config._replace(snat=tuple(one._replace(dropped=True) for one in config.snat))
    converge(place.backend(), from_config(dropped, place.family))
    backend = place.backend()
    found = backend.plan(backend.observe(), from_config(config, place.family)).found.ruleset
    (address,) = (one.address for one in config.snat if one.address.version == place.family.version)
    assert found is not None and found.missing == (address,)


CONTRACT: t.Tuple[t.Callable[[Place], None], ...] = (
    undo_restores_the_previous_state,
    a_refused_commit_changes_nothing,
    a_write_by_another_program_is_noticed,
    the_fingerprint_changes_with_the_rules_and_not_otherwise,
    rules_about_leaks_are_planned_undone_and_removed_with_the_rest,
    a_fixed_address_that_is_missing_is_read_back,
)
