# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The script that the timer starts: nothing to do costs no Python and no write, and no difference gets past it."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import shutil
import signal
import subprocess
import typing as t
from pathlib import Path

import pytest
from support.agent_node import AgentNode
from support.namespaces import Namespace, until
from support.prometheus import parse
from support.topology import ADDRESSES, Topology
from support.variants import BACKENDS, Variant, snapshot

CHAIN = "IP-MASQ-AGENT"
CIDRS = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]
#: How many random damages each backend meets; more with IP_MASQ_DAMAGES=N, others with IP_MASQ_SEED=N.
DAMAGES = int(os.environ.get("IP_MASQ_DAMAGES", "15"))
SEED = int(os.environ.get("IP_MASQ_SEED", "1"))
#: Rules of other programs that are in POSTROUTING all the time.
FOREIGN = ["-A POSTROUTING -m mark --mark 0x4000 -j MASQUERADE", "-A POSTROUTING -s 10.88.0.0/16 -j MASQUERADE"]


@pytest.fixture
def node(ns: Namespace, tmp_path: Path, variant: Variant) -> AgentNode:
    """A node in sync, whose POSTROUTING others use as well."""
    made = AgentNode(ns, tmp_path)
    if variant.backend != "nftables":
        variant.load(ns, "ipv4", *FOREIGN)
    made.configure(nonMasqueradeCIDRs=CIDRS, backend=variant.backend)
    assert made.resync() == ["resync"], "the first resync must be the agent's"
    made.settle()
    return made


def postrouting(node: AgentNode, variant: Variant) -> t.List[str]:
    """The rules of POSTROUTING."""
    return variant.listing(node.ns, "ipv4", "POSTROUTING") or []


def merged(cidrs: t.Iterable[str]) -> t.List[t.Any]:
    """The same addresses as few networks."""
    return list(ipaddress.collapse_addresses(ipaddress.IPv4Network(cidr) for cidr in cidrs))


def assert_in_force(node: AgentNode, variant: Variant, cidrs: t.Sequence[str] = CIDRS) -> None:
    """The policy is active, and packets get to it."""
    assert set(variant.jumps(node.ns, "ipv4")) == {"-m addrtype ! --dst-type LOCAL -j " + CHAIN}
    *exempt, last = variant.rules(node.ns, "ipv4") or []
    assert all(rule.startswith("-d ") and rule.endswith(" -j RETURN") for rule in exempt)
    # A range inside of another one, or given twice, changes nothing: what is left in place may hold such.
    assert merged(rule.split()[1] for rule in exempt) == merged(["169.254.0.0/16", *cidrs])
    assert last == "-j MASQUERADE --random-fully"
    if variant.backend != "nftables":
        targets = [rule.split()[1:] for rule in postrouting(node, variant)]
        ours = next(i for i, rule in enumerate(targets) if rule[-1] == CHAIN)
        assert not [rule for rule in targets[:ours] if len(rule) == 3], "a rule before the jump lets nothing pass"
        jumps = sum(rule[-1] == CHAIN for rule in targets)
        assert all(rule[-1] == CHAIN for rule in targets[ours : ours + jumps]), "a rule is between two jumps"


def test_nothing_to_do_starts_no_python(node: AgentNode) -> None:
    before = (node.run_dir / "last-sync").stat().st_mtime_ns
    # Whatever starts the agent, or Python by another way through it, fails from now on.
    node.agent.unlink()
    node.program.unlink()
    for _again in range(3):
        assert node.call(node.paths.resync).returncode == 0
    assert (node.run_dir / "last-sync").stat().st_mtime_ns > before
    node.configure(nonMasqueradeCIDRs=[])
    assert node.call(node.paths.resync).returncode != 0, "the agent was not even looked for"


