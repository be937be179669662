# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom a policy concerns on a node besides pods, and pods that it forgets, by the links and routes of the node."""

from __future__ import annotations

import contextlib
import typing as t

from ..._engine.other_rules import Remark
from ..._engine.policy_rules import from_config
from ..._engine.range_words import in_words
from ..._engine.ruleset import exempt_spans
from ..._errors import ConfigError, NodeError
from ..._policy.policy import Config, has_every_address
from ..._policy.values import EXEMPT
from ..._rules.rules import Names
from ..._system import fixed_source_ports, intervals
from ..._system.families import FAMILIES, IPV6, Family, of_address
from ..._system.intervals import Spans
from ..._system.printable import first_of
from ..._twin.node_state import NodeState
from ..routing import senders
from .health import INFO, WARNING, Health

_MANY_PORTS = 1024


def notes(config: Config, severities: t.Container[str] = (WARNING, INFO)) -> t.Tuple[str, ...]:
    """Return what ``concerns`` finds on this node, one line each; nothing if links or routes cannot be read."""
    try:
        state = senders.read_network()
    except NodeError:
        return ()
    found = [*concerns(config, state), *ipv6_not_managed(config.families, state)]
    return tuple("%s: %s" % (one.text, one.remedy) for one in found if one.severity in severities)


def remarks(found: t.Iterable[Remark], config: Config) -> t.Tuple[str, ...]:
    """Return remarks on rules of other programs: of those for one source, those that match pods of this node."""
    found = list(found)
    pods: t.List[t.Any] = []
    if any(one.source for one in found):
        with contextlib.suppress(NodeError):
            pods = [one for family in config.families for one in _pods(config, family)]
    return tuple(one.text for one in found if not one.source or any(map(one.source.overlaps, pods)))


def _pods(config: Config, family: Family) -> t.Iterable[t.Any]:
    """Return the networks of pods: those of the policy, else those that the routes of this node show.

    :raises NodeError: the routes cannot be read.
    """
    if config.source_cidrs:
        return _of(config.source_cidrs, family)
    found = senders.senders(senders.read_network(), family)
    return intervals.networks(intervals.of(span for one in found for span in one.network), family)


def require_pods(config: Config, label: t.Callable[[str], str] = str) -> None:
    """Refuse to keep addresses of sources that are not known to be pods: guests of other programs get no answer then.

    :param label: turns an option name into what the operator wrote.
    :raises ConfigError: it is not known, with the networks of pods by the routes of this node.
    """
    everything = [family for family in FAMILIES if has_every_address(config.source_cidrs, family)]
    if config.exemption == "return" or (config.source_cidrs and not everything):
        return
    what = "has every IPv%d address" % everything[0].version if everything else "is not set"
    try:
        shown = _routes(senders.read_network(), config.families)
    except NodeError:
        shown = ""
    raise ConfigError(
        "{0}: {1} also keeps addresses of containers and machines that are no pods, such as Docker's, and these get no "
        "answer; {2} {3}: set {2} to the networks of pods{4}, or {0} to return".format(
            label("exemption"), config.exemption, label("source_cidrs"), what, shown
        )
    )


def concerns(config: Config, state: NodeState) -> t.Iterator[Health]:
    """Return at most one finding of each kind. Only links, routing and tables of ``state`` are used."""
    forgotten = [text for family in config.families for text in _not_exempt(config, family, state)]
    if forgotten:
        yield Health(
            "pods_not_exempt",
            WARNING,
            "the pods' own network is not exempt (%s): a pod sees the node in place of who connects to it"
            % ", ".join(forgotten),
            "add the networks of all pods to non_masquerade_cidrs",
        )
    if config.source_cidrs or not any(_masqueraded(config, family) for family in config.families):
        return
    guests = list(_guests(state, config.families))
    untested = "; verify does not test exempt traffic of these guests" if guests else ""
    ports = fixed_source_ports.udp_servers() if config.random_fully or config.to_ports else ()
    servers = "; its UDP servers on %s send from other ports" % first_of(ports) if ports else ""
    mounted = _mounted(config)
    servers += "; NFS servers that want a port below 1024 refuse it: %s" % first_of(mounted) if mounted else ""
    yield Health(
        "all_sources",
        INFO,
        "source_cidrs is not set: the policy also concerns %s%s%s"
        % (" and ".join(["the node itself", *guests]), untested, servers),
        "set source_cidrs to the networks of pods" + _routes(state, config.families),
    )


def ipv6_not_managed(managed: t.Container[str], state: NodeState) -> t.Iterator[Health]:
    """Return a finding if the node has IPv6 pods and nothing of ours acts on their packets."""
    if IPV6 not in managed and senders.example_pod(state, IPV6):
        yield Health(
            "ipv6_not_managed",
            WARNING,
            "the node has IPv6 pods, and IPv6 is not managed: they leave with their own addresses",
            "set enable_ipv6 to true (enableIPv6 in the configuration)",
        )


def _masqueraded(config: Config, family: Family) -> Spans:
    """Return the destinations that the lists masquerade and no entry of ``rules`` exempts, whatever else it matches."""
    lists = exempt_spans(from_config(config._replace(rules=()), family).decisions)
    entries = [one for one in config.rules if one.action == EXEMPT]
    exempt = [*lists, *intervals.of_networks(net for one in entries for net in _of(one.destinations, family))]
    exempt += [(0, family.highest) for one in entries if not one.destinations]
    return intervals.difference(((0, family.highest),), intervals.of(exempt))


def _not_exempt(config: Config, family: Family, state: NodeState) -> t.Iterator[str]:
    """Return the networks of pods, behind links that the policy is about, that it does not exempt."""
    pods: t.List[t.Tuple[int, int]] = []
    for sender in senders.senders(state, family, config.source_cidrs):
        left = Names(config.except_interfaces).match(sender.link)
        asked = not config.out_interfaces or Names(config.out_interfaces).match(sender.link)
        if asked and not left:
            pods.extend(sender.network)
    found = intervals.intersection(intervals.of(pods), _masqueraded(config, family))
    if found:
        yield in_words(found, family)


def _guests(state: NodeState, families: t.Sequence[Family]) -> t.Iterator[str]:
    for family in families:
        for guest in senders.guests(state, family):
            yield "%s (%s)" % (guest.link, in_words(guest.network, family))


def _mounted(config: Config) -> t.List[str]:
    """Return servers of NFS that the node reaches from a port that its policy has chosen, where none is below 1024."""
    if not config.to_ports or any(isinstance(one, tuple) and one[0] < _MANY_PORTS for one in config.to_ports):
        return []
    hidden = {family: _masqueraded(config, family) for family in config.families}
    servers = [(one, of_address(str(one))) for one in fixed_source_ports.nfs_servers()]
    return [str(one) for one, family in servers if intervals.contains(hidden.get(family, ()), int(one))]


def _routes(state: NodeState, families: t.Sequence[Family]) -> str:
    """Return the networks of pods by the routes of the node, in brackets; empty if none are shown."""
    shown = []
    for family in families:
        pods = intervals.of(span for one in senders.senders(state, family) for span in one.network)
        shown += [in_words(pods, family)] if pods else []
    return " (routes of this node show %s)" % ", ".join(shown) if shown else ""


def _of(networks: t.Iterable[t.Any], family: Family) -> t.Iterator[t.Any]:
    return (network for network in networks if network.version == family.version)
