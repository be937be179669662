# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``ip-masq-agent status``: the policy, the active rules, and whether they agree."""

from __future__ import annotations

import os
import time
import typing as t

from .._engine import data_plane, port_usage
from .._engine.auto_ports import or_any_ports
from .._engine.listed_chains import ListedChains
from .._engine.reconcile import Result
from .._engine.ruleset import DROP, IGNORE
from .._errors import NodeError
from .._policy.policy import POLICY_OPTIONS, Config
from .._policy.snat_and_rules import as_written
from .._policy.values import AUTO_PORTS
from .._system import conntrack
from .._system.node import Node
from .._system.printable import first_of
from .._verify.words import concerned
from .._verify.words.other_tables import find_other_chains
from .._version import VERSION
from . import held_locks, ports, repeated_repairs, snapshot, states, unit_control
from .effective_policy import EffectivePolicy, require_policy
from .paths import Paths
from .state_files import applied_data, read_memory, read_verification
from .sync import dry_run
from .units import TIMER

#: Entries of a list, and rules of a family, that the table shows.
_SHOWN_CIDRS = 8
_SHOWN_RULES = 40

#: CPU time for reading connections, in seconds: enough for 100,000.
_PORTS_SECONDS = 1.0


def build_report(node: Node, paths: Paths) -> t.Dict[str, t.Any]:
    """Return the status as data, as ``status --json`` prints it. Nothing is written.

    :raises ConfigError: there is no valid configuration.
    :raises NodeError: the rules cannot be read.
    """
    remembered = read_memory(paths)
    policy, config = require_policy(paths, remembered)
    result = dry_run(node, paths, config, remembered)
    verification = read_verification(paths)
    listed = ListedChains()
    report = {
        "version": VERSION,
        "in_sync": not result.changed and not result.errors,
        "differs": result.action_data(),
        "errors": list(result.errors),
        "notes": list(policy.notes + result.notes + remembered.unrecorded)
        + list(held_locks.passed_over(remembered.held).values())
        + repeated_repairs.notes(remembered.repairs, time.time())
        + list(concerned.remarks(result.remarks, config) + concerned.notes(config))
        + find_other_chains(config, listed),
        "missing_addresses": list(result.missing),
        "not_checked": list(result.not_checked),
        "repairs_undone": [
            _without(one, "checksum", "logged") for one in repeated_repairs.undone(remembered.repairs, time.time())
        ],
        "config": _policy_data(paths, policy, config),
        "port_ranges": list(map(str, or_any_ports(config)[0].to_ports)),
        "policy_hash": config.digest,
        "previous_config": _as_file(remembered.previous),
        "backend": {"name": result.backend, "version": result.version},
        "data_plane": data_plane.find(node, config, listed),
        "families": result.found_data(),
        "units": _unit_data(node),
        "last_sync": snapshot.last_sync(paths),
        "last_verification": _without(verification, "fingerprint") if verification else None,
        "last_applied": applied_data(paths),
        "last_change": remembered.last_change._asdict() if remembered.last_change else None,
        "last_error": remembered.last_error._asdict() if remembered.last_error else None,
        "failing": remembered.failing,
        "drift_repaired": remembered.drift_repaired,
        "connections_flushed": remembered.flushed,
        **_connection_data(result),
        "config_errors": remembered.config_errors,
    }
    found = states.judge(report)
    return {"state": states.state(found), "verdict": states.sentence(report, found), **report}


def _without(record: t.Any, *names: str) -> t.Dict[str, t.Any]:
    """Return the fields of a record that are told."""
    return {name: value for name, value in record._asdict().items() if name not in names}


def _policy_data(paths: Paths, policy: EffectivePolicy, config: Config) -> t.Dict[str, t.Any]:
    values = _without(config, "notes", "resync_interval")
    return {
        "sources": list(policy.sources) or [_without_files(paths)],
        "problem": policy.problem,
        **{name: list(map(as_written, value)) if isinstance(value, tuple) else value for name, value in values.items()},
        "resync_interval_seconds": config.resync_interval / 1e9,
    }


