# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One order of states: the first sentence of status, its exit status, the playbooks and the metrics agree."""

from __future__ import annotations

import itertools
import re
import time
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.filter.fleet import FilterModule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import metrics, states
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Event, Memory, Verification
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._fleet import ASKED, STATES, judge
from support.agent_metrics import SAMPLE
from support.fleet_answers import MISSING, PROBLEM, asked

fleet = FilterModule().filters()["fleet"]
NOW = time.time()
CAUSE = (
    "10.8.0.0/16 sees the node's address, not the pod's own address (rule of Calico); remedy: set natOutgoing: false"
)
MATCHES = "31 kinds of packets, all match the policy"
UNTESTED = "30 kinds of packets match the policy; not tested: x"
TIMER, SERVICE = "ip-masq-agent.timer", "ip-masq-agent.service"


def verified(summary: str, conflicts: int = 0, ago: float = 180.0) -> t.Dict[str, t.Any]:
    """A last verification, and a change of the rules ten minutes ago."""
    result = False if conflicts else True if summary == MATCHES else None
    last = {"time": NOW - ago, "verified": result, "questions": 31, "conflicts": conflicts, "summary": summary}
    return {"last_verification": last, "last_change": {"time": NOW - 600, "lines": ["x"]}}


POLICY = {"sources": ["/etc/ip-masq-agent/config"], "problem": None, "resync_interval_seconds": 60.0}
BROKEN = {"config": {**POLICY, "problem": PROBLEM}}
DRIFTED = {"in_sync": False, "differs": [MISSING, MISSING]}
FAILED = {"failing": True, "last_error": {"time": 1.0, "lines": ["no lock"]}}
CONFLICT = verified(CAUSE, conflicts=1)
STOPPED = {"units": {"differ": {"ip-masq-agent.path": ["masked"], TIMER: ["disabled", "stopped"]}, "problem": None}}

AGAIN = "(verified 3 min ago; after the remedy run ip-masq-agent verify)"
#: what is in a report -> the sentence, the exit status, and the one with conflicts tolerated
SENTENCES: t.Dict[str, t.Tuple[t.Dict[str, t.Any], str, int, int]] = {
    "well": (verified(MATCHES), "IN SYNC: the rules are those of the policy; verified 3 min ago: " + MATCHES, 0, 0),
    "never verified": (
        {},
        "IN SYNC: the rules are those of the policy; not verified yet: run ip-masq-agent verify",
        0,
        0,
    ),
    "verified before": (
        verified(MATCHES, ago=7300),
        "IN SYNC: the rules are those of the policy; verified 2 h ago, before the last change of the rules: run "
        "ip-masq-agent verify",
        0,
        0,
    ),
    "conflicts before": (
        verified(CAUSE, conflicts=1, ago=7300),
        "IN SYNC: the rules are those of the policy; verified 2 h ago, before the last change of the rules and with "
        "conflicts: run ip-masq-agent verify",
        0,
        0,
    ),
    "not all tested": (
        verified(UNTESTED),
        "NOT FULLY TESTED: the rules are those of the policy; verified 3 min ago: " + UNTESTED,
        0,
        0,
    ),
    "units": (
        {**verified(UNTESTED), **STOPPED},
        "UNITS NOT AS INSTALLED: ip-masq-agent.timer is disabled, stopped (and 1 more); drift may not be repaired: run "
        "your playbook, or see systemctl status ip-masq-agent.timer",
        3,
        3,
    ),
    "conflicts": (CONFLICT, "CONFLICTS: %s %s" % (CAUSE, AGAIN), 5, 0),
    "conflicts and units": (
        {**CONFLICT, **STOPPED},
        "CONFLICTS: %s %s; also: units not as installed" % (CAUSE, AGAIN),
        5,
        3,
    ),
    "drift": (
        {**DRIFTED, **CONFLICT},
        "NOT IN SYNC: pending changes: ipv4, iptables_nft: rule added: -A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN (and 1 "
        "more): run ip-masq-agent sync, or wait for the next resync (every 60s); also: conflicts",
        4,
        4,
    ),
    "drift without a timer": (
        {**DRIFTED, **STOPPED},
        "NOT IN SYNC: pending changes: ipv4, iptables_nft: rule added: -A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN (and 1 "
        "more): run ip-masq-agent sync; also: units not as installed",
        4,
        4,
    ),
    "a resync that failed": (
        {**FAILED, **DRIFTED},
        "FAILING: last resync: no lock: see journalctl -u ip-masq-agent -p err; also: not in sync",
        1,
        1,
    ),
    "a service that cannot run": (
        {"units": {"differ": {SERVICE: ["failed (result exit-code, exit status 203)"]}, "problem": None}},
        "FAILING: ip-masq-agent.service: failed (result exit-code, exit status 203): see journalctl -u ip-masq-agent "
        "-p err",
        1,
        1,
    ),
    "an error now": ({"errors": ["ipv6: no module"], "in_sync": False}, "FAILING: ipv6: no module", 1, 1),
    "broken": (
        {**BROKEN, **CONFLICT, **FAILED},
        "BROKEN CONFIG: %s; the last valid configuration stays active: correct the file, an edit acts at once; also: "
        "conflicts" % PROBLEM,
        78,
        78,
    ),
}


