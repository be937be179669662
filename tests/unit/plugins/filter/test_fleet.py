# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook status says of many nodes."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.filter.fleet import FilterModule
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._fleet import ASKED
from support.fleet_answers import MISSING, PROBLEM, asked, verified

fleet = FilterModule().filters()["fleet"]


def summed_up(nodes: t.Mapping[str, t.Mapping[str, t.Any]], **variables: t.Any) -> t.Dict[str, t.Any]:
    """The filter's result for these answers; a host that is not known is left out."""
    hostvars = {name: {ASKED: answer, **variables} for name, answer in nodes.items()}
    return t.cast(t.Dict[str, t.Any], fleet([*nodes, "nowhere"], hostvars))


def applied(by: str, edited: bool = False) -> t.Dict[str, t.Any]:
    """The part of a report that says what applied the policy."""
    return {"last_applied": {"by": by, "time": 1795233600.0, "edited": edited}}


BROKEN = {"config": {"sources": [], "problem": PROBLEM}}

#: what a node answers -> its line, without its name; None if it is well
LINES: t.Dict[str, t.Tuple[t.Dict[str, t.Any], t.Optional[str]]] = {
    "well": (asked(), None),
    "unreachable": (
        {"unreachable": True, "msg": "Failed to connect\nvia ssh"},
        "unreachable: Failed to connect via ssh",
    ),
    "no Python": ({"failed": False, "msg": "python3: not found"}, "not checked: python3: not found"),
    "no Python, in the words of the shell": (
        {
            "failed": False,
            "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found\n",
            "module_stdout": "",
            "msg": "The module failed to execute correctly, you probably need to set the interpreter.",
        },
        "not checked: /bin/sh: 1: /usr/bin/python3: not found: install python3 on the node, or set "
        "ansible_python_interpreter",
    ),
    "no Python, through a terminal": (
        {
            "module_stderr": "Shared connection to 192.0.2.1 closed.\r\n",
            "module_stdout": "/bin/sh: 1: /usr/bin/python3: not found\r\nmore\r\n",
            "msg": "MODULE FAILURE",
        },
        "not checked: /bin/sh: 1: /usr/bin/python3: not found: install python3 on the node, or set "
        "ansible_python_interpreter",
    ),
    "a Python that fails": (
        {
            "module_stderr": "Traceback (most recent call last):\n  File x\nImportError: no zlib\n",
            "msg": "MODULE FAILURE",
        },
        "not checked: ImportError: no zlib (MODULE FAILURE)",
    ),
    "not installed": ({"installed": False}, "not installed: run kubenode.ip_masq.apply"),
    "no report": (
        {"installed": True, "problems": ["ip-masq-agent status: requires root"], "pending": [], "differs": []},
        "no report: ip-masq-agent status: requires root",
    ),
    "drifted": (
        asked({"in_sync": False, "differs": [MISSING, MISSING]}),
        "not in sync: pending changes: ipv4, iptables_nft: rule added: -A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN"
        " (and 1 more)",
    ),
    "broken": (asked(BROKEN), "broken config: %s; the last valid configuration stays active" % PROBLEM),
    "broken, which is why all differs": (
        asked(BROKEN, differs=["nonMasqueradeCIDRs"]),
        "broken config: %s; the last valid configuration stays active" % PROBLEM,
    ),
    "an error now": (
        asked({"in_sync": False, "errors": ["ipv6: ip6tables is missing"]}),
        "failing: ipv6: ip6tables is missing",
    ),
    "an error at the last resync": (
        asked({"failing": True, "last_error": {"time": 1.0, "lines": ["the xtables lock", "x"]}}),
        "failing: last resync: the xtables lock (and 1 more)",
    ),
    "a service that cannot run": (
        asked(service_failure="result exit-code, exit status 203"),
        "failing: ip-masq-agent.service: result exit-code, exit status 203; run kubenode.ip_masq.apply",
    ),
    "a service that says what status says": (
        asked(BROKEN, service_failure="result exit-code, exit status 3"),
        "broken config: %s; the last valid configuration stays active" % PROBLEM,
    ),
    "another policy": (
        asked(
            applied("kubenode.ip_masq.apply"),
            differs=["nonMasqueradeCIDRs", "sourceCIDRs", "resyncInterval"],
            differences={
                "nonMasqueradeCIDRs": {"node": "100.64.0.0/10", "config": "172.16.0.0/12, 192.168.0.0/16"},
                "sourceCIDRs": {"node": "10.244.0.0/16", "config": "none"},
                "resyncInterval": {"node": "5m", "config": "60s"},
            },
        ),
        "policy differs from inventory: ip_masq_agent_non_masquerade_cidrs: only on the node 100.64.0.0/10, only in "
        "the inventory 172.16.0.0/12, 192.168.0.0/16; ip_masq_agent_source_cidrs: only on the node 10.244.0.0/16; "
        "ip_masq_agent_resync_interval: 5m on the node, 60s in the inventory; last applied by kubenode.ip_masq.apply",
    ),
    "another policy, edited on the node": (
        asked(applied("the play 'Masquerade pods' in /home/operator", edited=True), differs=["cidrLimit"]),
        "policy differs from inventory: ip_masq_agent_cidr_limit; last applied by the play 'Masquerade pods' in "
        "/home/operator; the file was edited on the node since",
    ),
    "another policy, which is derived": (
        asked(applied("kubenode.ip_masq.kubespray"), differs=["nonMasqueradeCIDRs"]),
        "policy differs from inventory: ip_masq_agent_non_masquerade_cidrs; last applied by "
        "kubenode.ip_masq.kubespray; compare with kubenode.ip_masq.kubespray_status",
    ),
    "another policy, of an agent that remembers no origin": (
        asked(differs=["nonMasqueradeCIDRs", "resyncInterval"]),
        "policy differs from inventory: ip_masq_agent_non_masquerade_cidrs; ip_masq_agent_resync_interval",
    ),
    "an answer that is none": (
        {"installed": True},
        "no report: the answer is not understood: KeyError('problems')",
    ),
    "ssh": (
        {
            "unreachable": True,
            "msg": 'Task failed: Data could not be sent to remote host "192.0.2.7". Make sure this host can be reached '
            "over ssh: ssh: connect to host 192.0.2.7 port 22: Connection refused\r\n",
        },
        "unreachable: ssh: connect to host 192.0.2.7 port 22: Connection refused",
    ),
    "ssh, ansible-core 2.18": (
        {"unreachable": True, "msg": "Failed to connect to the host via ssh: n7: Permission denied (publickey)."},
        "unreachable: n7: Permission denied (publickey).",
    ),
    "escape sequences": ({"unreachable": True, "msg": "a\x1b[2Jb\u202ec"}, "unreachable: a\\x1b[2Jb\\u202ec"),
    "a timer that does not run": (
        asked(pending=["enable: ip-masq-agent.timer", "start: ip-masq-agent.timer"]),
        "to be applied: enable: ip-masq-agent.timer (and 1 more)",
    ),
}


