# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line on the node: sync, status, explain, verify, who, ports, remove."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import typing as t

from .._agent.paths import Paths
from .._agent.sync import sync
from .._errors import ConfigError, NodeError
from .._policy.entries import RULE_PROTOCOLS
from .._system import files
from .._system.families import PORT_PROTOCOLS
from .._system.node import Node
from .._system.process import run
from .._version import VERSION
from . import console

OK = 0
FAILED = 1
#: EX_CONFIG of sysexits(3), which systemd shows as CONFIG.
CONFIG_BROKEN = 78
OUT_OF_SYNC = 4
CONFLICT = 5
NOT_TESTED = 6

Checked = t.TypeVar("Checked")

_EPILOG = """\
exit status:
  0  success; in sync
  1  the rules could not be read or synced, or there is no such connection
  2  invalid usage
  4  status: the active rules differ from the configuration
  5  verify: traffic does not match the policy
  6  verify: not all traffic could be tested; what was tested matches the policy
 78  the configuration is broken; the last valid one stays active

The configuration is {config} with drop-ins in {drop_ins}
(*.json, *.yaml, *.yml), and has the keys of ip-masq-agent. An edit takes effect at once.
See also: systemctl status ip-masq-agent.timer, journalctl -u ip-masq-agent.
"""


def main(argv: t.Sequence[str], paths: Paths, do_task: t.Callable[[str], str]) -> int:
    """Run one command.

    :param argv: the arguments after the program's name.
    :param do_task: does a task of Ansible's, which may be about more than the agent; takes and returns JSON.
    :returns: the exit status, see ``--help``.
    """
    arguments = _parser(paths, do_task).parse_args(argv)
    if os.geteuid() != 0:
        console.log(console.ERROR, "%s requires root; use sudo" % arguments.name)
        return FAILED
    node = Node(run, arguments.lock_timeout)
    try:
        return t.cast(int, arguments.command(arguments, node, paths))
    except ConfigError as exc:
        console.log(console.ERROR, str(exc))
        return CONFIG_BROKEN
    except NodeError as exc:
        console.log(console.ERROR, str(exc))
        return FAILED
    except BrokenPipeError:
        return OK
    except KeyboardInterrupt:
        console.log(console.ERROR, "interrupted; each IP family has either its old rules or its new ones")
        return 130


