# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Twins of the namespace in which a process is."""

from __future__ import annotations

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Runner, run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import node_state, twin
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import NotAvailable


def build(runner: Runner = run) -> twin.Twin:
    """The twin of where this process is.

    :param runner: starts programs for it.
    :raises AssertionError: there is none.
    """
    made = twin.build(node_state.read(runner), runner)
    assert not isinstance(made, NotAvailable), made
    return made
