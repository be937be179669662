# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of our table as expressions of nf_tables, and such expressions as rules.

Both ways go through the same names: what a register is loaded from, and what a condition compares it with. nft of any
version writes these expressions too, so a table that it restored from a file is read like one of our own. Expressions:
linux/netfilter/nf_tables.h; how nft uses them: nft --debug=netlink.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import struct
import typing as t

from .._policy.values import PortRange
from .._rules.nft_sets import VERDICTS, verdict
from .._rules.nft_sets import value as value_of
from .._system.families import BY_NFT, PROTOCOLS, Family, of_address
from .._system.netlink import attribute, name, nest, network_word, number
from .._system.nft_expressions import CT_KEYS, META_KEYS, Named, expression, of_rule
from .nftables_syntax import render_span, snat_to

#: By the words for it, what a register is loaded from. Addresses and ports: RFC 791, RFC 8200, and the first bytes of
#: the headers of TCP, UDP and SCTP.
_LOADS: t.Mapping[str, t.Tuple[str, t.Mapping[str, int]]] = {
    "ip saddr": ("payload", {"base": 1, "offset": 12, "len": 4}),
    "ip daddr": ("payload", {"base": 1, "offset": 16, "len": 4}),
    "ip6 saddr": ("payload", {"base": 1, "offset": 8, "len": 16}),
    "ip6 daddr": ("payload", {"base": 1, "offset": 24, "len": 16}),
    "dport": ("payload", {"base": 2, "offset": 2, "len": 2}),
    "meta mark": ("meta", {"key": META_KEYS.index("mark")}),
    "oifname": ("meta", {"key": META_KEYS.index("oifname")}),
    "meta l4proto": ("meta", {"key": META_KEYS.index("l4proto")}),
    "ct state": ("ct", {"key": CT_KEYS.index("state")}),
    "ct status": ("ct", {"key": CT_KEYS.index("status")}),
    "fib saddr type": ("fib", {"result": 3, "flags": 1}),
    "fib daddr type": ("fib", {"result": 3, "flags": 2}),
}
_LOADED = {(kind, tuple(sorted(values.items()))): words for words, (kind, values) in _LOADS.items()}
#: NFT_CMP_*
_EQUAL, _OTHER, _LESS, _AT_MOST, _AT_LEAST = 0, 1, 2, 3, 5
_VERDICTS = {kind: code % 2**32 for code, kind in VERDICTS.items()}
#: NF_NAT_RANGE_PROTO_RANDOM_FULLY, NF_NAT_RANGE_MAP_IPS, and NF_NAT_RANGE_PROTO_SPECIFIED, without which the expression
#: "masq" does not heed its ports; for "nat" the kernel adds it.
_FULLY_RANDOM, _ADDRESSES_GIVEN, _PORTS_GIVEN = 0x10, 0x1, 0x2
_NAME_SIZE = 16
_HOST = struct.Struct("=I")
#: Bits of conntrack (linux/netfilter/nf_conntrack_common.h; NF_CT_STATE_BIT), and RTN_LOCAL.
_BITS = {"ct state new": 0x8, "ct status confirmed": 0x8, "ct status snat": 0x10, "ct status dnat": 0x20}
_LOCAL = 2
#: Conditions that compare with one number, by their words: the bits of it that count, how it compares, and the number.
_FIXED: t.Mapping[str, t.Tuple[t.Optional[bytes], int, bytes]] = {
    "fib saddr type local": (None, _EQUAL, _HOST.pack(_LOCAL)),
    "fib daddr type local": (None, _EQUAL, _HOST.pack(_LOCAL)),
    **{words: (_HOST.pack(bit), _OTHER, bytes(4)) for words, bit in _BITS.items()},
    **{"meta l4proto " + named: (None, _EQUAL, bytes([protocol])) for named, protocol in PROTOCOLS.items()},
}
_FIXED_WORDS = {(words.rpartition(" ")[0], *compared): words for words, compared in _FIXED.items()}

Subject = t.Tuple[str, t.Optional[bytes]]


def _load(words: str) -> bytes:
    kind, values = _LOADS[words]
    return expression(kind, dreg=1, **values)


def _data(value: bytes) -> bytes:
    return attribute(1, value)


def _compare(value: bytes, operator: int = _EQUAL) -> bytes:
    return expression("cmp", sreg=1, op=operator, data=_data(value))


def _masked(mask: bytes) -> bytes:
    return expression("bitwise", sreg=1, dreg=1, len=len(mask), mask=_data(mask), xor=_data(bytes(len(mask))))


