# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The holder of iptables' lock is named where the kernel tells it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables_lock


@pytest.fixture
def lock() -> t.Iterator[t.Any]:
    # On tmpfs, as /run is on a node: /proc/locks names the inode that stat does.
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        yield file


def test_the_process_that_holds_it_is_named(lock: t.Any) -> None:
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert xtables_lock.holder(lock.name).startswith("process %d (" % os.getpid())


def test_a_command_line_of_several_lines_is_shown_on_one(lock: t.Any) -> None:
    """Else the message would differ in each run: it is remembered without its holder."""
    argv = ["flock", lock.name, "sh", "-c", "echo; read line", "a\nb) \r\x1c c"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        told = "the lock is held by %s. Wait" % xtables_lock.holder(lock.name)
        process.communicate(b"\n")
    assert "a b) c" in told
    assert xtables_lock.without_holder(told) == "the lock is held by a process. Wait"


def test_the_place_of_the_lock_follows_iptables(lock: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", lock.name)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert str(os.getpid()) in xtables_lock.holder()


def test_no_process_is_named_if_none_holds_the_lock(lock: t.Any, tmp_path: Path) -> None:
    assert xtables_lock.holder(lock.name) == "an unknown process"
    assert xtables_lock.holder(str(tmp_path / "none")) == "an unknown process"


def test_two_messages_that_differ_only_in_the_holder_are_equal() -> None:
    told = "the lock is held by %s. Wait"
    one, other = (told % holder for holder in ("process 7 (iptables -A X -m comment --comment (a))", "process 12 (sh)"))
    assert xtables_lock.without_holder(one) == xtables_lock.without_holder(other) == told % "a process"
    assert xtables_lock.without_holder("10.0.0.1/8 (line 3)") == "10.0.0.1/8 (line 3)"
