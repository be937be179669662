# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Status as text and as JSON, the module, the metrics and the report say the same of a node, whatever its state is."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.filter.fleet import FilterModule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import states
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._fleet import ASKED
from support.agent_node import AgentNode
from support.namespaces import Namespace
from support.prometheus import parse
from support.variants import BACKENDS

fleet = FilterModule().filters()["fleet"]
NFT = BACKENDS["iptables_nft"]
METRICS = "/var/lib/node_exporter"
POLICY = {"backend": "iptables_nft"}
BROKEN = '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}'
OTHER = ("POSTROUTING", "-d", "10.8.0.0/16", "-j", "MASQUERADE")
PREFIX = "ip_masq_agent_"
#: A program that cannot read the rules.
BREAKS = """#!/bin/sh
case "$*" in *--version*|*-V*) exec "/usr/sbin/${0##*/}" "$@" ;; esac
echo "Input/output error" >&2
exit 3
"""

#: What a verification leaves behind -> its options, and what the metric has of conflicts and of reasons not tested
TESTS: t.Dict[str, t.Tuple[t.Sequence[str], int, bool]] = {
    "never": ((), 0, False),
    "matches": ((), 0, False),
    "conflicts": ((), 1, False),
    "not fully tested": (("--max-questions", "1"), 0, True),
}
#: What is wrong beside: of the config, of the rules, of units.
STATES: t.Sequence[t.FrozenSet[str]] = tuple(
    frozenset(words.split())
    for words in (
        "", "drift", "broken", "error", "timer", "failed", "drift timer", "broken drift service", "broken error timer"
    )
)  # fmt: skip
#: Of them, those of a node whose rules have changed since it was verified.
CHANGED = STATES[:5]


class Views(t.NamedTuple):
    """What is said of a node at one time."""

    text: str
    exit_status: int
    tolerated: int
    report: t.Dict[str, t.Any]
    asked: t.Dict[str, t.Any]
    #: of the last resync, without the prefix
    metrics: t.Dict[t.Tuple[str, t.Tuple[t.Tuple[str, str], ...]], float]


class Node(AgentNode):
    """A node on which the agent was installed by the module, so that all files and units are there."""

    def __init__(self, ns: Namespace, root: Path) -> None:
        super().__init__(ns, root, metrics=True, installed=False)
        #: config file and rules of the node in order
        self._saved: t.Optional[t.Tuple[str, str]] = None
        self.wire()
        done = self.module("ip_masq_agent", {"config": POLICY, "metrics_dir": METRICS})
        assert not done.get("failed"), done

    def verified(self, test: str) -> None:
        """Let the node have a result of a verification."""
        options, _conflicts, _untested = TESTS[test]
        if test == "conflicts":
            self.ns.run("iptables-nft", "-t", "nat", "-I", *OTHER)
        if test != "never":
            done = self.command("verify", *options)
            assert done.returncode == {"matches": 0, "conflicts": 5}.get(test, 6), done.stdout + done.stderr

    def changed(self) -> None:
        """Put the node in order, and change its policy and so the rules."""
        self.become(frozenset())
        self._saved = None
        self.synced(**POLICY, nonMasqueradeCIDRs=["10.0.0.0/8"])

    def become(self, state: t.FrozenSet[str]) -> None:
        """Bring the node into a state, from whichever it was in."""
        config, programs = self.config_dir / "config", [self.path / ("iptables-nft" + one) for one in ("", "-restore")]
        for program in programs:
            program.unlink(missing_ok=True)
        if not self._saved:
            self._saved = config.read_text(), self.ns.run("iptables-nft-save", "-t", "nat")
        good, rules = self._saved
        # A repair by the agent would be a change of the rules.
        self.ns.run("iptables-nft-restore", stdin=rules)
        config.write_text(BROKEN if "broken" in state else good)
        for program in programs if state & {"error", "failed"} else ():
            program.write_text(BREAKS)
            program.chmod(0o755)
        for wrong, mark in (("timer" in state, "timer.inactive"), ("service" in state, "service.failed")):
            (self.systemd / ("ip-masq-agent." + mark)).unlink(missing_ok=True)
            if wrong:
                (self.systemd / ("ip-masq-agent." + mark)).touch()
        self.sync()
        for program in programs if "failed" in state else ():
            program.unlink()
        if "drift" in state:
            NFT.lose(self.ns, "ipv4", "169.254.0.0/16")

    def views(self) -> Views:
        """Ask for all views; nothing is changed by that."""
        text, report = self.command("status"), self.status()
        asked = self.module("ip_masq_agent_info", {"metrics_dir": METRICS})
        found = parse((self.metrics_dir / "ip_masq_agent.prom").read_text()).values
        values = {(name[len(PREFIX) :], labels): value for (name, labels), value in found.items()}
        tolerated = text.returncode
        if states.CONFLICTS.upper() in text.stdout or "also: " in text.stdout:
            tolerated = self.command("status", "--tolerate-conflicts").returncode
        return Views(text.stdout, text.returncode, tolerated, report, asked, values)


def timeless(words: str) -> str:
    """A verdict without the age of the verification."""
    return re.sub(r"verified \d+ \w+ ago", "verified ago", words)


def rows(text: str) -> t.Dict[str, str]:
    """The rows of the status, by their first words."""
    return {name.strip(): value for name, value in re.findall(r"(?m)^(\S.{11}) (\S.*)$", text)}


