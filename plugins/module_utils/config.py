# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator may ask for: keys, defaults, grammar, and every message about a mistake in them.

Knows nothing of iptables, nftables, files or Ansible. Values come in as plain data (module options, or the mapping
that M(config_file) read) and leave as one validated, immutable :class:`Config`.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import typing as t

from .errors import ConfigError

Network = t.Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

#: RFC 1918: what is not masqueraded unless the operator says otherwise.
RFC1918_CIDRS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")

#: Every reserved IPv4 range, in the order in which ip-masq-agent lists them: RFC 1918, RFC 6598, RFC 6890, RFC 5737
#: (three documentation ranges), RFC 7526, RFC 2544, RFC 1112.
RESERVED_CIDRS = RFC1918_CIDRS + (
    "100.64.0.0/10",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
)

#: RFC 4291 section 2.5.5.2. Kernel sockets turn these into IPv4, so an ip6tables rule for them never matches.
IPV4_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")

BACKENDS = ("auto", "iptables_nft", "iptables_legacy", "nftables")
EXEMPTIONS = ("return", "accept", "enforce")

#: Longest chain name that every iptables accepts (XT_EXTENSION_MAXNAMELEN - 1, xtables 1.8).
CHAIN_NAME_LIMIT = 28

#: Names that iptables itself gives a meaning to: builtin chains and targets that may stand in a nat chain.
RESERVED_CHAINS = frozenset(
    "PREROUTING INPUT FORWARD OUTPUT POSTROUTING ACCEPT DROP QUEUE RETURN REJECT LOG NFLOG MARK CONNMARK "
    "MASQUERADE SNAT DNAT REDIRECT NETMAP".split()
)

#: Prefixes of chains that other programs on a Kubernetes node own and rewrite.
RESERVED_PREFIXES = ("KUBE-", "CALI-", "FLANNEL-", "CILIUM_", "CNI-", "DOCKER", "LIBVIRT_", "WEAVE", "NETAVARK")

#: Ranges of source ports; each takes a rule for each protocol.
PORT_RANGES_LIMIT = 100

#: Digits of an integer, and a sign; one of 64 bits has 19.
DIGIT_LIMIT = 20

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
_DURATION = re.compile(r"(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+\Z")
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_CIDR = re.compile(r"([0-9A-Fa-f:.]{1,45})/(0|[1-9][0-9]{0,2})\Z")
_ZERO_LED_OCTET = re.compile(r"(?:\A|[.:])0[0-9]+\.|\.0[0-9]+\Z")
_CHAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_PORT_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


class PortRange(t.NamedTuple):
    """Source ports to masquerade to, both ends included (1-65535)."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many ports the range holds."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else "%d-%d" % self


class Config(t.NamedTuple):
    """One validated policy. Build it with :func:`build`; every field has passed its grammar."""

    non_masquerade_cidrs: t.Tuple[Network, ...]
    masq_link_local: bool = False
    masq_link_local_ipv6: bool = False
    enable_ipv6: bool = False
    masq_chain: str = "IP-MASQ-AGENT"
    random_fully: bool = True
    to_ports: t.Tuple[PortRange, ...] = ()
    backend: str = "auto"
    exemption: str = "return"
    #: nanoseconds, as Go's time.Duration counts
    resync_interval: int = 60 * 10**9
    #: remarks for the operator that are no errors
    notes: t.Tuple[str, ...] = ()


class Key(t.NamedTuple):
    """One thing that can be configured: its name as a module option and in a config file."""

    option: str
    file_key: str


#: The order is that of the documentation. The first five file keys are those of ip-masq-agent's own file, the others
#: are flags there.
KEYS = (
    Key("non_masquerade_cidrs", "nonMasqueradeCIDRs"),
    Key("cidr_limit", "cidrLimit"),
    Key("masq_link_local", "masqLinkLocal"),
    Key("masq_link_local_ipv6", "masqLinkLocalIPv6"),
    Key("resync_interval", "resyncInterval"),
    Key("nomasq_all_reserved_ranges", "nomasqAllReservedRanges"),
    Key("enable_ipv6", "enableIPv6"),
    Key("masq_chain", "masqChain"),
    Key("random_fully", "randomFully"),
    Key("to_ports", "toPorts"),
    Key("backend", "backend"),
    Key("exemption", "exemption"),
)

DEFAULTS: t.Dict[str, t.Any] = {
    "cidr_limit": 64,
    "masq_link_local": False,
    "masq_link_local_ipv6": False,
    "resync_interval": "60s",
    "nomasq_all_reserved_ranges": False,
    "enable_ipv6": False,
    "masq_chain": "IP-MASQ-AGENT",
    "random_fully": True,
    "to_ports": (),
    "backend": "auto",
    "exemption": "return",
}

#: Characters of a mistyped key that are compared: the time grows with the square of it.
_LONGEST_TYPO = 100

_BY_FILE_KEY = {key.file_key.lower(): key for key in KEYS}
_FILE_KEYS = {key.option: key.file_key for key in KEYS}


def file_key(option: str) -> str:
    """The config file's name of a module option, for messages about a file."""
    return _FILE_KEYS[option]


