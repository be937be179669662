# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The grammar of the values that an operator may write, and every message about a mistake in one of them.

Knows nothing of options, files or rules. Every parser raises ``._errors.ConfigError`` with the value and the
remedy.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
import typing as t

from .._errors import ConfigError
from .._system import services
from .._system.families import BY_VERSION, IPV4, IPV6, PROTOCOLS

Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

#: RFC 3927 and RFC 4291: addresses that no router forwards, so nothing behind one could answer to them.
LINK_LOCAL = {IPV4: ipaddress.ip_network("169.254.0.0/16"), IPV6: ipaddress.ip_network("fe80::/10")}

#: RFC 4291 section 2.5.5.2. Kernel sockets turn these into IPv4, so an ip6tables rule for them never matches.
IPV4_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")

#: Longest chain name that every iptables accepts (XT_EXTENSION_MAXNAMELEN - 1, xtables 1.8).
CHAIN_NAME_LIMIT = 28

#: Names that iptables itself gives a meaning to: builtin chains, and targets that a rule of a nat chain may have.
RESERVED_CHAINS = frozenset(
    "PREROUTING INPUT FORWARD OUTPUT POSTROUTING ACCEPT DROP QUEUE RETURN REJECT LOG NFLOG MARK CONNMARK "
    "MASQUERADE SNAT DNAT REDIRECT NETMAP".split()
)

#: Prefixes of chains that other programs on a Kubernetes node own and rewrite.
RESERVED_PREFIXES = ("KUBE-", "CALI-", "FLANNEL-", "CILIUM_", "CNI-", "DOCKER", "LIBVIRT_", "WEAVE", "NETAVARK")

#: Places of the jump; the latter are followed by the name of a chain.
PLACES = ("keep", "first", "last")
PLACES_BY_CHAIN = ("before", "after")

#: Value of the option to_ports: those that are found on the node.
AUTO_PORTS = "auto"

#: How the kernel maps a source port: to a random one, or to itself where that is free.
RANDOM, KEEP = "random", "keep"

#: Ranges of source ports; each takes a rule for each protocol.
PORT_RANGES_LIMIT = 100

#: IFNAMSIZ of Linux, without the end of the text. iptables takes as many, with the ``+``.
INTERFACE_NAME_LIMIT = 15

#: Entries of a list of interfaces; each is a rule, or a condition of one.
INTERFACES_LIMIT = 32

#: Entries of a list of marks; each is a rule.
MARKS_LIMIT = 16

#: What becomes of a packet: it is left to the rules of other programs, keeps its source address, gets that of the node,
#: or a fixed one.
SKIP, EXEMPT, MASQUERADE, SNAT = "skip", "exempt", "masquerade", "snat"

#: Addresses of a range that takes the place of one.
ADDRESSES_LIMIT = 256

#: RFC 1122, RFC 4291: no packet from these addresses leaves a node.
LOOPBACK = {IPV4: ipaddress.ip_network("127.0.0.0/8"), IPV6: ipaddress.ip_network("::1/128")}

#: Keys of a file; a policy has two dozen, and the nearest known key is looked for with each of the others.
KEY_LIMIT = 100

#: Digits of an integer, and a sign; one of 64 bits has 19.
DIGIT_LIMIT = 20

#: Characters of a text that is no CIDR, of which the remedy is about.
_ADVISED = 1000

#: A resync more often than this buys nothing and costs a core.
SHORTEST_INTERVAL_NS = 1_000_000_000