def _lookup(words: str, inverted: t.Optional[str], called: str) -> t.Iterator[bytes]:
    yield _load(words)
    yield expression("lookup", set=called, sreg=1, **({"flags": 1} if inverted else {}))


def _interface(inverted: t.Optional[str], device: str) -> t.Iterator[bytes]:
    yield _load("oifname")
    exact = device.encode("utf-8", "surrogateescape").ljust(_NAME_SIZE, b"\0")
    yield _compare(exact.rstrip(b"\0")[:-1] if device.endswith("*") else exact, _OTHER if inverted else _EQUAL)


def _address(words: str, span: str) -> t.Iterator[bytes]:
    yield _load(words)
    first, dash, last = span.partition("-")
    if dash:
        yield _compare(ipaddress.ip_address(first).packed, _AT_LEAST)
        yield _compare(ipaddress.ip_address(last).packed, _AT_MOST)
        return
    network = ipaddress.ip_network(first)
    if network.prefixlen < network.max_prefixlen:
        yield _masked(network.netmask.packed)
    yield _compare(network.network_address.packed)


def _fixed(words: str) -> t.Iterator[bytes]:
    mask, operator, value = _FIXED[words]
    yield _load(words.rpartition(" ")[0])
    if mask:
        yield _masked(mask)
    yield _compare(value, operator)


def _mark(mask: t.Optional[str], operator: t.Optional[str], value: str) -> t.Iterator[bytes]:
    yield _load("meta mark")
    if mask:
        yield _masked(_HOST.pack(int(mask, 16)))
    yield _compare(_HOST.pack(int(value, 16)), _OTHER if operator == "!=" else _EQUAL)


def _ports(protocol: str, called: str) -> t.Iterator[bytes]:
    yield from _fixed("meta l4proto " + protocol)
    yield from _lookup("dport", None, called)


def _chance(modulus: str, share: str) -> t.Iterator[bytes]:
    yield expression("numgen", dreg=1, modulus=int(modulus), type=1, offset=0)
    yield expression("byteorder", sreg=1, dreg=1, op=1, len=4, size=4)  # compared as a number, not as bytes
    yield _compare(struct.pack("!I", int(share)), _LESS)


def _verdict(word: str) -> t.Iterator[bytes]:
    yield expression("immediate", dreg=0, data=nest(2, network_word(1, _VERDICTS[word])))


def _keep(nft: str) -> t.Iterator[bytes]:
    yield _load("%s saddr" % nft)
    yield expression("nat", type=0, family=BY_NFT[nft].number, reg_addr_min=1)


def _translate(
    address: t.Optional[str], ports: t.Optional[str], random: t.Optional[str], kind: str, **values: int
) -> t.Iterator[bytes]:
    packed = [ipaddress.ip_address(one.strip("[]")).packed for one in address.split("-")] if address else []
    given = [struct.pack("!H", port) for port in dict.fromkeys(PortRange.read(ports))] if ports else []
    register = 0
    for names, group in (("addr", packed), ("proto", given)):
        for end, value in zip(("min", "max"), group):
            register += 1
            yield expression("immediate", dreg=register, data=_data(value))
            values["reg_%s_%s" % (names, end)] = register
    flags = (_FULLY_RANDOM if random else 0) | (_PORTS_GIVEN if given and kind == "masq" else 0)
    yield expression(kind, **values, **({"flags": flags} if flags else {}))


def _masquerade(ports: t.Optional[str], random: t.Optional[str]) -> t.Iterator[bytes]:
    return _translate(None, ports, random, "masq")


def _snat(address: str, ports: t.Optional[str], random: t.Optional[str]) -> t.Iterator[bytes]:
    return _translate(address, ports, random, "nat", type=0, family=of_address(address).number)


_SPAN = r"([0-9a-f.:]+(?:/[0-9]+|-[0-9a-f.:]+)?)"
#: Every part that a rule may have, and its expressions. Patterns are text: most starts need none of them.
_PARTS: t.Sequence[t.Tuple[str, t.Callable[..., t.Iterator[bytes]]]] = (
    (r"counter", lambda: iter([expression("counter")])),
    (r"(return|accept|drop)", _verdict),
    (r"(ip6? [sd]addr) (!= )?@(\w+)", _lookup),
    (r"(ip6? [sd]addr) " + _SPAN, _address),
    (r"((?:fib [sd]addr type|ct status|ct state|meta l4proto) \S+)", _fixed),
    (r"(tcp|udp|sctp) dport @(\w+)", _ports),
    (r'oifname (!= )?"([^"]*)"', _interface),
    (r"meta mark (?:& (0x[0-9a-f]+) )?(?:(==|!=) )?(0x[0-9a-f]+)", _mark),
    (r"numgen random mod ([0-9]+) < ([0-9]+)", _chance),
    (r"masquerade(?: to :([0-9-]+))?( fully-random)?", _masquerade),
    (r"snat to (ip6?) saddr", _keep),
    (
        r"snat to ([0-9.]+(?:-[0-9.]+)?|\[\S+\](?=:)|[0-9a-f:-]+(?= |\Z))(?::([0-9]+(?:-[0-9]+)?))?( fully-random)?",
        _snat,
    ),
)


