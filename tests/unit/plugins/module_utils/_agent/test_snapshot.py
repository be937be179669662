# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a snapshot is kept, and when it must not be. What the script makes of it: the tests of the kernel."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import snapshot
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support.private_node import private_paths

COMMANDS = [["/usr/sbin/iptables", "-S", "POSTROUTING"], ["/usr/sbin/iptables", "-S", "IP-MASQ-AGENT"]]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A runtime directory of our own."""
    return private_paths(tmp_path, bin_dir="/sbin")


class Script:
    """Stands for the resync script, which takes checksums."""

    def __init__(self, taken: t.Union[str, Outcome, Exception] = "sums\udcff") -> None:
        self._taken = taken
        self.given: t.List[t.Optional[str]] = []

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        assert list(argv) == ["/sbin/ip-masq-agent-resync", "checksums"]
        self.given.append(stdin)
        if isinstance(self._taken, Exception):
            raise self._taken
        return self._taken if isinstance(self._taken, Outcome) else Outcome(0, self._taken, "")


def kept(paths: Paths) -> t.Optional[bytes]:
    """The snapshot."""
    path = Path(paths.expected)
    return path.read_bytes() if path.exists() else None


def test_checksums_of_the_output_are_kept(paths: Paths) -> None:
    script = Script()
    snapshot.take(script, paths, COMMANDS, "output", lambda: True)
    assert script.given == ["output"]
    assert kept(paths) == b"sums\xff"
    assert Path(paths.commands).read_text() == (
        "/usr/sbin/iptables -S POSTROUTING\n/usr/sbin/iptables -S IP-MASQ-AGENT\n"
    )


@pytest.mark.parametrize(
    "taken, output, current",
    [
        ("sums", "output", False),
        ("sums", None, True),
        ("", "output", True),
        (Outcome(1, "sums", ""), "output", True),
    ],
    ids=["files edited meanwhile", "a command that was not run", "no checksums", "a file without a checksum"],
)
def test_an_incomplete_snapshot_is_not_kept(paths: Paths, taken: t.Any, output: t.Optional[str], current: bool) -> None:
    snapshot.take(Script(taken), paths, COMMANDS, output, lambda: current)
    assert kept(paths) is None


def test_a_script_that_cannot_be_run_is_an_error(paths: Paths) -> None:
    with pytest.raises(NodeError, match="no such program"):
        snapshot.take(Script(NodeError("no such program")), paths, COMMANDS, "output", lambda: True)
    assert kept(paths) is None


@pytest.mark.parametrize("word", ["/opt/my tools/iptables", "", "a\nb", "a\tb"])
def test_commands_that_the_script_would_split_are_not_recorded(paths: Paths, word: str) -> None:
    snapshot.take(Script(), paths, [[word]], "output", lambda: True)
    assert kept(paths) is None
    assert not Path(paths.commands).exists()


class TestRecordingRunner:
    """snapshot.RecordingRunner"""

    def test_it_returns_each_outcome_and_keeps_the_last_output(self) -> None:
        said = iter(
            [Outcome(0, "one\n", ""), Outcome(1, "two\n", "oops"), Outcome(-11, "", ""), Outcome(0, "three\n", "")]
        )
        calls: t.List[t.Any] = []

        def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
            calls.append((list(argv), stdin, timeout))
            return next(said)

        recorded = snapshot.RecordingRunner(run)
        assert recorded(["a"]).stdout == "one\n"
        assert recorded(["b", "c"], stdin="x", timeout=3.0).stderr == "oops"
        recorded(["d"])
        recorded(["a"])
        assert calls == [(["a"], None, 60.0), (["b", "c"], "x", 3.0), (["d"], None, 60.0), (["a"], None, 60.0)]
        assert recorded.output_of([["a"], ["b", "c"]]) == "three\nstatus 0\ntwo\n", "the last one has no status"
        assert recorded.output_of([["d"], ["a"]]) == "status 139\nthree\n", "as a shell reports it"
        assert recorded.output_of([["a"], ["c"]]) is None
        assert recorded.output_of([]) == ""


def test_time_of_the_last_sync_is_that_of_its_file(paths: Paths) -> None:
    assert snapshot.last_sync(paths) is None
    snapshot.mark_sync(paths)
    assert snapshot.last_sync(paths) == Path(paths.last_sync).stat().st_mtime
