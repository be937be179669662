# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a snapshot is kept, and when it must not be. What the script makes of it: the tests of the kernel."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import snapshot
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support.private_node import make_private

COMMANDS = [["/usr/sbin/iptables", "-S", "POSTROUTING"], ["/usr/sbin/iptables", "-S", "IP-MASQ-AGENT"]]


@pytest.fixture(autouse=True)
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A runtime directory of our own."""
    make_private(monkeypatch, tmp_path)


class Script:
    """Stands for the resync script, which takes checksums."""

    def __init__(self, taken: t.Union[str, Outcome, Exception] = "sums\udcff") -> None:
        self._taken = taken
        self.given: t.List[t.Optional[str]] = []

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        assert list(argv) == ["/sbin/resync", "checksums"]
        self.given.append(stdin)
        if isinstance(self._taken, Exception):
            raise self._taken
        return self._taken if isinstance(self._taken, Outcome) else Outcome(0, self._taken, "")


def kept() -> t.Optional[bytes]:
    """The snapshot."""
    path = Path(snapshot._EXPECTED)
    return path.read_bytes() if path.exists() else None


def test_checksums_of_the_answers_are_kept() -> None:
    script = Script()
    snapshot.record(script, "/sbin/resync", COMMANDS, "heard", lambda: True)
    assert script.given == ["heard"]
    assert kept() == b"sums\xff"
    assert Path(snapshot._COMMANDS).read_text() == (
        "/usr/sbin/iptables -S POSTROUTING\n/usr/sbin/iptables -S IP-MASQ-AGENT\n"
    )


@pytest.mark.parametrize(
    "taken, heard, current",
    [
        ("sums", "heard", False),
        ("sums", None, True),
        ("", "heard", True),
        (Outcome(1, "sums", ""), "heard", True),
    ],
    ids=["files edited meanwhile", "a command that was not run", "no checksums", "a file without a checksum"],
)
def test_what_is_not_sure_is_not_kept(taken: t.Any, heard: t.Optional[str], current: bool) -> None:
    snapshot.record(Script(taken), "/sbin/resync", COMMANDS, heard, lambda: current)
    assert kept() is None


def test_a_script_that_cannot_be_run_is_an_error() -> None:
    with pytest.raises(NodeError, match="no such program"):
        snapshot.record(Script(NodeError("no such program")), "/sbin/resync", COMMANDS, "heard", lambda: True)
    assert kept() is None


@pytest.mark.parametrize("word", ["/opt/my tools/iptables", "", "a\nb", "a\tb"])
def test_commands_that_the_script_would_split_are_not_recorded(word: str) -> None:
    snapshot.record(Script(), "/sbin/resync", [[word]], "heard", lambda: True)
    assert kept() is None
    assert not Path(snapshot._COMMANDS).exists()


class TestListener:
    """snapshot.Listener"""

    def test_it_passes_on_and_keeps_the_last_answer(self) -> None:
        said = iter(
            [Outcome(0, "one\n", ""), Outcome(1, "two\n", "oops"), Outcome(-11, "", ""), Outcome(0, "three\n", "")]
        )
        calls: t.List[t.Any] = []

        def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
            calls.append((list(argv), stdin, timeout))
            return next(said)

        listener = snapshot.Listener(run)
        assert listener(["a"]).stdout == "one\n"
        assert listener(["b", "c"], stdin="x", timeout=3.0).stderr == "oops"
        listener(["d"])
        listener(["a"])
        assert calls == [(["a"], None, 60.0), (["b", "c"], "x", 3.0), (["d"], None, 60.0), (["a"], None, 60.0)]
        assert listener.heard([["a"], ["b", "c"]]) == "three\nstatus 0\ntwo\nstatus 1\n"
        assert listener.heard([["d"]]) == "status 139\n", "as a shell says it"
        assert listener.heard([["a"], ["c"]]) is None
        assert listener.heard([]) == ""


def test_discarding_forgets_it_and_can_be_repeated() -> None:
    snapshot.record(Script(), "/sbin/resync", COMMANDS, "heard", lambda: True)
    snapshot.discard()
    snapshot.discard()
    assert kept() is None


def test_time_of_the_last_sync_is_that_of_its_mark() -> None:
    assert snapshot.last_sync() is None
    snapshot.mark_sync()
    assert snapshot.last_sync() == Path(snapshot.LAST_SYNC).stat().st_mtime