def facts(views: Views, host: str, listed: t.Mapping[str, t.Any]) -> t.Iterator[t.Tuple[str, t.Set[t.Any]]]:
    """Each fact, and what the views have of it: one value, if they agree.

    :param listed: what the report has of the host.
    """
    report, metrics, text = views.report, views.metrics, rows(views.text)
    findings = states.judge(report)
    state = report["state"]
    yield (
        "verdict",
        {timeless(views.text.splitlines()[0]), timeless(report["verdict"]), timeless(views.asked["report"]["verdict"])},
    )
    yield "state", {state, listed["state"], views.asked["report"]["state"], views.text.partition(":")[0].lower()}
    told = [one["state"] for one in listed["findings"] if one["state"] != "to be applied"]
    yield "findings", {tuple(told), tuple(one.state for one in findings)}
    wrong = host in fleet([host], {host: {ASKED: views.asked}})["off"]
    yield "in order", {views.exit_status == 0, not wrong}
    yield "exit status", {views.exit_status, states.EXIT_STATUS[state]}
    wrong = host in fleet([host], {host: {ASKED: views.asked}}, tolerate_conflicts=True)["off"]
    yield "in order but for conflicts", {views.tolerated == 0, not wrong}

    def same(name: str) -> t.Any:
        return {json.dumps(one.get(name), sort_keys=True) for one in (report, views.asked["report"])}

    for name in report:
        if name not in ("verdict", "conntrack"):
            yield name, same(name)
    yield (
        "drift",
        {
            int(metrics["drift_repaired_total", ()]),
            report["drift_repaired"],
            listed["drift_repaired"],
            int(re.findall(r"times repaired: (\d+)", text["drift"])[0]),
        },
    )
    yield "config errors", {int(metrics["config_errors_total", ()]), report["config_errors"]}
    yield (
        "broken",
        {
            bool(metrics["config_broken", ()]),
            bool(report["config"]["problem"]),
            "BROKEN: " in views.text,
            state == states.BROKEN_CONFIG,
        },
    )
    yield "rules in sync", {report["in_sync"], text["rules"].startswith("in sync")}
    (info,) = (dict(labels) for name, labels in metrics if name == "info")
    yield "policy", {info["policy_hash"], report["policy_hash"], *listed["traits"]["policy"]}
    yield "version", {info["version"], report["version"], text["agent"], *listed["traits"]["agent"]}
    yield "backend", {text["backend"], *listed["traits"]["backend"]}
    yield (
        "backend's name",
        {report["backend"]["name"], text["backend"].split()[0], info.get("backend", report["backend"]["name"])},
    )
    success = metrics.get(("last_success_timestamp_seconds", ()))
    yield "last sync", {round(report["last_sync"], 3), success}
    yield from of_verification(views, listed)


def of_verification(views: Views, listed: t.Mapping[str, t.Any]) -> t.Iterator[t.Tuple[str, t.Set[t.Any]]]:
    """What the views have of the last verification."""
    report, metrics, row = views.report, views.metrics, rows(views.text)["traffic"]
    last, outdated = report["last_verification"], states.is_outdated(report)
    when = metrics.get(("last_verification_timestamp_seconds", ()))
    yield "verified at", {when, last and round(last["time"], 3)}
    yield "verified", {bool(last), listed["verified_at"] is not None, not row.startswith("not verified yet")}
    (trait,) = listed["traits"]["verification"]
    yield "outdated", {outdated, trait.startswith("before the last"), "before the last change of the rules" in row}
    differs = bool(last) and not outdated and not report["in_sync"]
    yield "rules differ", {differs, "but the rules differ now" in row}
    conflicts, untested = (metrics.get(("verification_" + name, ())) for name in ("conflicts", "untested"))
    known = bool(last) and not outdated
    yield "a result that holds", {known, conflicts is not None, untested is not None}
    told = states.CONFLICTS in [one.state for one in states.judge(report)]
    yield "conflicts", {known and bool(last["conflicts"]), bool(conflicts), told, trait == states.CONFLICTS}
    yield "all tested", {known and not last["conflicts"] and not untested, trait == "matches the policy"}
    if known:
        yield "summary", {last["summary"], row.partition(": ")[2]}
        yield "conflicts, counted", {last["conflicts"], int(conflicts or 0)}


@pytest.mark.parametrize("test", TESTS)
def test_five_views_agree(ns: Namespace, tmp_path: Path, test: str) -> None:
    """In 51 states. Drift is repaired by the resync that writes metrics: they do not know it before."""
    node = Node(ns, tmp_path)
    node.verified(test)
    _options, conflicts, untested = TESTS[test]
    for held, wanted in ((True, STATES), (False, () if test == "never" else CHANGED)):
        if wanted and not held:
            node.changed()
        views: t.Dict[str, Views] = {}
        for state in wanted:
            node.become(state)
            views[", ".join(sorted(state)) or "well"] = node.views()
        assert disagreements(views) == []
        told_of = held and test != "never"
        for name, one in views.items():
            assert one.metrics.get(("verification_conflicts", ())) == (conflicts if told_of else None), name
            assert bool(one.metrics.get(("verification_untested", ()))) == (untested and told_of), name
        told = {one.report["state"] for one in views.values()}
        assert len(told) >= (4 if wanted else 0), told


def disagreements(views: t.Mapping[str, Views]) -> t.List[t.Tuple[str, str, t.Set[t.Any]]]:
    """What views disagree about: the state, the fact, and what they have of it."""
    answers = {name: {ASKED: one.asked} for name, one in views.items()}
    listed = json.loads(fleet(list(views), answers, generated="now")["files"]["report.json"])
    hosts = {one["host"]: one for one in listed["hosts"]}
    told = [(name, *fact) for name, one in views.items() for fact in facts(one, name, hosts[name])]
    return [one for one in told if len(one[2]) != 1]