def test_nothing_to_do_writes_nothing_to_the_kernel(topology: Topology, variant: Variant, tmp_path: Path) -> None:
    a = ADDRESSES["ipv4"]
    node = AgentNode(topology.node, tmp_path)
    node.configure(nonMasqueradeCIDRs=CIDRS, backend=variant.backend)
    node.resync()
    node.settle()
    topology.ask(*a.exempt, *a.outside)
    before = snapshot(node.ns)
    with node.ns.popen("nft", "monitor") as monitor:
        for _again in range(5):
            assert node.resync() == []
        # The monitor hears this, so it would have heard the others.
        node.ns.run("nft", "add", "table", "ip", "overheard")
        assert monitor.stdout is not None
        assert monitor.stdout.readline() == "add table ip overheard\n"
        monitor.kill()
    node.ns.run("nft", "delete", "table", "ip", "overheard")
    assert snapshot(node.ns) == before
    assert any("-c 0 0" not in line for line in variant.counters(node.ns, "ipv4")), "no packet was counted"


class IptablesDamage:
    """Random changes to our chain and to POSTROUTING, made in one transaction."""

    _STRAY = [
        "-d 203.0.113.0/24 -j RETURN",
        "-j RETURN",
        "-j ACCEPT",
        "-j MASQUERADE",
        "-d 10.0.0.0/9 -j RETURN",
        "-s 10.0.0.0/8 -j ACCEPT",
        "-d 10.0.0.0/8 -p tcp -m tcp --dport 80 -j MASQUERADE",
    ]
    _JUMPS = [
        "-j " + CHAIN,
        "-g " + CHAIN,
        "-m addrtype --dst-type LOCAL -j " + CHAIN,
        "-s 10.244.0.0/16 -m addrtype ! --dst-type LOCAL -j " + CHAIN,
        "-m addrtype ! --dst-type LOCAL -j " + CHAIN,
    ]

    def __init__(self, node: AgentNode, variant: Variant, rng: random.Random) -> None:
        self._node, self._variant, self._rng = node, variant, rng

    def inflict(self) -> str:
        """Damage something, and say what."""
        rng = self._rng
        chain: t.Optional[t.List[str]] = [line.split(None, 2)[2] for line in self._read(CHAIN)]
        around = [line.split(None, 2)[2] for line in self._read("POSTROUTING")]
        what = rng.choice(["chain", "chain", "chain", "jump", "jump", "jump", "flush", "gone", "both"])
        if what == "gone":
            chain, around = None, [rule for rule in around if not rule.endswith(CHAIN)]
        elif what == "flush":
            chain = []
        if what in ("chain", "both"):
            assert chain is not None
            self._scramble(chain, self._STRAY)
        if what in ("jump", "both"):
            self._scramble_jump(around)
        self._write(chain, around)
        return "%s: %s, POSTROUTING: %s" % (what, chain, around)

    def _scramble(self, rules: t.List[str], stray: t.Sequence[str]) -> None:
        rng = self._rng
        for _change in range(rng.randint(1, 3)):
            at = rng.randrange(len(rules)) if rules else 0
            change = rng.choice(["delete", "swap", "repeat", "insert", "append", "replace"])
            if change == "append" or not rules:
                rules.append(rng.choice(stray))
            elif change == "insert":
                rules.insert(at, rng.choice(stray))
            elif change == "delete":
                del rules[at]
            elif change == "repeat":
                rules.insert(rng.randint(0, len(rules)), rules[at])
            elif change == "replace":
                rules[at] = rng.choice(stray)
            else:
                rules.append(rules.pop(at))

    def _scramble_jump(self, around: t.List[str]) -> None:
        rng = self._rng
        at = next(i for i, rule in enumerate(around) if rule.endswith(CHAIN))
        change = rng.choice(["delete", "repeat", "change", "add", "move", "shut out", "shadow"])
        if change == "delete":
            del around[at]
        elif change == "repeat":
            around.insert(rng.randint(0, len(around)), around[at])
        elif change == "change":
            around[at] = rng.choice(self._JUMPS)
        elif change == "add":
            around.insert(rng.randint(0, len(around)), rng.choice(self._JUMPS))
        elif change == "move":
            around.insert(rng.randint(0, len(around)), around.pop(at))
        elif change == "shut out":
            around.insert(rng.randint(0, at), rng.choice(["-j RETURN", "-j ACCEPT"]))
        else:
            around += ["-j RETURN", around.pop(at)]

    def state(self) -> t.List[str]:
        """All that can be damaged."""
        return self._read(CHAIN) + self._read("POSTROUTING")

    def _read(self, chain: str) -> t.List[str]:
        return self._variant.listing(self._node.ns, "ipv4", chain) or []

    def _write(self, chain: t.Optional[t.List[str]], around: t.List[str]) -> None:
        lines = ["-F POSTROUTING"]
        if chain is None:
            lines += ["-F " + CHAIN, "-X " + CHAIN]
        else:
            lines += [":%s - [0:0]" % CHAIN] + ["-A %s %s" % (CHAIN, rule) for rule in chain]
        self._variant.load(self._node.ns, "ipv4", *lines, *("-A POSTROUTING " + rule for rule in around))


