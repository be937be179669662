# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line on the node: sync, status, explain, verify, who, ports, remove; and tasks of Ansible."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import sys
import typing as t

from .._agent.effective_policy import edited_since
from .._agent.paths import Paths
from .._agent.states import BROKEN_CONFIG, CONFLICTS, EXIT_STATUS
from .._agent.sync import sync
from .._errors import ConfigError, NodeError
from .._policy.snat_and_rules import RULE_PROTOCOLS
from .._system import defaults_and_limits
from .._system.families import PORT_PROTOCOLS
from .._system.node import Node
from .._system.process import run
from .._version import VERSION
from . import console

OK = 0
FAILED = 1
CONFLICT = EXIT_STATUS[CONFLICTS]
NOT_TESTED = 6
#: EX_CONFIG of sysexits(3), which systemd shows as CONFIG.
CONFIG_BROKEN = EXIT_STATUS[BROKEN_CONFIG]

#: How often a sync is repeated because the configuration was edited meanwhile: systemd does not watch it then.
_ROUNDS = 3

Checked = t.TypeVar("Checked")
_Command = t.Callable[[argparse.Namespace, Node, Paths], int]

_EPILOG = """\
examples:
  ip-masq-agent status
  ip-masq-agent explain 203.0.113.10 --source 10.244.1.2
  ip-masq-agent verify
  ip-masq-agent sync --dry-run
  ip-masq-agent who 192.0.2.11:4711 --to 203.0.113.10:443

exit status:
  0  success; in sync
  1  the rules could not be read or synced, or there is no such connection
  2  invalid usage
  3  status: units are not as installed; the rules are in sync
  4  status: the active rules differ from the configuration
  5  verify: traffic does not match the policy; status: it did not when it was last verified
  6  verify: not all traffic could be tested; what was tested matches the policy
 78  the configuration is broken; the last valid one stays active

The configuration is {config} with drop-ins in {drop_ins}
(*.json, *.yaml, *.yml), and has the keys of ip-masq-agent. An edit takes effect at once.
See also: systemctl status ip-masq-agent.timer, journalctl -u ip-masq-agent.
"""


def main(argv: t.Sequence[str], paths: Paths) -> int:
    """Run one command.

    :param argv: the arguments after the program's name.
    :returns: the exit status, see ``--help``.
    """
    arguments = parser(paths).parse_args(argv)
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


class _Parser(argparse.ArgumentParser):
    """Names only the commands of ``--help`` where one is misspelt."""

    def __init__(self, **options: t.Any) -> None:
        super().__init__(**options)
        #: The commands of ``--help``.
        self.listed: t.List[str] = []

    def error(self, message: str) -> t.NoReturn:
        known = "(choose from %s)" % ", ".join(self.listed)
        super().error(re.sub(r"\(choose from .*\)", known, message))


def _seconds(text: str) -> int:
    longest = defaults_and_limits.LONGEST_LOCK_TIMEOUT
    if not re.match(r"[0-9]{1,4}\Z", text) or int(text) > longest:
        raise argparse.ArgumentTypeError("%r is not a number of seconds from 0 to %d" % (text, longest))
    return int(text)


