# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration is edited on the node: good edits act at once, bad ones leave the last valid policy active."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import stat
import threading
import time
import typing as t

from checks import (
    BACKEND,
    CONFIG,
    DEFAULT_PACKETS,
    DROP_INS,
    LINK_LOCAL,
    NATIVE,
    RFC1918,
    SERVICE,
    agent,
    check,
    check_rules,
    done,
    equal,
    eventually,
    exempt,
    flush,
    interval,
    ours,
    packets,
    remembered,
    run,
    sh,
    shown,
    status,
    write,
)

METRICS_DIR = "/var/lib/node_exporter"
METRICS = os.path.join(METRICS_DIR, "ip_masq_agent.prom")


def acts(what: str, wanted: t.Sequence[str], expected: t.Mapping[str, str]) -> None:
    """An edit was made: soon the kernel holds these ranges, and packets agree."""
    eventually("%s: acts" % what, lambda: exempt() == BACKEND.in_order(wanted), seen=exempt)
    check_rules(what, wanted)
    packets(what, expected)
    # What a sync writes last; the next edit comes when it is over.
    eventually("%s: status is 0" % what, lambda: agent("status").returncode == 0, seen=lambda: agent("status").stdout)


def metrics() -> t.Dict[str, float]:
    """The metrics by name and labels, less what all of them begin with."""
    with open(METRICS, encoding="utf-8") as handle:
        lines = handle.read().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name[len("ip_masq_agent_") :]: float(value) for name, value in pairs}


def good_edits(original: str) -> None:
    """The main file, and drop-ins beside it."""
    policy = json.loads(original)
    policy["nonMasqueradeCIDRs"] = ["10.0.0.0/8", "203.0.113.0/24"]
    write(CONFIG, json.dumps(policy))
    ranges = [LINK_LOCAL, "10.0.0.0/8", "203.0.113.0/24"]
    seen = {"10.99.0.1": "pod", "203.0.113.7": "pod", "172.20.0.1": "node", "192.168.77.1": "node"}
    acts("an edited config file", ranges, seen)

    with open(CONFIG, "w", encoding="utf-8") as handle:
        handle.write(json.dumps(dict(policy, nonMasqueradeCIDRs=["10.0.0.0/8"])))
    ranges, seen = ranges[:2], dict(seen, **{"203.0.113.7": "node"})
    acts("a config file written in place", ranges, seen)

    write(os.path.join(DROP_INS, "10-site.json"), '{"nonMasqueradeCIDRs": ["172.16.0.0/12", "10.0.0.0/8"]}')
    ranges, seen = ranges + ["172.16.0.0/12"], dict(seen, **{"172.20.0.1": "pod"})
    acts("a drop-in, one range of two known already", ranges, seen)

    yaml = os.path.join(DROP_INS, "20-rack.yaml")
    write(yaml, "# by hand\nnonMasqueradeCIDRs:\n  - 192.168.0.0/16\n")
    if importlib.util.find_spec("yaml"):
        ranges, seen = ranges + ["192.168.0.0/16"], dict(seen, **{"192.168.77.1": "pod"})
        acts("a drop-in in YAML", ranges, seen)
        sources = status()["config"]["sources"]
        equal("status: all files, in order", sources, [CONFIG, os.path.join(DROP_INS, "10-site.json"), yaml])
    else:
        eventually("YAML without a yaml module is refused", lambda: agent("status").returncode == 78)
        problem = status()["config"]["problem"]
        check("the message names the remedy", yaml in problem and "python3-yaml" in problem, problem)
        packets("YAML that cannot be read changes nothing", seen)
    os.unlink(yaml)
    os.unlink(os.path.join(DROP_INS, "10-site.json"))
    ranges, seen = ranges[:2], dict(seen, **{"172.20.0.1": "node", "192.168.77.1": "node"})
    acts("drop-ins removed", ranges, seen)

    if NATIVE:  # which is no default
        write(os.path.join(DROP_INS, "00-backend.json"), '{"backend": "nftables"}')
    os.unlink(CONFIG)
    acts("no config file at all is the default policy", [LINK_LOCAL, *RFC1918], DEFAULT_PACKETS)
    eventually("and the default interval", lambda: interval() == "1min", seen=interval)
    write(CONFIG, original)
    if NATIVE:
        os.unlink(os.path.join(DROP_INS, "00-backend.json"))
    eventually("the interval is as before", lambda: interval() == "10min", seen=interval)
    acts("the first config file again", [LINK_LOCAL, *RFC1918], DEFAULT_PACKETS)