class NftablesDamage:
    """Random commands of nft on our table."""

    _COMMANDS = [
        "delete element {t} exempt_ranges {{ 10.0.0.0/8 }}",
        "add element {t} exempt_ranges {{ 203.0.113.0/24 }}",
        "flush set {t} exempt_ranges",
        "flush chain {t} postrouting",
        "flush table {t}",
        "delete table {t}",
        "insert rule {t} postrouting return",
        "insert rule {t} postrouting ip daddr 203.0.113.7 accept",
        "add rule {t} postrouting ip daddr 10.0.0.1 masquerade",
        "add chain {t} mine {{ type nat hook postrouting priority 10; }}; add rule {t} mine masquerade",
        "add set {t} mine {{ type ipv4_addr; }}",
        "flush chain {t} postrouting; add rule {t} postrouting masquerade fully-random",
        "flush chain {t} postrouting; delete chain {t} postrouting",
        "flush ruleset",
    ]

    def __init__(self, node: AgentNode, _variant: Variant, rng: random.Random) -> None:
        self._node, self._rng = node, rng

    def state(self) -> t.List[str]:
        """All that can be damaged."""
        return self._node.ns.run("nft", "-s", "list", "ruleset").splitlines()

    def inflict(self) -> str:
        """Damage something, and say what."""
        command = self._rng.choice(self._COMMANDS).format(t="ip ip_masq_agent")
        self._node.ns.run("nft", "-f", "-", stdin=command.replace("; add", "\nadd").replace("; delete", "\ndelete"))
        return command


DAMAGE = {"iptables_nft": IptablesDamage, "iptables_legacy": IptablesDamage, "nftables": NftablesDamage}


def test_any_damage_to_the_rules_is_seen_and_repaired(node: AgentNode, variant: Variant) -> None:
    damage = DAMAGE[variant.backend](node, variant, random.Random(SEED))
    seen = 0
    for _round in range(DAMAGES):
        before = damage.state()
        told = damage.inflict()
        differs = before != damage.state()
        others = [rule for rule in postrouting(node, variant) if not rule.endswith(CHAIN)]
        started = node.resync()
        if differs:
            seen += 1
            assert started == ["resync"], told
        assert node.resynced.returncode == 0, told + node.resynced.stderr
        assert_in_force(node, variant)
        assert [rule for rule in postrouting(node, variant) if not rule.endswith(CHAIN)] == others, told
        node.settle()
        assert_in_force(node, variant)
    assert seen > DAMAGES / 2, "hardly any damage did any"


