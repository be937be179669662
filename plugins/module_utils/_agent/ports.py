# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which destinations use up the source ports of the node, and how full the connection table is.

For ``ip-masq-agent ports``, for the status, and for the metrics, which measure now and then and keep the result.
"""

from __future__ import annotations

import contextlib
import typing as t

from .._engine import port_usage
from .._engine.port_usage import PortUser, Use
from .._engine.reconcile import reconcile
from .._engine.ruleset import Ruleset
from .._errors import NodeError
from .._system import conntrack, files, pod_names
from .._system.endpoints import Endpoint
from .._system.node import Node
from .paths import Paths

if t.TYPE_CHECKING:
    from .._verify.inspection import ComparedPolicy

Data = t.Dict[str, t.Any]

#: Destinations in the data, and in the table; sources of each in the table.
_LISTED, _SHOWN, _SHOWN_SOURCES = 100, 20, 3

#: CPU time that a measurement for the metrics may take. Connections that were not read are not counted.
_SECONDS = 10.0

_TITLES: t.Tuple[str, ...] = ("used", "of", "%", "address", "destination", "ports", "connections of")


def build_report(node: Node, policy: ComparedPolicy) -> Data:
    """Return the use of source ports as data, as ``ports --json`` prints it. Nothing is written.

    :param policy: for the place of the active rules, which have the ports to which connections are masqueraded.
    :raises NodeError: the rules or the connections cannot be read.
    """
    config = policy.config._replace(flush_conntrack="none")
    result = reconcile(node, config, check=True, used_before=policy.used_before)
    found = port_usage.read(port_usage.active_rules(result), _LISTED, pod_names.read())
    counted = conntrack.statistics()
    return {
        "destinations": [as_data(use) for use in found.fullest],
        "destinations_left_out": found.destinations - len(found.fullest),
        "connections_not_counted": found.not_counted,
        "errors": list(result.errors),
        "conntrack": counted._asdict() if counted else None,
    }


def as_data(use: Use) -> Data:
    """Return the use of the ports for one destination, as in ``ports --json``."""
    data = use._asdict()
    data["ranges"] = [dict(one._asdict(), ports=str(one.ports)) for one in use.ranges]
    data["sources"] = [{key: value for key, value in one._asdict().items() if value is not None} for one in use.sources]
    return data


def table(report: Data) -> t.List[str]:
    """Return the report for people, one line each."""
    lines = [_conntrack_line(report["conntrack"]), ""]
    uses = report["destinations"][:_SHOWN]
    rows = [_TITLES, *map(_row, uses)] if uses else []
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        numbers = [cell.rjust(width) for cell, width in zip(row[:3], widths)]
        texts = [cell.ljust(width) for cell, width in zip(row[3:], widths[3:])]
        lines.append("  ".join(numbers + texts).rstrip())
    left_out = len(report["destinations"]) - len(uses) + report["destinations_left_out"]
    if not uses:
        lines.append("no tracked connection is hidden behind an address of this node")
    elif left_out:
        lines.append("... %d more destinations with a smaller share" % left_out)
    if report["connections_not_counted"]:
        lines.append(
            "not counted, because there are too many pods and destinations: %d connections, of those with the fewest"
            % report["connections_not_counted"]
        )
    return lines + ["the active rules are not known, nor their to_ports: %s" % error for error in report["errors"]]


def _conntrack_line(counted: t.Optional[Data]) -> str:
    if counted is None:
        return "the kernel does not show how many connections it tracks"
    return "tracked connections: %s; since boot: %d insert_failed, %d drops, %d early_drops" % (
        in_share(counted["entries"], counted["limit"]),
        counted["insert_failed"],
        counted["drops"],
        counted["early_drops"],
    )


def in_share(used: int, available: int) -> str:
    """Return how much is used, for people."""
    return "%d of %d (%d %%)" % (used, available, percent(used, available))


def scarce(uses: t.Iterable[Data], counted: t.Optional[Data]) -> t.Iterator[t.Tuple[str, str, str]]:
    """Return of what so little is left that an operator wants to know unasked: a code, what it is, and the remedy.

    :param uses: of the source ports for a destination.
    :param counted: the table of connections, as in ``ports --json``.
    """
    for use in uses:
        if use["used"] > port_usage.SCARCE * use["available"]:
            words = (destination(use), use["address"], in_share(use["used"], use["available"]))
            remedy = "exempt the destination, or spread pods over addresses with snat"
            yield "few_source_ports", "source ports for %s from %s: %s" % words, remedy
    if counted and counted["entries"] > port_usage.SCARCE * counted["limit"]:
        share = in_share(counted["entries"], counted["limit"])
        yield "connections_full", "tracked connections: %s" % share, "raise net.netfilter.nf_conntrack_max"


def percent(used: int, available: int) -> int:
    """Return a share in whole percent, rounded down: it is 100 only where nothing is left."""
    return 100 * used // available if available else 0


def _row(use: Data) -> t.Tuple[str, ...]:
    used, available = use["used"], use["available"]
    zone = " zone %d" % use["zone"] if use["zone"] else ""
    return (
        str(used),
        str(available),
        str(percent(used, available)),
        use["address"],
        destination(use) + zone,
        _ranges_text(use["ranges"]),
        _sources_text([PortUser(**one) for one in use["sources"]], used),
    )


def destination(use: Data) -> str:
    """Return a destination, for people."""
    return "%s %s" % (use["protocol"], Endpoint(use["destination"], use["port"]))


def _ranges_text(ranges: t.Sequence[Data]) -> str:
    texts = ["%(ports)s %(used)d of %(available)d" % one for one in ranges]
    return ", ".join(texts) if len(texts) > 1 else str(ranges[0]["ports"])


def _sources_text(sources: t.Sequence[PortUser], used: int) -> str:
    shown = sources[:_SHOWN_SOURCES]
    texts = ["%s %d" % (pod_names.with_name(one.address, one.pod), one.connections) for one in shown]
    others = used - sum(one.connections for one in shown)
    return ", ".join(texts + (["others %d" % others] if others > 0 else []))


def highest_share(paths: Paths, every: int, rulesets: t.Mapping[str, t.Iterable[Ruleset]]) -> float:
    """Return the largest share, measured at the first of so many resyncs; the others return the last measurement.

    :param rulesets: the active rules, by family.
    :raises NodeError: the kernel refuses the request, or the share cannot be kept.
    """
    runs, share = _kept_share(paths)
    if share is None or runs >= every:
        found = port_usage.read(rulesets, 1, {}, _SECONDS).fullest
        runs, share = 0, found[0].share if found else 0.0
    files.write(paths.port_share, b"%d %.4f\n" % (runs + 1, share), folder=0o700)
    return share


def _kept_share(paths: Paths) -> t.Tuple[int, t.Optional[float]]:
    """Return how many resyncs have used the last share, and the share; None without one, or if the file is damaged."""
    with contextlib.suppress(NodeError, ValueError):
        runs, share = (files.read(paths.port_share) or b"").decode("ascii").split()
        if 0.0 <= float(share) <= 1.0:
            return int(runs), float(share)
    return 0, None
