# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node on which the role ran once, with no variable set."""

from __future__ import annotations

import json
import os
import re
import time
import typing as t

from checks import (
    AGENT,
    BACKEND,
    BOOT_SERVICE,
    CHAIN,
    DAMAGE,
    FLUSHED_RULES,
    HERE,
    JUMP,
    LOST,
    NATIVE,
    PLACES,
    RFC1918,
    SERVICE,
    TIMER,
    agent,
    check,
    check_counters,
    check_rules,
    counters,
    done,
    equal,
    eventually,
    flush,
    in_sync,
    interval,
    journal,
    last_sync,
    lose,
    ours,
    packets,
    postrouting,
    remembered,
    run,
    sh,
    shown,
    status,
)

HOOKS = tuple(
    "ip-masq-agent-firewall@%s.service" % unit
    for unit in ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables", "ufw")
)
STARTED = (TIMER, "ip-masq-agent.path")


def rules() -> None:
    """What the node holds."""
    check_rules("after the role")
    check("kube-proxy's jump is before ours", postrouting()[0].endswith("-j KUBE-POSTROUTING"))
    equal("IPv6 has no rule of ours", [rule for place in PLACES for rule in ours("ipv6", place)], [])
    packets("tcp")
    packets("udp", {"10.99.0.1": "pod", "203.0.113.7": "node"}, "udp")


def units() -> None:
    """What systemd runs."""
    for unit in (BOOT_SERVICE,) + STARTED + HOOKS:
        equal("%s is enabled" % unit, run("systemctl", "is-enabled", unit).stdout, "enabled\n")
    for unit in STARTED:
        equal("%s is active" % unit, shown(unit, "ActiveState"), {"ActiveState": "active"})
    equal("the timer's interval", interval(), "1min")
    # Without this a timer of a minute may run two minutes apart.
    equal("the timer's accuracy", shown(TIMER, "AccuracyUSec"), {"AccuracyUSec": "1s"})
    eventually("a sync is due within the minute", sync_is_due)
    about = shown(BOOT_SERVICE, "After", "Wants", "Requires", "WantedBy", "RequiredBy")
    check("the kubelet does not need it, nor it the kubelet", "kubelet" not in " ".join(about.values()), about)
    check("at boot the kubelet starts after it", "kubelet.service" in shown(BOOT_SERVICE, "Before")["Before"].split())
    orders = " ".join(shown(SERVICE, "After", "Before").values())
    check("a resync has no order", not re.search("kubelet|firewall|nftables|network|sysinit|basic", orders), orders)


def sync_is_due() -> bool:
    """Whether the timer waits for its next time, at most a minute and its accuracy away."""
    due = shown(TIMER, "NextElapseUSecMonotonic")["NextElapseUSecMonotonic"]
    units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "w": 604800.0}
    parts = re.findall(r"([0-9.]+)([a-z]+)", due)
    return bool(parts) and 0 <= sum(float(number) * units[unit] for number, unit in parts) - time.monotonic() <= 61


def sandbox() -> None:
    """A sync that systemd starts works inside its sandbox, for real damage."""
    for what, damage in DAMAGE.items():
        before = remembered()["drift_repaired"]
        damage()
        sh("systemctl", "start", SERVICE)
        check_rules("a sync in the sandbox, %s, %s" % (BACKEND, what))
        equal("it counts as one repair", remembered()["drift_repaired"], before + 1)
    packets("after repairs in the sandbox")


def quiet() -> None:
    """Nothing is written, anywhere, while nothing happens."""
    sh("systemctl", "start", SERVICE)
    packets("something to count", {"203.0.113.7": "node"})
    here, counted, synced = len(journal()), counters(), last_sync()
    state = os.stat("/var/lib/ip-masq-agent/state.json").st_mtime_ns
    for _again in range(3):
        sh("systemctl", "start", SERVICE)
    check("three more syncs ran", last_sync() > synced)
    check_counters("syncs without work", counted)
    equal("the state file is as it was", os.stat("/var/lib/ip-masq-agent/state.json").st_mtime_ns, state)
    eventually("nothing stays resident", lambda: not resident(), seen=lambda: str(resident()))

    lose()
    sh("systemctl", "start", SERVICE)
    # What the agent wrote reaches the journal a moment later; what earlier syncs wrote would stand before it.
    eventually("the repair is in the journal", lambda: bool(written(here)), seen=lambda: str(written(here)))
    lines = written(here)
    check(
        "it has one line about what was put back, and none of the syncs before",
        len(lines) == 1 and LOST in lines[0],
        "\n".join(lines),
    )


def written(position: int) -> t.List[str]:
    """What the journal got after so many lines.

    Less "Starting" and "Finished" of systemd before 252, which LogLevelMax does not reach.
    """
    old = int(sh("systemctl", "--version").split()[1]) < 252
    return [line for line in journal()[position:] if not (old and " systemd[1]: " in line)]


