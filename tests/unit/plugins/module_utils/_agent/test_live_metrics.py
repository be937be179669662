# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics without a sync are those that a sync would write. With real rules: the kernel tests."""

from __future__ import annotations

import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import live_metrics, metrics, program_modules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import METRICS_NAME
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import Memory
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counted
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack, conntrack_counts

#: What iptables and nft print; a comment may look like a counter.
IPTABLES = """-N C
-A C -d 10.0.0.0/8 -m comment --comment "x -c 9 9" -c 12 720 -j RETURN
-A C -c 5 300 -j RETURN
-A C -c 3 180 -j MASQUERADE
"""
NFT = """table ip ip_masq_agent {
	chain leaks {
		ct state invalid counter packets 7 bytes 7 drop comment "counter packets"
	}
}
"""


def text(counters: t.Tuple[t.Tuple[int, int], ...], connections: conntrack.Statistics, last_success: float) -> str:
    """The metrics of a sync."""
    listings = [("ipv4", "drop", Counted((), "EML", counters))]
    return metrics.metrics_text(Sample(True, last_success, Memory(), listings=listings, connections=connections))


def test_they_have_what_has_changed_since_the_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, folder = tmp_path / "run", tmp_path / "metrics"
    run_dir.mkdir()
    folder.mkdir()
    (run_dir / "metrics").write_text(text((), conntrack.Statistics(1, 2, 0, 0, 0), 1e9))
    (tmp_path / "iptables").write_text(IPTABLES)
    (tmp_path / "nft").write_text(NFT)
    lines = ["ipv4 drop E-M /bin/cat %s" % (tmp_path / "iptables"), "ipv4 drop L /bin/cat %s" % (tmp_path / "nft")]
    (run_dir / "counted").write_text("".join(line + "\n" for line in lines))
    monkeypatch.setattr(conntrack_counts, "read", lambda: (8, 9, 3, 2, 1))
    monkeypatch.setattr(live_metrics.time, "time", lambda: 2e9)
    assert live_metrics.update(str(run_dir), str(folder), METRICS_NAME) == ""
    wanted = text(((12, 720), (3, 180), (7, 7)), conntrack.Statistics(8, 9, 3, 2, 1), 2e9)
    assert (folder / METRICS_NAME).read_text() == wanted


@pytest.mark.parametrize("fault", ["no metrics of a sync", "no directory", "no program"])
def test_what_is_missing_is_named_and_a_sync_follows(tmp_path: Path, fault: str) -> None:
    if fault != "no metrics of a sync":
        (tmp_path / "metrics").write_text("ip_masq_agent_in_sync 1\n")
    (tmp_path / "counted").write_text("ipv4 drop E /no/program\n" if fault == "no program" else "")
    problem = live_metrics.update(str(tmp_path), str(tmp_path / "none"), METRICS_NAME)
    assert problem.startswith("metrics not written: ")


def test_little_is_loaded(tmp_path: Path) -> None:
    """Nothing that takes longer to load than Python to start."""
    for path, content in program_modules.module_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    code = "import sys; sys.path.insert(0, %r); import ip_masq_agent._agent.live_metrics; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-ISB", "-c", code % str(tmp_path)], stdout=subprocess.PIPE, check=True)
    loaded = set(done.stdout.decode().split())
    assert "ip_masq_agent._system.limited" in loaded
    assert not loaded & {"typing", "re", "enum", "subprocess", "json", "ipaddress", "signal"}
