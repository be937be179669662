# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a snapshot is kept, and when it must not be. What the script makes of it: the tests of the kernel."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils import snapshot
from ansible_collections.kubenode.ip_masq.plugins.module_utils.errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils.runner import Outcome
from support.private_node import make_private

COMMANDS = [["/usr/sbin/iptables", "-S", "POSTROUTING"], ["/usr/sbin/iptables", "-S", "IP-MASQ-AGENT"]]


@pytest.fixture(autouse=True)
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A runtime directory of our own."""
    make_private(monkeypatch, tmp_path)


class Script:
    """Stands for the resync script: shows one view of the node after the other."""

    def __init__(self, *views: t.Union[str, Outcome, Exception]) -> None:
        self._views = list(views)
        self.calls: t.List[t.List[str]] = []

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        self.calls.append(list(argv))
        view = self._views.pop(0)
        if isinstance(view, Exception):
            raise view
        return view if isinstance(view, Outcome) else Outcome(0, view, "")


def kept() -> t.Optional[bytes]:
    """The snapshot."""
    path = Path(snapshot._EXPECTED)
    return path.read_bytes() if path.exists() else None


def test_what_is_seen_before_and_after_the_confirmation_is_kept() -> None:
    script = Script("view\udcff", "view\udcff")
    snapshot.record(script, "/sbin/resync", COMMANDS, lambda: True)
    assert script.calls == [["/sbin/resync", "observe"]] * 2
    assert kept() == b"view\xff"
    assert Path(snapshot._COMMANDS).read_text() == (
        "/usr/sbin/iptables -S POSTROUTING\n/usr/sbin/iptables -S IP-MASQ-AGENT\n"
    )


@pytest.mark.parametrize(
    "views, confirmed",
    [
        (("one", "other"), True),
        (("view", "view"), False),
        (("", ""), True),
        ((Outcome(1, "view", ""),) * 2, True),
        ((NodeError("no such program"),), True),
        (("view", NodeError("no such program")), True),
    ],
    ids=[
        "moved in between",
        "not in order",
        "nothing to see",
        "a file without a checksum",
        "no script",
        "script went away",
    ],
)
def test_what_is_not_sure_is_not_kept(views: t.Any, confirmed: bool) -> None:
    snapshot.record(Script(*views), "/sbin/resync", COMMANDS, lambda: confirmed)
    assert kept() is None


@pytest.mark.parametrize("word", ["/opt/my tools/iptables", "", "a\nb", "a\tb"])
def test_commands_that_the_script_would_split_are_not_recorded(word: str) -> None:
    snapshot.record(Script(), "/sbin/resync", [[word]], lambda: True)
    assert kept() is None
    assert not Path(snapshot._COMMANDS).exists()


def test_discarding_forgets_it_and_can_be_repeated() -> None:
    snapshot.record(Script("view", "view"), "/sbin/resync", COMMANDS, lambda: True)
    snapshot.discard()
    snapshot.discard()
    assert kept() is None


def test_time_of_the_last_sync_is_that_of_its_mark() -> None:
    assert snapshot.last_sync() is None
    snapshot.mark_sync()
    assert snapshot.last_sync() == Path(snapshot.LAST_SYNC).stat().st_mtime