def report_of(*parts: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """A report of a node that is well, but for these parts."""
    found = asked({"config": POLICY})["report"]
    for part in parts:
        found.update(part)
    return t.cast(t.Dict[str, t.Any], found)


@pytest.mark.parametrize("case", SENTENCES)
def test_the_first_sentence_and_the_exit_status(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    parts, sentence, status, tolerated = SENTENCES[case]
    report = report_of(parts)
    found = states.judge(report)
    assert states.sentence(report, found) == sentence
    assert (states.exit_status(found), states.exit_status(found, tolerate_conflicts=True)) == (status, tolerated)


#: 2 x 5 x 5 x 3 = 150 reports
_RULES = ({}, DRIFTED, FAILED, {**FAILED, **DRIFTED}, {"errors": ["no lock"], "in_sync": False})
_TESTS = ({}, verified(MATCHES), CONFLICT, verified(UNTESTED), verified(CAUSE, conflicts=1, ago=7300))
_UNITS = ({}, STOPPED, {"units": {"differ": None, "problem": "no systemd"}})
REPORTS = [report_of(*parts) for parts in itertools.product(({}, BROKEN), _RULES, _TESTS, _UNITS)]


def of_metrics(report: t.Mapping[str, t.Any]) -> t.Dict[str, float]:
    """The metrics of a resync that found the same."""
    last, change = report["last_verification"], report.get("last_change")
    sample = SAMPLE._replace(
        in_sync=report["in_sync"] and not report["errors"],
        config_broken=bool(report["config"]["problem"]),
        verification=last and Verification(**last),
        memory=Memory(last_change=change and Event(change["time"], ("",))),
    )
    values = re.findall(r"(?m)^ip_masq_agent_(\w+) (\S+)$", metrics.metrics_text(sample))
    return {name: float(value) for name, value in values}


@pytest.mark.parametrize("tolerate", [False, True])
def test_text_json_playbooks_and_metrics_agree_on_every_report(tolerate: bool) -> None:
    answers = {
        "n%d" % number: asked(report, pending=["start: x"] if (report.get("units") or {}).get("differ") else [])
        for number, report in enumerate(REPORTS)
    }
    played = fleet(list(answers), {name: {ASKED: one} for name, one in answers.items()}, tolerate_conflicts=tolerate)
    for report, (name, answer) in zip(REPORTS, answers.items()):
        found = states.judge(report)
        state = states.state(found)
        assert states.sentence(report, found).startswith(state.upper() + ": ")
        assert judge(name, answer).state == state, report
        # What is to be applied is the same as units that differ.
        assert {one.state for one in judge(name, answer).findings} - {"to be applied"} == {one.state for one in found}
        assert (name in played["off"]) == (states.exit_status(found, tolerate) != 0), report
        measured = of_metrics(report)
        assert measured["config_broken"] == (state == states.BROKEN_CONFIG)
        if not measured["in_sync"]:
            assert states.EXIT_STATUS[state] not in (0, 3, 5)
        if state == states.CONFLICTS:
            assert measured["verification_conflicts"] == 1
        if measured.get("verification_conflicts"):
            assert states.CONFLICTS in [one.state for one in found]


def test_the_playbooks_have_the_states_of_a_report_in_their_order() -> None:
    assert [state for state in STATES if state in states.EXIT_STATUS] == list(states.EXIT_STATUS)


def test_a_node_whose_agent_is_disabled_by_the_inventory_is_in_order() -> None:
    """Its units are as the inventory has them: apply would change nothing."""
    assert judge("n1", asked(report_of(STOPPED))).state == states.IN_SYNC
