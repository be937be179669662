# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counters of the table of connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack, conntrack_counts


def _files(monkeypatch: pytest.MonkeyPatch, folder: Path, statistics: str) -> None:
    for name, text in (("_COUNT", "12\n"), ("_LIMIT", "262144\n"), ("_STATISTICS", statistics)):
        (folder / name).write_text(text)
        monkeypatch.setattr(conntrack_counts, name, str(folder / name))


def test_processors_are_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = "entries  found insert insert_failed drop early_drop\n0c 0 0 0a 01 1f\n0c 0 0 01 0f 01\n"
    _files(monkeypatch, tmp_path, rows)
    assert conntrack.statistics() == conntrack.Statistics(12, 262144, 11, 16, 32)


def test_kernel_without_connection_tracking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _files(monkeypatch, tmp_path, "")
    monkeypatch.setattr(conntrack_counts, "_COUNT", str(tmp_path / "missing"))
    assert conntrack.statistics() is None
