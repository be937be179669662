# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of ansible-playbook without a line for each host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: summary
type: stdout
short_description: Print what differs, not a line for each host
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Prints messages of C(ansible.builtin.debug), with C(--diff) what differs, warnings and failures (equal ones of
    several hosts once), and one line with the counts of all hosts. Which interpreter Ansible has discovered is left
    out. A host that is unreachable counts as failed only if its failure is printed. With the playbook
    C(kubenode.ip_masq.status) this is the summary alone.
requirements:
  - set as stdout callback in the configuration of Ansible, or with C(ANSIBLE_STDOUT_CALLBACK)
"""

EXAMPLES = r"""
# ANSIBLE_STDOUT_CALLBACK=kubenode.ip_masq.summary ansible-playbook kubenode.ip_masq.status -i INVENTORY \
#   -e ip_masq_agent_hosts=kube_node
"""

import re
import typing as t

from ansible import context
from ansible.plugins.callback import CallbackBase

from ..plugin_utils._fleet import module_failure
from ..plugin_utils._names import some_of
from ..plugin_utils._shown_result import printable

#: Before the warnings of these modules is the name of the node: Ansible prints warnings without a host.
_NAMING = ("ip_masq_agent", "kubenode.ip_masq.ip_masq_agent")
_NODE = re.compile(r"^[^\s:/]+: ")
_SHOWING = ("debug", "ansible.builtin.debug")
_DISCOVERED = "using the discovered Python interpreter"


#: message -> hosts that it is about
_Messages = t.Dict[str, t.List[str]]


class CallbackModule(CallbackBase):
    """What Ansible looks for."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "kubenode.ip_masq.summary"

    def __init__(self) -> None:
        super().__init__()
        #: what is printed at the end: its kind -> message -> hosts that it is about
        self._kept: t.Dict[str, _Messages] = {"warning": {}, "failed": {}, "ignored": {}, "unreachable": {}}
        #: difference -> hosts that have it, of the task that is carried out
        self._diffs: _Messages = {}
        #: hosts of the plays
        self._hosts: t.Set[str] = set()
        #: hosts whose failure is printed
        self._failed: t.Set[str] = set()
        #: hosts without which a task went on, which Ansible counts nowhere
        self._unreachable: t.Set[str] = set()
        self._does = "would change" if context.CLIARGS.get("check") else "changed"

    def v2_runner_on_ok(self, result: t.Any) -> None:
        """Print what a debug task shows, and the host."""
        self._keep_warnings(result)
        if result._task.action in _SHOWING:
            self._show(result, "" if result._task.run_once else " (%s)" % result._host.get_name())

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        """Keep it for the end, unless the summary of the playbook has it, or it is what a debug task shows of all."""
        self._keep_warnings(result)
        if ignore_errors:
            self._keep_failure("ignored", result)
        elif "ip_masq_agent__in_summary" not in result._task.vars:
            self._failed.add(result._host.get_name())
            if result._task.action in _SHOWING and result._task.run_once and result._result.get("msg"):
                self._show(result, color="red")
            else:
                self._keep_failure("failed", result)

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        """Keep it for the end, unless the task goes on without the host."""
        if result._task.ignore_unreachable:
            self._unreachable.add(result._host.get_name())
        else:
            self._keep_failure("unreachable", result)

    def v2_on_file_diff(self, result: t.Any) -> None:
        """Keep it until the task has ended on all hosts."""
        for one in result._result.get("results", [result._result]):
            diff = self._get_diff(one["diff"]) if one.get("changed") and one.get("diff") else ""
            if diff:
                self._diffs.setdefault(diff, []).append(result._host.get_name())

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        """Print the differences of the task before."""
        self._print_diffs()

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        """Print the differences of the play before, and count the hosts: a task that runs once has a result of one."""
        self._print_diffs()
        self._hosts.update(host.get_name() for host in play.get_variable_manager()._inventory.get_hosts(play.hosts))

    def _print_diffs(self) -> None:
        for diff, hosts in self._diffs.items():
            self._display.display("%s (%s)\n%s" % (self._does, some_of(list(dict.fromkeys(hosts))), diff.rstrip("\n")))
        self._diffs.clear()

    def _show(self, result: t.Any, behind: str = "", color: t.Optional[str] = None) -> None:
        message = result._result.get("msg", "")
        for line in message if isinstance(message, list) else [message]:
            self._display.display("%s%s" % (printable(str(line)), behind), color=color)

    def _keep(self, kind: str, message: str, result: t.Any) -> None:
        self._kept[kind].setdefault(printable(message).strip(), []).append(result._host.get_name())

    def _keep_failure(self, kind: str, result: t.Any) -> None:
        said = result._result.get("msg", "")
        text = "; ".join(map(str, said if isinstance(said, list) else [said])).strip()
        self._keep(kind, module_failure({**result._result, "msg": text}), result)

    def _keep_warnings(self, result: t.Any) -> None:
        for warning in map(str, result._result.get("warnings") or ()):
            if _DISCOVERED not in warning:
                self._keep("warning", _NODE.sub("", warning) if result._task.action in _NAMING else warning, result)

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        """Print the warnings, the failures and the counts."""
        self._print_diffs()
        counts = {host: stats.summarize(host) for host in stats.processed}
        failed = {host for host, one in counts.items() if one["failures"]}
        self._print_kept("warning", "purple")
        self._print_kept("failed", "red", failed)
        self._print_kept("failed", "red", set(counts) - failed, "rescued")
        # What failed later in the same way is printed as that.
        for message in self._kept["failed"]:
            self._kept["ignored"].pop(message, None)
        self._print_kept("ignored", "red")
        self._print_kept("unreachable", "red")
        unreachable = self._unreachable | {host for host, one in counts.items() if one["unreachable"]}
        number = len(self._hosts.union(counts))
        if not number:
            self._display.display("no hosts matched")
            return
        changed = sum(1 for one in counts.values() if one["changed"])
        of_them = (changed, self._does, len(failed & (self._failed | (failed - unreachable))), len(unreachable))
        hosts = "%d host%s" % (number, "" if number == 1 else "s")
        self._display.display("%s: %d %s, %d failed, %d unreachable" % (hosts, *of_them))

    def _print_kept(self, kind: str, color: str, among: t.Optional[t.Set[str]] = None, title: str = "") -> None:
        for message, hosts in self._kept[kind].items():
            # Two tasks may say the same of a host.
            once = [host for host in dict.fromkeys(hosts) if among is None or host in among]
            if once:
                self._display.display("%s: %s (%s)" % (title or kind, message, some_of(once)), color=color)
