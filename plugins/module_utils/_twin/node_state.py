# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network state of a node as it is now, read without a change to it."""

from __future__ import annotations

import contextlib
import typing as t

from .._errors import NodeError
from .._system import ipsets, nf_tables, xtables
from .._system.ipsets import IpSet
from .._system.kernel_modules import loaded
from .._system.process import Runner
from . import ipvs, legacy, links, neighbours, not_copied, routing, sysctls
from .links import BRIDGE, Link
from .neighbours import Neighbours
from .routing import Routing
from .values import Unseen

T = t.TypeVar("T")


class NodeState(t.NamedTuple):
    """All that the twin is made from. ``unseen`` is what could not be read, or cannot be copied."""

    links: t.Tuple[Link, ...]
    routing: Routing
    neighbours: Neighbours
    settings: t.Mapping[str, str]
    sets: t.Tuple[IpSet, ...]
    tables: t.Tuple[nf_tables.NftTable, ...]
    legacy: t.Tuple[xtables.XtTable, ...]
    services: str
    unseen: t.Tuple[Unseen, ...]


def read_network(wanted: nf_tables.Wanted) -> NodeState:
    """Read the links and the routing of this network namespace, and some tables.

    :param wanted: what to read of a table of nft; those of iptables-legacy are read whole. If the tables of nft keep
        changing, there are none of them.
    :raises NodeError: links or routes cannot be read.
    """
    tables: t.Tuple[nf_tables.NftTable, ...] = ()
    if loaded("nf_tables"):
        with contextlib.suppress(NodeError):
            tables = nf_tables.read(wanted)
    old, _refused = legacy.read(lambda name: wanted(name) is not None)
    return NodeState(links.read(), routing.read(), Neighbours({}, {}), {}, (), tables, old, "", ())


def read(run: Runner) -> NodeState:
    """Read the state of the network namespace of this process.

    :param run: starts the program that only IPVS needs.
    :raises NodeError: links or routes cannot be read.
    """
    missed: t.List[Unseen] = []

    def attempt(reader: t.Callable[[], t.Tuple[T, ...]]) -> t.Tuple[T, ...]:
        try:
            return reader()
        except NodeError as exc:
            missed.append(Unseen("unreadable", str(exc)))
            return ()

    found = links.read()
    old, refused = legacy.read()
    services, missing = ipvs.read(run)
    tables = attempt(nf_tables.read) if loaded("nf_tables") else ()
    missed += [Unseen("unreadable", text) for text in refused + missing]
    missed += not_copied.read(found, tables)
    return NodeState(
        links=found,
        routing=routing.read(),
        neighbours=neighbours.read(links.ports(found).union(link.index for link in found if link.kind == BRIDGE)),
        settings=sysctls.read(link.name for link in found),
        sets=attempt(ipsets.read),
        tables=tables,
        legacy=old,
        services=services,
        unseen=tuple(missed),
    )
