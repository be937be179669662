# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's playbooks by name against nodes in namespaces, as an operator runs them."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.fleet import Fleet, Played
from support.namespaces import Namespace
from support.variants import BACKENDS

NODES = "ip_masq_agent_hosts=kube_node"
NFT = BACKENDS["iptables_nft"]
#: An overlay in place of the directory of programs, in which some can be removed.
_OVERLAY = """
mkdir /run/up /run/work
mount -t overlay none -o lowerdir=/usr/sbin,upperdir=/run/up,workdir=/run/work /usr/sbin
cd /usr/sbin
rm -f "$@"
"""


def summary(played: Played) -> t.List[str]:
    """The lines that sum up the fleet."""
    (block,) = re.findall(r'"msg": (\[\n.*?\n    \])', played.said, re.DOTALL)
    lines = t.cast(t.List[str], json.loads(block))
    return lines[1:] if "ANSIBLE_STDOUT_CALLBACK" in lines[0] else lines


def failed_with(played: Played) -> t.Dict[str, str]:
    """The reason of each node for which status failed."""
    failed = re.findall(r"(?m)^failed: \[(\S+)\] \(item=(.*?)\) => (\{.*\})$", played.said)
    reasons = {host: t.cast(str, json.loads(result)["reason"]) for host, _state, result in failed}
    assert all(reasons[host].startswith(state) for host, state, _result in failed)
    return reasons


def exempt(node: AgentNode, family: str = "ipv4") -> t.List[str]:
    """The active exempt ranges, without link-local."""
    return NFT.exempt(node.ns, family)[1:]


def test_a_round_with_an_inventory_of_kubespray(tmp_path: Path) -> None:
    """Apply, status, drift, status, remove, with variables of the types that kubespray gives them."""
    groups = {"kube_control_plane": ["n1"], "kube_node": ["n1", "n2", "n3"], "calico_rr": []}
    with Fleet(tmp_path, groups) as fleet:
        fleet.group_vars["all"].update(
            kube_pods_subnets="10.233.64.0/18,fd85:ee78:d8a6:8607::1:0/112",
            kube_service_addresses="10.233.0.0/18",
            ip_masq_agent_enable_ipv6=True,
            ip_masq_agent_non_masquerade_cidrs=["{{ kube_pods_subnets }}", "{{ kube_service_addresses }}"],
            ip_masq_agent_cluster_cidrs="{{ kube_pods_subnets }}",
        )
        n1, n2, n3 = (fleet.nodes[name] for name in ("n1", "n2", "n3"))
        for node in (n1, n2):
            node.ns.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-o", "eth9", "-j", "MASQUERADE")
        applied = fleet.play("apply", "-e", NODES)
        assert applied.rc == 0 and [counts["changed"] for counts in applied.recap.values()] == [1, 1, 1], applied.said
        warnings = re.findall(r"\[WARNING\]: (n\d): a POSTROUTING rule", " ".join(applied.said.split()))
        assert sorted(warnings) == ["n1", "n2"], "equal warnings, of which Ansible prints one"
        assert exempt(n2) == ["10.233.64.0/18", "10.233.0.0/18"]
        assert exempt(n2, "ipv6") == ["fd85:ee78:d8a6:8607::1:0/112"]
        well = fleet.play("status", "-e", NODES, "-e", "ip_masq_agent_serial=2")
        assert well.rc == 0 and summary(well)[-1] == "3 nodes: 3 not fully tested (n[1-3])", "no pods"

        NFT.lose(n1.ns, "ipv4", "10.233.0.0/18")
        (n2.config_dir / "config").write_text('{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}')
        n3.drop_in("20-lab.json", '{"nonMasqueradeCIDRs": ["198.18.0.0/15"]}')
        n3.sync()
        (n3.systemd / "ip-masq-agent.timer.active").unlink()
        off = fleet.play("status", "-e", NODES)
        assert off.rc == 2 and off.failed == ["n1", "n2", "n3"]
        *common, second, first, third, count = summary(off)
        assert re.match(r"agent \d+\.\d+\.\d+(-rc\d)?; iptables_nft \d", common[0])
        (others,) = [line for line in common if "-o eth9 -j MASQUERADE" in line]
        assert others.startswith("note: ") and others.endswith(" (n[1-2])")
        assert first == (
            "n1: not in sync: pending changes: ipv4, iptables_nft: rule added: -A IP-MASQ-AGENT -d 10.233.0.0/18 "
            "-j RETURN"
        )
        assert second.startswith("n2: broken config: ") and "'10.0.0.1/8' has host bits set" in second
        assert third == (
            "n3: units not as installed: ip-masq-agent.timer is stopped; drift may not be repaired; to be applied: "
            "start: ip-masq-agent.timer"
        )
        assert "drop-ins: 20-lab.json (n3)" in common
        assert count == "3 nodes: 1 broken config (n2), 1 not in sync (n1), 1 units not as installed (n3)"
        # Each failure has the reason of its host, and the summary is behind all of them.
        failures = failed_with(off)
        assert failures == {
            name: line.partition(": ")[2] for name, line in zip(("n1", "n2", "n3"), (first, second, third))
        }
        assert off.said.rindex("failed: [") < off.said.index(json.dumps(count)) < off.said.index("PLAY RECAP")

        # A policy that would be refused does not keep anybody from removing it.
        removed = fleet.play("remove", "-e", NODES, "-e", '{"ip_masq_agent_non_masquerade_cidrs": ["10.0.0.1/8"]}')
        assert removed.rc == 0 and [counts["changed"] for counts in removed.recap.values()] == [1, 1, 1], removed.said
        tasks = re.findall(r"(?m)^TASK \[(?:\S+ : )?([^]]*)\]", removed.said)
        assert "Remove the agent and its rules" in tasks and not re.search("Install|Apply", " ".join(tasks)), tasks
        for node in fleet.nodes.values():
            assert node.files() == node.pristine and NFT.rules(node.ns, "ipv4") is None