def edit_in_place(node: AgentNode) -> t.List[str]:
    """Same size, and the old time put back: only the content tells."""
    config = node.config_dir / "config"
    about = config.stat()
    config.write_text(config.read_text().replace("172.16.0.0", "172.24.0.0").replace("/12", "/13"))
    os.utime(config, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert (config.stat().st_size, config.stat().st_mtime_ns) == (about.st_size, about.st_mtime_ns)
    return ["10.0.0.0/8", "172.24.0.0/13", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15"]


def edit_behind_link(node: AgentNode) -> t.List[str]:
    """A file changes that the config file is a symbolic link to, as with a ConfigMap that is mounted."""
    config, other = node.config_dir / "config", node.root / "etc/elsewhere"
    config.rename(other)
    config.symlink_to("/etc/elsewhere")
    node.resync()
    node.settle()
    other.write_text(other.read_text().replace("100.64.0.0/10", "100.64.0.0/12"))
    return ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/12", "198.18.0.0/15"]


def add_drop_in(node: AgentNode, name: str = "30-more.yaml") -> t.List[str]:
    """One more drop-in."""
    node.drop_in(name, '{"nonMasqueradeCIDRs": ["203.0.113.0/24"]}')
    return [*CIDRS, "198.18.0.0/15", "203.0.113.0/24"]


def remove_drop_in(node: AgentNode) -> t.List[str]:
    """A drop-in goes."""
    (node.drop_ins / "20-lab.json").unlink()
    return CIDRS


def swap_drop_ins(node: AgentNode) -> t.List[str]:
    """A drop-in comes to be read last, so that its scalars win."""
    node.drop_in("30-more.json", '{"masqLinkLocal": true}')
    node.resync()
    node.settle()
    (node.drop_ins / "20-lab.json").rename(node.drop_ins / "40-lab.json")
    return [*CIDRS, "198.18.0.0/15"]


def swap_contents(node: AgentNode) -> t.List[str]:
    """Two files change places, each with the content of the other."""
    config, drop_in = node.config_dir / "config", node.drop_ins / "20-lab.json"
    one, other = config.read_text(), drop_in.read_text()
    config.write_text(other)
    drop_in.write_text(one)
    return [*CIDRS, "198.18.0.0/15"]


#: By backend: files are compared in one way, whichever holds the rules.
EDITS = {
    "iptables_nft": (edit_in_place, edit_behind_link),
    "iptables_legacy": (add_drop_in, remove_drop_in),
    "nftables": (swap_drop_ins, swap_contents),
}


def test_any_edit_of_the_configuration_acts(node: AgentNode, variant: Variant) -> None:
    for edit in EDITS[variant.backend]:
        shutil.rmtree(node.config_dir)
        node.drop_ins.mkdir(parents=True)
        node.configure(nonMasqueradeCIDRs=CIDRS, backend=variant.backend)
        node.drop_in("20-lab.json", '{"nonMasqueradeCIDRs": ["198.18.0.0/15"], "masqLinkLocal": false}')
        node.resync()
        node.settle()
        cidrs = edit(node)
        assert node.resync() == ["resync"], edit.__name__
        assert node.resynced.returncode == 0, edit.__name__ + node.resynced.stderr
        assert_in_force(node, variant, cidrs)
        node.settle()


def test_changes_without_effect_on_the_policy_start_nothing(node_nft: AgentNode) -> None:
    os.utime(node_nft.config_dir / "config")
    node_nft.drop_in(".30-more.json.swp", "half of a dr")
    node_nft.drop_in(".40-more.json", "half of a dr")
    node_nft.drop_in("50-more.json~", "what it was before")
    (node_nft.config_dir / "notes").write_text("not a drop-in")
    for name in ("pipe", ".60-more.json", "70-more.json.tmp"):
        os.mkfifo(node_nft.drop_ins / name)
    # A watchdog: a pipe that is opened is waited for without end.
    done = node_nft.call("timeout", "--signal=KILL", "60", node_nft.paths.resync)
    assert done.returncode == 0, "the script waited"
    assert node_nft.resync() == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("config", one) for one in ("a pipe", "a directory", "a link that leads nowhere", "a link to itself")),
        *(("config.d/30-more." + one, "a pipe") for one in ("json", "yaml", "yml")),
    ],
)
def test_what_is_no_regular_file_is_the_agent_s_to_judge(node_nft: AgentNode, name: str, kind: str) -> None:
    path = node_nft.config_dir / name
    path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("/nonexistent" if "nowhere" in kind else path)
    for _again in range(2):
        done = node_nft.call("timeout", "--signal=KILL", "60", node_nft.paths.resync)
        assert done.returncode == (0 if kind == "a link that leads nowhere" else 78), done.stderr
    assert node_nft.resync() == ["resync"]


