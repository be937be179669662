# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Systemd nodes of the benchmark, and playbooks against them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import typing as t
from pathlib import Path

from .plan import say

_ROOT = Path(__file__).resolve().parents[2]
_PLAYBOOKS = Path(__file__).with_name("playbooks")
_LAB = "bench"

_ENV = {
    "ANSIBLE_CONFIG": str(_ROOT / "ansible.cfg"),
    "ANSIBLE_HOME": str(_ROOT / ".cache/ansible"),
    "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
    "ANSIBLE_DEPRECATION_WARNINGS": "false",
    "MOLECULE_PROJECT_DIRECTORY": str(_ROOT),  # the inventory of the scenarios serves here too
    "MOLECULE_SCENARIO_NAME": _LAB,
    "PYTHONDONTWRITEBYTECODE": "1",
}


class NodeError(Exception):
    """A program for or on a node failed; the message has the end of its output."""


@contextlib.contextmanager
def booted(part: str) -> t.Iterator[None]:
    """Have the nodes as long as the block lasts, however it ends.

    :raises NodeError: they do not boot.
    """
    try:
        say("%s: booting systemd nodes (the first time, building their images takes a minute or two)" % part)
        _run(str(_ROOT / "tools/nodes"), "up", _LAB)
        yield
    finally:
        subprocess.run([str(_ROOT / "tools/nodes"), "down", _LAB], check=False, stdout=subprocess.DEVNULL)


def init(node: str) -> int:
    """Return the id that a node's first process has on this machine."""
    prefix = _run(str(_ROOT / "tools/nodes"), "prefix").strip()
    return int((_ROOT / ".cache/nodes" / ("%s-%s-%s" % (prefix, _LAB, node))).read_text(encoding="ascii"))


def inside(pid: int, *argv: str) -> str:
    """Run a program on the node whose first process is ``pid``, and return its output.

    :raises NodeError: its exit status is not 0.
    """
    return _run("nsenter", "--target", str(pid), "--all", "--", *argv)


def play(name: str, nodes: t.Sequence[str], **variables: t.Any) -> t.Any:
    """Run a playbook against nodes, and return what the callback ansible.posix.json prints.

    :raises NodeError: it failed.
    """
    out = _run(
        str(_ROOT / "tools/with-cgroup2"),
        str(_ROOT / ".venv/bin/ansible-playbook"),
        "--inventory",
        str(_ROOT / "molecule/shared/inventory.yml"),
        "--limit",
        ",".join(nodes),
        "--extra-vars",
        json.dumps(variables),
        str(_PLAYBOOKS / (name + ".yml")),
    )
    return json.loads(out[out.index("{") :])


def _run(*argv: str) -> str:
    env = dict(os.environ, **_ENV, PATH=str(_ROOT / ".venv/bin") + ":" + os.environ["PATH"])
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(" ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]) or "no output")
    return done.stdout
