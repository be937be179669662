# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module's word and deed: options, examples and return values are what its documentation says."""

from __future__ import annotations

import ipaddress
import os
import re
import typing as t

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import fixed_addresses, saved_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import converge
from ansible_collections.kubenode.ip_masq.plugins.modules import ip_masq
from hypothesis import given
from hypothesis import strategies as st
from support import engine, module_process, random_policies
from support.machine import NFT, Machine
from support.nat import Nat
from support.random_policies import CHAIN

# The module is imported here for its documentation, and run there as a program.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")

EXAMPLES: t.List[t.Dict[str, t.Any]] = yaml.safe_load(ip_masq.EXAMPLES)
RETURN: t.Dict[str, t.Any] = yaml.safe_load(ip_masq.RETURN)
#: What every module returns, so that no RETURN names it.
ALWAYS = {"changed", "diff", "invocation", "warnings", "msg", "failed"}


def needs_nft(example: t.Dict[str, t.Any]) -> bool:
    """Whether an example is for the other backend, whose own tests run it."""
    options = example["kubenode.ip_masq.ip_masq"] or {}
    return options.get("backend") == "nftables" or options.get("exemption") == "enforce"


def run(check: bool = False, **options: t.Any) -> t.Dict[str, t.Any]:
    """Run the module as Ansible would."""
    result = module_process.run(module_process.Run(options, check=check, diff=True))
    assert "crashed" not in result, result["crashed"]
    return result


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if not needs_nft(one)], ids=lambda example: example["name"]
)
def test_every_example_runs_and_is_idempotent(
    example: t.Dict[str, t.Any], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = example["kubenode.ip_masq.ip_masq"] or {}
    fixed = [ipaddress.ip_address(entry["address"]) for entry in options.get("snat", [])]
    monkeypatch.setattr(fixed_addresses, "node_addresses", lambda: fixed)
    result = run(**options)
    assert not result.get("failed"), result["msg"]
    assert run(**options)["changed"] is False


def keys(value: t.Any, prefix: str = "") -> t.Set[str]:
    """Every path of keys in a returned value."""
    if isinstance(value, dict):
        return {prefix + key for key in value} | {
            path for key in value for path in keys(value[key], prefix + key + ".")
        }
    if isinstance(value, list):
        return {path for entry in value for path in keys(entry, prefix)}
    return set()


def documented(contains: t.Dict[str, t.Any], prefix: str = "") -> t.Set[str]:
    """Every path of keys that RETURN names. What is the same for both families is described once, for ipv4."""
    found = {prefix + name for name in contains}
    for name, about in contains.items():
        found |= documented(about.get("contains", {}), prefix + name + ".")
    return found


def test_documented_return_values_are_the_return_values(machine: Machine) -> None:
    result = run(enable_ipv6=True)
    returned = {key: value for key, value in result.items() if key not in ALWAYS}
    same_for_ipv6 = {path.replace("ipv4.", "ipv6.") for path in documented(RETURN) if "ipv4." in path}
    # Names of pods are returned if the node knows any.
    assert keys(returned) == (documented(RETURN) | same_for_ipv6) - {"effects.pods"}


def test_every_return_value_has_a_sample_of_its_type() -> None:
    kinds = {"str": str, "list": list, "dict": dict, "bool": bool, "int": int}

    def check(contains: t.Dict[str, t.Any]) -> None:
        for name, about in contains.items():
            assert about["description"], name
            if "sample" in about:
                assert isinstance(about["sample"], kinds[about["type"]]), name
            check(about.get("contains", {}))

    check(RETURN)


@given(engine.random_worlds(), st.booleans())
def test_every_action_is_documented(world: random_policies.World, present: bool) -> None:
    named = set(re.findall(r"C\(([^)]+)\)", " ".join(RETURN["actions"]["contains"]["action"]["description"])))
    change = converge(engine.backend(Nat(chains=world.chains)), engine.wanted(world) if present else None, check=True)
    assert {action.action for action in change.plan.actions} <= named


def test_returned_rules_actions_and_diff_are_what_happened(machine: Machine) -> None:
    machine.put(NFT, "ipv4", POSTROUTING=["-j KUBE-POSTROUTING"], KUBE_POSTROUTING=[])
    result = run(non_masquerade_cidrs=["10.0.0.0/8"])
    nat = machine.nat[NFT, "ipv4"]
    chain = ["-A %s %s" % (CHAIN, rule) for rule in nat.chains[CHAIN]]
    jump = "-A POSTROUTING " + nat.chains["POSTROUTING"][1]
    assert result["changed"] is True
    assert result["backend"] == {"name": NFT, "version": "1.8.9"}
    assert result["families"] == {"ipv4": {"rules": chain, "jump": jump}}
    assert [
        (action["family"], action["backend"], action["action"], action["rule"]) for action in result["actions"]
    ] == [
        ("ipv4", NFT, "chain created", "-N " + CHAIN),
        *(("ipv4", NFT, "rule added", rule) for rule in chain),
        ("ipv4", NFT, "jump added", jump),
    ]
    title = "# ipv4, iptables_nft\n"
    kept = "-A POSTROUTING -j KUBE-POSTROUTING\n"
    assert result["diff"]["before"] == title + kept
    (effect,) = result["effects_summary"]
    assert effect == ("0.0.0.0/0 except 10.0.0.0/8, 169.254.0.0/16: not managed -> node, 0 open connections")
    told = "# what changes for packets\n%s\n" % effect
    assert result["diff"]["after"] == "%s-N %s\n%s\n%s%s\n%s" % (title, CHAIN, "\n".join(chain), kept, jump, told)


def test_absent_warns_of_files_that_bring_the_rules_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_rules, "notes", lambda chains: ("saved: " + ", ".join(chains),))
    for state, expected in (("present", False), ("absent", True)):
        warnings = run(state=state, masq_chain="MINE").get("warnings", [])
        assert any(warning.endswith("saved: MINE") for warning in warnings) is expected, warnings


@pytest.mark.parametrize(
    "options, problem",
    [
        (
            {"non_masquerade_cidrs": ["10.0.0.1/8"]},
            "non_masquerade_cidrs: '10.0.0.1/8' .* aligned network is 10.0.0.0/8",
        ),
        ({"lock_timeout": -1}, "lock_timeout: -1 is outside"),
        ({"lock_timeout": 10**9}, "lock_timeout: 1000000000 is outside"),
        ({"backend": "nonsense"}, "backend must be one of"),
        ({"config_file": "/nonexistent", "cidr_limit": 65}, "mutually exclusive"),
        ({"config_file": "/dev/null"}, "not a regular file"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    machine: Machine, options: t.Dict[str, t.Any], problem: str
) -> None:
    result = run(**options)
    assert result["failed"] is True and not result.get("changed")
    assert re.search(problem, result["msg"]), result["msg"]
    assert machine.asked == []


def test_a_config_file_is_the_policy_and_its_notes_are_warnings(machine: Machine, tmp_path: t.Any) -> None:
    path = tmp_path / "config"
    path.write_text('{"nonMasqueradeCIDRs": ["10.0.0.0/8"], "masqLinkLocal": true, "nonMasqueradeCidr": []}')
    result = run(config_file=str(path))
    assert [rule.split()[3] for rule in result["families"]["ipv4"]["rules"] if "-d" in rule] == ["10.0.0.0/8"]
    (warning,) = [text for text in result["warnings"] if "'nonMasqueradeCidr' is not known" in text]
    assert warning.startswith(os.uname().nodename + ": ") and warning.endswith("nonMasqueradeCIDRs")