def find_file_key(name: str) -> t.Optional[Key]:
    """The key that a config file means by ``name``; upper and lower case of ASCII are one.

    ip-masq-agent folds U+017F to s and U+212A to k, too, which nobody types who means a key.
    """
    return _BY_FILE_KEY.get(name.lower()) if name.isascii() else None


def nearest_file_key(name: str) -> str:
    """The known config file key that looks most like ``name``, for an operator who mistyped it."""
    import difflib  # needed for mistakes only

    close = difflib.get_close_matches(name[:_LONGEST_TYPO].lower(), list(_BY_FILE_KEY), n=1, cutoff=0.0)
    return _BY_FILE_KEY[close[0]].file_key


def parse_integer(text: str) -> int:
    """Read a decimal integer of a file.

    :raises ConfigError: longer than any of 64 bits; Python's time grows with the square of that.
    """
    if len(text) > DIGIT_LIMIT:
        raise ConfigError("%s is too long for a number (%d characters)" % (show(text), len(text)))
    return int(text)


def unique(pairs: t.Iterable[t.Tuple[str, t.Any]]) -> t.Dict[str, t.Any]:
    """The mapping of a file, from its keys and values.

    :raises ConfigError: a key is there twice.
    """
    result: t.Dict[str, t.Any] = {}
    for key, value in pairs:
        if key in result:
            raise ConfigError("duplicate key %s: keep one" % show(key))
        result[key] = value
    return result


