# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs are run without a shell, in one language, and never for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import process as runner
from support.namespaces import until


def test_without_input_the_program_reads_an_empty_one() -> None:
    assert runner.run(["/bin/cat"]) == runner.Outcome(0, "", "")


@pytest.mark.parametrize(
    "stderr, text",
    [("Failed:\n  no such unit\n", "Failed: no such unit"), ("", "exit status 5"), (" \n", "exit status 5")],
)
def test_error_text_is_one_line_and_never_empty(stderr: str, text: str) -> None:
    assert runner.Outcome(5, "", stderr).error_text == text


def test_output_that_is_no_text_does_not_matter() -> None:
    assert len(runner.run(["/bin/sh", "-c", r"printf '\377\376'"]).stdout) == 2


def test_the_environment_decides_nothing_but_the_path_and_iptables_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de", "PATH": "/nowhere", "XTABLES_LIBDIR": "/none"}
    for name, value in {**given, "XTABLES_LOCKFILE": "/run/lock"}.items():
        monkeypatch.setenv(name, value)
    lines = runner.run(["/usr/bin/env"]).stdout.splitlines()
    assert sorted(lines) == ["LC_ALL=C", "PATH=/nowhere:" + runner.SYSTEM_PATH, "XTABLES_LOCKFILE=/run/lock"]


def test_an_empty_path_leaves_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert runner.search_path() == runner.SYSTEM_PATH


def test_a_program_that_hangs_is_ended_with_what_it_started_and_named(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = "sleep 600 & echo $$ $! >%s; wait" % pids
    with pytest.raises(NodeError, match="^sh timed out after 2 seconds and was killed"):
        runner.run(["sh", "-c", script], timeout=2)
    program, started = pids.read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(program), 0)
    until(lambda: not _runs(started), "what it started to end")


def _runs(pid: str) -> bool:
    """Whether a process is there, and not only waits for its new parent to take note of its end."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("name", ["missing", "folder", "not-executable"])
def test_a_program_that_cannot_be_started_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "not-executable").write_text("")
    with pytest.raises(NodeError, match="cannot run .*%s: (No such file|Permission denied)" % name):
        runner.run([str(tmp_path / name)])


def test_a_program_is_found_as_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "nft").write_text("")
    (first / "iptables").mkdir()  # a directory is no program
    for path in (second / "nft", second / "iptables"):
        path.write_text("")
        path.chmod(0o755)
    monkeypatch.setattr(runner, "search_path", lambda: "%s:%s" % (first, second))
    assert [runner.which(name) for name in ("nft", "iptables")] == [str(second / "nft"), str(second / "iptables")]
    assert runner.which(str(second / "nft")) == str(second / "nft")
    assert runner.which(str(first / "nft")) is None