@pytest.mark.parametrize("case", LINES)
def test_a_node_that_is_off_has_one_line(case: str) -> None:
    answer, line = LINES[case]
    found = summed_up({"n1": answer})
    lines = [text for text in found["lines"] if text.startswith("n1: ")]
    assert lines == ([] if line is None else ["n1: " + line])
    assert found["off"] == ([] if line is None else ["n1"])
    assert found["reasons"] == ({} if line is None else {"n1": line}) and found["shown_by"] == ["n1"]
    state = "in sync" if line is None else line.partition(":")[0] + " (n1)"
    assert found["lines"][-1] == "1 node: 1 " + state


PLAY = "the play 'Masquerade pods' in /home/operator"

#: what applied the policy of other nodes, the playbook of the run -> the advice for a node without an agent
ADVICE: t.Dict[t.Tuple[t.Tuple[str, ...], str], str] = {
    ((), ""): "run kubenode.ip_masq.apply",
    (("kubenode.ip_masq.apply",), ""): "run kubenode.ip_masq.apply",
    (("kubenode.ip_masq.kubespray",), ""): (
        "run what applied the policy to the other nodes: kubenode.ip_masq.kubespray"
    ),
    (("kubenode.ip_masq.kubespray",), "kubenode.ip_masq.kubespray"): "run kubenode.ip_masq.kubespray",
    ((PLAY, "a", "b", "c", "d"), ""): "run what applied the policy to the other nodes: a, b, c and 2 more",
}


@pytest.mark.parametrize("origins, playbook", ADVICE)
def test_advice_to_apply_names_what_applied_the_policy_elsewhere(origins: t.Tuple[str, ...], playbook: str) -> None:
    nodes = {"n%d" % number: asked(applied(origin)) for number, origin in enumerate(origins, 2)}
    nodes.update(n1={"installed": False}, broken={"report": 7})
    found = fleet(list(nodes), {name: {ASKED: answer} for name, answer in nodes.items()}, playbook=playbook)
    assert "n1: not installed: " + ADVICE[origins, playbook] in found["lines"]
    assert found["reasons"]["n1"] == "not installed: " + ADVICE[origins, playbook]
    # A derived policy is what these nodes are compared with.
    derived = asked(applied("kubenode.ip_masq.kubespray"), differs=["cidrLimit"])
    found = fleet(["n1"], {"n1": {ASKED: derived}}, playbook=playbook)
    assert ("compare with" in found["reasons"]["n1"]) == (playbook == "")