def test_rules_that_were_saved_come_back_after_the_removal(tmp_path: Path) -> None:
    """As netfilter-persistent, ip6tables.service and nftables.service restore them; case 08 of the fleet."""
    saved = {
        "iptables_nft": ("/etc/iptables/rules.v4", "iptables-nft-save", "iptables-nft-restore"),
        "iptables_legacy": ("/etc/sysconfig/ip6tables", "ip6tables-legacy-save", "ip6tables-legacy-restore"),
        "nftables": ("/etc/nftables.conf", "nft list ruleset", "nft -f"),
    }
    hosts = dict(zip(saved, ("n1", "n2", "n3")))
    with Fleet(tmp_path, {"kube_node": list(hosts.values())}) as fleet:
        leaks = {"ip_masq_agent_leaks": "count", "ip_masq_agent_source_cidrs": ["10.244.0.0/16", "fd00:10::/56"]}
        fleet.group_vars["all"].update(leaks, ip_masq_agent_enable_ipv6=True)
        for backend, (path, save, _restore) in saved.items():
            node = fleet.nodes[hosts[backend]]
            fleet.hosts[hosts[backend]]["ip_masq_agent_backend"] = backend
            fleet.install(hosts[backend])
            node.ns.run("sh", "-c", "mkdir -p ${1%%/*}; %s >$1" % save, "sh", path)
        well = fleet.play("status", "-e", NODES)
        assert well.rc == 0 and not any("/etc/" in line for line in summary(well)), "the agent repairs them"

        removed = fleet.play("remove", "-e", NODES)
        warned = sorted(set(re.findall(r"(n\d: /etc/\S+ has the .*?)\(line \d+\)", " ".join(removed.said.split()))))
        chain, table = "chain IP-MASQ-AGENT ", "table ip_masq_agent "
        found = ["n1: /etc/iptables/rules.v4 has the " + chain, "n2: /etc/sysconfig/ip6tables has the " + chain]
        assert removed.rc == 0 and warned == [*found, "n3: /etc/nftables.conf has the " + table], removed.said

        absent = ("-e", NODES, "-e", "ip_masq_agent_state=absent")
        gone = fleet.play("status", *absent)
        assert gone.rc == 0 and summary(gone)[-1] == "3 nodes: 3 absent", gone.said
        notes = [line for line in summary(gone) if line.startswith("note: /etc/")]
        assert len(notes) == 3 and all(line.endswith(("(n1)", "(n2)", "(n3)")) for line in notes), notes

        for backend, (path, _save, restore) in saved.items():
            fleet.nodes[hosts[backend]].ns.run("sh", "-c", "%s $1" % restore, "sh", path)
        back = fleet.play("status", *absent)
        assert back.rc == 2 and summary(back)[-1] == "3 nodes: 3 not removed (n[1-3])", back.said
        again = fleet.play("apply", *absent)
        assert again.rc == 0 and [counts["changed"] for counts in again.recap.values()] == [1, 1, 1], again.said
        for backend, host in hosts.items():
            family = "ipv6" if backend == "iptables_legacy" else "ipv4"
            assert BACKENDS[backend].rules(fleet.nodes[host].ns, family) is None


