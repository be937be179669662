# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several nodes in namespaces, an inventory of them, and ansible-playbook against it as an operator runs it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import typing as t
from pathlib import Path

import yaml

from .agent_node import AgentNode
from .import_collection import make_importable
from .namespaces import Namespace
from .playbook_run import ansible_playbook, typed

make_importable()

from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import POLICY_OPTIONS  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._role_variables import (  # noqa: E402
    PREFIX,
    config_file_keys,
)

#: Ansible starts this in place of a shell, and is inside the node, which has a name of its own.
_SHELL = """#!/bin/sh
echo >>%s
PATH=%s:$PATH
export PATH
exec %s unshare --uts /bin/sh -c 'hostname %s && exec /bin/sh "$@"' sh "$@"
"""


class Played(t.NamedTuple):
    """What a run of ansible-playbook left behind."""

    rc: int
    #: standard output, then standard error
    said: str
    #: host -> {"ok": 3, "changed": 0, ...}
    recap: t.Dict[str, t.Dict[str, int]]

    @property
    def failed(self) -> t.List[str]:
        """The hosts that the recap counts as failed."""
        return sorted(host for host, counts in self.recap.items() if counts["failed"])


class Fleet:
    """Nodes without an agent, each in a namespace of its own, as hosts of an inventory.

    :param groups: group -> names of hosts.
    :param same: host -> the host whose node it is too: a large inventory needs few namespaces.
    """

    def __init__(
        self, root: Path, groups: t.Mapping[str, t.Sequence[str]], same: t.Optional[t.Mapping[str, str]] = None
    ) -> None:
        #: the current directory of ansible-playbook
        self.folder = self._root = root
        self._same = dict(same or {})
        self._namespaces: t.List[Namespace] = []
        self.nodes: t.Dict[str, AgentNode] = {}
        self.hosts: t.Dict[str, t.Dict[str, t.Any]] = {}
        #: group -> variables; ``all`` too
        self.group_vars: t.Dict[str, t.Dict[str, t.Any]] = {"all": {"ip_masq_agent_become": False}}
        #: group -> names of hosts, which may be others than the nodes
        self.groups = {group: list(names) for group, names in groups.items()}
        for name in sorted({name for names in groups.values() for name in names}):
            if name not in self._same:
                self._make(name)
        for name in sorted({name for names in groups.values() for name in names}):
            self.hosts[name] = self._reach(self.nodes[self._same.get(name, name)])

    def _make(self, name: str) -> None:
        self._namespaces.append(Namespace())
        folder = self._root / name
        folder.mkdir()
        self.nodes[name] = node = AgentNode(self._namespaces[-1], folder, installed=False)
        shell = folder / "shell"
        shell.write_text(_SHELL % (folder / "calls", node.path, " ".join(node.ns.argv()), name))
        shell.chmod(0o755)

    @staticmethod
    def _reach(node: AgentNode) -> t.Dict[str, t.Any]:
        return {
            "ansible_connection": "local",
            "ansible_shell_executable": str(node.root.parent / "shell"),
            "ansible_python_interpreter": sys.executable,
        }

    def delete(self) -> None:
        """Delete the namespaces."""
        for namespace in self._namespaces:
            namespace.delete()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.delete()

    def calls(self, name: str) -> int:
        """Count the commands that Ansible has run on a node so far. With pipelining a module's call is one."""
        calls = self._root / name / "calls"
        return len(calls.read_bytes()) if calls.exists() else 0

    def install(self, *names: str) -> None:
        """Give nodes the agent with the policy of the inventory as the playbook ``apply`` does, without Ansible."""
        for name in names:
            groups = [group for group, hosts in self.groups.items() if name in hosts]
            variables: t.Dict[str, t.Any] = {}
            for some in (*map(self.group_vars.get, ["all", *groups]), self.hosts[name]):
                variables.update(some or {})
            policy = {PREFIX + one.name for one in POLICY_OPTIONS} & variables.keys()
            config = config_file_keys({variable: variables[variable] for variable in policy})
            options = {"config": config, "verify": True, "applied_by": "kubenode.ip_masq.apply"}
            done = self.nodes[name].module("ip_masq_agent", options)
            assert not done.get("failed"), done

    def play(self, playbook: str, *arguments: str, env: t.Optional[t.Mapping[str, str]] = None) -> Played:
        """Run ansible-playbook with the inventory as it is now.

        :param playbook: ``apply``, ``status`` or ``remove`` of the collection, or the path of another.
        :param env: settings of Ansible, beside its defaults.
        """
        name = playbook if "/" in playbook else "kubenode.ip_masq." + playbook
        inventory = ("-i", self._write_inventory())
        return _played(ansible_playbook(self._root, *inventory, name, *arguments, **_settings(env)))

    def type(
        self, command: str, folder: t.Optional[Path] = None, env: t.Optional[t.Mapping[str, str]] = None
    ) -> Played:
        """Run a command line of Ansible as an operator types it, with our inventory beside its own.

        :param folder: the current directory; default: that of ``play``.
        """
        command = "%s -i %s" % (command, shlex.quote(self._write_inventory()))
        return _played(typed(command, folder or self._root, self._root, **_settings(env)))

    def _write_inventory(self) -> str:
        where = self._root / "inventory.yml"
        where.write_text(yaml.safe_dump(self.inventory()))
        return str(where)

    def inventory(self) -> t.Dict[str, t.Any]:
        """Return the inventory as Ansible's YAML plugin reads it."""
        groups: t.Dict[str, t.Any] = {
            group: {"hosts": {name: {} for name in names}} for group, names in self.groups.items()
        }
        groups["all"] = {"hosts": self.hosts}
        for group, variables in self.group_vars.items():
            groups.setdefault(group, {})["vars"] = variables
        return groups


def _settings(env: t.Optional[t.Mapping[str, str]]) -> t.Dict[str, str]:
    return {"COLUMNS": "200", **(env or {})}


def _played(done: subprocess.CompletedProcess[str]) -> Played:
    lines = re.findall(r"(?m)^(\S+) +: (ok=\d+ .*)$", done.stdout)
    counts = {host: {key: int(count) for key, count in re.findall(r"(\w+)=(\d+)", line)} for host, line in lines}
    return Played(done.returncode, done.stdout + done.stderr, counts)