def _as_file(values: t.Optional[t.Dict[str, t.Any]]) -> t.Optional[t.Dict[str, t.Any]]:
    """Return a policy as its config file has it."""
    return values and {option.key: values[option.name] for option in POLICY_OPTIONS if option.name in values}


def _without_files(paths: Paths) -> str:
    """Return what is shown in place of configuration files. The units wait for one, unless the agent has run."""
    waits = not any(map(os.path.exists, (paths.state_file, paths.spare_state_file)))
    return "defaults (%s %s)" % (paths.config, states.WAITS if waits else "does not exist")


def _unit_data(node: Node) -> t.Dict[str, t.Any]:
    """Return the units that are not as installed; None and the reason if that is unknown."""
    try:
        return {"differ": unit_control.find_deviations(node.run), "problem": None}
    except NodeError as exc:
        return {"differ": None, "problem": str(exc)}


def _connection_data(result: Result) -> t.Dict[str, t.Any]:
    """Return how full the table of connections is, and the destination for which most source ports are used."""
    counted = conntrack.statistics()
    rulesets = port_usage.active_rules(result)
    fullest: t.Optional[t.Dict[str, t.Any]] = None
    problem = None
    if counted is None or port_usage.can_be_scarce(rulesets, counted.entries):
        try:
            found = port_usage.read(rulesets, 1, {}, _PORTS_SECONDS)
            fullest = ports.as_data(found.fullest[0]) if found.fullest else None
            if not found.complete:
                problem = "not all connections were looked at: that takes more than %g s of CPU" % _PORTS_SECONDS
        except NodeError as exc:
            problem = str(exc)
    return {
        "conntrack": counted._asdict() if counted else None,
        "source_ports": {"fullest": fullest, "problem": problem},
    }


def table(report: t.Dict[str, t.Any]) -> t.List[str]:
    """Return the status for people, one line each."""
    lines = [report["verdict"], "", *("%-12s %s" % row for row in _rows(report))]
    for family, found in report["families"].items():
        lines += ["", family] + ["  " + line for line in _family_lines(found, report["config"]["leaks"])]
    if report["differs"]:
        lines += ["", "pending changes:"]
        lines += ["  %(family)s, %(backend)s: %(action)s: %(rule)s" % action for action in report["differs"]]
    for title in ("errors", "notes"):
        if report[title]:
            lines += ["", title + ":"] + ["  " + line for line in report[title]]
    return lines


def _rows(report: t.Dict[str, t.Any]) -> t.Iterator[t.Tuple[str, str]]:
    config = report["config"]
    yield "agent", report["version"]
    yield "rules", _rules_text(report)
    yield "config", ", ".join(config["sources"])
    if report["last_applied"]:
        yield "applied", _applied_text(report["last_applied"])
    if config["problem"]:
        yield "", "BROKEN: " + config["problem"]
    yield "backend", ("%(name)s %(version)s" % report["backend"]).strip()
    yield from _data_plane_rows(report["data_plane"])
    yield "exempt", _some(config["non_masquerade_cidrs"])
    yield from _option_rows(config)
    yield "chain", config["masq_chain"]
    yield "exemption", config["exemption"]
    if config["to_ports"]:
        how = " (auto)" if config["to_ports"] == AUTO_PORTS else ""
        yield "source ports", (", ".join(report["port_ranges"]) or "any") + how
    if config["port_metrics"]:
        yield "port metrics", "at each %d resyncs" % config["port_metrics"]
    yield from _scarce_rows(report)
    yield from _unit_rows(report["units"])
    yield "resync", _resync_text(config["resync_interval_seconds"], report["units"]["differ"])
    yield "last sync", _local_time(report["last_sync"]) if report["last_sync"] else "never since boot"
    yield "traffic", states.tested(report)
    yield "last change", _event_text(report["last_change"])
    resolved = " (resolved)" if report["last_error"] and not report["failing"] else ""
    yield "last error", _event_text(report["last_error"]) + resolved
    yield "drift", "times repaired: %d" % report["drift_repaired"]


def _option_rows(config: t.Dict[str, t.Any]) -> t.Iterator[t.Tuple[str, str]]:
    """Return the rows of options that are not at their default."""
    for option in POLICY_OPTIONS:
        if option.row and config[option.name] not in (option.default, []):
            value = config[option.name]
            yield option.row, _some(value) if isinstance(value, list) else str(value)