def parser(paths: Paths) -> argparse.ArgumentParser:
    """Return the parser, of which the manual page and the completion are made too.

    Commands without a summary are for units and Ansible: ``--help`` does not list them.
    """
    made = _Parser(
        prog="ip-masq-agent",
        description="Keeps the IP masquerading rules of this node in sync with the configuration: traffic to exempt\n"
        "ranges is not masqueraded by the agent's chain, other traffic to remote addresses is.",
        epilog=_EPILOG.format(config=paths.config, drop_ins=paths.drop_ins),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version="ip-masq-agent %s" % VERSION)
    made.add_argument(
        "--lock-timeout",
        type=_seconds,
        default=defaults_and_limits.LOCK_TIMEOUT,
        metavar="SECONDS",
        help="how long to wait for the xtables lock, and for another run of this agent (default: %(default)s)",
    )
    kind = argparse.ArgumentParser
    commands = made.add_subparsers(title="commands", metavar="COMMAND", dest="name", required=True, parser_class=kind)

    def add(name: str, run: _Command, summary: str = "", more: str = "") -> argparse.ArgumentParser:
        listed: t.Dict[str, t.Any] = {"help": summary} if summary else {}
        made.listed.extend([name] if summary else [])
        about = " ".join([summary[:1].upper() + summary[1:] + ".", more]) if summary else more
        command = commands.add_parser(name, description=about, **listed)
        command.set_defaults(command=run, refuse=command.error)
        return command

    def flag(command: argparse.ArgumentParser, name: str, words: str = "machine-readable output") -> None:
        command.add_argument(name, action="store_true", help=words)

    command = add("sync", _sync, "change the rules to match the configuration")
    flag(command, "--dry-run", "change nothing, and show what would change, for packets too")
    flag(command, "--json", "machine-readable output of --dry-run")
    command = add("status", _status, "show the state of the node, the policy and the active rules")
    words = "do not exit with 5 if traffic did not match the policy when it was last verified"
    flag(command, "--tolerate-conflicts", words)
    flag(command, "--json")
    command = add(
        "explain",
        _explain,
        "show the source address that a destination sees, and the rule that decides",
        "Sends a packet through a copy of the node's network state, which is gone afterwards; none leaves the node.",
    )
    command.add_argument("destination", metavar="DEST", help="an IP address")
    command.add_argument("--source", metavar="SRC", help="IP address of a pod or of the node (default: a pod's)")
    command.add_argument(
        "--protocol", default=defaults_and_limits.PROTOCOL, choices=RULE_PROTOCOLS, help="default: %(default)s"
    )
    command.add_argument(
        "--port", type=int, default=defaults_and_limits.PORT, help="destination port (default: %(default)s)"
    )
    command.add_argument(
        "--proposed", metavar="FILE", help="also show what this file, in place of the configuration, would change"
    )
    flag(command, "--json")
    command = add(
        "verify",
        _verify,
        "test whether all traffic matches the policy, whichever program's rules decide",
        "Sends packets through a copy of the node's network state, which is gone afterwards: for each way that packets "
        "of pods can take through rules, sets and routes. No packet leaves the node. The result is stored for status "
        "and metrics. What could not be tested is listed.",
    )
    for name, default, metavar, words in (
        ("--max-questions", defaults_and_limits.MAX_QUESTIONS, "N", "packets to send for each IP version, at most"),
        ("--max-seconds", defaults_and_limits.MAX_SECONDS, "S", "end after so many seconds of CPU time"),
    ):
        told = words + "; 0: no limit (default: %(default)s)"
        command.add_argument(name, type=int, default=default, metavar=metavar, help=told)
    words = "networks in which all pods of the node lie (default: by the routes of the node)"
    command.add_argument("--pod-cidrs", default="", metavar="CIDR,...", help=words)
    flag(
        command,
        "--if-changed",
        "show the last result instead if it was complete, traffic matched the policy, and nothing that it depends on "
        "has changed since (used by Ansible)",
    )
    flag(command, "--json")
    command = add("who", _who, "show the pod behind a connection that another host reports")
    command.add_argument("seen", metavar="ADDRESS:PORT", help="the source that the other host saw, IPv6 in []")
    command.add_argument("--to", metavar="ADDRESS:PORT", help="the other host; without it all connections are read")
    command.add_argument("--protocol", default="tcp", choices=PORT_PROTOCOLS, help="of the connection (default: tcp)")
    words = "a time in UTC, such as 2026-11-23T03:12, or with an offset: read the log of connections that have ended"
    command.add_argument("--at", metavar="TIME", help=words)
    command = add(
        "ports",
        _ports,
        "show the destinations that use most of the source ports, and how full the connection table is",
        "Two hidden connections to the same address and port need different source ports. The destinations with the "
        "largest share come first, with the pods that have most connections to them.",
    )
    flag(command, "--json")
    command = add("remove", _remove, "remove the rules, the units and the files, including this program")
    words = "keep the configuration, the units (stopped and disabled) and this program; packages use it"
    flag(command, "--keep-files", words)
    add("resync", _resync, more="Sync, where there is or was a policy. A unit of the agent uses it.")
    add("recover", _recover, more="Sync if the last resync was ended. A unit of the agent uses it.")
    command = add("keep-log", _keep_log, more="Rotate the log of connections. Units of the agent use it.")
    command.add_argument("--megabytes", type=int, required=True, help="what the log may take")
    flag(command, "--starting", "the log is about to be written again")
    add("task", _task, more="Do a task that is read as JSON. Ansible uses it.")
    return made