_NS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
# Patterns are text: a start that compiled all of them took 2.8 % longer.
_DURATION = r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+\Z"
_DURATION_PART = r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
_CIDR = r"([0-9A-Fa-f:.]{1,45})/(0|[1-9][0-9]{0,2})\Z"
_CIDR_IN_TEXT = r"(?<![\w:./%-])[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}(?![\w:./%-])"
_BETWEEN_RANGES = r"[\s,;|]+"
_AROUND = r"[\s\"'\[\](),;|-]*(?:#.*)?\Z"
_PLACEHOLDER = r"<[^<>]+>|\{+[^{}]+\}+|\$\{?\w+\}?|__\w+__|%\w+%"
_ZONE = r"%[^/]*"
_ZERO_LED_OCTET = r"(?:\A|[.:])0[0-9]+\.|\.0[0-9]+\Z"
_CHAIN = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z"
_INTERFACE = r"[A-Za-z0-9_][A-Za-z0-9_.@-]*\Z"
_MARK = r"(0[xX][0-9A-Fa-f]{1,8}|[0-9]{1,10})(?:/(0[xX][0-9A-Fa-f]{1,8}|[0-9]{1,10}))?\Z"
_PORT_RANGE = r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z"


def refused(value: t.Any, why: str) -> ConfigError:
    """Return the error about a value that an operator wrote: what it is and the remedy."""
    return ConfigError("%s %s" % (show(value), why))


@contextlib.contextmanager
def naming(subject: str) -> t.Iterator[None]:
    """Have what is refused say where it is: ``SUBJECT: why``."""
    try:
        yield
    except ConfigError as exc:
        raise ConfigError("%s: %s" % (subject, exc)) from None


