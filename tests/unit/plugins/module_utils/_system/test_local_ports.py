# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of local ports, as the kernel writes them."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import local_ports
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.local_ports import read_local_ports


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> t.Callable[[str, str], None]:
    """Write the two files."""

    def write(local: str, reserved: str) -> None:
        for name, text in (("RANGE", local), ("RESERVED", reserved)):
            (tmp_path / name).write_text(text)
            monkeypatch.setattr(local_ports, name, str(tmp_path / name))

    return write


def test_the_kernel_s_own_are_read() -> None:
    first, last, _reserved = read_local_ports()
    assert [first, last] == list(map(int, Path(local_ports.RANGE).read_text().split()))


@pytest.mark.parametrize(
    "local, reserved, named",
    [
        ("", "", "RANGE: unk"),
        ("1", "", "RANGE: unk"),
        ("a b", "", "RANGE: unk"),
        ("1 2", "3;4", "RESERVED: unk"),
    ],
)
def test_an_unknown_format_is_an_error(settings: t.Any, local: str, reserved: str, named: str) -> None:
    settings(local, reserved)
    with pytest.raises(NodeError, match=named):
        read_local_ports()


def test_a_missing_file_is_an_error(settings: t.Any, tmp_path: Path) -> None:
    settings("1024 2048", "")
    (tmp_path / "RANGE").unlink()
    with pytest.raises(NodeError, match="cannot read .*RANGE: No such file"):
        read_local_ports()
