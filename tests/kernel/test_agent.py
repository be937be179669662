# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The installed agent against real rules: sync, status, explain, remove."""

from __future__ import annotations

import json
import subprocess
import time
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.namespaces import Namespace, until
from support.prometheus import parse
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, Variant, pristine, snapshot

NFT = BACKENDS["iptables_nft"]
BROKEN = '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}'
IN_SYNC, FAILED, CONFIG_BROKEN = 0, 1, 78


@pytest.fixture
def node(ns: Namespace, tmp_path: Path) -> AgentNode:
    """A node with the agent, which has not run yet."""
    return AgentNode(ns, tmp_path)


def exempt(node: AgentNode, variant: Variant = NFT) -> t.List[str]:
    """The active exempt IPv4 ranges."""
    *returns, last = variant.rules(node.ns, "ipv4") or []
    assert last.startswith("-j MASQUERADE")
    return [rule.split()[1] for rule in returns]


def break_rules(node: AgentNode, variant: Variant = NFT) -> None:
    """Take an exemption out of the rules."""
    variant.lose(node.ns, "ipv4", "169.254.0.0/16")


class TestSync:
    """sync"""

    def test_builds_the_rules_once_and_logs_it_once(self, node: AgentNode, variant: Variant) -> None:
        node.configure(backend=variant.backend, nonMasqueradeCIDRs=["10.1.0.0/16"])
        first = node.sync()
        assert first.returncode == IN_SYNC, first.stderr
        assert exempt(node, variant) == variant.in_order(["169.254.0.0/16", "10.1.0.0/16"])
        assert len(variant.jumps(node.ns, "ipv4")) == 1
        assert "10.1.0.0/16" in first.stdout
        before = snapshot(node.ns)
        again = node.sync()
        assert (again.returncode, again.stdout, again.stderr) == (IN_SYNC, "", "")
        assert snapshot(node.ns) == before

    def test_drift_is_repaired_and_counted_and_an_edit_is_not(self, node: AgentNode, variant: Variant) -> None:
        node.synced(backend=variant.backend)
        break_rules(node, variant)
        assert "169.254.0.0/16" in node.sync().stdout
        node.synced(backend=variant.backend, masqLinkLocal=True)
        assert "169.254.0.0/16" not in exempt(node, variant)
        variant.unhook(node.ns, "ipv4")
        node.sync()
        assert node.status()["drift_repaired"] == 2

    def test_a_node_whose_legacy_tables_are_emptied_stays_with_legacy(self, node: AgentNode) -> None:
        legacy = BACKENDS["iptables_legacy"]
        legacy.load(node.ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -j MASQUERADE")
        node.sync()
        assert len(legacy.jumps(node.ns, "ipv4")) == 1
        node.ns.run("iptables-legacy", "-w", "-t", "nat", "-F")
        assert node.status()["backend"]["name"] == legacy.backend
        node.sync()
        assert len(legacy.jumps(node.ns, "ipv4")) == 1
        assert NFT.rules(node.ns, "ipv4") is None

    def test_journal_gets_a_line_for_each_change_with_its_priority(self, node: AgentNode) -> None:
        lines = node.command("sync", JOURNAL_STREAM="8:1").stdout.splitlines()
        assert lines and all(line.startswith("<5>ipv4, iptables_nft: ") for line in lines)
        (node.config_dir / "config").write_text(BROKEN)
        assert node.command("sync", JOURNAL_STREAM="8:1").stderr.startswith("<3>")

    @pytest.mark.parametrize("change", ["file", "drop-in"])
    def test_the_policy_before_is_back_without_the_inventory(self, node: AgentNode, change: str) -> None:
        """By the steps of docs/operations.md, Roll back."""
        node.configure(nonMasqueradeCIDRs=["10.1.0.0/16"], masqueradeCIDRs=["10.1.9.0/24"])
        drop_in = node.drop_in("a.json", '{"nonMasqueradeCIDRs": ["10.2.0.0/16"]}')
        node.sync()
        before = NFT.rules(node.ns, "ipv4")
        if change == "file":
            node.configure(nonMasqueradeCIDRs=["10.3.0.0/16"])
        else:
            drop_in.write_text('{"nonMasqueradeCIDRs": ["10.3.0.0/16"]}')
        node.sync()
        assert NFT.rules(node.ns, "ipv4") != before
        previous = node.command("status", "--json").stdout
        text = subprocess.run(["jq", ".previous_config"], input=previous, stdout=subprocess.PIPE, text=True, check=True)
        drop_in.rename(node.root / "a.json")
        (node.config_dir / "config").write_text(text.stdout)
        node.resync()
        assert NFT.rules(node.ns, "ipv4") == before and node.status()["in_sync"]


class TestBrokenConfig:
    """The last valid configuration stays active."""

    def test_drift_is_repaired_with_the_last_valid_policy(self, node: AgentNode, variant: Variant) -> None:
        node.synced(backend=variant.backend, nonMasqueradeCIDRs=["10.1.0.0/16"])
        (node.config_dir / "config").write_text(BROKEN)
        break_rules(node, variant)
        done = node.sync()
        assert done.returncode == CONFIG_BROKEN
        assert "the last valid configuration stays active" in done.stderr
        assert exempt(node, variant) == variant.in_order(["169.254.0.0/16", "10.1.0.0/16"])
        status = node.status()
        assert status["config"]["problem"] and status["in_sync"] and status["failing"]
        assert status["drift_repaired"] == status["config_errors"] == 1

    def test_a_file_that_is_being_written_anew_changes_nothing_until_it_is(self, node: AgentNode) -> None:
        node.synced(nonMasqueradeCIDRs=["10.1.0.0/16"])
        (node.config_dir / "config").write_text("")
        break_rules(node)
        done = node.sync()
        assert (
            done.returncode == IN_SYNC and "config is empty: the last valid configuration stays active" in done.stderr
        )
        assert exempt(node) == ["169.254.0.0/16", "10.1.0.0/16"]
        assert [note for note in node.status()["notes"] if "config is empty" in note]
        assert node.resync() == ["resync"], "nobody would see when it has been empty for long enough"
        assert node.resynced.stderr == ""
        node.synced(nonMasqueradeCIDRs=["10.2.0.0/16"])
        assert exempt(node) == ["169.254.0.0/16", "10.2.0.0/16"]


#: What can be wrong with a file system that holds what the agent writes: commands on the node. The directory keeps what
#: is in it, less the snapshot, whose place a sync would use for other files.
FILE_SYSTEMS = {
    "full": """
        rm -f "$1/expected"
        mount -t tmpfs -o size=4m,mode=700 none /mnt && cp -a "$1/." /mnt && mount --move /mnt "$1"
        head -c 8M /dev/zero >"$1/filler" 2>/dev/null || true
        test "$(stat -f -c %a "$1")" = 0""",
    "without inodes": """
        rm -f "$1/expected"
        mount -t tmpfs -o nr_inodes=16,mode=700 none /mnt && cp -a "$1/." /mnt && mount --move /mnt "$1"
        touch "$1/filler"1 "$1/filler"2 "$1/filler"3 "$1/filler"4 "$1/filler"5 "$1/filler"6 "$1/filler"7 "$1/filler"8 \
              "$1/filler"9 "$1/filler"10 "$1/filler"11 "$1/filler"12 "$1/filler"13 "$1/filler"14 2>/dev/null || true
        test "$(stat -f -c %d "$1")" = 0""",
    "read-only": """
        mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" """,
    "gone, and not to be made": """
        rm -r "$1" && mount --rbind "${1%/*}" "${1%/*}" && mount -o remount,bind,ro "${1%/*}" """,
    "a file": """
        rm -r "$1" && touch "$1" """,
}
RUN_DIR, STATE_DIR, METRICS_DIR = "/run/ip-masq-agent", "/var/lib/ip-masq-agent", "/var/lib/node_exporter"


class TestRecords:
    """No file that the agent writes beside the rules keeps it from repairing them."""

    @staticmethod
    def spoil(node: AgentNode, what: str, *paths: str) -> None:
        """Have something wrong with directories of the node."""
        for path in paths:
            node.ns.run("sh", "-ec", FILE_SYSTEMS[what], "sh", path)

    @pytest.mark.parametrize(
        ("what", "paths"),
        [(what, (path,)) for what in FILE_SYSTEMS for path in (RUN_DIR, STATE_DIR)]
        + [("read-only", (RUN_DIR, STATE_DIR))],
    )
    def test_rules_are_repaired_and_the_problem_is_reported(
        self, node: AgentNode, what: str, paths: t.Tuple[str, ...]
    ) -> None:
        node.synced(nonMasqueradeCIDRs=["10.1.0.0/16"])
        self.spoil(node, what, *paths)
        told = []
        for _again in range(2):
            break_rules(node)
            node.configure(nonMasqueradeCIDRs=["10.1.0.0/16"], resyncInterval="%ds" % (70 + len(told)))
            done = node.command("sync", JOURNAL_STREAM="8:1")
            assert done.returncode == IN_SYNC, done.stderr
            assert exempt(node) == ["169.254.0.0/16", "10.1.0.0/16"]
            assert "169.254.0.0/16" in done.stdout
            told.append(done.stderr.splitlines())
        assert told[0] and all(line.startswith("<4>") for line in told[0])
        for path in paths:
            assert [line for line in told[0] if path in line], (path, told[0])
        status = node.status()
        assert status["in_sync"]
        if len(paths) == 1:
            # Remembered where it still can be: not logged again, and for status to see.
            assert told[1] == []
            for path in paths:
                assert [note for note in status["notes"] if path in note], status["notes"]

    @pytest.mark.parametrize("what", FILE_SYSTEMS)
    def test_a_resync_of_a_node_in_sync_ends_well(self, node: AgentNode, what: str) -> None:
        node.configure(nonMasqueradeCIDRs=["10.1.0.0/16"])
        node.resync()
        node.settle()
        self.spoil(node, what, RUN_DIR, STATE_DIR)
        for _again in range(2):
            node.resync()
            assert node.resynced.returncode == IN_SYNC, node.resynced.stderr
        break_rules(node)
        assert node.resync() == ["resync"]
        assert node.resynced.returncode == IN_SYNC, node.resynced.stderr
        assert exempt(node)[0] == "169.254.0.0/16"

    @pytest.mark.parametrize("what", FILE_SYSTEMS)
    def test_metrics_are_still_written(self, ns: Namespace, tmp_path: Path, what: str) -> None:
        node = AgentNode(ns, tmp_path, metrics=True)
        node.sync()
        ns.run("mount", "--bind", METRICS_DIR, METRICS_DIR)  # also where the rest of /var/lib becomes read-only
        self.spoil(node, what, RUN_DIR, STATE_DIR)
        break_rules(node)
        path = node.metrics_dir / "ip_masq_agent.prom"
        path.unlink()
        before = time.time()
        assert node.sync().returncode == IN_SYNC
        values = parse(path.read_text()).values
        assert values["ip_masq_agent_in_sync", ()] == 1
        assert values["ip_masq_agent_last_success_timestamp_seconds", ()] >= int(before)

    @pytest.mark.parametrize("what", ["full", "read-only", "gone, and not to be made"])
    def test_a_directory_of_metrics_is_no_exception(self, ns: Namespace, tmp_path: Path, what: str) -> None:
        node = AgentNode(ns, tmp_path, metrics=True)
        node.sync()
        self.spoil(node, what, METRICS_DIR)
        for told in (1, 0):
            break_rules(node)
            done = node.sync()
            assert done.returncode == IN_SYNC and exempt(node)[0] == "169.254.0.0/16"
            assert done.stderr.count("metrics not written: cannot write to %s: " % METRICS_DIR) == told
        assert [note for note in node.status()["notes"] if "metrics not written" in note]


def test_a_lock_that_is_never_released_fails_three_syncs(node: AgentNode) -> None:
    """Such as that of a run that was stopped. The fourth repairs, and names the process."""
    node.sync()
    with node.ns.popen("flock", RUN_DIR, "sleep", "600") as holder:
        try:
            until(lambda: node.call("flock", "--nonblock", RUN_DIR, "true").returncode == 1, "the lock to be held")
            break_rules(node)
            for _again in range(3):
                done = node.command("--lock-timeout", "1", "sync")
                assert done.returncode == FAILED and "process %d (flock " % holder.pid in done.stderr, done.stderr
            done = node.command("--lock-timeout", "1", "sync")
            assert done.returncode == IN_SYNC and exempt(node)[0] == "169.254.0.0/16", done.stderr
            note = "%s is held by process %d (flock %s sleep 600) for more than 3 resyncs" % (
                RUN_DIR,
                holder.pid,
                RUN_DIR,
            )
            assert note in done.stderr
            assert [line for line in node.status()["notes"] if line.startswith(note)]
        finally:
            holder.kill()


class TestProposals:
    """sync --dry-run, explain --proposed"""

    def test_a_dry_run_shows_what_changes_for_packets(self, node: AgentNode, variant: Variant) -> None:
        node.synced(backend=variant.backend)
        done = node.command("sync", "--dry-run")
        assert (done.returncode, done.stdout) == (0, "nothing to do: the active rules match the configuration\n")
        node.configure(backend=variant.backend, masqueradeCIDRs=["10.5.0.0/16"])
        before = snapshot(node.ns)
        done = node.command("sync", "--dry-run")
        first, *others = done.stdout.splitlines()
        assert done.returncode == 0 and first == "10.5.0.0/16: pod -> node, 0 open connections"
        assert others and any(line.startswith("would do: ipv4, %s: " % variant.backend) for line in others)
        data = json.loads(node.command("sync", "--dry-run", "--json").stdout)
        (effect,) = data["effects"]
        assert (effect["destinations"], effect["before"], effect["after"]) == (["10.5.0.0/16"], "pod", "node")
        assert data["actions"] and data["errors"] == []
        assert snapshot(node.ns) == before and node.status()["differs"]
        assert node.command("sync", "--json").returncode == 2

    def test_what_a_proposed_file_changes(self, node: AgentNode, tmp_path: Path) -> None:
        node.synced()
        proposed = tmp_path / "proposed"
        proposed.write_text('{"masqueradeCIDRs": ["10.5.0.0/16"]}')
        for destination, told in (
            ("10.5.1.2", "proposed: 10.5.0.0/16: pod -> node, 0 open connections"),
            ("10.6.1.2", "proposed: nothing changes for packets to 10.6.1.2"),
        ):
            done = node.command("explain", destination, "--proposed", str(proposed))
            assert done.returncode == 0 and told in done.stdout.splitlines(), done.stdout
            data = json.loads(node.command("explain", destination, "--proposed", str(proposed), "--json").stdout)
            assert len(data["proposed"]["effects"]) == (destination == "10.5.1.2")
        drop_in = node.drop_in("lab.json", '{"nonMasqueradeCIDRs": ["10.0.0.0/8"]}')
        noted = node.command("explain", "10.6.1.2", "--proposed", str(proposed)).stdout
        about = "note: /etc/ip-masq-agent/config.d/lab.json: nonMasqueradeCIDRs replaces the default list"
        assert about in noted and "because %s has no nonMasqueradeCIDRs" % proposed in noted, noted
        drop_in.unlink()
        proposed.write_text('{"masqueradeCIDRs": ["10.5.0.1/16"]}')
        done = node.command("explain", "10.5.1.2", "--proposed", str(proposed))
        assert done.returncode == 78 and "%s: masqueradeCIDRs: '10.5.0.1/16' has host bits" % proposed in done.stderr
        done = node.command("explain", "10.5.1.2", "--proposed", str(tmp_path / "none"))
        assert done.returncode == 78 and "there is no such file" in done.stderr
        assert node.status()["in_sync"]

    def test_they_say_what_of_a_file_is_not_used(self, node: AgentNode, tmp_path: Path) -> None:
        node.synced()
        proposed = tmp_path / "proposed"
        proposed.write_text('{"masqLinkLocal": false, "masqueradeCIDR": ["10.5.0.0/16"]}')
        done = node.command("explain", "10.5.1.2", "--proposed", str(proposed))
        (told,) = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
        assert "masqueradeCIDR" in told and str(proposed) in told
        data = json.loads(node.command("explain", "10.5.1.2", "--proposed", str(proposed), "--json").stdout)
        assert data["proposed"]["notes"] == [told[len("note: ") :]]
        node.configure(masqLinkLocal=False, masqueradeCIDR=["10.5.0.0/16"])
        first, told = node.command("sync", "--dry-run").stdout.splitlines()
        assert first.startswith("nothing to do") and told.startswith("note: ") and "masqueradeCIDR" in told
        assert json.loads(node.command("sync", "--dry-run", "--json").stdout)["notes"] == [told[len("note: ") :]]

    def test_what_a_move_of_the_rules_means_was_not_compared(self, node: AgentNode, tmp_path: Path) -> None:
        node.synced()
        node.ns.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-d", "192.0.2.9", "-j", "MASQUERADE")
        proposed = tmp_path / "proposed"
        proposed.write_text('{"jumpPosition": "last"}')
        done = node.command("explain", "192.0.2.9", "--proposed", str(proposed))
        moved = "the rules get another place among those of other programs"
        assert "proposed: " + moved in done.stdout and "nothing changes" not in done.stdout
        data = json.loads(node.command("explain", "192.0.2.9", "--proposed", str(proposed), "--json").stdout)
        assert data["proposed"]["notes"][0].startswith(moved)


class TestStatus:
    """status"""

    def test_without_a_file_the_defaults_are_in_force(self, node: AgentNode) -> None:
        status = node.status()
        assert status["config"]["sources"] == [
            "defaults (/etc/ip-masq-agent/config does not exist: no rule is changed until it does)"
        ]
        assert status["verdict"] == (
            "NOT IN SYNC: defaults (/etc/ip-masq-agent/config does not exist: no rule is changed until it does): "
            "write it, or, for the defaults, run ip-masq-agent sync"
        )
        node.sync()
        status = node.status()
        assert status["config"]["sources"] == ["defaults (/etc/ip-masq-agent/config does not exist)"]
        assert status["state"] == "in sync"

    def test_differences_are_those_that_a_sync_repairs(self, node: AgentNode, variant: Variant) -> None:
        node.synced(backend=variant.backend)
        break_rules(node, variant)
        status = node.status()
        assert not status["in_sync"]
        done = node.sync().stdout.splitlines()
        assert done == ["%(family)s, %(backend)s: %(action)s: %(rule)s" % found for found in status["differs"]]
        status = node.status()
        assert status["in_sync"] and status["differs"] == []
        assert status["last_change"]["lines"] == done
        assert status["last_sync"] >= status["last_change"]["time"]

    def test_connections_are_counted_by_verdict(self, topology: Topology, variant: Variant, tmp_path: Path) -> None:
        node = AgentNode(topology.node, tmp_path, metrics=True)
        a = ADDRESSES["ipv4"]
        node.synced(backend=variant.backend)
        topology.ask(*a.exempt, *a.outside)
        counters = node.status()["families"]["ipv4"]["counters"]
        assert (counters["exempt_packets"], counters["masqueraded_packets"]) == (len(a.exempt), len(a.outside))
        node.sync()
        values = parse((node.metrics_dir / "ip_masq_agent.prom").read_text()).values
        for verdict, expected in (("exempt", len(a.exempt)), ("masqueraded", len(a.outside))):
            labels = (("family", "ipv4"), ("verdict", verdict))
            assert values["ip_masq_agent_packets_total", labels] == expected
            assert values["ip_masq_agent_bytes_total", labels] >= expected * 40
        assert values["ip_masq_agent_in_sync", ()] == 1

    @pytest.mark.parametrize(
        ("variant", "sources"),
        [(backend, []) for backend in BACKENDS] + [("iptables_nft", ["10.244.0.0/16"])],
        indirect=["variant"],
        ids=[*BACKENDS, "source_cidrs"],
    )
    def test_a_rule_for_pods_before_the_jump_is_reported(
        self, topology: Topology, tmp_path: Path, variant: Variant, sources: t.List[str]
    ) -> None:
        """As ufw keeps it in /etc/ufw/before.rules; Docker's, for its own containers, is not."""
        a, node = ADDRESSES["ipv4"], AgentNode(topology.node, tmp_path)
        node.synced(backend=variant.backend, sourceCIDRs=sources)
        tool = "iptables-legacy" if variant.backend == "iptables_legacy" else "iptables-nft"
        for rule in ("-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "-s 10.244.0.0/16 -o eth0 -j MASQUERADE"):
            node.ns.run(tool, "-t", "nat", "-I", "POSTROUTING", *rule.split())
        shows = topology.ask(*a.exempt)
        assert set(shows.values()) == {a.node}, shows
        notes = "\n".join(node.status()["notes"])
        assert "(-A POSTROUTING -s 10.244.0.0/16 -o eth0 -j MASQUERADE): it can masquerade exempt traffic" in notes
        assert "docker0" not in notes
        assert node.command("verify").returncode == 5
        first = node.command("status").stdout.splitlines()[0]
        assert first.startswith("CONFLICTS: ") and "-s 10.244.0.0/16 -o eth0 -j MASQUERADE" in first


#: A program without CAP_SYS_ADMIN, which cannot make a namespace, and so no copy of the node.
BARE = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--")


class TestExplain:
    """explain, held against what packets do"""

    @pytest.mark.parametrize(
        ("variant", "copy"),
        [(backend, True) for backend in BACKENDS] + [("nftables", False)],
        indirect=["variant"],
        ids=[*BACKENDS, "by the policy alone"],
    )
    def test_explain_predicts_the_source_address_that_the_destination_sees(
        self, topology: Topology, variant: Variant, tmp_path: Path, copy: bool
    ) -> None:
        node = AgentNode(topology.node, tmp_path)
        node.synced(backend=variant.backend, enableIPv6=True, nonMasqueradeCIDRs=["10.0.0.0/8", "fc00::/7"])
        for a in ADDRESSES.values():
            destinations = [*a.exempt[:1], *a.outside[:1]]
            for destination, source in topology.ask(*destinations).items():
                bare = () if copy else BARE
                said = node.call(*bare, node.agent, "explain", destination, "--source", a.pod).stdout
                first = said.splitlines()[0]
                if copy:
                    assert first.startswith("%s sees the " % destination) and "(%s), for tcp/80" % source in first
                    assert "decided by: ip-masq-agent" in said
                else:
                    assert first == "%s was not tested, for tcp/80 from %s" % (destination, a.pod)
                    whose = "the pod's own" if source == a.pod else "the node's"
                    assert "policy: %s address\nwarning: packets were not tested: " % whose in said

    def test_rules_that_differ_from_the_policy_are_reported_without_a_copy_too(self, node: AgentNode) -> None:
        node.sync()
        said = node.call(*BARE, node.agent, "explain", "169.254.1.1").stdout
        assert said.startswith("169.254.1.1 was not tested") and "active rules differ" not in said
        break_rules(node)
        said = node.call(*BARE, node.agent, "explain", "169.254.1.1").stdout
        assert "error: active rules differ from the configuration" in said

    def test_a_source_without_a_route_is_not_tested(self, node: AgentNode) -> None:
        node.sync()
        done = node.command("explain", "10.1.2.3", "--source", "10.244.1.2")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("10.1.2.3 was not tested, for tcp/80 from 10.244.1.2\n")
        assert "reason: the node has no route to the source 10.244.1.2\n" in done.stdout

    @pytest.mark.parametrize("family", ["ipv4", "ipv6"])
    def test_a_program_of_the_node_that_is_bound_to_an_address(
        self, topology: Topology, tmp_path: Path, family: str
    ) -> None:
        """A BGP speaker, say: outside of the exempt ranges any address of the node will do, and it is masqueraded."""
        a, node = ADDRESSES[family], AgentNode(topology.node, tmp_path)
        bound, bits = ("192.0.2.77", 32) if family == "ipv4" else ("2001:db8:5::1", 128)
        node.ns.run("ip", "address", "add", "%s/%d" % (bound, bits), "dev", "lo")
        local = ("ip", "-6" if family == "ipv6" else "-4", "route", "show", "table", "local")
        until(lambda: bound in node.ns.run(*local), "the route of an address of the node")
        node.configure(backend="nftables", enableIPv6=True)
        for seen in (bound, a.node):
            first, declared, *_more = node.command("explain", a.outside[0], "--source", bound).stdout.splitlines()
            assert first == "%s sees the node's address (%s), for tcp/80 from %s" % (a.outside[0], seen, bound)
            assert declared == "policy: the node's address"
            node.sync()


def installed(node: AgentNode) -> t.List[str]:
    """What came to the node since it was made."""
    return sorted(node.files() - node.pristine)


class TestModule:
    """The module that installs it."""

    @pytest.fixture
    def bare(self, ns: Namespace, tmp_path: Path) -> AgentNode:
        """A node on which nothing is installed yet."""
        return AgentNode(ns, tmp_path, metrics=True, installed=False)

    @staticmethod
    def run(node: AgentNode, flags: str = "", **options: t.Any) -> t.Dict[str, t.Any]:
        """Run it on the node.

        :param flags: ``C`` for check mode, ``D`` for a diff, as for ``ansible``.
        """
        given = {"metrics_dir": node.paths.metrics_dir, **options}
        return node.module("ip_masq_agent", given, check="C" in flags, diff="D" in flags)

    def test_from_nothing_to_nothing(self, bare: AgentNode) -> None:
        options = {"config": {"nonMasqueradeCIDRs": ["10.1.0.0/16"], "resyncInterval": "90s", "enableIPv6": True}}
        predicted = self.run(bare, "CD", **options)
        assert predicted["changed"] and installed(bare) == [] and pristine(snapshot(bare.ns))
        done = self.run(bare, "D", **options)
        assert done["changed"] and not done.get("failed"), done
        for key in ("files", "services", "rules", "diff"):
            assert predicted[key] == done[key], key
        assert exempt(bare) == ["169.254.0.0/16", "10.1.0.0/16"]
        assert bare.status()["in_sync"]
        parse((bare.metrics_dir / "ip_masq_agent.prom").read_text())
        before = snapshot(bare.ns)
        again = self.run(bare, "D", **options)
        assert not again["changed"] and again["files"] == again["services"] == [], again
        assert snapshot(bare.ns) == before
        predicted = self.run(bare, "CD", state="absent")
        assert predicted["changed"] and bare.status()["in_sync"]
        removed = self.run(bare, "D", state="absent")
        for key in ("files", "services"):
            assert predicted[key] == removed[key], key
        assert installed(bare) == []
        assert not list(bare.systemd.glob("*.enabled")) and not list(bare.systemd.glob("*.active"))
        assert NFT.rules(bare.ns, "ipv4") is None and NFT.listing(bare.ns, "ipv4", "POSTROUTING") == []
        assert self.run(bare, state="absent")["changed"] is False

    def test_one_call_also_verifies_and_asks_about_the_kubelet(self, bare: AgentNode) -> None:
        both: t.Dict[str, t.Any] = {"config": {}, "verify": True, "kubelet": {}}
        first = bare.module("ip_masq_agent", both)
        # The node has no pods yet.
        assert first["changed"] and first["verification"]["exit_status"] == 6, first
        assert [one["code"] for one in first["verification"]["untested"]] == ["no_pods"]
        assert (first["kubelet"]["decision"], first["kubelet"]["failure"]) == ("no_kubelet", "")
        bare.wire()
        bare.ns.run("iptables-nft", "-t", "nat", "-I", "POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
        again = bare.module("ip_masq_agent", {**both, "kubelet": {"binary": "x"}})
        assert not again["changed"] and not again.get("failed"), "it only returns what it found"
        assert (again["verification"]["exit_status"], again["verification"]["verified"]) == (5, False)
        assert again["kubelet"] == {"failure": "binary 'x' must be an absolute path", "actions": []}
        checked = bare.module("ip_masq_agent", both, check=True)
        assert "verification" not in checked and checked["kubelet"]["actions"] == []
        assert not {"verification", "kubelet"} & set(bare.module("ip_masq_agent", {"config": {}}))

    def test_what_ansible_sent_is_what_was_installed(self, bare: AgentNode) -> None:
        done = bare.ansible("kubenode.ip_masq.ip_masq_agent", {"config": {}}, "-D")
        assert done["changed"] and not done.get("failed"), done
        assert done["files"] and done["rules"]["actions"] and done["diff"]
        assert bare.program_modules() == bare.collection_modules()
        assert {"_tasks.cli", "_agent.status", "_agent.explain", "_engine.reconcile"} <= set(bare.program_modules())

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"config": {"nonMasqueradeCIDRs": ["10.0.0.1/8"]}}, "the aligned network is 10.0.0.0/8"),
            ({"bin_dir": "/with space"}, "bin_dir: invalid path '/with space': must be absolute"),
            ({"python": "/no/such/python"}, "python: /no/such/python is not Python 3.8 or later"),
            ({"config_dir": "/etc/apt"}, "config_dir: /etc/apt is not dedicated to the agent (it contains '"),
        ],
    )
    def test_bad_input_touches_nothing(self, bare: AgentNode, options: t.Dict[str, t.Any], message: str) -> None:
        done = self.run(bare, **options)
        assert done["failed"] and message in done["msg"], done
        assert installed(bare) == [] and pristine(snapshot(bare.ns))

    def test_an_agent_that_does_not_start_is_reported_until_it_does(self, bare: AgentNode) -> None:
        # A Python when it is asked, and none when systemd starts it.
        python = bare.at("/usr/local/sbin/python")
        python.write_text('#!/bin/sh\ncase $* in *version_info*) exit;; esac\necho "no python here" >&2\nexit 126\n')
        python.chmod(0o755)
        for _again in range(2):
            done = self.run(bare, config={}, python="/usr/local/sbin/python")
            assert done["failed"] and "fails: result exit-code, exit status 126: no python here" in done["msg"]
            assert exempt(bare), "the rules were set all the same"
        predicted = self.run(bare, "C", config={}, python="/usr/local/sbin/python")
        assert not predicted["changed"] and "failed: result exit-code, exit status 126" in str(predicted["warnings"])
        python.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
        done = self.run(bare, config={}, python="/usr/local/sbin/python")
        assert not done.get("failed") and not done["changed"], done

    def test_the_service_is_tried_after_a_change_and_only_then(self, bare: AgentNode) -> None:
        def tried() -> int:
            return (bare.systemd / "log").read_text().count("restart ip-masq-agent.service")

        self.run(bare, "C", config={}, enabled=False)
        assert not (bare.systemd / "log").exists()
        self.run(bare, config={}, enabled=False)
        assert tried() == 1 and not list(bare.systemd.glob("*.active"))
        self.run(bare, config={}, enabled=False)
        assert tried() == 1
        self.run(bare, config={"masqLinkLocal": True}, enabled=False)
        assert tried() == 2

    def test_waiting_long_for_a_lock_is_for_this_run_only(self, bare: AgentNode) -> None:
        self.run(bare, config={}, metrics_dir=None, lock_timeout=300)
        commands = (bare.run_dir / "commands").read_text().splitlines()
        assert commands and all(" -w 5 " in command for command in commands), commands

    def test_removal_finds_a_chain_whose_name_only_its_jump_tells(self, bare: AgentNode) -> None:
        self.run(bare, config={"masqChain": "OPS-MASQ", "enableIPv6": True})
        assert NFT.rules(bare.ns, "ipv4", "OPS-MASQ")
        (bare.config_dir / "config").unlink()
        bare.state_file.unlink()
        predicted = self.run(bare, "CD", state="absent")
        done = self.run(bare, "D", state="absent")
        assert predicted["rules"] == done["rules"]
        for family in ("ipv4", "ipv6"):
            assert NFT.rules(bare.ns, family, "OPS-MASQ") is None and not NFT.listing(bare.ns, family, "POSTROUTING")
        assert installed(bare) == []

    def test_a_node_without_systemd_is_refused(self, bare: AgentNode) -> None:
        (bare.root / "run/systemd/system").rmdir()
        done = self.run(bare, config={})
        assert done["failed"] and "not booted with systemd" in done["msg"]
        assert installed(bare) == [] and pristine(snapshot(bare.ns))