class PortRange(t.NamedTuple):
    """Source ports to masquerade to, both ends included (1-65535)."""

    first: int
    last: int

    @classmethod
    def read(cls, text: str, separator: str = "-") -> PortRange:
        """Read what a tool printed; raise ValueError if it is not a port or a range."""
        first, _separator, last = text.partition(separator)
        return cls(int(first), int(last or first))

    @property
    def size(self) -> int:
        """How many ports the range holds."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else "%d-%d" % self


class Service(t.NamedTuple):
    """Packets of a protocol, to some ports or, with None, to all."""

    #: a key of PROTOCOLS
    protocol: str
    ports: t.Optional[PortRange] = None

    def __str__(self) -> str:
        return self.protocol if self.ports is None else "%s/%s" % (self.protocol, self.ports)

    @property
    def span(self) -> t.Tuple[int, int]:
        """First and last number of protocol and port, as services."""
        return services.span(PROTOCOLS[self.protocol], *(self.ports or ()))


class AddressRange(t.NamedTuple):
    """Addresses of one family, both ends included."""

    first: t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
    last: t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

    @property
    def version(self) -> int:
        """Of IP."""
        return self.first.version

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else "%s-%s" % self

    def addresses(self) -> t.Iterator[t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]]:
        """Return each of them."""
        for number in range(int(self.last) - int(self.first) + 1):
            yield self.first + number


#: All bits of a packet's mark.
ALL_BITS = 0xFFFFFFFF


class Mark(t.NamedTuple):
    """Packets whose mark is ``value`` in the bits of ``mask``."""

    value: int
    mask: int = ALL_BITS

    def __str__(self) -> str:
        """Return the text that iptables prints for it."""
        return "0x%x" % self.value if self.mask == ALL_BITS else "0x%x/0x%x" % self


def parse_integer(text: str) -> int:
    """Read a decimal integer of a file.

    :raises ConfigError: longer than any of 64 bits; Python's time grows with the square of that.
    """
    if len(text) > DIGIT_LIMIT:
        raise refused(text, "is too long for a number (%d characters)" % len(text))
    return int(text)


def unique(pairs: t.Iterable[t.Tuple[str, t.Any]]) -> t.Dict[str, t.Any]:
    """Return the mapping of a file, from its keys and values; none may be there twice."""
    result: t.Dict[str, t.Any] = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError("duplicate key %s: keep one" % show(key))
        result[key] = value
    return result


def split_entries(value: t.Any) -> t.Any:
    """Return a list of text as Ansible hands it over, split at commas, alone (``-e NAME=A,B``) and as an entry.

    kubespray's kube_pods_subnets is such an entry: "10.233.64.0/18,fd85::/112". A config file has no such form, as with
    ip-masq-agent. What is neither text nor a list is returned as it is, for the grammar to refuse.
    """
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)):
        return value
    split: t.List[t.Any] = []
    for entry in entries:
        split += [part.strip() for part in entry.split(",")] if isinstance(entry, str) else [entry]
    return split


def parse_cidr(text: t.Any) -> Network:
    """Read one network in CIDR notation, strictly: ``ADDRESS/PREFIX`` with no host bits, no zone, no netmask.

    This is the only CIDR grammar of the collection: netaddr reads the same text differently from one release to the
    next.

    :raises ConfigError: with the offending value and, where there is one, the network that was probably meant.
    """
    if not isinstance(text, str):
        raise refused(text, "is not a CIDR: give text such as 10.0.0.0/8")
    return _parse_cidr(text)


# A resync reads the same ranges from the files and from its state.
@functools.lru_cache(maxsize=65536)
def _parse_cidr(text: str) -> Network:
    found = re.match(_CIDR, text)
    if not found or re.search(_ZERO_LED_OCTET, found.group(1)):
        raise refused(text, "is not a CIDR: " + _cidr_advice(text))
    kind: t.Any = ipaddress.IPv6Network if ":" in text else ipaddress.IPv4Network
    try:
        network: Network = kind(text)
    except ValueError:
        raise refused(text, _what_is_wrong_with(text, kind)) from None
    if network.version == 6 and network.subnet_of(IPV4_MAPPED):
        raise refused(text, _ipv4_mapped(network))
    return network


def _what_is_wrong_with(text: str, kind: t.Any) -> str:
    try:
        network = kind(text, strict=False)
    except ValueError:
        return "is not a CIDR: " + _cidr_advice(text)
    if network.version == 6 and network.subnet_of(IPV4_MAPPED):
        return _ipv4_mapped(network)
    return "has host bits set: the aligned network is %s" % network


def _ipv4_mapped(network: Network) -> str:
    plain = ipaddress.IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return "is an IPv4-mapped IPv6 network, which never matches on the wire: use %s" % plain


def _cidr_advice(text: str) -> str:
    if not text:
        return "the entry is empty; leave it out (an empty list is written [])"
    text = text[:_ADVISED]
    parts = re.split(_BETWEEN_RANGES, text.strip())
    ranges = [one for one in re.findall(_CIDR_IN_TEXT, text) if _read_loosely(one)]
    # Something that Python reads and we do not: a netmask, zeros in front, a zone; or no prefix length at all.
    network = _read_loosely("/".join(parts))
    if network is not None:
        known = len(parts) > 1 or "/" in text
        return "write %s" % network if known else "an address needs a prefix length, for one host write %s" % network
    if len(ranges) > 1 or len(parts) > 1 and all(map(_read_loosely, parts)):
        return "it has several ranges: write an entry for each"
    if ranges and re.match(_AROUND, text.replace(ranges[0], "", 1)):
        return "write %s" % ranges[0]
    placeholder = re.search(_PLACEHOLDER, text)
    if placeholder:
        return "replace %s, to give ADDRESS/PREFIX such as 10.0.0.0/8 or fd00::/8" % show(placeholder.group())
    if _read_loosely("".join(text.split())):
        return "remove the white space"
    return "give ADDRESS/PREFIX such as 10.0.0.0/8 or fd00::/8"


def _read_loosely(text: str) -> t.Optional[Network]:
    """Return the network that Python reads, of IPv6 without its zone, which it reads from 3.9 on; None if none."""
    try:
        return ipaddress.ip_network(re.sub(_ZONE, "", text) if ":" in text else text, strict=False)
    except ValueError:
        return None


def _parse_port_range(text: str) -> PortRange:
    found = re.match(_PORT_RANGE, text)
    if not found:
        raise refused(text, "is not a port range: give PORT or FIRST-LAST without spaces, such as 1024-29999")
    first = int(found.group(1))
    last = int(found.group(2) or first)
    for port in (first, last):
        if not 1 <= port <= 65535:
            raise refused(text, "is not a port range: %d is outside 1-65535" % port)
    if last < first:
        raise refused(text, "is reversed: write %d-%d" % (last, first))
    return PortRange(first, last)


def parse_duration(text: t.Any) -> int:
    """Read a Go duration such as ``1h30m``, ``1500ms`` or ``2m0.5s`` (https://pkg.go.dev/time#ParseDuration).

    :returns: nanoseconds.
    :raises ConfigError: malformed, not above zero, or longer than Go can count (about 292 years).
    """
    if not isinstance(text, str):
        raise refused(text, 'is not a duration: write text with a unit, such as "60s"')
    body = text[1:] if text[:1] in ("-", "+") else text
    if body != "0" and not re.match(_DURATION, body):
        raise refused(text, "is not a duration: write numbers with a unit (ns us ms s m h), such as 60s or 1h30m")
    total = 0
    for whole, fraction, unit in re.findall(_DURATION_PART, body):
        # More digits than Go counts make it too long as well, and Python refuses to read thousands of them.
        total += int(whole.lstrip("0")[:20] or "0") * _NS[unit]
        # Go drops what is finer than a nanosecond.
        total += int(fraction[:30] or "0") * _NS[unit] // 10 ** len(fraction[:30])
    if text.startswith("-") or total <= 0:
        raise refused(text, "is not above zero: give an interval such as 60s")
    if total >= 2**63:
        raise refused(text, "is too long: give an interval such as 60s")
    return total


def parse_jump_position(value: t.Any) -> str:
    """Read a place of the jump in POSTROUTING.

    :raises ConfigError: invalid, or the chain name cannot be a jump target.
    """
    kind, colon, chain = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (value in PLACES if not colon else kind in PLACES_BY_CHAIN and re.match(_CHAIN, chain)):
        raise refused(value, "is no place of the jump: give keep, first, last, before:CHAIN or after:CHAIN")
    _check_length(chain)
    if chain.upper() in RESERVED_CHAINS:
        raise ConfigError("%s is a target or a builtin chain of iptables: give a chain to which a rule jumps" % chain)
    return t.cast(str, value)


def _check_length(chain: str) -> None:
    if len(chain) > CHAIN_NAME_LIMIT:
        text = "cannot be a chain's name: it has %d characters, iptables takes at most %d"
        raise refused(chain, text % (len(chain), CHAIN_NAME_LIMIT))


def belongs_to_others(name: str) -> bool:
    """Return whether iptables itself, or another program on a Kubernetes node, gives this chain name its meaning."""
    return name.upper() in RESERVED_CHAINS or name.upper().startswith(RESERVED_PREFIXES)


def check_chain_name(name: t.Any) -> str:
    """Refuse what must not name our chain.

    :raises ConfigError: too long, unsafe characters, or the name is iptables' or another program's.
    """
    if not isinstance(name, str) or not re.match(_CHAIN, name):
        raise refused(name, "cannot be a chain's name: use letters, digits, '_', and behind the first also '.' and '-'")
    _check_length(name)
    if belongs_to_others(name):
        raise refused(name, "cannot be our chain's name: it is that of another program; IP-MASQ-AGENT is the default")
    return name


def check_list(value: t.Any, items: str, limit: t.Optional[int] = None) -> t.Sequence[t.Any]:
    """Check a list of at most so many entries.

    :param items: what they are called.
    :raises ConfigError: it is no list, or too long.
    """
    if not isinstance(value, (list, tuple)):
        own = ", each with an entry of its own" if isinstance(value, str) else ""
        raise refused(value, "is not a list: give a list of %s%s" % (items, own))
    if limit is not None and len(value) > limit:
        raise ConfigError("%d %s are more than the limit of %d" % (len(value), items, limit))
    return value


def parse_networks(value: t.Any) -> t.Tuple[Network, ...]:
    for position, entry in enumerate(check_list(value, "CIDRs"), 1):
        if entry is None:
            raise ConfigError("entry %d is null: remove it, or write a CIDR" % position)
    return tuple(parse_cidr(entry) for entry in value)


class Interface(str):
    """The name of an interface, or of all that begin so; the latter ends with ``+``, however the operator wrote it."""

    written: str

    def __new__(cls, name: str, written: str = "") -> Interface:
        interface = super().__new__(cls, name)
        interface.written = written
        return interface


def parse_interface(name: t.Any) -> Interface:
    """Read the name of an interface, or of all that begin so: ``+`` at the end as in iptables, or ``*`` as in nft.

    :raises ConfigError: no interface can have this name.
    """
    if name in ("+", "*"):
        raise refused(name, "matches every interface: leave the entry out")
    text = name if isinstance(name, str) else ""
    several = text[-1:] in ("+", "*")
    stem = text[:-1] if several else text
    if len(text) > INTERFACE_NAME_LIMIT or not re.match(_INTERFACE, stem):
        limit = "at most %d characters" % INTERFACE_NAME_LIMIT
        raise refused(name, "is not the name of an interface: give %s, such as eth0, or bond+ for several" % limit)
    return Interface(stem + "+" if several else stem, text)


def parse_interfaces(value: t.Any) -> t.Tuple[Interface, ...]:
    """Parse names of interfaces, in order, without those that another entry matches.

    :raises ConfigError: not a list, too long, or as ``parse_interface``.
    """
    entries = check_list(value, "interfaces", INTERFACES_LIMIT)
    names = list(dict.fromkeys(map(parse_interface, entries)))
    stems = [name[:-1] for name in names if name.endswith("+")]
    return tuple(
        name for name in names if not any(name.rstrip("+").startswith(stem) and name != stem + "+" for stem in stems)
    )


def parse_sources(value: t.Any) -> t.Tuple[Network, ...]:
    """Parse sources as ``parse_networks``; none may lie in loopback."""
    networks = parse_networks(value)
    for network in networks:
        loopback: t.Any = LOOPBACK[BY_VERSION[network.version]]
        if network.subnet_of(loopback):
            why = "%s lies in %s, and no connection from there leaves a node: remove the entry"
            raise ConfigError(why % (network, loopback))
    return networks


def parse_address_range(value: t.Any) -> AddressRange:
    """Read ``ADDRESS`` or ``FIRST-LAST``.

    :raises ConfigError: not addresses of one family, reversed, too many, or none that a node can send from.
    """
    first, dash, last = value.partition("-") if isinstance(value, str) else ("", "", "")
    try:
        if re.search(_ZERO_LED_OCTET, first) or re.search(_ZERO_LED_OCTET, last) or "%" in first + last:
            raise ValueError(value)
        found = AddressRange(ipaddress.ip_address(first), ipaddress.ip_address(last if dash else first))
    except ValueError:
        raise refused(value, "is not an address: give one such as 192.0.2.7, or FIRST-LAST") from None
    if found.first.version != found.last.version:
        raise refused(value, "is no range: both addresses must be of one family")
    if int(found.last) < int(found.first):
        raise refused(value, "is reversed: write %s-%s" % (found.last, found.first))
    size = int(found.last) - int(found.first) + 1
    if size > ADDRESSES_LIMIT:
        raise refused(value, "has %d addresses, more than the limit of %d" % (size, ADDRESSES_LIMIT))
    for address in found:
        mapped = address.version == 6 and address in IPV4_MAPPED
        if address.is_unspecified or address.is_loopback or address.is_multicast or mapped:
            raise refused(value, "is no address that packets leave with: give an address of the node")
    return found


def parse_mark(value: t.Any) -> Mark:
    """Read the mark of a packet as iptables does: ``VALUE`` is the whole mark, ``VALUE/MASK`` some of its bits.

    :raises ConfigError: no packet, or every packet, has such a mark.
    """
    # YAML makes a number of 0x4000.
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = re.match(_MARK, text) if isinstance(text, str) else None
    numbers = [_parse_mark_number(number) for number in found.groups() if number] if found else []
    if not numbers or max(numbers) > ALL_BITS:
        raise refused(value, "is not a mark: give VALUE or VALUE/MASK, such as 0x4000/0x4000")
    mark = Mark(*numbers)
    if mark.mask == 0:
        raise refused(value, "matches every packet: give a mask with the bits that count")
    if mark.value & ~mark.mask:
        remedy = "write 0x%x/0x%x" % (mark.value & mark.mask, mark.mask)
        raise refused(value, "matches no packet, because the value has bits outside of the mask: " + remedy)
    return mark


def _parse_mark_number(text: str) -> int:
    return int(text, 16) if text[:2] in ("0x", "0X") else int(text)


def parse_marks(value: t.Any) -> t.Tuple[Mark, ...]:
    """Parse marks, in order, without duplicates."""
    return tuple(dict.fromkeys(map(parse_mark, check_list(value, "marks", MARKS_LIMIT))))


def parse_port_range_list(value: t.Any) -> t.Tuple[PortRange, ...]:
    """Read port ranges as ip-masq-agent's to-ports writes them: ``42``, ``42-44``, joined by commas, no spaces."""
    if isinstance(value, str):
        value = [value]
    # Empty text is the reference agent's default; Ansible makes a list of it.
    if value == [""]:
        return ()
    texts = [part for entry in check_list(value, "port ranges") for part in _port_text(entry).split(",")]
    return tuple(map(_parse_port_range, check_list(texts, "port ranges", PORT_RANGES_LIMIT)))


def parse_to_ports(value: t.Any) -> t.Union[str, t.Tuple[PortRange, ...]]:
    """Read source ports: ``auto``, or port ranges."""
    if value in (AUTO_PORTS, [AUTO_PORTS], (AUTO_PORTS,)):
        return AUTO_PORTS
    if isinstance(value, (list, tuple)) and AUTO_PORTS in value:
        raise ConfigError("auto is in a list with others: give auto alone, or port ranges")
    return parse_port_range_list(value)


def parse_port_range(value: t.Any) -> PortRange:
    """Read one range of ports within 1-65535."""
    return _parse_port_range(_port_text(value))


def _port_text(value: t.Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise refused(value, "is not a port range: give PORT or FIRST-LAST")
    return value if isinstance(value, str) else show(value)


def check_bool(value: t.Any) -> bool:
    if not isinstance(value, bool):
        raise refused(value, "is not a boolean: write true or false, without quotes")
    return value


def check_count(value: t.Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise refused(value, "must be an integer >= 0 and below 2^63")
    return value


def check_choice(value: t.Any, choices: t.Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise refused(value, "is not one of " + ", ".join(choices))
    return value


def parse_interval(value: t.Any) -> int:
    interval = parse_duration(value)
    if interval < SHORTEST_INTERVAL_NS:
        raise refused(value, "is too short: the shortest interval is 1s")
    return interval


def show(value: t.Any) -> str:
    """Return a value as it goes into a message: quoted, on one line, and not long."""
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        # Python refuses to print integers of thousands of digits.
        text = "a %s that is too long" % type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


#: Megabytes that the log of connections may take.
_LEAST_LOG, _MOST_LOG = 16, 1 << 20


def check_log_size(megabytes: int) -> None:
    """Refuse a size of the log of connections that is too small or too large; 0 is no log."""
    if megabytes and (isinstance(megabytes, bool) or not _LEAST_LOG <= megabytes <= _MOST_LOG):
        raise ConfigError(
            "connection_log: %r is not a number of megabytes from %d to %d, or 0 for no log"
            % (megabytes, _LEAST_LOG, _MOST_LOG)
        )
