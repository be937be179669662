# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pod had which address when."""

from __future__ import annotations

import os
import random
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log import pod_history
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.pod_names import Pod

A = "10.244.1.2"


def _update(path: Path, now: float, **pods: Pod) -> None:
    pod_history.update(str(path.parent), {"10.244.1." + name[1:]: pod for name, pod in pods.items()}, now)


def _name(path: Path, moment: float, address: str = A) -> t.Optional[str]:
    return pod_history.name_at(pod_history.read(str(path.parent)), address, moment)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pods.json"


def test_nothing_is_written_while_the_pods_stay(path: Path) -> None:
    _update(path, 100, a2=Pod("default/web", 90))
    before = path.stat().st_ino
    _update(path, 160, a2=Pod("default/web", 90))
    assert (path.stat().st_ino, path.stat().st_mtime) == (before, 160)
    _update(path, 220, a2=Pod("default/web", 91))
    assert path.stat().st_ino != before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[[1]]",
        b"[" * 100000,
        b"\xff",
        b'[["a","b",{},1,2]]',
        b'[["a","b",0,0,1e999]]',
        b'[["a","b",0,%s,1]]' % (b"9" * 400),
    ],
)
def test_damaged_file_says_nothing_and_is_replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert pod_history.read(str(path.parent)) == []
    _update(path, 100, a2=Pod("default/web", 90))
    assert _name(path, 95) == "default/web"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file(path: Path, tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "secret").write_text("[]", encoding="ascii")
        path.symlink_to(tmp_path / "secret")
    else:
        os.mkfifo(path)
    assert pod_history.read(str(path.parent)) == []
    _update(path, 100, a2=Pod("default/web", 90))
    assert _name(path, 95) == "default/web"


def test_size_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_history, "MOST", 10)
    for now in range(100, 3000, 100):
        _update(path, now, a2=Pod("default/web", now - 10), a3=Pod("default/one", 5))
    known = pod_history.read(str(path.parent))
    assert len(known) == 10
    assert _name(path, 2895) == "default/web", "the latest stay"
    assert _name(path, 2895, "10.244.1.3") == "default/one"


def test_reused_addresses_never_get_a_wrong_name(path: Path) -> None:
    """10,000 connections of pods that come and go each few seconds, looked at once a minute."""
    random.seed(7)
    holders: t.Dict[str, t.List[t.Tuple[float, float, str]]] = {}
    for number in range(2, 12):
        moment, spans = 0.0, []
        while moment < 6000:
            came = moment + random.choice((0.1, 1, 30))
            gone = came + random.choice((2, 20, 200, 2000))
            spans.append((came, gone, "default/pod-%d" % random.randrange(200)))
            moment = gone
        holders["10.244.1.%d" % number] = spans

    def held_by(address: str, moment: float) -> t.Optional[t.Tuple[float, float, str]]:
        return next((span for span in holders[address] if span[0] < moment < span[1]), None)

    for now in range(60, 6000, 60):
        live = {address: held_by(address, now) for address in holders}
        pod_history.update(str(path.parent), {a: Pod(span[2], span[0]) for a, span in live.items() if span}, now)
    known = pod_history.read(str(path.parent))
    named = 0
    for _ in range(10000):
        address, moment = random.choice(list(holders)), random.uniform(0, 6000)
        name, span = pod_history.name_at(known, address, moment), held_by(address, moment)
        if name is not None:
            named += 1
            assert span and span[2] == name
    assert named > 5000
