# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No option can be forgotten: each is known wherever policies are written, compared, verified, tested and explained."""

from __future__ import annotations

import ast
import typing as t
import warnings

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import backend_choice, nftables_ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.changed_packets import Comparison
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.effects import Effects, unseen
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import render_rule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.masquerade_ports import chosen
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Ruleset
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import (
    BACKENDS,
    EXEMPTIONS,
    POLICY_OPTIONS,
    build,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.packet_policy import policy_of
from support import random_policies
from support.import_collection import ROOT
from support.nft_tables import text_of


class Case(t.NamedTuple):
    """Two values of an option that treat packets differently, and what else the policy needs for that."""

    one: t.Any
    other: t.Any
    beside: t.Mapping[str, t.Any] = {}


_PODS = {"source_cidrs": ["10.244.0.0/16"]}

#: Options that decide about packets.
PACKETS = {
    "non_masquerade_cidrs": Case([], ["10.0.0.0/8"]),
    "masq_link_local": Case(False, True),
    "masq_link_local_ipv6": Case(False, True, {"enable_ipv6": True}),
    "enable_ipv6": Case(False, True),
    "random_fully": Case(False, True),
    "to_ports": Case([], ["3000-3999"]),
    "exemption": Case("return", "accept"),
    "masquerade_cidrs": Case([], ["10.9.0.0/16"]),
    "source_cidrs": Case([], ["10.244.0.0/16"]),
    "out_interfaces": Case([], ["eth0"]),
    "except_interfaces": Case([], ["eth0"]),
    "skip_marks": Case([], ["0x1/0x1"]),
    "snat": Case([], [{"address": "192.0.2.7"}]),
    "rules": Case([], [{"action": "exempt", "destinations": ["203.0.113.0/24"]}]),
    "leaks": Case("ignore", "drop", _PODS),
}

#: Options that decide about no packet, or only with what is found on a node; and what has their tests.
OTHERS = {
    "nomasq_all_reserved_ranges": "unit/plugins/module_utils/_policy/test_policy.py",
    "cidr_limit": "unit/plugins/module_utils/_policy/test_policy.py",
    "masq_chain": "kernel/test_conformance.py",
    "node_port_range": "kernel/test_auto_ports.py",
    "backend": "kernel/test_backends.py",
    "snat_missing": "kernel/test_fixed_addresses.py",
    "jump_position": "kernel/test_jump_position.py",
    "flush_conntrack": "kernel/test_flush_conntrack.py",
    "resync_interval": "kernel/test_agent.py",
    "port_metrics": "kernel/test_source_ports.py",
}

#: Of a packet's connection, not of its address: verification does not tell them apart.
_PORTS = {"random_fully", "to_ports"}
#: Verification compares what the node does in the end.
_LATER_RULES = {"exemption", "skip_marks"}


def test_every_option_is_known_here() -> None:
    assert set(PACKETS) | set(OTHERS) == {option.name for option in POLICY_OPTIONS}


def test_the_policy_has_the_registered_backends_as_choices() -> None:
    assert BACKENDS == ("auto", *(kind.name for kind in backend_choice.BACKENDS))
    assert {exemption for kind in backend_choice.BACKENDS for exemption in kind.exemptions} == set(EXEMPTIONS)


@pytest.mark.parametrize("name", OTHERS)
def test_options_that_decide_about_no_packet_have_tests(name: str) -> None:
    (key,) = [option.key for option in POLICY_OPTIONS if option.name == name]
    text = (ROOT / "tests" / OTHERS[name]).read_text(encoding="utf-8")
    assert name in text or key in text


def rulesets(name: str) -> t.List[t.Dict[Family, Ruleset]]:
    """What two policies that differ in an option ask for, by family."""
    case = PACKETS[name]
    configs = [build(dict(case.beside, **{name: value})) for value in (case.one, case.other)]
    return [{family: from_config(config, family) for family in config.families} for config in configs]


def _iptables(ruleset: Ruleset, _family: Family) -> t.List[str]:
    return [render_rule("X", rule) for rule in (*ruleset.rules, *ruleset.leak_rules)]


def _nftables(ruleset: Ruleset, family: Family) -> str:
    return text_of(nftables_ruleset.from_ruleset(ruleset, family))


@pytest.mark.parametrize("name", PACKETS)
@pytest.mark.parametrize("write", [_iptables, _nftables])
def test_every_backend_writes_it(name: str, write: t.Callable[[Ruleset, Family], t.Any]) -> None:
    one, other = ([write(ruleset, family) for family, ruleset in side.items()] for side in rulesets(name))
    assert one != other


@pytest.mark.parametrize("name", PACKETS)
def test_effects_and_verification_tell_it(name: str) -> None:
    one, other = rulesets(name)
    effects: t.List[t.Any] = []
    for family in {**one, **other}:
        before, after = ([side[family]] if family in side else [] for side in (one, other))
        effects += [*Effects(Comparison(family, before, after, ports=chosen)).effects, *unseen(family, before, after)]
    assert effects, "effects"
    assert policy_of(one) != policy_of(other) or name in _LATER_RULES | _PORTS, "verification"


@pytest.fixture(scope="module")
def drawn() -> t.List[t.Dict[str, t.Any]]:
    """Random policies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [random_policies.narrow_policies.example() for _again in range(30)]


@pytest.mark.parametrize("name", sorted(set(PACKETS) - {"enable_ipv6"}))
def test_random_policies_vary_it(drawn: t.List[t.Dict[str, t.Any]], name: str) -> None:
    assert len({repr(one[name]) for one in drawn}) > 1


def _names(path: str, *functions: str) -> t.Set[str]:
    """Return the strings and attributes in functions of the tests."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    bodies = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name in functions]
    nodes = [node for body in bodies for node in ast.walk(body)]
    strings = {one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return strings | {one.attr for one in nodes if isinstance(one, ast.Attribute)}


@pytest.mark.parametrize("name", PACKETS)
def test_policies_with_real_packets_have_it(name: str) -> None:
    assert name in _names("kernel/test_random_policies.py", "policy")


@pytest.mark.parametrize("name", sorted(set(PACKETS) - {"exemption"}))
def test_an_oracle_of_packets_heeds_it(name: str) -> None:
    oracles = _names("kernel/test_random_policies.py", "test_every_packet_shows_what_the_policy_says")
    oracles |= _names("support/packet_model.py", "decided", "ports", "is_skipped")
    oracles |= _names("strange/policies.py", "promise", "exempt_ranges", "_met", "_masqueraded")
    assert name in oracles or name == "enable_ipv6", "the oracles are asked for each family"


@pytest.mark.parametrize("name", PACKETS)
def test_the_page_on_policies_explains_it(name: str) -> None:
    assert "`%s`" % name in (ROOT / "docs/policies.md").read_text(encoding="utf-8")
