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
  - Prints messages of C(ansible.builtin.debug), warnings and failures (equal ones of several hosts once), and one line
    with the counts of all hosts. Which interpreter Ansible has discovered is left out. A host that is unreachable is
    not counted as failed. With the playbook C(kubenode.ip_masq.status) this is the summary alone.
requirements:
  - set as stdout callback in the configuration of Ansible, or with C(ANSIBLE_STDOUT_CALLBACK)
"""

EXAMPLES = r"""
# ANSIBLE_STDOUT_CALLBACK=kubenode.ip_masq.summary ansible-playbook kubenode.ip_masq.status -i INVENTORY \
#   -e ip_masq_agent_hosts=kube_node
"""

import re
import typing as t

from ansible.plugins.callback import CallbackBase

from ..plugin_utils._fleet import module_failure
from ..plugin_utils._names import some_of

#: Before the warnings of these modules is the name of the node: Ansible prints warnings without a host.
_NAMING = ("ip_masq_agent", "kubenode.ip_masq.ip_masq_agent")
_NODE = re.compile(r"^[^\s:/]+: ")
_DISCOVERED = "using the discovered Python interpreter"


class CallbackModule(CallbackBase):
    """What Ansible looks for."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "kubenode.ip_masq.summary"

    def __init__(self) -> None:
        super().__init__()
        #: message -> hosts that it is about
        self._failures: t.Dict[str, t.List[str]] = {}
        #: warning -> hosts that it is about
        self._warnings: t.Dict[str, t.List[str]] = {}
        #: hosts without which a task went on, which Ansible counts nowhere
        self._unreachable: t.Set[str] = set()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        """Print what a debug task shows, and the host."""
        self._keep_warnings(result)
        if result._task.action in ("debug", "ansible.builtin.debug"):
            message = result._result.get("msg", "")
            host = "" if result._task.run_once else " (%s)" % result._host.get_name()
            for line in message if isinstance(message, list) else [message]:
                self._display.display("%s%s" % (line, host))

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        """Keep it for the end, unless the summary of the playbook has it."""
        self._keep_warnings(result)
        if not ignore_errors and "ip_masq_agent__in_summary" not in result._task.vars:
            self._keep("failed", result)

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        """Keep it for the end, unless the task goes on without the host."""
        if result._task.ignore_unreachable:
            self._unreachable.add(result._host.get_name())
        else:
            self._keep("unreachable", result)

    def _keep(self, what: str, result: t.Any) -> None:
        said = result._result.get("msg", "")
        text = "; ".join(map(str, said if isinstance(said, list) else [said])).strip()
        message = "%s: %s" % (what, module_failure({**result._result, "msg": text}))
        self._failures.setdefault(message, []).append(result._host.get_name())

    def _keep_warnings(self, result: t.Any) -> None:
        for warning in map(str, result._result.get("warnings") or ()):
            if _DISCOVERED not in warning:
                text = _NODE.sub("", warning) if result._task.action in _NAMING else warning
                self._warnings.setdefault(text, []).append(result._host.get_name())

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        """Print the warnings, the failures and the counts."""
        for warning, hosts in self._warnings.items():
            once = list(dict.fromkeys(hosts))  # two tasks may warn of the same
            line = "warning: %s (%s)" % (warning.strip(), some_of(once))
            self._display.display(line, color="purple")
        for message, hosts in self._failures.items():
            self._display.display("%s (%s)" % (message, some_of(hosts)), color="red")
        counts = {host: stats.summarize(host) for host in stats.processed}
        if not counts:
            self._display.display("no hosts matched")
        unreachable = self._unreachable | {host for host, one in counts.items() if one["unreachable"]}
        self._display.display(
            "%d hosts: %d changed, %d failed, %d unreachable"
            % (
                len(counts),
                sum(1 for one in counts.values() if one["changed"]),
                sum(1 for host, one in counts.items() if one["failures"] and host not in unreachable),
                len(unreachable),
            )
        )
