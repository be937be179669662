# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels of new directories."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import selinux_labels
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome


def test_the_first_missing_directory_is_found_once(tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    new = [tmp_path / path for path in ("opt/masq/bin", "opt/masq/lib/modules", "opt", "opt/masq", "etc")]
    assert selinux_labels.missing(map(str, new)) == (str(tmp_path / "opt/masq"), str(tmp_path / "etc"))
    (tmp_path / "opt/masq").symlink_to("nowhere")
    assert selinux_labels.missing([str(tmp_path / "opt/masq")]) == ()


@pytest.mark.parametrize(
    "answer, problem",
    [
        (Outcome(0, "", ""), None),
        (Outcome(255, "", "restorecon: cannot\n"), "restorecon: cannot"),
        (NodeError("restorecon timed out"), "restorecon timed out"),
        (None, "the node has no restorecon"),
    ],
)
def test_labels_are_restored(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: t.Union[Outcome, Exception, None],
    problem: t.Optional[str],
) -> None:
    calls = []

    def run(argv: t.Sequence[str], timeout: float) -> Outcome:
        calls.append(list(argv))
        if isinstance(answer, Outcome):
            return answer
        raise t.cast(Exception, answer)

    monkeypatch.setattr(selinux_labels, "_ENABLED", str(tmp_path))
    monkeypatch.setattr(selinux_labels, "which", lambda name: "/sbin/" + name if answer else None)
    note = selinux_labels.restore(run, ["/opt/masq", "/etc/masq"])
    assert calls == ([["/sbin/restorecon", "-R", "/opt/masq", "/etc/masq"]] if answer else [])
    assert (
        (note is None)
        if problem is None
        else (note or "").startswith(
            "/opt/masq, /etc/masq: SELinux labels are those of the directory above: %s; if" % problem
        )
    )


def test_nothing_is_run_without_selinux_or_a_new_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(argv: t.Sequence[str], timeout: float) -> Outcome:
        raise AssertionError(argv)

    monkeypatch.setattr(selinux_labels, "_ENABLED", str(tmp_path / "none"))
    assert selinux_labels.restore(run, ["/opt/masq"]) is None
    monkeypatch.setattr(selinux_labels, "_ENABLED", str(tmp_path))
    assert selinux_labels.restore(run, []) is None