def test_apply_ends_with_what_changes_for_packets(tmp_path: Path) -> None:
    """For all nodes together, in check mode and in the run that follows, with the output of the collection too."""
    names = ["node%d" % number for number in range(1, 6)]
    with Fleet(tmp_path, {"kube_node": names, "rack_b": names[:2]}, dict.fromkeys(names[3:], "node3")) as fleet:
        fleet.install(*fleet.nodes)
        quiet = fleet.play("apply", "-e", NODES)
        assert summary(quiet) == ["5 nodes: nothing changes for packets"]
        fleet.group_vars["rack_b"] = {"ip_masq_agent_masquerade_cidrs": ["10.20.0.0/16"]}
        expected = [
            "rack_b (2 nodes): 10.20.0.0/16: pod -> node, 0 open connections",
            "3 nodes: nothing changes for packets",
        ]
        planned = fleet.play("apply", "-e", NODES, "-CD", env={"ANSIBLE_NOCOLOR": "1", "TERM": "dumb"})
        assert planned.rc == 0 and summary(planned) == expected and "\x1b" not in planned.said, planned.said
        assert planned.said.count("+10.20.0.0/16: pod -> node, 0 open connections") == 2
        forced = fleet.play("apply", "-e", NODES, "-C", env={"ANSIBLE_FORCE_COLOR": "1"})
        assert summary(forced._replace(said=re.sub(r"\x1b\[[\d;]*m", "", forced.said))) == expected, "as AWX runs it"
        as_json = fleet.play("apply", "-e", NODES, "-C", env={"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
        assert _told_in_json(as_json) == expected
        short = fleet.play("apply", "-e", NODES, "-C", env={"ANSIBLE_STDOUT_CALLBACK": "kubenode.ip_masq.summary"})
        assert short.said.splitlines()[:2] == expected, short.said
        done = fleet.play("apply", "-e", NODES, "-e", "ip_masq_agent_serial=2")
        assert done.rc == 0 and summary(done) == expected, done.said


def _told_in_json(played: Played) -> t.List[str]:
    """Return the summary of an output in JSON, which is all that there is on standard output."""
    data, _end = json.JSONDecoder().raw_decode(played.said)
    (told,) = [
        one["msg"]
        for play in data["plays"]
        for task in play["tasks"]
        if task["task"]["name"] == "Show what changes for packets"
        for one in task["hosts"].values()
    ]
    assert isinstance(told, list)
    return told


def test_nodes_on_which_other_programs_undo_the_policy_are_left_as_they_are(tmp_path: Path) -> None:
    """Told for all nodes together, in check mode and in the run; the others get the policy."""
    with Fleet(tmp_path, {"kube_node": ["n1", "n2", "n3"], "rack_b": ["n1", "n2"]}) as fleet:
        fleet.group_vars["kube_node"] = {"ip_masq_agent_verify": "before"}
        for name, node in fleet.nodes.items():
            node.wire()
            if name != "n3":
                other = ("-t", "nat", "-I", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
                node.ns.run("iptables-nft", *other)
        undone = "10.8.0.0/16 sees the node's address, not the pod's own address (rule of an unknown program: "
        undone += "-A POSTROUTING -d 10.8.0.0/16 -j MASQUERADE)"
        # A preview goes on by itself.
        for flags in (["-C"], ["-e", "ip_masq_agent_max_fail_percentage=70"]):
            played = fleet.play("apply", "-e", NODES, *flags)
            assert played.failed == ["n1", "n2"], played.said
            first, second = summary(played)
            assert first.startswith("rack_b (2 nodes): left as before: ") and undone in first
            assert second.startswith("n3: ") and undone not in second
        for name in ("n1", "n2"):
            assert fleet.nodes[name].files() == fleet.nodes[name].pristine
        assert fleet.nodes["n3"].status()["in_sync"]


def test_more_effects_than_the_limit_have_to_be_confirmed(tmp_path: Path) -> None:
    """Nothing is written before, on any node."""
    with Fleet(tmp_path, {"kube_node": ["n1", "n2"]}) as fleet:
        fleet.install(*fleet.nodes)
        fleet.group_vars["kube_node"] = {
            "ip_masq_agent_confirm_effects": ["40%", 10],
            "ip_masq_agent_masquerade_cidrs": ["10.20.0.0/16"],
        }
        pristine = [exempt(node) for node in fleet.nodes.values()]
        refused = fleet.play("apply", "-e", NODES)
        assert refused.rc == 2, refused.said
        assert summary(refused) == [
            "kube_node (2 nodes): 10.20.0.0/16: pod -> node, 0 open connections",
            "beyond ip_masq_agent_confirm_effects: 2 nodes of 2 have effects, more than 40%",
            "nothing was changed; to apply it: -e ip_masq_agent_confirmed=true",
        ]
        assert [exempt(node) for node in fleet.nodes.values()] == pristine
        assert fleet.play("apply", "-e", NODES, "-C").rc == 0, "a preview is not stopped"
        done = fleet.play("apply", "-e", NODES, "-e", "ip_masq_agent_confirmed=true")
        assert done.rc == 0 and [counts["changed"] for counts in done.recap.values()] == [1, 1], done.said
        again = fleet.play("apply", "-e", NODES)
        assert again.rc == 0 and again.said.count("2 nodes: nothing changes for packets") == 2, again.said


def test_a_removal_is_previewed_and_has_the_same_limit(tmp_path: Path) -> None:
    """What it means for packets is what the last lines say, with the collection's own output and without."""
    short = {"ANSIBLE_STDOUT_CALLBACK": "kubenode.ip_masq.summary"}
    with Fleet(tmp_path, {"kube_node": ["n1", "n2"]}) as fleet:
        fleet.group_vars["kube_node"] = {
            "ip_masq_agent_source_cidrs": ["10.244.0.0/16"],
            "ip_masq_agent_confirm_effects": "40%",
        }
        fleet.install("n1")
        found = exempt(fleet.nodes["n1"])
        effect = " from 10.244.0.0/16: node -> "
        plain = fleet.play("remove", "-e", NODES, "-C")
        first, second = summary(plain)
        assert plain.rc == 0 and first.startswith("n1: 0.0.0.0/0 except 10.0.0.0/8, ") and effect in first, plain.said
        assert first.endswith(", 0 open connections") and second == "1 node: nothing changes for packets"
        preview = fleet.play("remove", "-e", NODES, "-CD", env=short)
        lines = preview.said.splitlines()
        assert lines[0] == "would change (n1)" and "-N IP-MASQ-AGENT" in preview.said, preview.said
        assert lines[-3:-1] == [first, second] and lines[-1] == "2 hosts: 1 would change, 0 failed, 0 unreachable"
        refused = fleet.play("remove", "-e", NODES, env=short)
        assert refused.rc == 2 and refused.said.splitlines() == [
            first,
            second,
            "beyond ip_masq_agent_confirm_effects: 1 node of 2 have effects, more than 40%",
            "nothing was changed; to apply it: -e ip_masq_agent_confirmed=true",
            "2 hosts: 0 changed, 1 failed, 0 unreachable",
        ]
        assert exempt(fleet.nodes["n1"]) == found
        done = fleet.play("remove", "-e", NODES, "-e", "ip_masq_agent_confirmed=true", "-D", env=short)
        assert done.rc == 0 and " from 10.244.0.0/16: node -> not managed" in done.said, done.said
        assert done.said.splitlines()[-1] == "2 hosts: 1 changed, 0 failed, 0 unreachable", done.said
        assert NFT.rules(fleet.nodes["n1"].ns, "ipv4") is None


def test_a_node_that_cannot_be_reached_is_a_line_of_the_summary(tmp_path: Path) -> None:
    with Fleet(tmp_path, {"kube_node": ["n1", "n2"]}, {"n2": "n1"}) as fleet:
        fleet.install("n1")
        fleet.hosts["n1"] = {"ansible_host": "127.0.0.1", "ansible_port": 1}
        played = fleet.play("status", "-e", NODES)
        assert played.rc == 2 and played.failed == ["n1"], played.said
        assert summary(played)[-1] == "2 nodes: 1 unreachable (n1), 1 not fully tested (n2)"
        short = fleet.play("status", "-e", NODES, env={"ANSIBLE_STDOUT_CALLBACK": "kubenode.ip_masq.summary"})
        assert short.said.splitlines()[-1] == "2 hosts: 0 changed, 0 failed, 1 unreachable", short.said


IPTABLES, NFT_ALONE, NEITHER = ["iptables", "ip6tables"], ["nft"], ["iptables", "ip6tables", "nft"]

#: programs that a node lacks, variables, and what apply ends with; none: it succeeds
PACKAGES: t.Dict[str, t.Tuple[t.List[str], t.Dict[str, t.Any], t.Optional[str]]] = {
    "nothing-lacks": ([], {}, None),
    "nft-is-enough": (IPTABLES, {}, None),
    "nft-is-what-is-asked-for": (IPTABLES, {"backend": "nftables"}, None),
    "iptables-is-what-is-asked-for": (NFT_ALONE, {"backend": "iptables_nft"}, None),
    "both-lack": (NEITHER, {}, None),
    "iptables-lacks": (IPTABLES, {"backend": "iptables_nft"}, "no-such-package"),
    "nft-lacks": (NFT_ALONE, {"exemption": "enforce", "source_cidrs": "10.244.0.0/16"}, None),
    "always": ([], {"install_packages": "always"}, "no-such-package"),
    "never": (
        NEITHER,
        {"backend": "iptables_nft", "install_packages": "never"},
        "backend iptables_nft is not available on this node",
    ),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """One run of apply against a node for each of ``PACKAGES``, with a package that nobody has."""
    with Fleet(tmp_path_factory.mktemp("packages"), {"kube_node": list(PACKAGES)}) as fleet:
        fleet.group_vars["kube_node"] = {"ip_masq_agent_packages": ["no-such-package"], "ip_masq_agent_kubelet": False}
        for name, (without, variables, _message) in PACKAGES.items():
            suffixes = ("", "-nft", "-nft-restore", "-legacy", "-legacy-restore", "-restore")
            gone = [program + suffix for program in without for suffix in suffixes]
            fleet.nodes[name].ns.run("sh", "-euc", _OVERLAY, "sh", *gone)
            fleet.hosts[name].update({"ip_masq_agent_" + option: value for option, value in variables.items()})
        return fleet.play("apply", "-e", NODES, "-e", "ip_masq_agent_max_fail_percentage=100")


@pytest.mark.parametrize("case", PACKAGES)
def test_packages_are_installed_where_the_backend_lacks_its_program(packages: Played, case: str) -> None:
    message = PACKAGES[case][2]
    failures = re.findall(r"(?m)^fatal: \[%s\]: FAILED! => (.*)$" % case, packages.said)
    if message is None:
        assert not failures, packages.said
    else:
        assert message in failures[-1]
    if message == "no-such-package":
        # The package manager fails first; then the role says what needs the package.
        assert len(failures) == 2 and "the package could not be installed: " in failures[1]
        assert (case == "always") == ("install the package" not in failures[1]), failures[1]
    assert packages.recap[case]["changed"] == (1 if message is None else 0)


class TestInfo:
    """The module that asks; the status playbook runs it."""

    @pytest.fixture
    def node(self, ns: Namespace, tmp_path: Path) -> AgentNode:
        """A node on which nothing is installed yet."""
        return AgentNode(ns, tmp_path, installed=False)

    @staticmethod
    def ask(node: AgentNode, **options: t.Any) -> t.Dict[str, t.Any]:
        """What the module returns; never a change."""
        found = node.module("ip_masq_agent_info", options)
        assert found["changed"] is False
        return found

    @staticmethod
    def install(node: AgentNode, **config: t.Any) -> None:
        """Install the agent as the role does."""
        done = node.module("ip_masq_agent", {"config": config})
        assert not done.get("failed"), done

    def test_what_an_installation_would_do_is_pending(self, node: AgentNode) -> None:
        self.install(node)
        config = node.config_dir / "config"
        config.write_text(config.read_text().replace("\n", " "))
        (node.root / "etc/systemd/system/ip-masq-agent.path").write_text("")
        (node.systemd / "ip-masq-agent.timer.active").unlink()
        node.program.chmod(0o700)
        found = self.ask(node, config={})
        assert found["differs"] == [] and found["pending"] == [
            "file written: /etc/ip-masq-agent/config",
            "file written: %s" % node.paths.program,
            "file written: /etc/systemd/system/ip-masq-agent.path",
            "start: ip-masq-agent.timer",
            "restart: ip-masq-agent.path",
        ]
        found = self.ask(node, config={"cidrLimit": 70})
        assert found["differs"] == ["cidrLimit"] and "/etc/ip-masq-agent/config" not in str(found["pending"])

    def test_an_agent_that_cannot_report_is_a_problem_and_no_failure(self, node: AgentNode) -> None:
        self.install(node)
        node.program.write_text("#!/no/such/python\n")
        found = self.ask(node)
        assert "report" not in found and node.paths.program in found["problems"][0]
        node.program.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
        assert self.ask(node)["problems"] == ["%s status: it is broken" % node.paths.program]
        assert found["pending"] == ["file written: %s" % node.paths.program]

    def test_what_applied_the_policy_is_remembered(self, node: AgentNode) -> None:
        kept = node.state_file.with_name("applied.json")
        done = node.module("ip_masq_agent", {"config": {}, "applied_by": "a\nplaybook"}, check=True)
        assert done["changed"] and not kept.exists()
        node.module("ip_masq_agent", {"config": {}, "applied_by": "a\nplaybook"})
        first = self.ask(node, config={})["report"]["last_applied"]
        assert (first["by"], first["edited"]) == ("a playbook", False)
        assert re.search(r"(?m)^applied +\d{4}-.* by a playbook$", node.call(node.paths.program, "status").stdout)
        # The time is that of the first of several equal ones: nothing is written.
        node.module("ip_masq_agent", {"config": {}, "applied_by": "a playbook"})
        node.module("ip_masq_agent", {"config": {}})
        assert self.ask(node, config={})["report"]["last_applied"] == first
        (node.config_dir / "config").write_text('{"resyncInterval": "5m"}')
        assert self.ask(node, config={})["report"]["last_applied"] == {**first, "edited": True}
        assert re.search(
            r"(?m)^applied .* by a playbook; the file was edited since$", node.call(node.paths.program, "status").stdout
        )
        node.module("ip_masq_agent", {"config": {}, "applied_by": "another"})
        assert self.ask(node, config={})["report"]["last_applied"]["by"] == "another"
        kept.write_text("{")
        assert self.ask(node, config={})["report"]["last_applied"] is None

    def test_a_service_that_failed_is_named(self, node: AgentNode) -> None:
        self.install(node)
        (node.systemd / "ip-masq-agent.service.status").write_text("203")
        assert self.ask(node)["service_failure"] == "result exit-code, exit status 203"


def test_role_verifies_what_it_applied_in_one_remote_call(tmp_path: Path) -> None:
    with Fleet(tmp_path, {"kube_node": ["n1", "n2"]}) as fleet:
        for node in fleet.nodes.values():
            node.wire()
        predicted = fleet.play("apply", "-e", NODES, "--check", "--limit", "n1")
        assert predicted.rc == 0 and "kinds of packets" not in predicted.said, "verified before there was anything"
        (tmp_path / "hosts.ini").write_text("[canary]\nn1\nn2\n")
        clean = fleet.type(
            "ansible-playbook kubenode.ip_masq.apply -i hosts.ini "
            "-e ip_masq_agent_hosts=canary -e ip_masq_agent_verify=fail"
        )
        assert clean.rc == 0 and "not the pod's own" not in clean.said, clean.said

        other = ("-t", "nat", "-I", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
        fleet.nodes["n1"].ns.run("iptables-nft", *other)
        text = "10.8.0.0/16 sees the node's address, not the pod's own address"
        before = {name: fleet.calls(name) for name in fleet.nodes}
        warned = fleet.type(
            "ansible-playbook kubenode.ip_masq.apply -i hosts.ini -e ip_masq_agent_hosts=kube_node "
            """-e '{"ip_masq_agent_serial": [1, "5%", "100%"]}'"""
        )
        assert {name: fleet.calls(name) - before[name] for name in fleet.nodes} == {"n1": 1, "n2": 1}
        assert warned.rc == 0 and warned.said.count(text) == 1, warned.said
        assert [counts["changed"] for counts in warned.recap.values()] == [0, 0]
        failed = fleet.play("apply", "-e", NODES, "-e", "ip_masq_agent_verify=fail")
        # ansible-core 2.19 and later print a failure twice: as an error, and as the result of the task.
        results = [line for line in failed.said.splitlines() if line.strip().startswith('"msg": ')]
        assert failed.failed == ["n1"] and sum(text in line for line in results) == 1, failed.said
        ignored = fleet.play("apply", "-e", NODES, "-e", "ip_masq_agent_verify=ignore")
        assert ignored.rc == 0 and text not in ignored.said
