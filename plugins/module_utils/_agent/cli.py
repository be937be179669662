# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's command line: sync, status, explain, remove."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import sys
import time
import typing as t

from .._engine import restraint
from .._engine.backend import View
from .._engine.detect import Node
from .._engine.iptables_syntax import shown
from .._engine.reconcile import Result
from .._engine.ruleset import Exempt, Masquerade
from .._errors import ConfigError, NodeError
from .._policy.policy import Config
from .._system import files
from .._system.ip_families import IPV4, IPV6
from .._system.process import run
from .._version import VERSION
from . import memory as states
from . import snapshot
from .paths import Paths
from .sync import INTERVAL_FILE, counters, look, managed, sync

OK = 0
FAILED = 1
CONFIG_BROKEN = 3
OUT_OF_SYNC = 4

_EPILOG = """\
exit status:
  0  done; in sync
  1  the node could not be read or brought to its policy; the message says what to do
  2  wrong usage
  3  the configuration is broken; the last good one stays in force
  4  status: the rules in force are not those declared

The configuration is {config_dir}/config, and drop-ins {config_dir}/config.d/*.json, *.yaml, *.yml,
with the keys of ip-masq-agent. An edit acts at once. See also: systemctl status ip-masq-agent.timer,
journalctl -u ip-masq-agent.
"""


def main(argv: t.Sequence[str], where: Paths) -> int:
    """Run one command.

    :param argv: the arguments after the program's name.
    :returns: the exit status, see the program's C(--help).
    """
    parser = _parser(where)
    arguments = parser.parse_args(argv)
    node = Node(run, arguments.lock_timeout)
    try:
        return arguments.command(arguments, node, where)
    except ConfigError as exc:
        _complain(str(exc))
        return CONFIG_BROKEN
    except NodeError as exc:
        _complain(str(exc))
        return FAILED
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain when it closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        _complain("interrupted; every family has its old rules or its new ones, whole")
        return 130


