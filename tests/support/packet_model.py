# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a policy says of one packet, without the code under test, and random packets near to where policies differ."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from hypothesis import strategies as st

#: source, destination, interface, protocol, port
Packet = t.Tuple[t.Any, t.Any, str, str, int]


def model(config: Config, packet: Packet) -> str:
    """Return what a packet has to meet: in a few lines, without the code under test."""
    return decided(config, packet)[0]


def is_skipped(config: Config, mark: int) -> bool:
    """Return whether packets with a mark are left to other programs."""
    return any(mark & one.mask == one.value for one in config.skip_marks)


def ports(config: Config, packet: Packet) -> t.Tuple[t.Tuple[t.Any, ...], t.Optional[bool]]:
    """Return from which ranges the source port of a packet that is masqueraded is chosen, and whether at random.

    None: there is a single port.
    """
    mapping = decided(config, packet)[1]
    ranges = tuple(sorted(config.to_ports)) if packet[3] in ("tcp", "udp", "sctp") else ()
    once = tuple(sorted(set(ranges)))
    alike = len({ranges.count(one) for one in ranges}) <= 1
    at_random = config.random_fully if mapping is None else mapping == "random"
    single = bool(ranges) and all("-" not in str(one) for one in config.to_ports)
    return (once if alike else ranges), None if single else at_random


def decided(config: Config, packet: Packet) -> t.Tuple[str, t.Optional[str]]:
    """Return what a packet has to meet, and the ``ports_mapping`` of the entry for it; None: of the policy."""
    source, destination, interface, protocol, port = packet
    version = source.version

    def within(address: t.Any, listed: t.Sequence[t.Any]) -> bool:
        return not listed or any(address in network for network in listed)

    def named(names: t.Sequence[str]) -> bool:
        return any(interface == name or name[-1] == "+" and interface.startswith(name[:-1]) for name in names)

    def masqueraded(mapping: t.Optional[str] = None) -> t.Tuple[str, t.Optional[str]]:
        for entry in config.snat:
            by = entry.out_interface is None or named([entry.out_interface])
            if entry.address.version == version and by and within(source, entry.source_cidrs):
                return "to %s" % (entry.address,), mapping or entry.mapping
        return "masquerade", mapping

    for rule in config.rules:
        services = [one for one in rule.services if one.protocol == protocol]
        if (
            within(source, rule.sources)
            and within(destination, rule.destinations)
            and (not rule.out_interfaces or named(rule.out_interfaces))
            and (
                not rule.services
                or any(one.ports is None or port in range(*one.ports) or port == one.ports.last for one in services)
            )
            and (rule.address is None or rule.address.version == version)
        ):
            if rule.address is not None:
                return "to %s" % (rule.address,), rule.mapping
            return masqueraded(rule.mapping) if rule.action == "masquerade" else (rule.action, None)
    if named(config.except_interfaces) or (config.out_interfaces and not named(config.out_interfaces)):
        return "skip", None
    if config.source_cidrs and not any(source in network for network in config.source_cidrs):
        return "skip", None
    link_local = ipaddress.ip_network("169.254.0.0/16" if source.version == 4 else "fe80::/10")
    spared = not (config.masq_link_local if source.version == 4 else config.masq_link_local_ipv6)
    exempt = [*config.non_masquerade_cidrs, *[link_local] * spared]
    listed = [(one.prefixlen, "exempt") for one in exempt if destination in one]
    listed += [(one.prefixlen, "masquerade") for one in config.masquerade_cidrs if destination in one]
    found = max(listed, default=(0, "masquerade"))[1]
    return masqueraded() if found == "masquerade" else (found, None)


@st.composite
def packets(draw: t.Any, config: Config, family: str) -> Packet:
    """Draw a packet near to where the policy treats packets differently."""
    version = 4 if family == IPV4 else 6
    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    bits = 32 if version == 4 else 128

    def address(networks: t.Sequence[t.Any]) -> t.Any:
        edges = [n for one in networks if one.version == version for n in (one.network_address, one.broadcast_address)]
        near = draw(st.sampled_from([int(edge) for edge in edges] or [0])) + draw(st.integers(-1, 1))
        return kind(min(max(near, 0), 2**bits - 1))

    rules = config.rules
    destinations = [*config.non_masquerade_cidrs, *config.masquerade_cidrs]
    destination = address(destinations + [one for rule in rules for one in rule.destinations])
    sources = [*config.source_cidrs, *(one for entry in config.snat for one in entry.source_cidrs)]
    sources += [one for rule in rules for one in rule.sources]
    interface = draw(st.sampled_from(["eth0", "eth1", "eth10", "eth", "bond0", "bond1", "wlan0"]))
    protocol = draw(st.sampled_from(["tcp", "udp", "sctp", "icmp"]))
    return address(sources), destination, interface, protocol, 0 if protocol == "icmp" else draw(st.integers(79, 83))


@st.composite
def marks(draw: t.Any, *configs: Config) -> int:
    """Draw the mark of a packet near to where policies treat packets differently; as often as not none."""
    known = [mark for config in configs for mark in config.skip_marks]
    if not known or draw(st.booleans()):
        return 0
    one, other = draw(st.sampled_from(known)), draw(st.sampled_from(known))
    kept = one.mask if draw(st.booleans()) else other.mask
    return t.cast(
        int, one.value | (draw(st.sampled_from([0, other.value, 2**32 - 1, draw(st.integers(0, 2**32 - 1))])) & ~kept)
    )