def _data_plane_rows(found: t.Dict[str, t.Any]) -> t.Iterator[t.Tuple[str, str]]:
    """Return the row of kube-proxy and the network plugin, and one for each thing that a mode has left."""
    modes, steps = found["kube_proxy"], found["steps"]
    shown = ["kube-proxy %s%s" % ("HALF MOVED: " if modes[1:] else "", " and ".join(modes))] if modes else []
    parts = list(filter(None, [", ".join(shown + found["network_plugins"])]))
    for before in dict.fromkeys(one["before"] for one in steps):
        todo = ", ".join(one["do"] for one in steps if one["before"] == before)
        parts.append("before %s: %s" % (before, todo))
    rows = ["; ".join(parts)] if parts else []
    rows += ["left: %(what)s: %(command)s" % one for one in found["leftovers"]]
    yield from zip(["data plane"] + [""] * len(rows), rows)


def _scarce_rows(report: t.Dict[str, t.Any]) -> t.Iterator[t.Tuple[str, str]]:
    """Return a row for what is nearly used up: the source ports for a destination, the table of connections."""
    found = report["source_ports"]
    for _code, words, remedy in ports.scarce([found["fullest"]] if found["fullest"] else [], report["conntrack"]):
        yield "scarce", "%s; %s" % (words, remedy)
    if found["problem"]:
        yield "ports", "unknown: %s; see ip-masq-agent ports" % found["problem"]


def _unit_rows(units: t.Dict[str, t.Any]) -> t.Iterator[t.Tuple[str, str]]:
    if units["differ"] is None:
        yield "units", "unknown: " + units["problem"]
        return
    yield "units", "NOT AS INSTALLED; see systemctl status UNIT" if units["differ"] else "as installed"
    alike: t.Dict[str, t.List[str]] = {}
    for unit, wrong in units["differ"].items():
        alike.setdefault(", ".join(wrong), []).append(unit)
    for words, names in alike.items():
        yield "", "%s: %s" % (words, ", ".join(names))


def _resync_text(seconds: float, differ: t.Optional[t.Dict[str, t.List[str]]]) -> str:
    wrong = (differ or {}).get(TIMER)
    return "every %gs%s" % (seconds, ", but %s is %s" % (TIMER, ", ".join(wrong)) if wrong else "")


def _rules_text(report: t.Dict[str, t.Any]) -> str:
    verdict = "in sync" if report["in_sync"] else "NOT IN SYNC"
    if report["config"]["problem"]:
        verdict += " with the last valid configuration"
    if report["not_checked"]:
        verdict += "; not checked everywhere, see notes"
    if report["repairs_undone"]:
        verdict += "; another program undoes repairs, see notes"
    return verdict


def _some(cidrs: t.Sequence[str]) -> str:
    return first_of(cidrs, _SHOWN_CIDRS) or "none"


def _family_lines(found: t.Dict[str, t.Any], leaks: str) -> t.Iterator[str]:
    if found["counters"]:
        yield "connections: %(masqueraded_packets)d masqueraded, %(exempt_packets)d exempt" % found["counters"]
        if leaks != IGNORE:
            done = "dropped" if leaks == DROP else "counted"
            yield "leaked packets: %d %s" % (found["counters"]["leaked_packets"], done)
    if found["jump"]:
        yield found["jump"]
    yield from found["rules"][:_SHOWN_RULES]
    if len(found["rules"]) > _SHOWN_RULES:
        yield "... %d more; --json lists all" % (len(found["rules"]) - _SHOWN_RULES)


def _local_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def _applied_text(applied: t.Dict[str, t.Any]) -> str:
    edited = "; the file was edited since" if applied["edited"] else ""
    return "%s by %s%s" % (_local_time(applied["time"]), applied["by"], edited)


def _event_text(event: t.Optional[t.Dict[str, t.Any]]) -> str:
    if event is None:
        return "none"
    return "%s: %s" % (_local_time(event["time"]), states.first_of_lines(event["lines"]))