def _parser(where: Paths) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ip-masq-agent",
        description="Keeps this node's IP masquerading as declared: traffic to the declared ranges keeps the\n"
        "pod's address, everything else leaves with the address of the node.",
        epilog=_EPILOG.format(config_dir=where.config_dir),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version="ip-masq-agent %s" % VERSION)
    parser.add_argument(
        "--lock-timeout",
        type=int,
        default=5,
        choices=range(3601),
        metavar="SECONDS",
        help="how long to wait for the xtables lock, and for another run of this agent (default: 5)",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands.required = True

    command = commands.add_parser("sync", help="bring the rules to what the configuration declares")
    command.set_defaults(command=_sync)
    command = commands.add_parser("status", help="show the policy, the rules, and whether they agree")
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(command=_status)
    command = commands.add_parser("explain", help="say which rule decides about a destination, and why")
    command.add_argument("destination", type=_address, metavar="DEST", help="an IP address")
    command.add_argument("--source", type=_address, metavar="SRC", help="the pod's address")
    command.set_defaults(command=_explain)
    command = commands.add_parser("remove", help="remove the rules, the units and the files, this program too")
    command.set_defaults(command=_remove)
    command = commands.add_parser("set-timer", help="set the timer to resyncInterval (a unit of the agent calls this)")
    command.set_defaults(command=_set_timer)
    return parser


def _address(text: str) -> t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise argparse.ArgumentTypeError("%r is not an IP address" % text) from None


def _log(priority: int, line: str) -> None:
    """To the journal with its priority (sd-daemon(3)), to a person without.

    To the journal each line is a message, whose priority is the number in front of it: so whatever it holds is escaped.
    """
    stream = sys.stderr if priority < 5 else sys.stdout
    title = "<%d>" % priority if "JOURNAL_STREAM" in os.environ else "ip-masq-agent: " if stream is sys.stderr else ""
    stream.write(title + shown(line) + "\n")
    stream.flush()


def _say(line: str) -> None:
    sys.stdout.write(shown(line) + "\n")


def _complain(line: str) -> None:
    _log(3, line)


def _sync(_arguments: argparse.Namespace, node: Node, where: Paths) -> int:
    outcome = sync(node, where)
    for line in outcome.changes:
        _log(5, line)
    for line in outcome.errors:
        _complain(line)
    for line in outcome.warnings:
        _log(4, line)
    if outcome.policy.problem:
        return CONFIG_BROKEN
    return FAILED if outcome.errors else OK


def _in_force(where: Paths) -> t.Tuple[states.State, states.Policy, Config]:
    state = states.load()
    policy = states.policy_in_force(where.config_dir, state)
    if policy.config is None:
        raise ConfigError("%s; there is no earlier configuration to stand in" % policy.problem)
    return state, policy, policy.config


def _status(arguments: argparse.Namespace, node: Node, where: Paths) -> int:
    state, policy, config = _in_force(where)
    result = look(node, config, state)
    report = _report(state, policy, config, result, where)
    for line in json.dumps(report, indent=2).split("\n") if arguments.json else _table(report):
        _say(line)
    if policy.problem:
        return CONFIG_BROKEN
    return FAILED if result.errors else OK if report["in_sync"] else OUT_OF_SYNC


def _report(
    state: states.State, policy: states.Policy, config: Config, result: Result, where: Paths
) -> t.Dict[str, t.Any]:
    counted = counters(result, planned=True)
    return {
        "version": VERSION,
        "in_sync": not result.changed and not result.errors,
        "differs": [
            {"family": change.family, "backend": change.backend, "action": action.action, "rule": action.rule}
            for change in result.changes
            for action in change.plan.actions
        ],
        "errors": list(result.errors),
        "notes": list(policy.notes + result.notes + state.unrecorded) + restraint.notes(result) + list(result.remarks),
        "not_checked": list(result.not_checked),
        "withheld": [
            {"family": change.family, "backend": change.backend, "action": action.action, "rule": action.rule}
            for change in result.changes
            for action in change.plan.withheld
        ],
        "config": {
            "sources": list(policy.sources) or ["defaults (%s/config is not there)" % where.config_dir],
            "problem": policy.problem,
            "non_masquerade_cidrs": [str(network) for network in config.non_masquerade_cidrs],
            "masq_link_local": config.masq_link_local,
            "masq_link_local_ipv6": config.masq_link_local_ipv6,
            "enable_ipv6": config.enable_ipv6,
            "masq_chain": config.masq_chain,
            "random_fully": config.random_fully,
            "to_ports": [str(ports) for ports in config.to_ports],
            "exemption": config.exemption,
            "resync_interval_seconds": config.resync_interval / 1e9,
        },
        "backend": {"name": result.backend, "version": result.version},
        "families": {
            change.family: {
                "jump": change.plan.found.jump,
                "rules": list(change.plan.found.rules),
                "counters": counted[change.family]._asdict() if change.family in counted else None,
            }
            for change in managed(result)
        },
        "last_sync": snapshot.last_sync(),
        "last_change": state.last_change._asdict() if state.last_change else None,
        "last_error": state.last_error._asdict() if state.last_error else None,
        "failing": state.failing,
        "drift_repaired": state.drift_repaired,
        "config_errors": state.config_errors,
    }


def _table(report: t.Dict[str, t.Any]) -> t.List[str]:
    config = report["config"]
    verdict = "in sync" if report["in_sync"] else "NOT IN SYNC"
    if report["not_checked"]:
        verdict += "; not checked in %d other place%s, see notes" % (
            len(report["not_checked"]),
            "" if len(report["not_checked"]) == 1 else "s",
        )
    if report["withheld"]:
        verdict += "; harmless differences left: %d, see notes" % len(report["withheld"])
    rows = [
        ("rules", verdict),
        ("config", ", ".join(config["sources"])),
        ("backend", "%(name)s %(version)s" % report["backend"]),
        ("exempt", ", ".join(config["non_masquerade_cidrs"][:8]) or "none"),
        ("chain", config["masq_chain"]),
        ("exemption", config["exemption"]),
        ("resync", "every %gs" % config["resync_interval_seconds"]),
        ("last sync", _when(report["last_sync"]) or "not since the boot"),
        ("last change", _event(report["last_change"])),
        ("last error", _event(report["last_error"]) + ("" if report["failing"] else _over(report["last_error"]))),
        ("drift", "repaired %d time%s" % (report["drift_repaired"], "" if report["drift_repaired"] == 1 else "s")),
    ]
    if len(config["non_masquerade_cidrs"]) > 8:
        rows[3] = ("exempt", "%s and %d more" % (rows[3][1], len(config["non_masquerade_cidrs"]) - 8))
    if config["problem"]:
        rows.insert(2, ("", "BROKEN, the last good one is in force: " + config["problem"]))
    lines = ["ip-masq-agent %s" % report["version"], ""]
    lines += ["%-12s %s" % row for row in rows]
    for family, found in report["families"].items():
        lines += ["", family]
        if found["counters"]:
            lines.append(
                "  connections: %(masqueraded_packets)d masqueraded, %(exempt_packets)d exempt" % found["counters"]
            )
        lines += ["  " + line for line in ([found["jump"]] if found["jump"] else []) + found["rules"][:40]]
        if len(found["rules"]) > 40:
            lines.append("  ... %d more; --json lists all" % (len(found["rules"]) - 40))
    if report["differs"]:
        lines += ["", "what a sync would do:"]
        lines += ["  %(family)s, %(backend)s: %(action)s: %(rule)s" % action for action in report["differs"]]
    for title in ("errors", "notes"):
        if report[title]:
            lines += ["", title + ":"] + ["  " + line for line in report[title]]
    return lines


def _when(seconds: t.Optional[float]) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds)) if seconds else ""


