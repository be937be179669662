# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules that a policy asks for, in their order: entries of ``rules``, then what the flat options mean."""

from __future__ import annotations

import ipaddress
import typing as t

from .._policy import values
from .._policy.policy import Config
from .._policy.values import EXEMPT, MASQUERADE, SKIP, AddressRange, Network
from .._system import intervals
from .._system.families import IPV4, Family
from . import masquerade_ports
from .ruleset import EVERYTHING, IGNORE, VERDICTS, Decision, Guard, Masquerade, PolicyMatch, Ruleset, guards_of

#: An entry without a mapping has none: it is carried out as the ruleset says.
_WaysByMapping = t.Mapping[t.Optional[str], t.Tuple[Masquerade, ...]]


def from_config(config: Config, family: Family, random_fully: bool = True) -> Ruleset:
    """Return the rules that ``config`` asks for in one family.

    With ``to_ports: auto`` the kernel chooses source ports: ``auto_ports`` replaces it before rules are written.

    :param random_fully: whether the node's tools know fully random source ports (iptables 1.6.2 and later).
    """
    spare_link_local = not (config.masq_link_local if family == IPV4 else config.masq_link_local_ipv6)
    exempt = [values.LINK_LOCAL[family]] if spare_link_local else []
    exempt += _of_family(config.non_masquerade_cidrs, family)
    ranges = () if isinstance(config.to_ports, str) else config.to_ports
    ways: _WaysByMapping = {
        values.RANDOM: tuple(masquerade_ports.ways(ranges, random_fully)),
        values.KEEP: tuple(masquerade_ports.ways(ranges, False)),
    }
    verdict = VERDICTS[config.exemption]
    leading = tuple(_leading(config, family, ways))
    if not any(_is_about_everything(decision) for decision in leading):
        decisions = tuple(_decisions(config, family, exempt))
    elif _is_translated(leading[-1]) and leading[-1].how is None:
        # The same as flat options that exempt nothing.
        leading, decisions = leading[:-1], (Decision(MASQUERADE),)
    else:
        # No packet gets behind an entry that is about all of them.
        decisions = ()
    every = decisions + leading
    hidden = _collapse(_of_family(config.source_cidrs, family)) if config.leaks != IGNORE else ()
    hides = hidden and any(decision.action == MASQUERADE for decision in every)
    return Ruleset(
        decisions=decisions,
        verdict=verdict,
        masquerade=ways[values.RANDOM if config.random_fully else values.KEEP],
        guards=guards_of(verdict, family, every)
        + (tuple(Guard(mark=mark) for mark in config.skip_marks) if every else ()),
        leading=leading,
        translations=tuple(_translations(config, family, ways)) if any(map(_is_translated, every)) else (),
        leaks=config.leaks if hides else IGNORE,
        hidden=tuple(hidden) if hides else (),
        missing=tuple(dict.fromkeys(_missing(config, family, every))),
    )


def _missing(config: Config, family: Family, decisions: t.Sequence[Decision]) -> t.Iterator[AddressRange]:
    """Return the addresses of entries that are marked, as far as decisions lead to them."""
    if any(map(_is_translated, decisions)):
        snat = (entry for entry in config.snat if entry.dropped)
        yield from (entry.address for entry in snat if entry.address.version == family.version)
    marked = {rule.address for rule in config.rules if rule.dropped}
    yield from (one.address for one in decisions if one.address is not None and one.address in marked)


def _leading(config: Config, family: Family, ways: _WaysByMapping) -> t.Iterator[Decision]:
    """Return the entries of ``rules`` that are about a family."""
    for rule in config.rules:
        sources, destinations = _one_family(rule.sources, family), _one_family(rule.destinations, family)
        other = rule.address is not None and rule.address.version != family.version
        if sources is None or destinations is None or other:
            continue
        if rule.action == EXEMPT and not destinations:
            destinations = (EVERYTHING[family],)
        icmp = "icmp" if family == IPV4 else "ipv6-icmp"
        services = tuple(one._replace(protocol=icmp) if one.protocol == "icmp" else one for one in rule.services)
        match = PolicyMatch(sources, destinations, rule.out_interfaces, services)
        action = MASQUERADE if rule.action == values.SNAT else rule.action
        decision = Decision(action, match, rule.address, ways.get(rule.mapping))
        yield decision
        if _is_about_everything(decision):
            return


def _is_about_everything(decision: Decision) -> bool:
    networks = decision.match.destinations
    everywhere = not networks or networks[0].prefixlen == 0
    return everywhere and decision.match._replace(destinations=()) == PolicyMatch()


def _one_family(networks: t.Sequence[Network], family: Family) -> t.Optional[t.Tuple[Network, ...]]:
    """Return the networks of a family: empty if all are, None if none is."""
    found = _collapse(_of_family(networks, family))
    if networks and not found:
        return None
    return () if any(network.prefixlen == 0 for network in found) else tuple(found)


def _is_translated(decision: Decision) -> bool:
    return decision.action == MASQUERADE and decision.address is None


def _translations(config: Config, family: Family, ways: _WaysByMapping) -> t.Iterator[Decision]:
    """Return the entries of ``snat`` whose address is of a family."""
    for entry in config.snat:
        sources = _one_family(entry.source_cidrs, family)
        if entry.address.version == family.version and sources is not None:
            interfaces = (entry.out_interface,) if entry.out_interface else ()
            yield Decision(MASQUERADE, PolicyMatch(sources, (), interfaces), entry.address, ways.get(entry.mapping))


def _decisions(config: Config, family: Family, exempt: t.Sequence[Network]) -> t.Iterator[Decision]:
    """Return what the flat options mean, in order: other interfaces, ranges from the inside out, everything else."""
    sources = _one_family(config.source_cidrs, family)
    if sources is None:
        return
    scope = PolicyMatch(sources, (), config.out_interfaces)
    if config.except_interfaces:
        yield Decision(SKIP, PolicyMatch(interfaces=config.except_interfaces))
    layers = intervals.layers(exempt, _of_family(config.masquerade_cidrs, family))
    for depth, layer in reversed(list(enumerate(layers))):
        yield Decision(MASQUERADE if depth % 2 else EXEMPT, scope._replace(destinations=layer))
    yield Decision(MASQUERADE, scope)


def _of_family(networks: t.Iterable[Network], family: Family) -> t.List[Network]:
    return [network for network in networks if network.version == family.version]


def _collapse(networks: t.Sequence[Network]) -> t.List[Network]:
    return list(ipaddress.collapse_addresses(networks))  # type: ignore[type-var]
