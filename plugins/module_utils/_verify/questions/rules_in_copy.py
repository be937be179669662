# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network state of a node as it would be with the rules of another policy: made in a copy, by what applies them."""

from __future__ import annotations

import typing as t

from ..._engine.fixed_addresses import without_missing
from ..._engine.reconcile import reconcile
from ..._errors import NodeError
from ..._policy.policy import Config
from ..._system import ipsets, nf_tables, xtables
from ..._system.netlink import KernelError
from ..._system.nf_tables import NftTable
from ..._system.node import Node
from ..._system.process import Runner
from ..._twin import legacy, namespaces
from ..._twin.node_state import NodeState

#: Seconds for the rules of a node with tens of thousands of them.
_PATIENCE = 120.0


def with_policy(state: NodeState, run: Runner, config: Config, used_before: t.Optional[str]) -> NodeState:
    """Return the state of a node as ``reconcile`` would leave it. The node stays as it is.

    :param run: starts programs, in namespaces of the copy.
    :param used_before: as for ``reconcile``.
    :raises NodeError: the rules cannot be made, or there can be no namespaces.
    """
    # In the copy of the rules there are no addresses: what is missing on the node is decided here.
    decided = without_missing(config)[0]._replace(snat_missing="keep", flush_conntrack="none")
    worker = namespaces.Worker(lambda: _Rules(state, run), _PATIENCE)
    try:
        tables, old = worker.call("apply", decided, used_before, timeout=_PATIENCE)
    finally:
        worker.close()
    return state._replace(tables=tables, legacy=old)


class _Rules:
    """The rules of a node in a network namespace without links."""

    def __init__(self, state: NodeState, run: Runner) -> None:
        self._state = state
        self._run = run
        refused = ipsets.write(state.sets)
        if refused:
            raise NodeError("the rules of the node cannot be copied: " + "; ".join(refused))
        for table in state.legacy:
            xtables.write(table)
        self._made = {table for table in state.tables if _write(table)}

    def apply(
        self, config: Config, used_before: t.Optional[str]
    ) -> t.Tuple[t.Tuple[NftTable, ...], t.Tuple[xtables.XtTable, ...]]:
        """Apply a policy, and return all tables, then those of iptables-legacy.

        :raises NodeError: it cannot be applied.
        """
        result = reconcile(Node(self._run), config, used_before=used_before)
        if result.errors:
            raise NodeError("; ".join(result.errors))
        after = {(table.family, table.name): table for table in nf_tables.read()}
        # Tables about links cannot be made here; they stay as they are on the node.
        kept = [table for table in self._state.tables if table not in self._made]
        for table in kept:
            if (table.family, table.name) in after:
                raise NodeError("the table %s cannot be copied" % table.title)
        return (*kept, *after.values()), legacy.read()[0]


def _write(table: NftTable) -> bool:
    try:
        nf_tables.write(table)
    except KernelError:
        return False
    return True
