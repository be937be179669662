# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a node by its report: the order of states, the first sentence of ``status``, its exit status.

The controller uses it too: the playbooks judge the same report. Reads nothing of a node.
"""

from __future__ import annotations

import re
import time
import typing as t

from .._system.printable import first_of
from .units import SERVICE, TIMER

BROKEN_CONFIG = "broken config"
FAILING = "failing"
NOT_IN_SYNC = "not in sync"
#: Traffic did not match the policy when the node was last verified, because of rules of other programs.
CONFLICTS = "conflicts"
UNITS = "units not as installed"
NOT_TESTED = "not fully tested"
IN_SYNC = "in sync"
#: The exit status of ``status`` for every state, worst first. What could not be tested is not known to be wrong.
EXIT_STATUS: t.Mapping[str, int] = {
    BROKEN_CONFIG: 78,
    FAILING: 1,
    NOT_IN_SYNC: 4,
    CONFLICTS: 5,
    UNITS: 3,
    NOT_TESTED: 0,
    IN_SYNC: 0,
}

#: What the report says of the configuration of a node that waits for one.
WAITS = "does not exist: no rule is changed until it does"

_ORDER = tuple(EXIT_STATUS)
_Report = t.Mapping[str, t.Any]


class Finding(t.NamedTuple):
    """What is wrong with a node: its state if nothing is worse, the reason, and the next step on the node."""

    state: str
    reason: str
    remedy: str = ""


def judge(report: _Report, service_failure: str = "") -> t.List[Finding]:
    """Return all that is wrong with a node, worst first; the state of the first is that of the node.

    :param report: what ``status --json`` prints; earlier releases lack some of it.
    :param service_failure: how the last run of the service failed, if that is known beside the report.
    """
    found = [*_of_rules(report, service_failure), *_of_verification(report), *_of_units(report)]
    # Beside what is wrong, what was not tested says nothing.
    wrong = [one for one in found if one.state != NOT_TESTED] or found
    return sorted(wrong, key=lambda one: _ORDER.index(one.state))


def state(found: t.Sequence[Finding]) -> str:
    """Return the state of a node with these findings, worst first."""
    return found[0].state if found else IN_SYNC


def exit_status(found: t.Iterable[Finding], tolerate_conflicts: bool = False) -> int:
    """Return the exit status of ``status``: that of the worst finding, or of the worst beside conflicts."""
    counted = (one.state for one in found if not (tolerate_conflicts and one.state == CONFLICTS))
    return next((EXIT_STATUS[one] for one in counted), 0)


def sentence(report: _Report, found: t.Sequence[Finding]) -> str:
    """Return the verdict on a node and the next step."""
    if state(found) in (IN_SYNC, NOT_TESTED):
        first = Finding(state(found), "the rules are those of the policy; " + _missing(report) + tested(report))
    else:
        first = found[0]
    words = "%s: %s" % (first.state.upper(), first.reason)
    if first.state == CONFLICTS:
        words += " (%s; after the remedy run ip-masq-agent verify)" % _verified(report)
    others = ", ".join(dict.fromkeys(one.state for one in found[1:] if one.state != first.state))
    return words + (": " + first.remedy if first.remedy else "") + ("; also: " + others if others else "")


def is_outdated(report: _Report) -> bool:
    """Return whether the rules have changed since the last verification, which then says nothing of them."""
    last, change = report.get("last_verification"), report.get("last_change")
    return bool(last and change and change["time"] > last["time"])


def age(seconds: float) -> str:
    """Return a time in its largest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return "%d %s" % (seconds // length, unit)
    return "%d s" % max(seconds, 0)


def first_of_lines(lines: t.Sequence[str]) -> str:
    """Return the first of several lines, and how many more there are."""
    return str(lines[0]) + (" (and %d more)" % (len(lines) - 1) if len(lines) > 1 else "")


def rule_line(action: t.Mapping[str, str], what: str = "") -> str:
    """Return where a rule is, and the rule without its comment.

    :param what: to say of it.
    """
    rule = re.sub(r' -m comment --comment (?:"[^"]*"|\S+)', "", action["rule"])
    return "%s, %s: %s%s" % (action["family"], action["backend"], what, rule)


def tested(report: _Report) -> str:
    """Return what the last verification found, and the next step if there was none of these rules."""
    last, verify = report.get("last_verification"), "run ip-masq-agent verify"
    if not last:
        return "not verified yet: " + verify
    when = _verified(report)
    if is_outdated(report):
        conflicts = " and with conflicts" if last["conflicts"] else ""
        return "%s, before the last change of the rules%s: %s" % (when, conflicts, verify)
    since = "" if report["in_sync"] else ", but the rules differ now"
    return "%s%s: %s" % (when, since, last["summary"])


def _of_rules(report: _Report, service_failure: str) -> t.Iterator[Finding]:
    problem = report["config"]["problem"]
    if problem:
        kept = "%s; the last valid configuration stays active" % problem
        yield Finding(BROKEN_CONFIG, kept, "correct the file, an edit acts at once")
    if report["errors"]:
        yield Finding(FAILING, first_of_lines(report["errors"]))
    elif not report["in_sync"]:
        pending = [rule_line(one, one["action"] + ": ") for one in report["differs"]]
        reason, remedy = "pending changes: " + first_of_lines(pending), _repair(report)
        for source in report["config"].get("sources", ()):
            if WAITS in source:  # no resync changes anything
                reason, remedy = source, "write it, or, for the defaults, run ip-masq-agent sync"
        yield Finding(NOT_IN_SYNC, reason, remedy)
    # Of a broken config and of errors now, these would be repetitions.
    if problem or report["errors"]:
        return
    journal = "see journalctl -u ip-masq-agent -p err"
    failed = service_failure or next((one for one in _differ(report).get(SERVICE, ()) if one.startswith("failed")), "")
    if report["failing"]:
        lines = (report["last_error"] or {}).get("lines") or ["no message"]
        yield Finding(FAILING, "last resync: " + first_of_lines(lines), journal)
    elif failed:
        yield Finding(FAILING, "%s: %s" % (SERVICE, failed), journal)


def _repair(report: _Report) -> str:
    seconds = report["config"].get("resync_interval_seconds")
    waits = seconds is not None and TIMER not in _differ(report)
    return "run ip-masq-agent sync" + (", or wait for the next resync (every %gs)" % seconds if waits else "")


def _of_verification(report: _Report) -> t.Iterator[Finding]:
    last = report.get("last_verification")
    if not last or is_outdated(report):
        return
    if last["conflicts"]:
        yield Finding(CONFLICTS, last["summary"])
    elif not last["verified"]:
        yield Finding(NOT_TESTED, last["summary"])


def _of_units(report: _Report) -> t.Iterator[Finding]:
    """Return the units that are not as installed, the timer first: without it nothing repairs drift."""
    differ = dict(_differ(report))
    # That it failed is a finding of its own.
    differ[SERVICE] = [one for one in differ.get(SERVICE, ()) if not one.startswith("failed")]
    names = sorted((name for name, states in differ.items() if states), key=lambda name: name != TIMER)
    if names:
        lines = ["%s is %s" % (name, ", ".join(differ[name])) for name in names]
        reason = first_of_lines(lines) + ("; drift may not be repaired" if names[0] == TIMER else "")
        yield Finding(UNITS, reason, "run your playbook, or see systemctl status " + names[0])


def _differ(report: _Report) -> t.Mapping[str, t.Sequence[str]]:
    return (report.get("units") or {}).get("differ") or {}


def _missing(report: _Report) -> str:
    """Return which addresses of the policy the node lacks: ``snat_missing`` says what its rules do meanwhile."""
    missing = report.get("missing_addresses")
    if not missing:
        return ""
    lacks = "the node lacks %s (snat_missing is %s)" % (first_of(missing, 1), report["config"]["snat_missing"])
    return lacks + ": add it to the node, or correct snat or rules; "


def _verified(report: _Report) -> str:
    return "verified %s ago" % age(time.time() - report["last_verification"]["time"])
