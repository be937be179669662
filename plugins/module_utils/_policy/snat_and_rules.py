# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entries of the options ``snat`` and ``rules``: their grammar, and every message about a mistake in one.

The keys of an entry are those of Ansible (``out_interface``) or of a config file (``outInterface``); upper and lower
case are one, as in the file.
"""

from __future__ import annotations

import functools
import typing as t

from .._errors import ConfigError
from .._system.families import PORT_PROTOCOLS
from . import values as grammar
from .values import EXEMPT, KEEP, MASQUERADE, RANDOM, SKIP, SNAT, AddressRange, Interface, Network, PortRange, Service

#: Entries of each option: nftables takes a rule or two for each, iptables one for each combination of its values.
SNAT_LIMIT = 32
RULES_LIMIT = 100

RULE_PROTOCOLS = (*PORT_PROTOCOLS, "icmp")
ACTIONS = (EXEMPT, MASQUERADE, SNAT, SKIP)
#: Keys whose value is a list, or one entry of it.
_LISTS = ("source_cidrs", "sources", "destinations", "out_interfaces", "protocols", "ports")
#: How source ports are mapped.
MAPPINGS = (RANDOM, KEEP)

Entry = t.TypeVar("Entry")


class Snat(t.NamedTuple):
    """A fixed address for what is masqueraded. Without sources, or without an interface, any is meant."""

    address: AddressRange
    out_interface: t.Optional[str] = None
    source_cidrs: t.Tuple[Network, ...] = ()
    #: whether what would get the address is dropped, because the node does not have it
    dropped: bool = False
    #: one of MAPPINGS; None: that of the policy
    mapping: t.Optional[str] = None

    def __str__(self) -> str:
        interfaces = [self.out_interface] if self.out_interface else []
        return _words(str(self.address), self.mapping, ("for", self.source_cidrs), ("by", interfaces))


class PolicyRule(t.NamedTuple):
    """What becomes of some packets, before the lists count. An empty field means all."""

    #: one of ACTIONS
    action: str
    sources: t.Tuple[Network, ...] = ()
    destinations: t.Tuple[Network, ...] = ()
    out_interfaces: t.Tuple[str, ...] = ()
    services: t.Tuple[Service, ...] = ()
    #: of SNAT
    address: t.Optional[AddressRange] = None
    #: as of Snat
    dropped: bool = False
    mapping: t.Optional[str] = None

    def __str__(self) -> str:
        action = self.action if self.address is None else "%s to %s" % (self.action, self.address)
        ranges = (("from", self.sources), ("to", self.destinations))
        return _words(action, self.mapping, *ranges, ("by", self.out_interfaces), ("of", self.services))


def _words(begin: str, mapping: t.Optional[str], *conditions: t.Tuple[str, t.Sequence[object]]) -> str:
    """Return an entry for people, with the conditions that it has."""
    words = [begin] + ["%s %s" % (word, ", ".join(map(str, values))) for word, values in conditions if values]
    return " ".join(words) + (", ports_mapping %s" % mapping if mapping else "")


def as_written(value: t.Any) -> str:
    """Return a value of a policy as text, with interfaces as the operator wrote them."""
    if isinstance(value, Snat) and value.out_interface:
        value = value._replace(out_interface=as_written(value.out_interface))
    elif isinstance(value, PolicyRule):
        value = value._replace(out_interfaces=tuple(map(as_written, value.out_interfaces)))
    return value.written if isinstance(value, Interface) else str(value)


def parse_snat(value: t.Any) -> t.Tuple[Snat, ...]:
    """Parse the entries of ``snat``, in order.

    :raises ConfigError: with the number of the entry, the value and the remedy.
    """
    return _entries(value, SNAT_LIMIT, ("address", "out_interface", "source_cidrs", "ports_mapping"), _parse_snat)


def parse_rules(value: t.Any) -> t.Tuple[PolicyRule, ...]:
    """Parse the entries of ``rules``, in order, as ``parse_snat`` does."""
    names = ("sources", "destinations", "out_interfaces", "protocols", "ports", "action", "address", "ports_mapping")
    return _entries(value, RULES_LIMIT, names, _parse_rule)


def _entries(
    value: t.Any, limit: int, names: t.Sequence[str], parse: t.Callable[[t.Dict[str, t.Any]], Entry]
) -> t.Tuple[Entry, ...]:
    found = []
    for position, entry in enumerate(grammar.check_list(value, "mappings", limit), 1):
        with grammar.naming("entry %d" % position):
            found.append(parse(_keys(entry, names)))
    return tuple(found)


def _keys(entry: t.Any, names: t.Sequence[str]) -> t.Dict[str, t.Any]:
    """Return the values of an entry by option name; those that are null are left out."""
    if not isinstance(entry, dict):
        raise grammar.refused(entry, "is not a mapping: give one with " + ", ".join(names))
    known = {name.replace("_", ""): name for name in names}
    values: t.Dict[str, t.Any] = {}
    for key, value in entry.items():
        name = known.get(key.replace("_", "").lower()) if isinstance(key, str) and key.isascii() else None
        if name is None:
            raise ConfigError("the key %s is not known: known are %s" % (grammar.show(key), ", ".join(names)))
        if name in values:
            raise ConfigError("duplicate key %s: keep one" % grammar.show(key))
        values[name] = value
    return {
        name: [value] if name in _LISTS and isinstance(value, str) else value
        for name, value in values.items()
        if value is not None
    }


def _parse_snat(values: t.Dict[str, t.Any]) -> Snat:
    if "address" not in values:
        raise ConfigError("address is missing: give an address of the node, such as 192.0.2.7, or a range")
    address = grammar.parse_address_range(values["address"])
    interface = grammar.parse_interface(values["out_interface"]) if "out_interface" in values else None
    sources = _named("source_cidrs", grammar.parse_sources, values)
    _check_family("source_cidrs", sources, address)
    return Snat(address, interface, sources, mapping=_mapping(values))


def _parse_rule(values: t.Dict[str, t.Any]) -> PolicyRule:
    if "action" not in values:
        raise ConfigError("action is missing: give one of %s" % ", ".join(ACTIONS))
    action = grammar.check_choice(values["action"], ACTIONS)
    if action == SNAT and "address" not in values:
        raise ConfigError("address is missing: action snat needs an address of the node, such as 192.0.2.7, or a range")
    if action != SNAT and "address" in values:
        raise ConfigError("address is for action snat, not for %s: remove it, or set action to snat" % action)
    if action not in (MASQUERADE, SNAT) and "ports_mapping" in values:
        raise ConfigError("ports_mapping is for actions masquerade and snat, not for %s: remove it" % action)
    address = grammar.parse_address_range(values["address"]) if action == SNAT else None
    rule = PolicyRule(
        action,
        _named("sources", grammar.parse_sources, values),
        _named("destinations", grammar.parse_networks, values),
        _named("out_interfaces", grammar.parse_interfaces, values),
        _services(values),
        address,
        mapping=_mapping(values),
    )
    if address is not None:
        _check_family("sources", rule.sources, address)
        _check_family("destinations", rule.destinations, address)
    return rule


def _named(name: str, parse: t.Callable[[t.Any], t.Any], values: t.Dict[str, t.Any], absent: t.Any = ()) -> t.Any:
    """Return the value of one key; ``absent`` if it is."""
    with grammar.naming(name):
        return parse(values[name]) if name in values else absent


def _mapping(values: t.Dict[str, t.Any]) -> t.Optional[str]:
    check = functools.partial(grammar.check_choice, choices=MAPPINGS)
    return t.cast(t.Optional[str], _named("ports_mapping", check, values, None))


def _services(values: t.Dict[str, t.Any]) -> t.Tuple[Service, ...]:
    """Return each protocol with each range of ports."""
    protocols = _named("protocols", _parse_protocols, values)
    ports = _named("ports", _parse_ports, values)
    if not ports:
        return tuple(Service(protocol) for protocol in protocols)
    portless = [protocol for protocol in protocols if protocol not in PORT_PROTOCOLS]
    if portless:
        raise ConfigError("ports: %s has no ports: give it an entry of its own" % portless[0])
    return tuple(Service(protocol, one) for protocol in protocols or PORT_PROTOCOLS for one in ports)


def _parse_ports(value: t.Any) -> t.Tuple[PortRange, ...]:
    return grammar.parse_port_range_list([value] if isinstance(value, int) else value)


def _parse_protocols(value: t.Any) -> t.Tuple[str, ...]:
    return tuple(
        dict.fromkeys(grammar.check_choice(entry, RULE_PROTOCOLS) for entry in grammar.check_list(value, "protocols"))
    )


def _check_family(name: str, networks: t.Sequence[Network], address: AddressRange) -> None:
    for network in networks:
        if network.version != address.version:
            raise ConfigError(
                "%s: %s is IPv%d, and the address %s is IPv%d: remove it, or give it an entry of its own"
                % (name, network, network.version, address, address.version)
            )


def address_ranges(config: t.Any) -> t.Iterator[t.Tuple[str, int, AddressRange]]:
    """Return the fixed addresses of each entry of ``snat`` and ``rules``, with the option and the entry's number."""
    for option in ("snat", "rules"):
        for position, entry in enumerate(getattr(config, option), 1):
            if entry.address is not None:
                yield option, position, entry.address


def addresses(config: t.Any) -> t.Tuple[t.Any, ...]:
    """Return the fixed addresses of a policy, each once: those of ``snat``, then those of ``rules``."""
    ranges = (one for _option, _number, one in address_ranges(config))
    return tuple(dict.fromkeys(address for one in ranges for address in one.addresses()))
