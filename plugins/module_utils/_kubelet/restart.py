# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restart a kubelet's service, and verify that the kubelet came up."""

from __future__ import annotations

from .._errors import NodeError
from .._system import systemd
from .._system.process import Runner
from .healthz import Healthy

#: Stopping may take as long as the unit allows (90 s unless it says otherwise), and starting comes after that.
SYSTEMCTL_TIMEOUT = 240.0


def restart(run: Runner, unit: str, url: str, timeout: float, healthy: Healthy) -> None:
    """Restart a service and wait until it is healthy.

    :param url: of healthz.
    :param timeout: seconds to wait for healthz after systemd has started the service.
    :raises NodeError: it did not start, or did not become healthy.
    """
    service = unit + ".service"
    # A kubelet that kept failing may have exceeded its start limit; systemd would then refuse this start.
    systemd.reset_failed(run, service)
    systemd.systemctl(run, "restart", service, timeout=SYSTEMCTL_TIMEOUT)
    problem = healthy(url, timeout)
    state = systemd.show_units(run, ("ActiveState",), [service])[service].first("ActiveState")
    if problem:
        raise NodeError(
            "%s did not become healthy within %g seconds (%s; the service is %s); see journalctl -u %s"
            % (service, timeout, problem, state or "in an unknown state", service)
        )
    if state != "active":
        raise NodeError(
            "%s is healthy, but %s is %s; another program may be listening there" % (url, service, state or "unknown")
        )