def test_conflicts_fail_the_node_unless_they_are_tolerated() -> None:
    answer = asked({"last_verification": verified(conflicts=1)})
    found = summed_up({"n1": answer})
    assert found["off"] == ["n1"] and found["lines"][-1] == "1 node: 1 conflicts (n1)"
    assert found["lines"][-2].startswith(
        "n1: conflicts: verification of 2026-11-21 04:00 UTC: 10.8.0.0/16 sees the node"
    )
    for tolerated, pending in ((True, []), (False, ["start: ip-masq-agent.timer"])):
        hostvars = {"n1": {ASKED: {**answer, "pending": pending}}}
        assert (fleet(["n1"], hostvars, tolerate_conflicts=True)["off"] == []) is tolerated
    drifted = {"last_verification": verified(conflicts=1), "in_sync": False, "differs": [MISSING]}
    both = summed_up({"n1": asked(drifted)})
    assert both["off"] == ["n1"] and both["lines"][-1] == "1 node: 1 not in sync (n1)"
    assert "; conflicts: verification of " in both["lines"][-2]


def test_a_node_that_no_play_is_for_is_named_in_status_and_report_and_does_not_fail() -> None:
    found = fleet(["n1"], {"n1": {ASKED: asked()}}, "now", unreached=["n9"])
    line = "n9: not checked: not matched by ip_masq_agent_hosts, and so in no play"
    assert found["lines"][-2:] == [line, "2 nodes: 1 in sync, 1 not checked (n9)"] and found["off"] == []
    assert found["shown_by"] == ["n1"] and "not checked" in "".join(found["table"])
    assert all("n9" in text and "and so in no play" in text for text in found["files"].values())


def test_a_node_from_which_all_is_to_be_removed() -> None:
    found = summed_up({"n1": {"installed": False}}, ip_masq_agent_state="absent")
    assert (found["lines"], found["off"]) == (["1 node: 1 absent"], [])
    found = summed_up({"n1": asked()}, ip_masq_agent_state="absent")
    assert found["off"] == ["n1"]
    assert "n1: not removed: ip_masq_agent_state is absent; run kubenode.ip_masq.apply" in found["lines"]


def test_rules_without_an_agent_are_not_removed() -> None:
    jump = '-A POSTROUTING -m comment --comment "ip-masq-agent: all" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT'
    rules = [{"family": "ipv6", "backend": "iptables_legacy", "action": "jump removed", "rule": jump}]
    note = "/etc/iptables/rules.v6 has the chain IP-MASQ-AGENT (line 2)"
    bare = {"installed": False, "rules_left": [], "notes": [note], "problems": []}
    nodes = {
        "n1": dict(bare, rules_left=rules * 2),
        "n2": dict(bare, notes=[], problems=["a removal would fail: requires root"]),
        "n3": bare,
    }
    found = summed_up(nodes, ip_masq_agent_state="absent")
    assert found["lines"] == [
        "note: %s (n[1,3])" % note,
        "n1: not removed: no agent is installed, but its rules are there: ipv6, iptables_legacy: -A POSTROUTING -m "
        "addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT (and 1 more); run kubenode.ip_masq.apply",
        "n2: not removed: a removal would fail: requires root",
        "3 nodes: 1 absent, 2 not removed (n[1-2])",
    ]
    assert found["off"] == ["n1", "n2"]
    # An agent that is to be installed removes them.
    assert summed_up({"n1": nodes["n1"]})["lines"] == [
        "n1: not installed: run kubenode.ip_masq.apply",
        "1 node: 1 not installed (n1)",
    ]


def test_what_nodes_have_in_common_is_reported_once() -> None:
    nodes = {"n%d" % number: asked({"notes": ["Calico masquerades too"]}) for number in range(30)}
    nodes["n3"]["report"].update(version="0.0.9", drift_repaired=2, notes=["Calico masquerades too", "mine"])
    nodes["n4"]["report"].update(backend={"name": "nftables", "version": "1.0.9"}, drift_repaired=12)
    for name, drop_in in (("n5", "20-lab.json"), ("n6", "20-lab.json"), ("n6", "30-rack.yaml")):
        nodes[name]["report"]["config"]["sources"].append("/etc/ip-masq-agent/config.d/" + drop_in)
    assert summed_up(nodes)["lines"] == [
        "agent 0.1.0, 0.0.9 (n3); iptables_nft 1.8.9, nftables 1.0.9 (n4)",
        "drop-ins: 20-lab.json (n[5-6]), 30-rack.yaml (n6)",
        "drift repaired: n4 (12), n3 (2)",
        "note: Calico masquerades too (all nodes)",
        "note: mine (n3)",
        "30 nodes: 30 in sync",
    ]


def test_notes_of_each_node_do_not_fill_the_screen() -> None:
    found = summed_up({"n%d" % number: asked({"notes": ["note %d" % number]}) for number in range(30)})
    assert len(found["lines"]) == 1 + 5 + 1 + 1
    assert "25 more notes: see ip-masq-agent status on the nodes" in found["lines"]