def test_a_comparison_that_does_not_end_is_terminated_and_the_agent_starts(node_nft: AgentNode) -> None:
    """As by systemd at TimeoutStartSec. The config file becomes a pipe after the script has checked its type."""
    config, wrapper = node_nft.config_dir / "config", node_nft.path / "b2sum"
    wrapper.write_text('#!/bin/sh\ncd /etc/ip-masq-agent\nrm config\nmkfifo config\nexec /usr/bin/b2sum "$@"\n')
    wrapper.chmod(0o755)
    BACKENDS["iptables_nft"].lose(node_nft.ns, "ipv4", "10.0.0.0/8")
    writers: t.List[int] = []

    def is_read() -> bool:
        # OSError while nothing reads it; the script's checksum waits as long as this end stays open.
        with contextlib.suppress(OSError):
            if config.is_fifo():
                writers.append(os.open(config, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    env = dict(os.environ, PATH="%s:%s" % (node_nft.path, os.environ["PATH"]))
    argv = node_nft.ns.argv(node_nft.paths.resync)
    with subprocess.Popen(argv, env=env, start_new_session=True) as script:
        try:
            until(is_read, "the checksum of the pipe")
            os.killpg(script.pid, signal.SIGTERM)
            assert script.wait(60) == 78, "the agent judges the pipe, with the last policy active"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            for writer in writers:
                os.close(writer)
    assert_in_force(node_nft, BACKENDS["iptables_nft"])


def test_a_program_that_reads_its_input_hides_nothing(ns: Namespace, tmp_path: Path) -> None:
    """A wrapper in the place of iptables may read what it was not given: the commands behind its own."""
    made = AgentNode(ns, tmp_path)
    real = ns.run("sh", "-c", "command -v iptables-nft").strip()
    for name, reads in (("iptables-nft", "cat >/dev/null\n"), ("iptables-nft-restore", "")):
        wrapper = made.path / name
        wrapper.write_text('#!/bin/sh\n%sexec %s "$@"\n' % (reads, real.replace("iptables-nft", name)))
        wrapper.chmod(0o755)
    made.configure(backend="iptables_nft", nonMasqueradeCIDRs=CIDRS)
    made.resync()
    made.settle()
    assert str(made.path) in (made.run_dir / "commands").read_text()
    for chain in (CHAIN, "POSTROUTING"):
        ns.run("iptables-nft", "-t", "nat", "-A", chain, "-d", "203.0.113.7", "-j", "ACCEPT")
        assert made.resync() == ["resync"], chain
        made.settle()


@pytest.fixture
def node_nft(ns: Namespace, tmp_path: Path) -> AgentNode:
    """A node in sync, on iptables-nft."""
    made = AgentNode(ns, tmp_path)
    made.configure(backend="iptables_nft", nonMasqueradeCIDRs=CIDRS)
    made.resync()
    made.settle()
    return made


@pytest.mark.parametrize("program", ["iptables-legacy", "ip6tables-legacy"])
def test_a_legacy_table_that_appears_is_looked_at(node_nft: AgentNode, program: str) -> None:
    node_nft.ns.run(program, "-t", "nat", "-S")
    assert node_nft.resync() == ["resync"]
    node_nft.settle()


@pytest.mark.parametrize("program", ["nft", "iptables-legacy", "ip6tables-nft"])
def test_a_program_that_is_installed_is_looked_at(node_nft: AgentNode, program: str) -> None:
    wrapper = node_nft.path / program
    wrapper.write_text('#!/bin/sh\nexec /usr/sbin/%s "$@"\n' % program)
    wrapper.chmod(0o755)
    assert node_nft.resync() == ["resync"]
    node_nft.settle()


def test_rules_that_only_nft_can_express_are_seen(node_nft: AgentNode) -> None:
    node_nft.ns.run("nft", "insert rule ip nat %s ip daddr { 203.0.113.7, 203.0.113.9 } return" % CHAIN)
    assert node_nft.resync() == ["resync"]
    assert_in_force(node_nft, BACKENDS["iptables_nft"])


def test_a_change_between_the_verification_and_the_snapshot_is_seen(node_nft: AgentNode) -> None:
    """What is compared with is what the agent has read and verified, not what is there when the snapshot is taken."""
    made = node_nft
    wrapper = made.path / "b2sum"
    rule = "iptables-nft -t nat -A POSTROUTING -s 10.88.0.0/16 -j ACCEPT"
    wrapper.write_text('#!/bin/sh\n%s || exit 9\nexec /usr/bin/b2sum "$@"\n' % rule)
    wrapper.chmod(0o755)
    assert made.sync().returncode == 0
    wrapper.unlink()
    assert len(postrouting(made, BACKENDS["iptables_nft"])) > 1
    assert made.expected()
    assert made.resync() == ["resync"]
    made.settle()


def _unlink(path: Path) -> None:
    path.unlink()


def _unreadable(path: Path) -> None:
    # Root reads whatever its mode is, but not what has no file behind its name.
    path.unlink()
    path.symlink_to("/nonexistent")


CORRUPTIONS: t.Dict[str, t.Callable[[Path], t.Any]] = {
    "missing": _unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\xff\x00 $(echo 1) `echo 2`\n* ? [\n"),
    "without its end": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "with more behind it": lambda path: path.write_bytes(path.read_bytes() + b"more\n"),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
    "dangling": _unreadable,
}


@pytest.mark.parametrize("name", ["expected", "commands", "due"])
def test_every_damage_to_the_snapshot_leads_to_the_agent(node_nft: AgentNode, name: str) -> None:
    path = node_nft.run_dir / name
    for corruption, damage in CORRUPTIONS.items():
        if (name, corruption) == ("due", "without its end"):
            path.write_text("12")
        elif (name, corruption) == ("due", "with more behind it"):
            path.write_text("99999999 more\n")
        else:
            damage(path)
        assert node_nft.resync() == ["resync"], corruption
        if path.is_dir():  # no file takes its place
            path.rmdir()
        node_nft.settle()


def test_a_pipe_in_the_place_of_the_time_stamp_is_replaced(node_nft: AgentNode) -> None:
    path = node_nft.run_dir / "last-sync"
    path.unlink()
    os.mkfifo(path)
    done = node_nft.call("timeout", "--signal=KILL", "60", node_nft.paths.resync)
    assert done.returncode == 0, "the script waited"
    assert path.is_file()
    assert node_nft.resync() == []


def test_a_snapshot_that_is_older_than_an_hour_leads_to_the_agent(node_nft: AgentNode) -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    due = node_nft.run_dir / "due"
    assert uptime + 3500 < int(due.read_text()) <= uptime + 3600
    due.write_text("%d\n" % uptime)
    assert node_nft.resync() == ["resync"]
    assert node_nft.resync() == []


def test_what_could_not_be_looked_at_is_looked_at_by_the_next_resync(node_nft: AgentNode) -> None:
    """Left-overs in iptables-legacy, while another program holds its lock."""
    legacy, ns = BACKENDS["iptables_legacy"], node_nft.ns
    legacy.load(ns, "ipv4", ":%s - [0:0]" % CHAIN, "-A %s -j MASQUERADE" % CHAIN, "-A POSTROUTING -j " + CHAIN)
    with ns.popen("flock", "/run/xtables.lock", "cat") as holder:
        until(lambda: ns.run("flock", "-n", "/run/xtables.lock", "echo", "free", check=False) == "", "the lock")
        for _again in range(2):
            assert node_nft.call(node_nft.paths.program, "--lock-timeout", "1", "sync").returncode == 0
            assert node_nft.expected() == b"", "the node counts as in sync"
        done = node_nft.command("--lock-timeout", "1", "status")
        assert "not checked everywhere" in done.stdout and "xtables lock" in done.stdout
        report = json.loads(node_nft.command("--lock-timeout", "1", "status", "--json").stdout)
        (place,) = report["not_checked"]
        assert place.startswith("ipv4, iptables_legacy: ")
        holder.communicate()
    assert node_nft.resync() == ["resync"]
    assert legacy.rules(ns, "ipv4") is None and legacy.jumps(ns, "ipv4") == []
    assert node_nft.status()["not_checked"] == []
    node_nft.settle()


def test_script_refuses_what_it_does_not_know(node_nft: AgentNode) -> None:
    done = node_nft.call(node_nft.paths.resync, "--force")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


@pytest.mark.parametrize("leaks", ["ignore", "count"])
def test_metrics_without_a_sync_are_those_of_a_sync(
    ns: Namespace, tmp_path: Path, variant: Variant, leaks: str
) -> None:
    """Also what the rules have counted since."""
    node = AgentNode(ns, tmp_path, metrics=True)
    sources = ["10.244.1.0/24"] if leaks == "count" else []
    node.configure(nonMasqueradeCIDRs=CIDRS, backend=variant.backend, leaks=leaks, sourceCIDRs=sources)
    until(lambda: node.resync()[0].startswith("metrics"), "a resync without work")
    path = node.metrics_dir / "ip_masq_agent.prom"
    ns.run("ip", "link", "set", "lo", "up")
    ns.run("ip", "address", "add", "10.244.1.1/32", "dev", "lo")
    ns.run("ip", "route", "add", "203.0.113.0/24", "dev", "lo", "src", "10.244.1.1")
    ns.run("python3", "-c", "import socket; socket.socket(2, 2).sendto(b'x', ('203.0.113.7', 9))")
    path.unlink()
    (start,) = node.resync()
    assert start.split()[0] == "metrics" and node.resynced.returncode == 0, node.resynced.stderr
    live = parse(path.read_text()).values
    assert node.sync().returncode == 0
    synced = parse(path.read_text()).values
    times = {key for key in synced if "timestamp" in key[0] or "conntrack" in key[0]}
    assert live.keys() == synced.keys()
    assert live["ip_masq_agent_packets_total", (("family", "ipv4"), ("verdict", "masqueraded"))] > 0
    assert {key: live[key] for key in live.keys() - times} == {key: synced[key] for key in synced.keys() - times}


@pytest.mark.parametrize("how", ["exit 1", "kill -SEGV $$"])
def test_an_nft_that_cannot_show_the_table_keeps_no_rule_from_being_repaired(
    ns: Namespace, tmp_path: Path, how: str
) -> None:
    """Each resync starts the agent then, and status says why."""
    node = AgentNode(ns, tmp_path)
    program = node.path / "nft"
    program.write_text("#!/bin/sh\n%s\n" % how, encoding="ascii")
    program.chmod(0o755)
    node.configure(nonMasqueradeCIDRs=CIDRS, backend="nftables")
    for _again in range(2):
        assert node.resync() == ["resync"]
        assert_in_force(node, BACKENDS["nftables"])
        ns.run("nft", "flush", "chain", "ip", "ip_masq_agent", "postrouting")
    assert node.resync() == ["resync"]
    assert_in_force(node, BACKENDS["nftables"])
    said = repr(node.status())
    assert "each resync starts the agent: %s cannot show the table ip ip_masq_agent" % program in said