def edits_during_syncs(original: str) -> None:
    """An edit while a sync is under way, which may have read the files already, acts too: the timer is far away."""
    policy = json.loads(original)
    for round_ in range(8):
        policy["nonMasqueradeCIDRs"] = ["10.%d.0.0/16" % round_]
        write(CONFIG, json.dumps(policy))
        eventually("edit %d: a sync is under way" % round_, is_syncing)
    last = BACKEND.in_order([LINK_LOCAL, "10.7.0.0/16"])
    eventually("the last edit acts", lambda: exempt() == last, seen=exempt)
    write(CONFIG, original)
    acts("the first config file again", [LINK_LOCAL, *RFC1918], DEFAULT_PACKETS)


def is_syncing() -> bool:
    """Whether the service runs now."""
    return shown(SERVICE, "ActiveState")["ActiveState"] in ("activating", "deactivating")


def new_interval() -> None:
    """The timer follows without Ansible; a drop-in that overrides config is not reported as a conflict."""
    write(os.path.join(DROP_INS, "30-often.json"), '{"resyncInterval": "2s"}')
    eventually("the timer follows resyncInterval", lambda: interval() == "2s", seen=interval)
    report = status()
    equal("status: the interval", report["config"]["resync_interval_seconds"], 2)
    notes = [line for line in report["notes"] if "30-often.json" in line]
    check("status: an override is no conflict", not notes, report["notes"])
    repaired("the timer really fires that often", 2 + 2)


def repaired(what: str, promised: float) -> None:
    """Flush the chain; it comes back."""
    wanted, before = ours(), remembered()["drift_repaired"]
    flush()
    started = time.monotonic()
    eventually(what, lambda: remembered()["drift_repaired"] > before and ours() == wanted, promised, started, seen=ours)
    packets(what)


def broken(original: str) -> None:
    """A config file that nobody can use."""
    wanted, errors = ours(), remembered()["config_errors"]
    write(CONFIG, '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}')
    eventually("the unit is failed", lambda: shown(SERVICE, "ActiveState")["ActiveState"] == "failed")
    equal("the rules are those of the last valid policy", ours(), wanted)
    packets("with a broken config file")
    repaired("a flush is repaired with a broken config file", 2 + 2)
    # The drop-in that says 2s was valid; the last valid policy has its interval too.
    equal("the interval is that of the last valid policy", interval(), "2s")

    done_ = agent("status")
    equal("status: exit status", done_.returncode, 78)
    for words in ("BROKEN", "10.0.0.1/8", "10.0.0.0/8", CONFIG, "in sync"):
        check("status: says %r" % words, words in done_.stdout, done_.stdout)
    report = status()
    equal("status --json: exit status", report["exit status"], 78)
    check("status --json: the problem", "10.0.0.1/8" in report["config"]["problem"] and report["failing"], report)
    check("status --json: in sync with the last valid policy", report["in_sync"], report)
    check("status --json: the last error", "10.0.0.1/8" in report["last_error"]["lines"][0], report["last_error"])
    equal("the error was counted once, however often it was met", report["config_errors"], errors + 1)
    said = agent("sync")
    equal("sync: exit status", said.returncode, 78)
    check("sync: reports it", "10.0.0.1/8" in said.stderr and "last valid" in said.stderr, said.stderr)
    explained = agent("explain", "10.99.0.1")
    check("explain: reports it", not explained.returncode and "last valid" in explained.stdout, explained.stdout)
    complaint = sh("journalctl", "--no-pager", "-u", SERVICE, "-p", "err", "-o", "cat")
    check("the journal has it as an error", "10.0.0.1/8" in complaint, complaint)
    values = metrics()
    for name, value in (("config_broken", 1), ("config_errors_total", errors + 1), ("in_sync", 1)):
        equal("metrics: %s" % name, values[name], value)

    for what, text in {
        "no JSON": "{",
        "a list": "[]",
        "not text": "\ufffd\x00",
        "a wrong type": '{"cidrLimit": "many"}',
        "IPv4 in IPv6": '{"nonMasqueradeCIDRs": ["::ffff:10.0.0.0/104"]}',
        "IPv6 while it is off": '{"nonMasqueradeCIDRs": ["fd00::/8"]}',
    }.items():
        write(CONFIG, text)
        equal("%s: sync says 78" % what, agent("sync").returncode, 78)
        equal("%s: the rules stay" % what, ours(), wanted)

    write(CONFIG, original)
    eventually(
        "corrected: the unit is not failed", lambda: run("systemctl", "is-failed", SERVICE).stdout.strip() != "failed"
    )
    eventually("corrected: status is 0", lambda: agent("status").returncode == 0)
    # The sync records this after it has repaired the rules.
    eventually("corrected: nothing is failing", lambda: not status()["failing"])
    eventually("corrected: metrics", lambda: metrics()["config_broken"] == 0, seen=lambda: str(metrics()))
    check_rules("corrected")
    packets("corrected")