@functools.lru_cache(maxsize=None)
def _patterns() -> t.Sequence[t.Tuple[t.Pattern[str], t.Callable[..., t.Iterator[bytes]]]]:
    return [(re.compile(pattern + r"(?: |\Z)"), made) for pattern, made in _PARTS]


def encode(rule: str) -> bytes:
    """Return the expressions of a rule without its comment.

    :raises ValueError: it is no rule that we write.
    """
    found: t.List[bytes] = []
    place = 0
    while place < len(rule):
        matches = ((pattern.match(rule, place), made) for pattern, made in _patterns())
        match, made = next(((match, made) for match, made in matches if match), (None, None))
        if match is None or made is None:
            raise ValueError(rule)
        found += made(*match.groups())
        place = match.end()
    return b"".join(found)


class Decoded(t.NamedTuple):
    """A rule, and what it has counted: packets and bytes, None without a counter."""

    rule: str
    counted: t.Optional[t.Tuple[int, int]]


def decode(expressions: bytes, family: Family) -> Decoded:
    """Return a rule by its expressions; of one that we would not write, at least the names of these."""
    listed = list(of_rule(expressions))
    try:
        decoded = _Reader(family).read(listed)
        encode(decoded.rule)  # a rule that we could write
        return decoded
    except (KeyError, ValueError, IndexError, struct.error):
        return Decoded("unknown: " + " ".join(kind for kind, _data in listed), None)


