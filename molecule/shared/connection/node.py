# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Ansible reaches the nodes of ``tools/nodes``: as root, with one nsenter(1) for each task.

``podman exec`` takes fifty times as long to start a program, and containers.podman.podman, which has no pipelining,
needs five of them for each task.
"""

from __future__ import annotations

import shlex
import subprocess
import typing as t
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase, ensure_connect

DOCUMENTATION = """
name: node
author: the kubenode.ip_masq maintainers
short_description: run programs on a node of tools/nodes
description: Enters the namespaces of a container that runs on this machine. Needs root.
options:
  pid_file:
    description:
      - The file in which podman keeps the process id of the container's first process. The file is called after the
        container, and the process has that name in the environment variable C(IP_MASQ_NODE).
    type: path
    required: true
    vars:
      - name: ansible_node_pid_file
"""

#: What a program on the node gets in place of the controller's environment.
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TERM": "dumb",
    "container": "podman",
}

#: exit status, standard output, standard error
Ended = t.Tuple[int, bytes, bytes]


class Connection(ConnectionBase):
    """One node. Nothing stays open between tasks."""

    transport = "node"
    has_pipelining = True

    def _connect(self) -> Connection:
        path = Path(self.get_option("pid_file"))
        try:
            self._pid = str(int(path.read_text(encoding="ascii")))
            environment = Path("/proc", self._pid, "environ").read_bytes()
        except (OSError, ValueError) as exc:
            raise AnsibleConnectionFailure("%s does not run: %s" % (path.name, exc)) from exc
        # The number of a node that is gone may be anybody's.
        if b"IP_MASQ_NODE=" + path.name.encode() not in environment.split(b"\0"):
            raise AnsibleConnectionFailure("%s does not run: process %s is another program" % (path.name, self._pid))
        self._connected = True
        return self

    def close(self) -> None:
        """Forget the process id: after a reboot it is another one."""
        self._connected = False

    @ensure_connect
    def exec_command(self, cmd: str, in_data: t.Optional[bytes] = None, sudoable: bool = True) -> Ended:
        """Run a shell command to its end."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        enter = ["nsenter", "--target", self._pid, "--all", "--wdns=/root", "--"]
        done = subprocess.run(
            [*enter, "/bin/sh", "-c", cmd], input=in_data or b"", capture_output=True, env=_ENVIRONMENT, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        """Write a file on the node."""
        super().put_file(in_path, out_path)
        self._must("cat >%s" % shlex.quote(out_path), Path(in_path).read_bytes())

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Read a file of the node."""
        super().fetch_file(in_path, out_path)
        Path(out_path).write_bytes(self._must("cat %s" % shlex.quote(in_path)))

    def _must(self, cmd: str, in_data: bytes = b"") -> bytes:
        status, out, err = self.exec_command(cmd, in_data=in_data)
        if status != 0:
            raise AnsibleConnectionFailure("%s: exit status %d: %s" % (cmd, status, err.decode(errors="replace")))
        return out
