# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""iptables' lock: the holder is named where the kernel tells it, and another lock is used where it cannot be had."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables_lock
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome


@pytest.fixture
def lock() -> t.Iterator[t.Any]:
    # On tmpfs, as /run is on a node: /proc/locks names the inode that stat does.
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        yield file


def test_the_process_that_holds_it_is_named(lock: t.Any) -> None:
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert xtables_lock.find_holder(lock.name).startswith("process %d (" % os.getpid())


def test_a_command_line_of_several_lines_is_shown_on_one(lock: t.Any) -> None:
    """Else the message would differ in each run: it is remembered without its holder."""
    argv = ["flock", lock.name, "sh", "-c", "echo; read line", "a\nb) \r\x1c c"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        told = "the lock is held by %s. Wait" % xtables_lock.find_holder(lock.name)
        process.communicate(b"\n")
    assert "a b) c" in told
    assert xtables_lock.without_holder(told) == "the lock is held by a process. Wait"


def test_the_place_of_the_lock_follows_iptables(lock: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", lock.name)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert str(os.getpid()) in xtables_lock.holder()


def test_no_process_is_named_if_none_holds_the_lock(lock: t.Any, tmp_path: Path) -> None:
    assert xtables_lock.find_holder(lock.name) == ""
    assert xtables_lock.find_holder(str(tmp_path / "none")) == ""


def test_two_messages_that_differ_only_in_the_holder_are_equal() -> None:
    told = "the lock is held by %s. Wait"
    one, other = (told % holder for holder in ("process 7 (iptables -A X -m comment --comment (a))", "process 12 (sh)"))
    assert xtables_lock.without_holder(one) == xtables_lock.without_holder(other) == told % "a process"
    assert xtables_lock.without_holder("10.0.0.1/8 (line 3)") == "10.0.0.1/8 (line 3)"


@pytest.mark.parametrize("obstacle", ["directory", "link", "FIFO", "below a file"])
def test_a_lock_that_iptables_cannot_open_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, obstacle: str
) -> None:
    path = tmp_path / "xtables.lock"
    if obstacle == "directory":
        path.mkdir()
    elif obstacle == "link":
        path.symlink_to(tmp_path)
    elif obstacle == "FIFO":
        os.mkfifo(path)
    else:
        path.touch()
        path = path / "x"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(path))
    note = xtables_lock.prepare(lambda *_arguments, **_options: Outcome(0, "", ""))
    assert str(path) in note and "a lock of this agent is used" in note
    assert xtables_lock.lock_file() == xtables_lock.OWN


def test_a_lock_that_is_missing_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "xtables.lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(path))
    for _again in range(2):
        assert xtables_lock.prepare(lambda *_arguments, **_options: Outcome(0, "", "")) == ""
        assert path.stat().st_mode & 0o777 == 0o600