def resident() -> t.List[str]:
    """Processes of ours."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as handle:
                words = handle.read().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(AGENT) for word in words):
            found.append(" ".join(words))
    return found


def decided(text: str) -> str:
    """What explain says next; a table of our own may let the packet pass before the chains of kube-proxy do."""
    return r".*\npolicy: .*\ndecided by: " + ("" if NATIVE else "ip-masq-agent.*: " + text)


def command_line() -> None:
    """What the agent tells people and programs."""
    report = status()
    equal("status: exit status", report["exit status"], 0)
    equal("status: in sync, nothing differs", (report["in_sync"], report["differs"], report["errors"]), (True, [], []))
    equal("status: where the configuration is from", report["config"]["sources"], ["/etc/ip-masq-agent/config"])
    equal("status: the policy", report["config"]["non_masquerade_cidrs"], list(RFC1918))
    equal("status: the interval", report["config"]["resync_interval_seconds"], 60)
    equal("status: the backend", report["backend"]["name"], BACKEND.backend)
    equal("status: families", list(report["families"]), ["ipv4"])
    shown_rules, jump = (report["families"]["ipv4"][what] for what in ("rules", "jump"))
    if NATIVE:
        table = sh("nft", "-s", "list", "table", "ip", "ip_masq_agent")
        # A line each for the elements of the set.
        equal("status: rules", " ".join(shown_rules).replace(",", " ").split(), table.replace(",", " ").split())
        equal("status: jump", jump, None)
    else:
        equal("status: rules", shown_rules, BACKEND.listing(HERE, "ipv4", CHAIN))
        equal("status: jump", jump, (BACKEND.listing(HERE, "ipv4", "POSTROUTING") or [""])[-1])
    before = report["families"]["ipv4"]["counters"]
    packets("to be counted", {"10.99.0.1": "pod", "172.20.0.1": "pod", "203.0.113.7": "node"})
    after = status()["families"]["ipv4"]["counters"]
    counted = tuple(after[name] - before[name] for name in ("exempt_packets", "masqueraded_packets"))
    equal("status: counts connections, exempt and masqueraded", counted, (2, 1))
    check("status: when it last ran", report["last_sync"] <= time.time(), report)
    check("status: what it last changed", report["last_change"]["lines"], report)

    table = agent("status")
    equal("status for people: exit status", table.returncode, 0)
    for words in ("in sync", "/etc/ip-masq-agent/config", "10.0.0.0/8", "every 60s", BACKEND.backend):
        check("status for people: says %r" % words, words in table.stdout, table.stdout)

    for arguments, wanted in (
        (("10.99.0.1",), r"10\.99\.0\.1 sees the pod's own address \(10\.244\." + decided(r".*10\.0\.0\.0/8")),
        (("203.0.113.7",), r"203\.0\.113\.7 sees the node's address \(.*" + decided(".*MASQUERADE")),
        (("10.99.0.1", "--source", "10.244.1.2"), r"sees the pod's own address \(10\.244\.1\.2\), for tcp/80"),
        (("203.0.113.7", "--source", "10.244.1.2", "--port", "53"), r"sees the node's address \(.*\), for tcp/53"),
        (("203.0.113.7", "--protocol", "icmp"), r"sees the node's address \(.*\), for icmp"),
    ):
        said = agent("explain", *arguments)
        check("explain %s" % " ".join(arguments), not said.returncode and re.search(wanted, said.stdout), said.stdout)
    equal("explain refuses what is no address", agent("explain", "example.org").returncode, 2)

    verified = agent("verify")
    equal("verify: exit status", verified.returncode, 0)
    check(
        "verify: all match the policy",
        re.search(r"^\d+ kinds of packets, all match the policy$", verified.stdout, re.M),
        verified.stdout,
    )
    equal("status: the last verification", status()["last_verification"]["verified"], True)

    flush()
    report = status()
    equal("status of a flushed chain: exit status", report["exit status"], 4)
    differs = len(report["differs"])
    check("status of a flushed chain: what differs", differs == FLUSHED_RULES and not report["in_sync"], report)
    equal("status changes nothing", ours(), [] if NATIVE else [JUMP])
    equal("sync: exit status", agent("sync").returncode, 0)
    check("sync brings it back", in_sync())


def no_yaml_needed() -> None:
    """The role's file is JSON: it is read wherever Python is."""
    with open("/etc/ip-masq-agent/config", encoding="utf-8") as handle:
        check("the config file is JSON", "resyncInterval" in json.load(handle))


rules()
units()
sandbox()
quiet()
command_line()
no_yaml_needed()
done()