def _sync(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    if arguments.dry_run:
        return _dry_run(arguments, node, paths)
    if arguments.json:
        arguments.refuse("--json: only with --dry-run")
    return _run(node, paths)


def _resync(_arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    return _run(node, paths, unless_new=True)


def _run(node: Node, paths: Paths, unless_new: bool = False) -> int:
    for _again in range(_ROUNDS):
        done = sync(node, paths, functools.partial(_set_timer, node, paths), unless_new)
        console.log(console.NOTICE, *done.changes)
        console.log(console.ERROR, *done.errors)
        console.log(console.WARNING, *done.warnings)
        if not edited_since(done.policy, paths):
            break
    _recover_units(node)
    if done.policy.problem:
        return CONFIG_BROKEN
    return FAILED if done.errors else OK


def _recover_units(node: Node) -> None:
    """Have a timer or a watch that failed started again. systemd does that, but for one that failed as it reloaded."""
    from .._agent.units import RECOVER_SERVICE, STARTED_UNITS

    with contextlib.suppress(NodeError):
        if node.run(["systemctl", "--quiet", "is-failed", *STARTED_UNITS], timeout=5.0).rc == 0:
            node.run(["systemctl", "--no-block", "start", RECOVER_SERVICE], timeout=5.0)


def _set_timer(node: Node, paths: Paths, interval: int) -> None:
    """Give the timer an interval, if it has another one."""
    from .._agent import unit_control

    console.log(console.NOTICE, *unit_control.set_timer(node.run, paths, interval))


# The other commands import their modules themselves: loading all of them takes 43 ms, half of a sync.


def _dry_run(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .sync_dry_run import planned_lines

    lines, errors = planned_lines(node, paths, arguments.json)
    console.print_lines(lines)
    console.log(console.ERROR, *errors)
    return FAILED if errors else OK


def _status(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent import states, status

    report = status.build_report(node, paths)
    console.print_lines(json.dumps(report, indent=2).split("\n") if arguments.json else status.table(report))
    return states.exit_status(states.judge(report), arguments.tolerate_conflicts)


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
    progress = console.progress("%d of %d packets sent")
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

    report = ports.build_report(node, choose_policy(paths))
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

    done = removal.Removal(node, paths, keep_files=arguments.keep_files).carry_out()
    console.log(console.NOTICE, *done.lines)
    console.log(console.WARNING, *done.notes)
    return OK


def _recover(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent.state_files import read_memory
    from .._agent.units import SERVICE
    from .._system import systemd

    unit = systemd.show_units(node.run, ("ActiveState", "Result"), [SERVICE])[SERVICE]
    # The agent ended by itself: it has done, and logged, what can be done. A Python that did not come to its end exits
    # with 1 too. Where the next tick has begun, which may hang as well, systemd no longer says how the last one ended.
    ended = unit.first("ActiveState") == "failed" and unit.first("Result") == "exit-code"
    if ended and read_memory(paths).failing:
        return OK
    return _resync(arguments, node, paths)


def _keep_log(arguments: argparse.Namespace, node: Node, paths: Paths) -> int:
    from .._agent.units import LOG_SERVICE
    from .._connection_log.rotation import keep

    keep(node.run, LOG_SERVICE, paths.log_dir, arguments.megabytes << 20, arguments.starting)
    return OK


def _task(_arguments: argparse.Namespace, _node: Node, _paths: Paths) -> int:
    """Do a task of Ansible's.

    It is read as JSON: ``module``, ``params``, checked by the module's specification, and ``check``. JSON on one line
    comes out: the values of ``task_result.Done``.

    :raises SystemExit: the modules were changed, so they cannot be compared with themselves. Ansible's are.
    """
    from .._agent import program_modules

    if not program_modules.are_intact():
        raise SystemExit("the modules of this agent were changed; Ansible sends its own")
    asked = json.loads(sys.stdin.read())
    if asked["module"] == "ip_masq_agent_info":
        from .agent_info_task import carry_out
    else:
        from .agent_task import carry_out
    console.print_lines([json.dumps(carry_out(asked["params"], asked["check"])._asdict())])
    return OK