def split_entries(value: t.Any) -> t.Any:
    """A list of text as Ansible hands it over: text is split at commas, alone (``-e NAME=A,B``) and as an entry.

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
        raise ConfigError("%s is not a CIDR: give text such as 10.0.0.0/8" % show(text))
    return _parse_cidr(text)


# A resync reads the same ranges from the files and from its state.
@functools.lru_cache(maxsize=65536)
def _parse_cidr(text: str) -> Network:
    found = _CIDR.match(text)
    if not found or _ZERO_LED_OCTET.search(found.group(1)):
        raise ConfigError("%s is not a CIDR: %s" % (show(text), _cidr_advice(text)))
    kind: t.Any = ipaddress.IPv6Network if ":" in text else ipaddress.IPv4Network
    try:
        network: Network = kind(text)
    except ValueError:
        raise ConfigError(_what_is_wrong_with(text, kind)) from None
    if network.version == 6 and network.subnet_of(IPV4_MAPPED):
        raise ConfigError(_ipv4_mapped(text, network))
    return network


def _what_is_wrong_with(text: str, kind: t.Any) -> str:
    try:
        network = kind(text, strict=False)
    except ValueError:
        return "%s is not a CIDR: %s" % (show(text), _cidr_advice(text))
    if network.version == 6 and network.subnet_of(IPV4_MAPPED):
        return _ipv4_mapped(text, network)
    return "%s has host bits set: the aligned network is %s" % (show(text), network)


def _ipv4_mapped(text: str, network: Network) -> str:
    plain = ipaddress.IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return "%s is an IPv4-mapped IPv6 network, which never matches on the wire: use %s" % (show(text), plain)


def _cidr_advice(text: str) -> str:
    if not text:
        return "the entry is empty; leave it out (an empty list is written [])"
    if text != text.strip() or " " in text:
        return "remove the white space"
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return "give ADDRESS/PREFIX such as 10.0.0.0/8 or fd00::/8"
    # Something that Python reads and we do not: a netmask, zeros in front, a zone; or no prefix length at all.
    return "write %s" % network if "/" in text else "an address needs a prefix length, for one host write %s" % network


def parse_port_ranges(text: t.Any) -> t.Tuple[PortRange, ...]:
    """Read source-port ranges as ip-masq-agent's to-ports writes them: ``42``, ``42-44``, joined by commas, no spaces.

    :raises ConfigError: malformed, reversed, or outside 1-65535.
    """
    if not isinstance(text, str):
        raise ConfigError("%s is not text: give PORT or FIRST-LAST, joined by commas" % show(text))
    return tuple(_parse_port_range(part) for part in text.split(",")) if text else ()


def _parse_port_range(text: str) -> PortRange:
    found = _PORT_RANGE.match(text)
    if not found:
        raise ConfigError(
            "%s is not a port range: give PORT or FIRST-LAST without spaces, such as 1024-29999" % show(text)
        )
    first = int(found.group(1))
    last = int(found.group(2) or first)
    for port in (first, last):
        if not 1 <= port <= 65535:
            raise ConfigError("%s is not a port range: %d is outside 1-65535" % (show(text), port))
    if last < first:
        raise ConfigError("%s is reversed: write %d-%d" % (show(text), last, first))
    return PortRange(first, last)


def parse_duration(text: t.Any) -> int:
    """Read a Go duration such as ``1h30m``, ``1500ms`` or ``2m0.5s`` (https://pkg.go.dev/time#ParseDuration).

    :returns: nanoseconds.
    :raises ConfigError: malformed, not above zero, or longer than Go can count (about 292 years).
    """
    if not isinstance(text, str):
        raise ConfigError('%s is not a duration: write text with a unit, such as "60s"' % show(text))
    body = text[1:] if text[:1] in ("-", "+") else text
    if body != "0" and not _DURATION.match(body):
        raise ConfigError(
            "%s is not a duration: write numbers with a unit (ns us ms s m h), such as 60s or 1h30m" % show(text)
        )
    total = 0
    for whole, fraction, unit in _DURATION_PART.findall(body):
        # More digits than Go counts make it too long as well, and Python refuses to read thousands of them.
        total += int(whole.lstrip("0")[:20] or "0") * _NS[unit]
        # Go drops what is finer than a nanosecond.
        total += int(fraction[:30] or "0") * _NS[unit] // 10 ** len(fraction[:30])
    if text.startswith("-") or total <= 0:
        raise ConfigError("%s is not above zero: give an interval such as 60s" % show(text))
    if total >= 2**63:
        raise ConfigError("%s is too long: give an interval such as 60s" % show(text))
    return total


def belongs_to_others(name: str) -> bool:
    """Whether iptables itself, or another program on a Kubernetes node, gives this chain name its meaning."""
    return name.upper() in RESERVED_CHAINS or name.upper().startswith(RESERVED_PREFIXES)


def check_chain_name(name: t.Any) -> str:
    """Refuse what must not name our chain.

    :raises ConfigError: too long, unsafe characters, or the name is iptables' or another program's.
    """
    if not isinstance(name, str) or not _CHAIN.match(name):
        raise ConfigError(
            "%s cannot name a chain: use letters, digits, '_', '.' and '-', and begin with a letter or digit"
            % show(name)
        )
    if len(name) > CHAIN_NAME_LIMIT:
        raise ConfigError(
            "%s cannot name a chain: it has %d characters, iptables takes at most %d"
            % (show(name), len(name), CHAIN_NAME_LIMIT)
        )
    if name.upper() in RESERVED_CHAINS:
        raise ConfigError("%s cannot name our chain: iptables reserves it; IP-MASQ-AGENT is the default" % show(name))
    for prefix in RESERVED_PREFIXES:
        if name.upper().startswith(prefix):
            raise ConfigError(
                "%s cannot name our chain: chains that begin with %s belong to another program; "
                "IP-MASQ-AGENT is the default" % (show(name), name[: len(prefix)])
            )
    return name


def build(values: t.Mapping[str, t.Any], label: t.Callable[[str], str] = str) -> Config:
    """Validate plain values, fill in the defaults, and give the policy.

    :param values: by option name; a key that is absent takes its default.
    :param label: turns an option name into what the operator wrote (:func:`file_key` for a config file).
    :raises ConfigError: naming the option, the value and the remedy.
    """
    merged = dict(DEFAULTS, **values)

    def checked(option: str, check: t.Callable[[t.Any], t.Any]) -> t.Any:
        try:
            return check(merged[option])
        except ConfigError as exc:
            raise ConfigError("%s: %s" % (label(option), exc)) from None

    reserved = checked("nomasq_all_reserved_ranges", _bool)
    merged.setdefault("non_masquerade_cidrs", RESERVED_CIDRS if reserved else RFC1918_CIDRS)
    enable_ipv6 = checked("enable_ipv6", _bool)
    limit = checked("cidr_limit", _count)
    networks = checked("non_masquerade_cidrs", _networks)
    if len(networks) > limit:
        raise ConfigError(
            "%s: %d entries are more than %s (%d) allows: shorten the list or raise %s. An iptables chain is walked "
            "rule by rule for every new connection; the nftables backend carries 10,000 entries at the price of one"
            % (label("non_masquerade_cidrs"), len(networks), label("cidr_limit"), limit, label("cidr_limit"))
        )
    if not enable_ipv6:
        for network in networks:
            if network.version == 6:
                raise ConfigError(
                    "%s: %s is IPv6, and IPv6 is off: set %s to true or remove the entry"
                    % (label("non_masquerade_cidrs"), network, label("enable_ipv6"))
                )
    backend = checked("backend", lambda value: _choice(value, BACKENDS))
    exemption = checked("exemption", lambda value: _choice(value, EXEMPTIONS))
    if exemption == "enforce" and backend not in ("auto", "nftables"):
        raise ConfigError(
            "%s: enforce needs the nftables backend, not %s: set %s to nftables or auto"
            % (label("exemption"), backend, label("backend"))
        )
    return Config(
        non_masquerade_cidrs=networks,
        masq_link_local=checked("masq_link_local", _bool),
        masq_link_local_ipv6=checked("masq_link_local_ipv6", _bool),
        enable_ipv6=enable_ipv6,
        masq_chain=checked("masq_chain", check_chain_name),
        random_fully=checked("random_fully", _bool),
        to_ports=checked("to_ports", _port_ranges),
        backend=backend,
        exemption=exemption,
        resync_interval=checked("resync_interval", _interval),
        notes=tuple(_notes(networks, label)),
    )


def _notes(networks: t.Sequence[Network], label: t.Callable[[str], str]) -> t.Iterator[str]:
    for network in networks:
        if network.prefixlen == 0:
            yield "%s: %s exempts every IPv%d destination: nothing of that family will be masqueraded" % (
                label("non_masquerade_cidrs"),
                network,
                network.version,
            )


def _networks(value: t.Any) -> t.Tuple[Network, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError("%s is not a list: give a list of CIDRs" % show(value))
    for position, entry in enumerate(value, 1):
        if entry is None:
            raise ConfigError("entry %d is null: remove it, or write a CIDR" % position)
    return tuple(parse_cidr(entry) for entry in value)


def _port_ranges(value: t.Any) -> t.Tuple[PortRange, ...]:
    if isinstance(value, str):
        value = [value]
    # Empty text is the reference agent's default; Ansible makes a list of it.
    if value == [""]:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ConfigError("%s is not a list of port ranges" % show(value))
    for entry in value:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            raise ConfigError("%s is not a port range: give PORT or FIRST-LAST" % show(entry))
    texts = [entry if isinstance(entry, str) else show(entry) for entry in value]
    ranges = tuple(part for text in texts for part in parse_port_ranges(text) or (_parse_port_range(""),))
    if len(ranges) > PORT_RANGES_LIMIT:
        raise ConfigError("%d port ranges are more than the limit of %d" % (len(ranges), PORT_RANGES_LIMIT))
    return ranges


def _bool(value: t.Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError("%s is not a boolean: write true or false, without quotes" % show(value))
    return value


def _count(value: t.Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ConfigError("%s must be an integer >= 0 and below 2^63" % show(value))
    return value


def _choice(value: t.Any, choices: t.Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError("%s is not one of %s" % (show(value), ", ".join(choices)))
    return value


def _interval(value: t.Any) -> int:
    interval = parse_duration(value)
    if interval < SHORTEST_INTERVAL_NS:
        raise ConfigError("%s is too short: the shortest interval is 1s" % show(value))
    return interval


def show(value: t.Any) -> str:
    """A value as it goes into a message: quoted, on one line, and not long."""
    try:
        text = ascii(value)
    except (RecursionError, ValueError):
        # Python refuses to print integers of thousands of digits.
        text = "a %s that is too long" % type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