class _Reader:
    """Follows the registers through the expressions of a rule. What is not known raises KeyError or ValueError."""

    def __init__(self, family: Family) -> None:
        self._family = family
        #: by register: what it was loaded from, and the bits that are left of it; or a constant
        self._subjects: t.Dict[int, Subject] = {}
        self._constants: t.Dict[int, bytes] = {}
        self._words: t.List[str] = []
        self._counted: t.Optional[t.Tuple[int, int]] = None

    def read(self, listed: t.Sequence[t.Tuple[str, Named]]) -> Decoded:
        for kind, data in listed:
            if kind in _LOADING:
                self._load(kind, data)
            else:
                _HANDLERS[kind](self, data)
        return Decoded(" ".join(self._words), self._counted)

    def _set(self, data: Named, subject: Subject) -> None:
        register = number(data["dreg"])
        self._constants.pop(register, None)
        self._subjects[register] = subject

    def _load(self, kind: str, data: Named) -> None:
        values = {key: number(value) for key, value in data.items() if key != "dreg"}
        mask = None
        if kind == "payload" and values["base"] == 1:  # nft loads no more of an address than a prefix has
            mask = None if values["len"] == self._family.size else b"\xff" * values["len"]
            values["len"] = self._family.size
        self._set(data, (_LOADED[(kind, tuple(sorted(values.items())))], mask))

    def numgen(self, data: Named) -> None:
        if number(data.get("type")) != 1 or number(data.get("offset")):
            raise ValueError(data)
        self._set(data, ("numgen random mod %d" % number(data["modulus"]), None))

    def byteorder(self, data: Named) -> None:
        self._set(data, self._subjects[number(data["sreg"])])

    def bitwise(self, data: Named) -> None:
        words, mask = self._subjects[number(data["sreg"])]
        if mask is not None or number(data.get("op")) or any(value_of(data["xor"])):
            raise ValueError(data)
        self._set(data, (words, value_of(data["mask"])))

    def counter(self, data: Named) -> None:
        self._words.append("counter")
        self._counted = number(data.get("packets")), number(data.get("bytes"))

    def lookup(self, data: Named) -> None:
        words, mask = self._subjects[number(data["sreg"])]
        if mask is not None or "dreg" in data:
            raise ValueError(data)
        inverted = "!= " if number(data.get("flags")) else ""
        if words == "dport":  # of the protocol that was compared before
            words = self._words.pop().replace("meta l4proto ", "") + " dport"
        self._words.append("%s %s@%s" % (words, inverted, name(data["set"])))

    def cmp(self, data: Named) -> None:
        words, mask = self._subjects[number(data["sreg"])]
        value, operator = value_of(data["data"]), number(data.get("op"))
        if operator == _AT_MOST and self._words[-1].startswith(words + " ") and self._words[-1].endswith("-"):
            self._words[-1] += str(ipaddress.ip_address(value))
            return
        compared = self._compared(words, mask, operator, value)
        if compared is None:
            raise ValueError(data)
        self._words.append(compared)

    def range(self, data: Named) -> None:
        if number(data.get("op")):
            raise ValueError(data)
        for key, operator in (("from_data", _AT_LEAST), ("to_data", _AT_MOST)):
            self.cmp({"sreg": data["sreg"], "op": bytes([operator]), "data": data[key]})

    def _compared(self, words: str, mask: t.Optional[bytes], operator: int, value: bytes) -> t.Optional[str]:
        fixed = _FIXED_WORDS.get((words, mask, operator, value))
        if fixed:
            return fixed
        equal, other = operator == _EQUAL, operator == _OTHER
        if words.endswith("addr"):
            if operator == _AT_LEAST and mask is None:
                return "%s %s-" % (words, ipaddress.ip_address(value))
            return "%s %s" % (words, self._network(value, mask)) if equal else None
        if words == "oifname" and mask is None and (equal or other):
            device, exact, _rest = value.partition(b"\0")
            if exact and device.endswith(b"*"):  # the name of a device, not of all that begin so
                return None
            shown = device.decode("utf-8", "surrogateescape") + ("" if exact else "*")
            return 'oifname %s"%s"' % ("" if equal else "!= ", shown)
        if words == "meta mark" and (equal or (other and mask)):
            masked = "& 0x%08x %s " % (_HOST.unpack(mask)[0], "==" if equal else "!=") if mask else ""
            return "meta mark %s0x%08x" % (masked, _HOST.unpack(value)[0])
        if words.startswith("numgen ") and mask is None and operator == _LESS:
            return "%s < %d" % (words, number(value))
        return None

    def _network(self, value: bytes, mask: t.Optional[bytes]) -> str:
        size = self._family.size
        first = number(value.ljust(size, b"\0"))
        above = self._family.highest - number((mask or b"\xff" * size).ljust(size, b"\0"))
        if first & above or above & (above + 1):
            raise ValueError(mask)
        return render_span((first, first + above), self._family)

    def immediate(self, data: Named) -> None:
        if number(data["dreg"]):
            self._constants[number(data["dreg"])] = value_of(data["data"])
            self._subjects.pop(number(data["dreg"]), None)
            return
        found = verdict(data["data"])
        if found is None or found.chain:
            raise ValueError(data)
        self._words.append(found.kind)

    def masq(self, data: Named) -> None:
        ports = self._given(data, "proto")
        if bool(ports) != bool(number(data.get("flags")) & _PORTS_GIVEN):
            raise ValueError(data)
        self._words.append("masquerade")
        self._words += ["to :" + ports] if ports else []
        self._flags(data)

    def nat(self, data: Named) -> None:
        if number(data["type"]) or number(data["family"]) != self._family.number:
            raise ValueError(data)
        register = number(data["reg_addr_min"])
        if self._subjects.get(register) == ("%s saddr" % self._family.nft, None):
            self._words.append("snat to %s saddr" % self._family.nft)
        else:
            self._words.append(snat_to(self._given(data, "addr"), self._given(data, "proto")))
        self._flags(data)

    def _given(self, data: Named, what: str) -> str:
        if "reg_%s_min" % what not in data:
            return ""
        keys = ("reg_%s_min" % what, "reg_%s_max" % what)
        values = [self._constants[number(data[key])] for key in keys if key in data]
        shown = [str(number(value) if what == "proto" else ipaddress.ip_address(value)) for value in values]
        return "-".join(dict.fromkeys(shown))

    def _flags(self, data: Named) -> None:
        flags = number(data.get("flags")) & ~(_ADDRESSES_GIVEN | _PORTS_GIVEN)
        if flags & ~_FULLY_RANDOM:
            raise ValueError(data)
        self._words += ["fully-random"] if flags else []


_LOADING = frozenset(kind for kind, _values in _LOADS.values())
_HANDLERS: t.Mapping[str, t.Callable[[_Reader, Named], None]] = {
    kind: getattr(_Reader, kind)
    for kind in ("numgen", "byteorder", "bitwise", "counter", "lookup", "cmp", "range", "immediate", "masq", "nat")
}
