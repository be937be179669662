# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The paths that options of the modules choose."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import node_paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.agent_options import INFO


def params(**given: t.Any) -> t.Dict[str, t.Any]:
    """Options with their defaults."""
    return dict({name: spec.get("default") for name, spec in INFO.items()}, **given)


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the places are in test_install."""
    monkeypatch.setattr(node_paths.install, "check_paths", lambda _paths: None)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_paths, "is_python", lambda _path: True)
    paths = node_paths.find_paths(params())
    assert (paths.program, paths.python, paths.metrics_file) == (
        "/usr/local/sbin/ip-masq-agent",
        "/usr/bin/python3",
        "",
    )


@pytest.mark.parametrize("system", ["/bin/false", "/no/such/python"])
def test_without_a_python_of_the_system_that_will_do_it_is_that_of_the_module(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_paths, "SYSTEM_PYTHON", system)
    assert node_paths.find_paths(params()).python == sys.executable


def test_metrics_need_their_directory_unless_all_goes(tmp_path: Path) -> None:
    assert node_paths.find_paths(params(metrics_dir=str(tmp_path))).metrics_file.startswith(str(tmp_path))
    gone = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match="metrics_dir: .*/gone is not a directory on this node"):
        node_paths.find_paths(params(metrics_dir=gone))
    assert node_paths.named_paths(params(metrics_dir=gone)).metrics_file


def test_python_is_tried() -> None:
    assert node_paths.find_paths(params(python=sys.executable)).python == sys.executable
    with pytest.raises(ConfigError, match="python: /bin/false is not Python 3.8 or later"):
        node_paths.find_paths(params(python="/bin/false"))
