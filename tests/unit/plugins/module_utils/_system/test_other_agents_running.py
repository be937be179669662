# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents of other makers: those that share the network namespace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import other_agents_running


def _process(proc: Path, pid: str, network: str, cmdline: bytes) -> None:
    """Add a process as proc(5) shows it."""
    (proc / pid / "net").mkdir(parents=True)
    (proc.parent / network).mkdir(exist_ok=True)
    (proc / pid / "net" / "stat").symlink_to(proc.parent / network)
    (proc / pid / "cmdline").write_bytes(cmdline)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc of a process of the node."""
    proc = tmp_path / "proc"
    _process(proc, "self", "node", b"python3\0")
    return proc


def test_agents_of_this_namespace_are_running(proc: Path) -> None:
    _process(proc, "12", "node", b"/ip-masq-agent\0--v=2\0")
    _process(proc, "7", "container", b"/ip-masq-agent\0")
    _process(proc, "5", "node", b"ip-masq-agent-v2\0")
    _process(proc, "3", "node", b"python3\0/usr/local/sbin/ip-masq-agent\0")
    (proc / "4").mkdir()
    assert list(other_agents_running.running(str(proc))) == [
        (5, "ip-masq-agent-v2", ["ip-masq-agent-v2"]),
        (12, "ip-masq-agent", ["/ip-masq-agent", "--v=2"]),
    ]


def test_a_process_that_ends_meanwhile_is_not_running(proc: Path) -> None:
    _process(proc, "12", "node", b"/ip-masq-agent\0")
    os.remove(str(proc / "12" / "net" / "stat"))
    assert list(other_agents_running.running(str(proc))) == []
