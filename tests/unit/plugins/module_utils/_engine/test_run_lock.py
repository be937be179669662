# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run at a time: real processes, a real lock on a directory that leaves nothing behind."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.run_lock import lock
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import LockHeld

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def hold(path: Path, talk: t.Any) -> None:
    with lock(5, str(path)):
        talk.send("held")
        talk.recv()


def start_holder(path: Path) -> t.Tuple[t.Any, t.Any]:
    here, there = FORK.Pipe()
    holder = FORK.Process(target=hold, args=(path, there))
    holder.start()
    assert here.recv() == "held"
    return holder, here


def test_a_second_run_waits_for_lock_timeout_and_reports_the_lock(path: Path) -> None:
    holder, talk = start_holder(path)
    for timeout in (0, 0.1):
        with pytest.raises(
            LockHeld,
            match="timed out after %g s waiting for another run of ip_masq, .* the lock on .*/run;" % timeout,
        ):
            with lock(timeout, str(path)):
                pass
    talk.send("go")
    holder.join()
    with lock(0, str(path)) as trouble:
        assert path.exists() and trouble == ""
    assert not path.exists()


def test_the_lock_of_a_run_that_was_killed_is_free(path: Path) -> None:
    holder, _talk = start_holder(path)
    holder.kill()
    holder.join()
    assert path.exists()
    with lock(0, str(path)):
        pass
    assert not path.exists()


def test_an_error_inside_gives_the_lock_back(path: Path) -> None:
    with pytest.raises(ValueError), lock(0, str(path)):
        raise ValueError
    assert not path.exists()


def count_up(path: Path, counter: Path, times: int) -> None:
    for _time in range(times):
        with lock(60, str(path)):
            counter.write_text(str(int(counter.read_text()) + 1))


def test_no_two_runs_hold_the_lock_though_each_removes_the_directory(path: Path, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    runs = [FORK.Process(target=count_up, args=(path, counter, 50)) for _number in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * 4
    assert counter.read_text() == "200"
    assert not path.exists()


def test_a_directory_removed_between_opening_and_locking_is_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if not taken:
            taken.append(path)
            path.rmdir()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock(5, str(path)):
        assert path.exists(), "a lock that nobody else can meet"


def test_what_else_is_in_the_directory_stays(path: Path) -> None:
    path.mkdir()
    (path / "status").write_text("x")
    with lock(0, str(path)):
        pass
    assert os.listdir(str(path)) == ["status"]


def test_only_root_can_hold_it(path: Path) -> None:
    """Whoever may open the directory could keep all our runs waiting."""
    with lock(0, str(path)):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "obstacle, reason",
    [
        ("a link", "Not a directory"),
        ("a dangling link", "Not a directory"),
        ("a file", "Not a directory"),
        ("no directory above it", "No such file or directory"),
    ],
)
def test_a_run_continues_without_a_lock_where_none_can_be_created(
    path: Path, tmp_path: Path, obstacle: str, reason: str
) -> None:
    if obstacle == "no directory above it":
        path = tmp_path / "not" / "there"
    elif obstacle == "a file":
        path.write_text("")
    else:
        path.symlink_to(tmp_path if obstacle == "a link" else tmp_path / "nothing")
    with lock(0, str(path)) as problem:
        expected = "concurrent runs of ip_masq are not excluded: cannot create or open the lock directory %s: %s"
        assert problem == expected % (path, reason)
    assert path.is_symlink() == ("link" in obstacle) and not (tmp_path / "nothing").exists()