def _event(event: t.Optional[t.Dict[str, t.Any]]) -> str:
    if event is None:
        return "none"
    more = " (and %d more)" % (len(event["lines"]) - 1) if len(event["lines"]) > 1 else ""
    return "%s: %s%s" % (_when(event["time"]), event["lines"][0], more)


def _over(event: t.Optional[t.Dict[str, t.Any]]) -> str:
    return " (mended since)" if event else ""


def _explain(arguments: argparse.Namespace, node: Node, where: Paths) -> int:
    destination, source = arguments.destination, arguments.source
    state, policy, config = _in_force(where)
    family = IPV4 if destination.version == 4 else IPV6
    if source is not None and source.version != destination.version:
        raise NodeError("%s and %s are of two families: give both in one" % (source, destination))
    who = str(source) if source is not None else "the pod"
    if family == IPV6 and not config.enable_ipv6:
        _say("%s: IPv6 is not managed (enableIPv6 is off), so no rule of ours decides" % destination)
        return OK
    result = look(node, config, state)
    change = next((change for change in managed(result) if change.family == family), None)
    if change is None:
        raise NodeError("; ".join(result.errors) or "no rules of %s are known" % family)
    for line in _decision(destination, who, change.plan.found):
        _say(line)
    if result.changed:
        _say("note: the rules in force are not those declared; see ip-masq-agent status")
    route = _route(node, destination)
    if route:
        _say("route: " + route)
    for remark in result.remarks:
        _say("note: " + remark)
    if policy.problem:
        _say("note: the configuration is broken, the last good one is in force: " + policy.problem)
    return OK


def _decision(destination: t.Any, who: str, found: View) -> t.Iterator[str]:
    """What the rules in force do with a connection, and the rule that decides."""
    if found.ruleset is None:
        yield "%s: no rule of ours decides, because our rules are not in force as they should be" % destination
        return
    rules = found.ruleset.rules
    deciding = [
        number
        for number, rule in enumerate(rules)
        if (isinstance(rule, Exempt) and destination in rule.network)
        or (isinstance(rule, Masquerade) and rule.protocol is None)
    ]
    if not deciding:
        return
    rule = rules[deciding[0]]
    if isinstance(rule, Exempt):
        verdict = "%s is exempt, because %s contains it: a connection keeps the source address of %s"
        yield verdict % (destination, rule.network, who)
    else:
        verdict = "%s is masqueraded, because no exempt range contains it: a connection of %s leaves as the node"
        yield verdict % (destination, who)
    if len(found.rules) == len(rules):
        yield "rule %d of %d: %s" % (deciding[0] + 1, len(rules), found.rules[deciding[0]])


def _route(node: Node, destination: t.Any) -> str:
    """The kernel's way to a destination (ip-route(8)); nothing where iproute2 is missing."""
    try:
        done = node.run(["ip", "-o", "route", "get", str(destination)])
    except NodeError:
        return ""
    words = done.stdout.replace("\\", " ").split()
    if words[:1] == ["local"]:
        return " ".join(words) + " (an address of this node: such traffic never reaches our chain)"
    return " ".join(words)


def _remove(_arguments: argparse.Namespace, node: Node, where: Paths) -> int:
    from . import removal  # what a sync has no use for takes time to load

    done = removal.uninstall(node, where, check=False)
    for line in done.lines:
        _log(5, line)
    for line in done.notes:
        _log(4, line)
    return OK


def _set_timer(_arguments: argparse.Namespace, node: Node, _where: Paths) -> int:
    from . import install

    done = None
    # The file may change meanwhile, and what watches it does not start a second run during the first.
    while files.read(INTERVAL_FILE) != done:
        done = files.read(INTERVAL_FILE)
        if done is not None and install.set_timer(node.run, install.parse_interval(done)):
            _log(5, "the timer is set to %gs" % (int(done) / 1e9))
    return OK


def entry(where: t.Mapping[str, str]) -> None:
    """The installed program's way in."""
    for stream in (sys.stdout, sys.stderr):
        # Whatever the locale can express: a character that it cannot must not end a sync.
        t.cast(t.Any, stream).reconfigure(errors="backslashreplace")
    raise SystemExit(main(sys.argv[1:], Paths(**where)))