def check_metrics() -> None:
    """What node_exporter reads."""
    packets("to be counted")
    equal("sync", agent("sync").returncode, 0)
    about = os.stat(METRICS)
    equal("its mode", oct(stat.S_IMODE(about.st_mode)), "0o644")
    values, report = metrics(), status()
    counted = report["families"]["ipv4"]["counters"]
    wanted = {
        "in_sync": 1,
        "drift_repaired_total": report["drift_repaired"],
        "config_errors_total": report["config_errors"],
        "config_broken": 0,
        'exempt_cidrs{family="ipv4"}': 4,
        "missing_addresses": 0,
    }
    for verdict in ("exempt", "masqueraded"):
        for what in ("packets", "bytes"):
            name = '%s_total{family="ipv4",verdict="%s"}' % (what, verdict)
            wanted[name] = counted["%s_%s" % (verdict, what)]
    (info,) = (name for name in values if name.startswith("info{"))
    # The flushes before were repaired, each of them.
    (undone,) = (name for name in values if name.split("{")[0] == "repairs_undone")
    values.pop(undone)
    check("metrics: the backend", 'backend="%s"' % report["backend"]["name"] in info, info)
    # Rules have changed since the verification: of its result nothing but the time is left.
    wanted.update({info: 1, "conntrack_insert_failed_total": 0})
    for name in ("last_verification_timestamp_seconds", "conntrack_drops_total"):
        values.pop(name)
    check("metrics: tracked connections", 0 < values.pop("conntrack_entries") < values.pop("conntrack_entries_limit"))
    last = values.pop("last_success_timestamp_seconds")
    equal("metrics: values", values, wanted)
    check("metrics: something was counted", wanted['packets_total{family="ipv4",verdict="exempt"}'] >= 3, wanted)
    check("metrics: the last success was just now", abs(time.time() - last) < 600, last)
    with open(METRICS, encoding="utf-8") as handle:
        lines = handle.read().splitlines()
    comment = re.compile(r"# HELP ip_masq_agent_\w+ \S.*|# TYPE ip_masq_agent_\w+ (gauge|counter)")
    value = re.compile(r'ip_masq_agent_\w+(\{\w+="[\w.-]+"(,\w+="[\w.-]+")*\})? [0-9.e+]+')
    check("metrics: the text format", all(comment.fullmatch(line) or value.fullmatch(line) for line in lines), lines)


def whole_metrics() -> None:
    """A reader of the metrics file never sees a part of it."""
    read: t.List[bytes] = []
    over = threading.Event()

    def reader() -> None:
        while not over.is_set():
            with open(METRICS, "rb") as handle:
                read.append(handle.read())

    thread = threading.Thread(target=reader)
    thread.start()
    inodes = set()
    for _again in range(5):
        equal("sync", agent("sync").returncode, 0)
        inodes.add(os.stat(METRICS).st_ino)
    over.set()
    thread.join()
    last = b"ip_masq_agent_conntrack_drops_total "
    partial = [text for text in read if not text.endswith(b"\n") or not text.splitlines()[-1].startswith(last)]
    check("the metrics file was whole each of %d times" % len(read), read and not partial, partial[:1])
    check("it was replaced meanwhile", len(inodes) > 1, inodes)
    equal("nothing else lies there", os.listdir(METRICS_DIR), [os.path.basename(METRICS)])


def main() -> None:
    """All of it, on a node that the role has just finished."""
    equal("the timer's interval", interval(), "10min")
    with open(CONFIG, encoding="utf-8") as handle:
        original = handle.read()
    packets("before any edit")
    good_edits(original)
    edits_during_syncs(original)
    new_interval()
    broken(original)
    check_metrics()
    whole_metrics()
    done()


main()
