# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services of IPVS, where its tool ``ipvsadm`` can read and write them."""

from __future__ import annotations

import typing as t

from .._system import ipvs_services
from .._system.process import Runner, which


def read(run: Runner) -> t.Tuple[str, t.List[str]]:
    """Read the services of this network namespace as ``ipvsadm`` saves them.

    :returns: its text, and why it is empty although there are services.
    """
    services = ipvs_services.count()
    if not services:
        return "", []
    tool = which("ipvsadm")
    if tool is None:
        return "", ["%d services of IPVS: ipvsadm is not on this node" % services]
    done = run([tool, "--save", "--numeric"])
    if done.rc != 0:
        return "", ["%d services of IPVS: ipvsadm ended with %d: %s" % (services, done.rc, done.stderr.strip())]
    return done.stdout, []


def write(run: Runner, saved: str) -> t.List[str]:
    """Make the services in this network namespace, which must be one of our own.

    :returns: what could not be made.
    """
    if not saved:
        return []
    done = run([which("ipvsadm") or "ipvsadm", "--restore"], stdin=saved)
    return ["services of IPVS: %s" % done.stderr.strip()[:300]] if done.rc else []
