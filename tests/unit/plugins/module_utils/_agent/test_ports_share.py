# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The share of source ports for the metrics is measured at each n-th resync; the status warns above 80 %."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import ports, status
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import port_usage
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.port_usage import Range, Use, Uses
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import PortRange


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """An agent's paths below a directory of the test."""
    return Paths(root=str(tmp_path))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> t.List[int]:
    """What is measured: so many of 100 ports, one more each time."""
    found = []

    def read(*_arguments: t.Any) -> Uses:
        found.append(len(found) + 1)
        ranges = (Range(PortRange(1, 100), len(found), 100),)
        use = Use("tcp", "198.51.100.1", "203.0.113.9", 443, 0, ranges, len(found), 100, ())
        return Uses((use,), 1)

    monkeypatch.setattr(port_usage, "read", read)
    return found


@pytest.mark.parametrize(
    ("every", "shares"), [(1, [0.01, 0.02, 0.03, 0.04, 0.05]), (2, [0.01, 0.01, 0.02, 0.02, 0.03]), (9, [0.01] * 5)]
)
def test_measured_now_and_then(paths: Paths, measured: t.List[int], every: int, shares: t.List[float]) -> None:
    assert [ports.highest_share(paths, every, {}) for _number in range(5)] == shares


@pytest.mark.parametrize("content", [b"", b"1", b"1 2.0", b"1 nan", b"x 0.5", b"1 0.5 3", b"\xff\xff"])
def test_damaged_file(paths: Paths, measured: t.List[int], content: bytes) -> None:
    ports.highest_share(paths, 5, {})
    Path(paths.port_share).write_bytes(content)
    assert ports.highest_share(paths, 5, {}) == 0.02


def test_kernel_that_does_not_tell(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_arguments: t.Any) -> Uses:
        raise NodeError("no")

    monkeypatch.setattr(port_usage, "read", read)
    with pytest.raises(NodeError):
        ports.highest_share(paths, 5, {})
    assert not Path(paths.port_share).exists()


def _rows(used: int, entries: int, problem: t.Optional[str] = None) -> t.List[t.Tuple[str, str]]:
    use = {"protocol": "tcp", "address": "192.0.2.1", "destination": "203.0.113.9", "port": 443}
    report = {
        "source_ports": {"fullest": dict(use, used=used, available=100) if used else None, "problem": problem},
        "conntrack": {"entries": entries, "limit": 1000} if entries else None,
    }
    return list(status._scarce_rows(report))


def test_status_warns_above_80_percent_only() -> None:
    assert _rows(0, 0) == _rows(80, 800) == []
    assert _rows(81, 801) == [
        (
            "scarce",
            "source ports for tcp 203.0.113.9:443 from 192.0.2.1: 81 of 100 (81 %); "
            "exempt the destination, or spread pods over addresses with snat",
        ),
        ("scarce", "tracked connections: 801 of 1000 (80 %); raise net.netfilter.nf_conntrack_max"),
    ]


def test_status_says_that_it_does_not_know() -> None:
    assert _rows(80, 0, "slow") == _rows(0, 0, "slow") == [("ports", "unknown: slow; see ip-masq-agent ports")]
    assert [row for row, _words in _rows(90, 0, "slow")] == ["scarce", "ports"]
