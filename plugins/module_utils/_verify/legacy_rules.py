# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of iptables-legacy, as its tool prints them, as values."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from .._system import intervals
from .._system.families import BY_NFT, ICMPV6, IPV4, IPV6, UDPLITE, Family
from .._system.intervals import Spans
from .._twin.legacy import LegacyTable, priority
from .._twin.values import HOOKS, IPTABLES_LEGACY, QUESTION_PROTOCOLS
from . import conditions, xt_rules
from .reading import NETMAP, Reading, UnknownError, finished, unreadable
from .referenced_objects import Known
from .rules import (
    ALL_BITS,
    CT_MARK,
    DESTINATION,
    GOTO,
    JUMP,
    MARK,
    MAX_PORT,
    SET,
    SOURCE,
    Action,
    BaseChain,
    Rule,
    RuleTable,
)

_KINDS = {("nat", None): "nat", ("mangle", "OUTPUT"): "route"}
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_PROTOCOLS = dict(
    QUESTION_PROTOCOLS,
    **{"ipv6-icmp": ICMPV6, "esp": 50, "ah": 51, "gre": 47, "udplite": UDPLITE, "dccp": 33, "ipip": 4, "igmp": 2},
)
_STATES = {
    "INVALID": 0x1,
    "ESTABLISHED": 0x2,
    "RELATED": 0x4,
    "NEW": 0x8,
    "SNAT": 0x40,
    "DNAT": 0x80,
    "UNTRACKED": 0x100,
}
_STATUSES = {"NONE": 0, "EXPECTED": 0x1, "SEEN_REPLY": 0x2, "ASSURED": 0x4, "CONFIRMED": 0x8}
_TYPES = ("UNSPEC UNICAST LOCAL BROADCAST ANYCAST MULTICAST BLACKHOLE UNREACHABLE PROHIBIT THROW NAT XRESOLVE").split()
_FLAGS = {"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ALL": 63, "NONE": 0}
#: words without a value
_BARE = frozenset(
    ("--random", "--random-fully", "--persistent", "--notrack", "--rsource", "--rdest", "--socket-exists")
)


def read(table: LegacyTable, known: Known) -> t.Optional[RuleTable]:
    """Return a table; None if it does not see packets of this family."""
    if BY_NFT[table.family] != known.family:
        return None
    listed = table.rules()
    policies = dict(line[1:].split(" ", 2)[:2] for line in table.listing.splitlines() if line.startswith(":"))
    base = {}
    for chain in listed:
        if chain in HOOKS:
            kind = _KINDS.get((table.name, None)) or _KINDS.get((table.name, chain), "filter")
            place = BaseChain(kind, HOOKS[chain], priority(table.name, chain), policies.get(chain) == "DROP")
            base[chain] = place
    chains: t.Dict[str, t.Tuple[Rule, ...]] = {}
    aware = False
    for chain, lines in listed.items():
        rules: t.List[Rule] = []
        for place_in_chain, line in enumerate(lines, 1):
            try:
                reader = _Line(line, known, listed)
                reader.read()
                found, more = reader.reading.rules(chain, place_in_chain)
                aware = aware or reader.aware
            except (ArithmeticError, AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError):
                found, more = [unreadable(place_in_chain)], {}
            rules += found
            chains.update(more)
        chains[chain] = tuple(rules)
    return finished(IPTABLES_LEGACY, "%s %s" % (table.family, table.name), base, chains, (), aware)


def _words(line: str) -> t.List[t.Tuple[str, bool]]:
    """Return the words of a line, and whether each is quoted."""
    if '"' not in line:
        return [(word, False) for word in line.split()]
    found = []
    for match in _WORD.finditer(line):
        bare = match.group(2)
        found.append((bare, False) if bare is not None else (re.sub(r"\\(.)", r"\1", match.group(1)), True))
    return found