def _parser(paths: Paths, do_task: t.Callable[[str], str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ip-masq-agent",
        description="Keeps the IP masquerading rules of this node in sync with the configuration: traffic to exempt\n"
        "ranges is not masqueraded by the agent's chain, other traffic to remote addresses is.",
        epilog=_EPILOG.format(config=paths.config, drop_ins=paths.drop_ins),
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
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="name")
    commands.required = True

    command = commands.add_parser("sync", help="change the rules to match the configuration")
    command.add_argument(
        "--dry-run", action="store_true", help="change nothing, and show what would change, for packets too"
    )
    command.add_argument("--json", action="store_true", help="machine-readable output of --dry-run")
    command.set_defaults(command=_sync, refuse=command.error)
    command = commands.add_parser("status", help="show the policy, the active rules, and whether they agree")
    command.add_argument("--json", action="store_true", help="machine-readable output")
    command.set_defaults(command=_status)
    command = commands.add_parser(
        "explain",
        help="show the source address that a destination sees, and the rule that decides",
        description="Sends a packet through a copy of the node's network state, which is gone afterwards, and shows "
        "the source address that the destination sees, and the rule that decides. No packet leaves the node.",
    )
    command.add_argument("destination", metavar="DEST", help="an IP address")
    command.add_argument("--source", metavar="SRC", help="IP address of a pod or of the node (default: a pod's)")
    command.add_argument("--protocol", default="tcp", choices=RULE_PROTOCOLS, help="(default: tcp)")
    command.add_argument("--port", type=int, default=80, help="destination port (default: 80)")
    command.add_argument(
        "--proposed", metavar="FILE", help="also show what this file, in place of the configuration, would change"
    )
    command.add_argument("--json", action="store_true", help="machine-readable output")
    command.set_defaults(command=_explain, refuse=command.error)
    command = commands.add_parser(
        "verify",
        help="test whether all traffic matches the policy, whichever program's rules decide",
        description="Sends packets through a copy of the node's network state, which is gone afterwards: for each way "
        "that packets of pods can take through rules, sets and routes. No packet leaves the node. The result is stored "
        "for status and metrics. What could not be tested is listed.",
    )
    command.add_argument(
        "--max-questions",
        type=int,
        default=100000,
        metavar="N",
        help="packets to send for each IP version, at most; 0: no limit (default: 100000)",
    )
    command.add_argument(
        "--max-seconds", type=int, default=60, metavar="S", help="end after this time; 0: no limit (default: 60)"
    )
    command.add_argument(
        "--pod-cidrs",
        default="",
        metavar="CIDR,...",
        help="networks in which all pods of the node lie (default: by the routes of the node)",
    )
    command.add_argument(
        "--if-changed",
        action="store_true",
        help="show the last result instead if it was complete, traffic matched the policy, and nothing that it depends "
        "on has changed since (used by Ansible)",
    )
    command.add_argument("--json", action="store_true", help="machine-readable output")
    command.set_defaults(command=_verify, refuse=command.error)
    command = commands.add_parser("who", help="show the pod behind a connection that another host reports")
    command.add_argument("seen", metavar="ADDRESS:PORT", help="the source that the other host saw, IPv6 in []")
    command.add_argument("--to", metavar="ADDRESS:PORT", help="the other host; without it all connections are read")
    command.add_argument("--protocol", default="tcp", choices=PORT_PROTOCOLS, help="(default: tcp)")
    command.add_argument(
        "--at",
        metavar="TIME",
        help="a time in UTC, such as 2026-11-23T03:12, or with an offset: read the log of connections that have ended",
    )
    command.set_defaults(command=_who, refuse=command.error)
    command = commands.add_parser(
        "ports",
        help="show the destinations that use most of the source ports, and how full the connection table is",
        description="Shows for each address of the node and each destination how many source ports are used, and of "
        "how many: two hidden connections to the same address and port need different ones. The destinations with "
        "the largest share come first, with the pods that have most connections to them.",
    )
    command.add_argument("--json", action="store_true", help="machine-readable output")
    command.set_defaults(command=_ports)
    command = commands.add_parser("remove", help="remove the rules, the units and the files, including this program")
    command.add_argument(
        "--keep-files",
        action="store_true",
        help="keep the configuration, the units (stopped and disabled) and this program; packages use it",
    )
    command.set_defaults(command=_remove)
    command = commands.add_parser("set-timer", help="set the timer to resyncInterval (used by a unit of the agent)")
    command.set_defaults(command=_set_timer)
    command = commands.add_parser("keep-log", help="rotate the log of connections (used by units of the agent)")
    command.add_argument("--megabytes", type=int, required=True, help="what the log may take")
    command.add_argument("--starting", action="store_true", help="the log is about to be written again")
    command.set_defaults(command=_keep_log)
    command = commands.add_parser("task", help="do a task that is read as JSON (used by Ansible, see ip_masq_agent)")
    command.set_defaults(command=functools.partial(_task, do_task))
    return parser


def _sync(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    if arguments.dry_run:
        return _dry_run(arguments, node, paths)
    if arguments.json:
        arguments.refuse("--json: only with --dry-run")
    done = sync(node, paths)
    for priority, lines in (
        (console.NOTICE, done.changes),
        (console.ERROR, done.errors),
        (console.WARNING, done.warnings),
    ):
        for line in lines:
            console.log(priority, line)
    if done.policy.problem:
        return CONFIG_BROKEN
    return FAILED if done.errors else OK


# The other commands import their modules themselves: loading all of them takes 43 ms, half of a sync.


def _dry_run(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .dry_run import planned_lines

    lines, errors = planned_lines(node, paths, arguments.json)
    console.print_lines(lines)
    for line in errors:
        console.log(console.ERROR, line)
    return FAILED if errors else OK


def _status(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent import status

    report = status.build_report(node, paths)
    console.print_lines(json.dumps(report, indent=2).split("\n") if arguments.json else status.table(report))
    if report["config"]["problem"]:
        return CONFIG_BROKEN
    return FAILED if report["errors"] else OK if report["in_sync"] else OUT_OF_SYNC


def _explain(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent.explain import explain
    from .._verify.inspection import request

    given = ([arguments.destination], arguments.source, arguments.protocol, arguments.port)
    wanted = _checked(arguments.refuse, request, *given)
    console.print_lines(explain(node, paths, wanted, arguments.json, arguments.proposed))
    return OK


def _verify(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent.verify import verify
    from .._verify.inspection import request

    wanted = _checked(
        arguments.refuse,
        request,
        [],
        verify=True,
        max_questions=arguments.max_questions,
        max_seconds=arguments.max_seconds,
        pod_cidrs=[one for one in arguments.pod_cidrs.split(",") if one],
    )
    progress = console.progress("%d of %d questions answered")
    done = verify(node, paths, wanted, arguments.json, progress, arguments.if_changed)
    console.print_lines(done.lines)
    if done.not_stored:
        console.log(console.WARNING, done.not_stored)
    return NOT_TESTED if done.verified is None else OK if done.verified else CONFLICT


def _who(arguments: argparse.Namespace, _node: Node, paths: Paths) -> int:
    from .._agent.who import request, who

    asked = _checked(arguments.refuse, request, arguments.seen, arguments.to, arguments.protocol, arguments.at)
    console.print_lines(who(paths, asked))
    return OK


def _ports(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent import ports
    from .._agent.effective_policy import choose_policy

    report = ports.build_report(node, choose_policy({}, None, paths))
    console.print_lines(json.dumps(report, indent=2).split("\n") if arguments.json else ports.table(report))
    return FAILED if report["errors"] else OK


def _checked(
    refuse: t.Callable[[str], t.NoReturn], check: t.Callable[..., Checked], *arguments: t.Any, **options: t.Any
) -> Checked:
    """Return arguments as a command takes them.

    :param refuse: called with the reason where it does not; prints the usage and ends the program.
    """
    try:
        return check(*arguments, **options)
    except ConfigError as exc:
        refuse(str(exc))


def _remove(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent import removal

    done = removal.uninstall(node, paths, keep_files=arguments.keep_files)
    for line in done.lines:
        console.log(console.NOTICE, line)
    for line in done.notes:
        console.log(console.WARNING, line)
    return OK


def _set_timer(_arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent import unit_control

    done = None
    # It may be written anew meanwhile, and a unit that runs is not started again.
    while True:
        asked = files.read(paths.interval_file)
        if asked is None or asked == done:
            return OK
        done = asked
        if unit_control.set_timer(node.run, paths, unit_control.parse_nanoseconds(asked)):
            console.log(console.NOTICE, "timer interval set to %gs" % (int(asked) / 1e9))


def _keep_log(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent.units import LOG_SERVICE
    from .._connection_log.rotation import keep

    keep(node.run, LOG_SERVICE, paths.log_dir, arguments.megabytes << 20, arguments.starting)
    return OK


def _task(do_task: t.Callable[[str], str], _arguments: argparse.Namespace, _node: Node, _paths: Paths) -> int:
    console.print_lines([do_task(sys.stdin.read())])
    return OK
