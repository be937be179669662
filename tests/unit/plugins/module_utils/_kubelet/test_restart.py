# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarting a service: what counts as having come up."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.restart import restart
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome


def _systemctl(state: str, restart: Outcome) -> t.Callable[..., Outcome]:
    def run(argv: t.Sequence[str], **_how: t.Any) -> Outcome:
        return restart if argv[1] == "restart" else Outcome(0, "ActiveState=%s\n" % state, "")

    return run


GOOD = Outcome(0, "", "")


def test_a_restart_that_systemd_refuses() -> None:
    refused = Outcome(1, "", "Job for kubelet.service failed.\nSee journalctl.\n")
    with pytest.raises(
        NodeError, match="systemctl restart kubelet.service failed: Job for kubelet.service failed. See"
    ):
        restart(_systemctl("failed", refused), "kubelet", "u", 1, lambda url, timeout: "")


def test_healthz_of_another_program_does_not_count() -> None:
    with pytest.raises(NodeError, match="is healthy, but kubelet.service is activating; another program"):
        restart(_systemctl("activating", GOOD), "kubelet", "u", 1, lambda url, timeout: "")
    restart(_systemctl("active", GOOD), "kubelet", "u", 1, lambda url, timeout: "")


def test_a_kubelet_that_stays_down_is_named_with_its_state() -> None:
    with pytest.raises(
        NodeError, match=r"within 7 seconds \(refused; the service is activating\).*journalctl -u kubelet"
    ):
        restart(_systemctl("activating", GOOD), "kubelet", "u", 7, lambda url, timeout: "refused")