class _Line:
    """One printed rule, read word by word."""

    def __init__(self, line: str, known: Known, chains: t.Container[str]) -> None:
        self.words = _words(line)[2:]
        self.place = 0
        self.known = known
        self.chains = chains
        self.reading = Reading(known.family)
        self.module = ""
        self.target = ""
        self.options: t.Dict[str, t.Tuple[str, bool]] = {}
        self.aware = False

    def take(self) -> str:
        """Return the next word."""
        word = self.words[self.place][0]
        self.place += 1
        return word

    def read(self) -> None:
        """Follow the words: what every rule may ask, then each match with its options, then the target."""
        inverted = False
        words, count = self.words, len(self.words)
        while self.place < count:
            word, quoted = words[self.place]
            self.place += 1
            if word == "!" and not quoted:
                inverted = True
                continue
            handler = _COMMON.get(word)
            if quoted or (handler is None and not word.startswith("-")):
                self._stray()
            elif handler is not None:
                handler(self, self.take(), inverted)
            elif word in ("-m", "-j", "-g"):
                self._end()
                name = self.take()
                if word == "-m":
                    self.module = name
                else:
                    self.target = name
                    self.options = {"-g": ("", False)} if word == "-g" else {}
            elif word in ("-f", "--fragment"):
                self.reading.not_known("a fragment")
                if inverted:
                    self.reading.unknown = self.reading.unknown[:-1]  # no tested packet is one
            else:
                self._option(word, inverted)
            inverted = False
        self._end()

    def _stray(self) -> None:
        """Take a word that belongs to an option that is not read."""
        if not (self.module or self.target):
            raise ValueError("word")

    def _option(self, word: str, inverted: bool) -> None:
        if not (self.module or self.target):
            raise ValueError(word)
        value = ""
        if word not in _BARE and self.place < len(self.words):
            following, quoted = self.words[self.place]
            if quoted or not following.startswith("-") and following != "!":
                value = following
                self.place += 1
        self.options[word] = (value, inverted)
        if word == "--match-set":
            self.options["directions"] = (self.take(), False)
        if word == "--tcp-flags":
            self.options["wanted"] = (self.take(), False)

    def _end(self) -> None:
        """Apply all options of a match, or of the target."""
        options, self.options = self.options, {}
        if self.target:
            self._act(options)
        elif self.module:
            name, self.module = self.module, ""
            handler = _MATCHES.get(name)
            try:
                if handler is None:
                    xt_rules.other_match(self.reading, name)
                else:
                    handler(self, options)
            except UnknownError as exc:
                self.reading.not_known(str(exc))
            if options:
                # An option that no reader took.
                if handler is not None:
                    self.reading.not_known("the option %s of the match %s" % (sorted(options)[0], name))

    # what every rule can match

    def source(self, value: str, inverted: bool) -> None:
        """Read -s."""
        self._address("source", value, inverted)

    def destination(self, value: str, inverted: bool) -> None:
        """Read -d."""
        self._address("destination", value, inverted)

    def _address(self, key: str, value: str, inverted: bool) -> None:
        try:
            self.reading.narrow(key, _network(value, self.known.family), inverted)
        except UnknownError as exc:
            self.reading.not_known(str(exc))

    def protocol(self, value: str, inverted: bool) -> None:
        """Read -p."""
        number = _protocol(value)
        if number:
            self.reading.narrow("protocol", ((number, number),), inverted)

    def incoming(self, value: str, inverted: bool) -> None:
        """Read -i."""
        self.reading.link("incoming", (value,), inverted)

    def outgoing(self, value: str, inverted: bool) -> None:
        """Read -o."""
        self.reading.link("outgoing", (value,), inverted)

    # matches

    def ports(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read tcp, udp, sctp."""
        for word, key in (("--sport", "source_port"), ("--dport", "port")):
            if word in options:
                value, inverted = options.pop(word)
                low, high = _port_range(value)
                xt_rules.ports(self.reading, key, low, high, inverted)
        if "--tcp-flags" in options:
            mask, inverted = options.pop("--tcp-flags")
            wanted = options.pop("wanted")[0]
            xt_rules.flags(self.reading, _flags(mask), _flags(wanted), inverted)
        if "--syn" in options:
            xt_rules.flags(self.reading, 0x17, 0x02, options.pop("--syn")[1])
        if "--tcp-option" in options:
            options.pop("--tcp-option")
            self.reading.not_known("an option of TCP")
        if "--chunk-types" in options:
            options.pop("--chunk-types")
            self.reading.not_known("a chunk of SCTP")

    def multiport(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read multiport."""
        for words, keys in (
            (("--dports",), ("port",)),
            (("--sports",), ("source_port",)),
            (("--ports",), ("source_port", "port")),
        ):
            for word in words:
                if word in options:
                    value, inverted = options.pop(word)
                    xt_rules.multiport(self.reading, keys, _ports(value), inverted)

    def iprange(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read iprange."""
        for word, key in (("--src-range", "source"), ("--dst-range", "destination")):
            if word in options:
                value, inverted = options.pop(word)
                self.reading.narrow(key, _range(value), inverted)

    def addrtype(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read addrtype."""
        if options.pop("--limit-iface-in", None) or options.pop("--limit-iface-out", None):
            options.clear()
            self.reading.not_known(conditions.because(conditions.FIB_FLAG, "iif"))
        for word, key in (("--src-type", "source"), ("--dst-type", "destination")):
            if word in options:
                value, inverted = options.pop(word)
                mask = sum(1 << _TYPES.index(name) for name in value.split(","))
                xt_rules.address_types(self.reading, key, mask, inverted, self.known)

    def conntrack(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read conntrack, state."""
        self.aware = True
        family = self.known.family
        unknown: t.List[str] = []
        parts: t.Dict[str, t.Any] = {}
        for word, (value, inverted) in list(options.items()):
            if word in ("--ctstate", "--state"):
                parts["states"] = (sum(_STATES[name] for name in value.split(",")), inverted)
            elif word == "--ctstatus":
                parts["statuses"] = (sum(_STATUSES[name] for name in value.split(",")), inverted)
            elif word == "--ctproto":
                parts["protocol"] = (_protocol(value), inverted)
            elif word in ("--ctorigsrc", "--ctorigdst"):
                key = "source" if word == "--ctorigsrc" else "destination"
                try:
                    parts[key] = (_network(value, family), inverted)
                except UnknownError as exc:
                    unknown.append(str(exc))
            elif word in ("--ctorigsrcport", "--ctorigdstport"):
                key = "source_port" if word == "--ctorigsrcport" else "port"
                parts[key] = ((_port_range(value),), inverted)
            elif word == "--ctdir":
                parts["original"] = value == "ORIGINAL"
            elif word == "--ctexpire":
                unknown.append(conditions.because(conditions.CT, "expiration"))
            elif word in ("--ctreplsrc", "--ctrepldst", "--ctreplsrcport", "--ctrepldstport"):
                text = "the addresses and ports with which answers come"
                if text not in unknown:
                    unknown.insert(0, text)
            else:
                continue
            del options[word]
        xt_rules.connection(self.reading, xt_rules.Connection(unknown=tuple(unknown), **parts))

    def mark(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read mark."""
        value, inverted = options.pop("--mark")
        xt_rules.mark(self.reading, MARK, *_mark(value), inverted)

    def connmark(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read connmark."""
        self.aware = True
        value, inverted = options.pop("--mark")
        xt_rules.tracked(self.reading)
        xt_rules.mark(self.reading, CT_MARK, *_mark(value), inverted)

    def devgroup(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read devgroup."""
        for word, key in (("--src-group", "incoming"), ("--dst-group", "outgoing")):
            if word in options:
                value, inverted = options.pop(word)
                try:
                    number, mask = _mark(value)
                except ValueError:  # a name of /etc/iproute2/group
                    self.reading.not_known("the group %s of links" % value)
                    continue
                xt_rules.group(self.reading, key, number, mask, inverted, self.known)

    def statistic(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read statistic."""
        options.pop("--mode", None)
        options.pop("--packet", None)
        if "--probability" in options:
            value, inverted = options.pop("--probability")
            xt_rules.statistic(self.reading, float(value), inverted)
        else:
            value, inverted = options.pop("--every")
            xt_rules.statistic(self.reading, 1.0 if int(value) < 2 else None, inverted)

    def recent(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read recent."""
        asked = [word for word in ("--set", "--rcheck", "--update", "--remove") if word in options]
        xt_rules.recent(self.reading, asked == ["--set"], options[asked[0]][1])
        options.clear()

    def cluster(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read cluster."""
        options.clear()
        xt_rules.tracked(self.reading)
        self.reading.chance = True

    def set(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read set."""
        name, inverted = options.pop("--match-set")
        sources = [part == "src" for part in options.pop("directions")[0].split(",")]
        for word in ("--update-counters", "--update-subcounters"):
            options.pop(word, None)
        if "--return-nomatch" in options:
            options.clear()
            self.reading.not_known("entries of a set of ipset that are no match")
        elif options:
            options.clear()
            self.reading.not_known("counters of a set of ipset")
        xt_rules.match_set(self.reading, name, sources, inverted, self.known)

    def socket(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read socket."""
        options.pop("--transparent", None)
        wildcard = options.pop("--nowildcard", None) is not None
        xt_rules.socket(self.reading, wildcard, options.pop("--restore-skmark", None) is not None, self.known)

    # targets

    def _act(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        name = self.target
        reading = self.reading
        if name in xt_rules.VERDICTS:
            reading.act(Action(xt_rules.VERDICTS[name]))
        elif name in self.chains:
            reading.act(Action(GOTO if "-g" in options else JUMP, chain=name))
        else:
            handler = _TARGETS.get(name)
            if handler is None:
                xt_rules.other_target(reading, name, self.known)
            else:
                handler(self, options)

    def set_mark(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read MARK."""
        word, (value, _inverted) = options.popitem()
        self._set_mark(MARK, word, value)

    def _set_mark(self, subject: str, word: str, value: str) -> None:
        number, mask = _mark(value)
        if word == "--set-xmark":
            xt_rules.set_mark(self.reading, subject, number, mask)
        elif word == "--set-mark":
            xt_rules.set_mark(self.reading, subject, number, mask | number)
        elif word == "--and-mark":
            xt_rules.set_mark(self.reading, subject, 0, ALL_BITS & ~number)
        elif word == "--or-mark":
            xt_rules.set_mark(self.reading, subject, number, number)
        elif word == "--xor-mark":
            xt_rules.set_mark(self.reading, subject, number, 0)
        else:
            self.reading.act(Action(SET, subject=subject))

    def set_connmark(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read CONNMARK."""
        self.aware = True
        reading = self.reading
        xt_rules.tracked(reading)
        of_packet = of_connection = ALL_BITS
        if "--mask" in options:
            of_packet = of_connection = int(options["--mask"][0], 0)
        if "--nfmask" in options:
            of_packet = int(options["--nfmask"][0], 0)
        if "--ctmask" in options:
            of_connection = int(options["--ctmask"][0], 0)
        shifted = any(word.endswith(("-shift-mark", "-bits")) for word in options)
        if "--save-mark" in options:
            if shifted:
                reading.act(Action(SET, subject=CT_MARK))
            else:
                xt_rules.copy_mark(reading, CT_MARK, MARK, of_connection, of_packet)
        elif "--restore-mark" in options:
            if shifted:
                reading.act(Action(SET, subject=MARK))
            else:
                xt_rules.copy_mark(reading, MARK, CT_MARK, of_packet, of_connection)
        elif shifted:
            reading.act(Action(SET, subject=CT_MARK))
        else:
            word, (value, _inverted) = options.popitem()
            self._set_mark(CT_MARK, word, value)

    def untrack(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read CT, NOTRACK."""
        self.aware = True
        if self.target == "NOTRACK" or "--notrack" in options:
            xt_rules.untrack(self.reading)
            return
        given = [options[word][0] for word in ("--zone", "--zone-orig", "--zone-reply") if word in options]
        value = given[0] if given else "0"  # a helper or the like, and no zone
        xt_rules.set_zone(self.reading, None if value == "mark" else int(value, 0))

    def translate(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read DNAT, SNAT."""
        kind = DESTINATION if self.target == "DNAT" else SOURCE
        (value,) = [options[word][0] for word in ("--to-destination", "--to-source") if word in options]
        xt_rules.translate(self.reading, kind, *_endpoint(value, self.known.family))

    def masquerade(self, _options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read MASQUERADE."""
        xt_rules.translate(self.reading, SOURCE, None, None, True)

    def redirect(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read REDIRECT."""
        found = None
        if "--to-ports" in options:
            low, _dash, high = options["--to-ports"][0].partition("-")
            found = ((int(low), int(high or low)),)
        xt_rules.translate(self.reading, DESTINATION, None, found, True)

    def netmap(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read NETMAP."""
        self.aware = True
        xt_rules.translate(self.reading, NETMAP, _network(options["--to"][0], self.known.family), None)

    def hash_mark(self, _options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read HMARK."""
        self.reading.act(Action(SET, subject=MARK))

    def fill(self, options: t.Dict[str, t.Tuple[str, bool]]) -> None:
        """Read SET."""
        if "--map-set" in options:
            self.reading.act_unknown("a mark that a set of ipset gives")


_COMMON: t.Mapping[str, t.Callable[[_Line, str, bool], None]] = {
    "-s": _Line.source,
    "-d": _Line.destination,
    "-p": _Line.protocol,
    "-i": _Line.incoming,
    "-o": _Line.outgoing,
}
_Options = t.Dict[str, t.Tuple[str, bool]]
_MATCHES: t.Mapping[str, t.Callable[[_Line, _Options], None]] = {
    "tcp": _Line.ports,
    "udp": _Line.ports,
    "udplite": _Line.ports,
    "sctp": _Line.ports,
    "multiport": _Line.multiport,
    "iprange": _Line.iprange,
    "addrtype": _Line.addrtype,
    "conntrack": _Line.conntrack,
    "state": _Line.conntrack,
    "mark": _Line.mark,
    "connmark": _Line.connmark,
    "devgroup": _Line.devgroup,
    "statistic": _Line.statistic,
    "recent": _Line.recent,
    "cluster": _Line.cluster,
    "set": _Line.set,
    "socket": _Line.socket,
}
_TARGETS: t.Mapping[str, t.Callable[[_Line, _Options], None]] = {
    "MARK": _Line.set_mark,
    "CONNMARK": _Line.set_connmark,
    "CT": _Line.untrack,
    "NOTRACK": _Line.untrack,
    "DNAT": _Line.translate,
    "SNAT": _Line.translate,
    "MASQUERADE": _Line.masquerade,
    "REDIRECT": _Line.redirect,
    "NETMAP": _Line.netmap,
    "HMARK": _Line.hash_mark,
    "SET": _Line.fill,
}


def _protocol(value: str) -> int:
    return int(value) if value.isdigit() else 0 if value == "all" else _PROTOCOLS[value]


def _network(value: str, family: Family) -> Spans:
    """Parse an address, alone or with a mask or the length of a prefix."""
    address, _slash, mask = value.partition("/")
    bits = family.bits
    number = int(ipaddress.ip_address(address))
    if not mask or mask.isdigit():
        length = int(mask or bits)
        free = (1 << (bits - length)) - 1
        return ((number & ~free, number | free),)
    return xt_rules.masked(number, int(ipaddress.ip_address(mask)), bits)


def _range(value: str) -> Spans:
    first, _dash, last = value.partition("-")
    return ((int(ipaddress.ip_address(first)), int(ipaddress.ip_address(last or first))),)


def _port_range(value: str) -> t.Tuple[int, int]:
    first, colon, last = value.partition(":")
    return int(first or 0), int(last or MAX_PORT) if colon else int(first)


def _ports(value: str) -> Spans:
    return intervals.of(_port_range(part) for part in value.split(","))


def _mark(value: str) -> t.Tuple[int, int]:
    number, _slash, mask = value.partition("/")
    return int(number, 0), int(mask or "0xffffffff", 0)


def _flags(value: str) -> int:
    found = 0
    for name in value.split(","):
        found |= _FLAGS[name]
    return found


def _endpoint(value: str, family: Family) -> t.Tuple[t.Optional[Spans], t.Optional[Spans]]:
    """Parse addresses and ports of a translation."""
    addresses, ports = value, ""
    if family == IPV6 and value.startswith("["):
        addresses, _bracket, ports = value[1:].replace("]-[", "-").partition("]")
        ports = ports.lstrip(":")
    elif family == IPV4:
        addresses, _colon, ports = value.partition(":")
    elif value.startswith(":") and not value.startswith("::"):
        addresses, ports = "", value[1:]
    found = None
    if ports:
        low, _dash, high = ports.partition("/")[0].partition("-")
        found = ((int(low), int(high or low)),)
    return _range(addresses) if addresses else None, found
