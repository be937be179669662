# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module kubelet_masquerade does on a node."""

from __future__ import annotations

import contextlib

from .._agent.paths import Paths
from .._errors import IpMasqError, NodeError
from .._kubelet.manage import manage_kubelets
from .._kubelet.options import Options
from .._system import files
from .._system.process import run
from .kubelet_result import as_return
from .task_result import Done, Params, named


def carry_out(params: Params, check: bool) -> Done:
    """Do what the options say.

    :param params: a value for each option of ``agent_options.KUBELET``.
    :param check: only report what would be done.
    """
    try:
        report = manage_kubelets(Options(**params), run, check)
    except IpMasqError as exc:
        return Done({}, failure=str(exc))
    returned = as_return(report)
    if returned["changed"] and not check:
        # The node is not what it was then.
        with contextlib.suppress(NodeError):
            files.remove(Paths().verification_file)
    return Done(returned, tuple(map(named, report.warnings)), report.failure)
