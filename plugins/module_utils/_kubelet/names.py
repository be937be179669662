# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of policies and distributions. It imports nothing, so that options of modules can take them at no cost."""

from __future__ import annotations

POLICIES = ("auto", "present", "absent", "report")

#: Those whose kubelet systemd starts directly, and the others.
SERVICE_DISTRIBUTIONS = ("kubeadm", "kubespray", "plain")
DISTRIBUTIONS = SERVICE_DISTRIBUTIONS + ("k3s", "rke2", "k0s", "microk8s")
