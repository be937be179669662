# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of iptables-legacy, as its tool prints them, in the form of :mod:`matches`."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from .._policy import spans
from .._policy.spans import Spans
from .._twin.ipsets import IpSet
from .._twin.legacy import LegacyTable, priority
from .._twin.values import HOOKS, PROTOCOLS
from . import ipset_matches
from .matches import MAX_PORT, Branch, Chain, Match, Rule, RuleTable, any_of, both
from .xt_matches import NEUTRAL

_VERSIONS = {"ip": 4, "ip6": 6}

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ALL_BITS = 0xFFFFFFFF
_PROTOCOL_NUMBERS = dict(PROTOCOLS, **{"ipv6-icmp": 58, "esp": 50, "ah": 51, "gre": 47, "udplite": 136})
#: Matches of which the words that follow are read, whatever C(-m) names them.
_READ = NEUTRAL | frozenset(("tcp", "udp", "sctp", "multiport", "iprange", "set", "mark", "icmp", "icmp6"))


def read(table: LegacyTable, sets: t.Sequence[IpSet]) -> RuleTable:
    """A table.

    :param sets: those of ipset.
    """
    version = _VERSIONS[table.family]
    base = {}
    for chain in table.rules():
        if chain in HOOKS:
            kind = "nat" if table.name == "nat" else "filter"
            base[chain] = Chain(kind, HOOKS[chain], priority(table.name, chain))
    chains = table.rules()
    rules = tuple(_Line(line, version, sets, chains).rule() for lines in chains.values() for line in lines)
    return RuleTable("%s %s" % (table.family, table.name), base, rules)


class _Line:
    """One printed rule, read word by word."""

    def __init__(self, line: str, version: int, sets: t.Sequence[IpSet], chains: t.Container[str]) -> None:
        self._words = [bare or quoted for quoted, bare in _WORD.findall(line)]
        self._version = version
        self._sets = sets
        self._chains = chains
        self._matches = [Match()]
        self._features: t.Set[str] = set()
        self._tested = self._set = 0
        self._interfaces: t.List[str] = []
        self._jump: t.Optional[str] = None
        self._untracked = False

    def rule(self) -> Rule:
        """What it says."""
        chain = self._words[1]
        words = iter(self._words[2:])
        inverted = False
        for word in words:
            if word == "!":
                inverted = True
                continue
            handler = _HANDLERS.get(word)
            if handler is not None:
                handler(self, next(words, ""), inverted, words)
            inverted = False
        return Rule(
            chain,
            tuple(Branch(match, self._jump) for match in self._matches),
            frozenset(self._features),
            self._tested,
            self._set,
            tuple(self._interfaces),
            self._untracked,
        )

    def _narrow(self, alternatives: t.Sequence[Match]) -> None:
        self._matches = [both(match, other) for match in self._matches for other in alternatives]

    def _one(self, field: str, allowed: Spans, inverted: bool) -> None:
        self._narrow(any_of([Match(**{field: allowed})], inverted, self._version))

    def source(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """-s"""
        self._one("source", _networks(value), inverted)

    def destination(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """-d"""
        self._one("destination", _networks(value), inverted)

    def protocol(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """-p"""
        number = int(value) if value.isdigit() else _PROTOCOL_NUMBERS.get(value)
        if number is None:
            self._features.add("payload")
        else:
            self._one("protocol", ((number, number),), inverted)

    def interface(self, value: str, _inverted: bool, _words: t.Iterator[str]) -> None:
        """-i"""
        self._interfaces.append(value)

    def port(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """--dport, --dports"""
        self._one("port", _ports(value), inverted)

    def source_port(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """--sport, --sports"""
        self._one("source_port", _ports(value), inverted)

    def either_port(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """--ports"""
        ports = _ports(value)
        self._narrow(
            [
                *any_of([Match(port=ports)], inverted, self._version),
                *any_of([Match(source_port=ports)], inverted, self._version),
            ]
        )

    def source_range(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """--src-range"""
        self._one("source", _range(value), inverted)

    def destination_range(self, value: str, inverted: bool, _words: t.Iterator[str]) -> None:
        """--dst-range"""
        self._one("destination", _range(value), inverted)

    def match_set(self, value: str, inverted: bool, words: t.Iterator[str]) -> None:
        """--match-set"""
        sources = [part == "src" for part in next(words, "").split(",")]
        for one in self._sets:
            if one.name == value:
                self._narrow(any_of(ipset_matches.read(one, sources, self._sets), inverted, self._version))

    def mark(self, value: str, _inverted: bool, _words: t.Iterator[str]) -> None:
        """--mark"""
        self._tested |= int(value.partition("/")[2] or "0xffffffff", 0)

    def set_mark(self, value: str, _inverted: bool, _words: t.Iterator[str]) -> None:
        """--set-xmark"""
        number, _slash, mask = value.partition("/")
        self._set |= int(number, 0) | int(mask or "0xffffffff", 0)

    def module(self, value: str, _inverted: bool, _words: t.Iterator[str]) -> None:
        """-m"""
        if value not in _READ:
            self._features.add(value)

    def jump(self, value: str, _inverted: bool, _words: t.Iterator[str]) -> None:
        """-j, -g"""
        if value in self._chains:
            self._jump = value
        elif value in ("NOTRACK", "CT"):
            self._untracked = value == "NOTRACK" or "--notrack" in self._words
        elif value == "CONNMARK":
            self._set |= _ALL_BITS
        elif value in ("NFQUEUE", "TPROXY"):
            self._features.add({"NFQUEUE": "queue", "TPROXY": "tproxy"}[value])

    def skip(self, _value: str, _inverted: bool, _words: t.Iterator[str]) -> None:
        """An option whose value could look like another option."""


_HANDLERS: t.Mapping[str, t.Callable[[_Line, str, bool, t.Iterator[str]], None]] = {
    "-s": _Line.source,
    "-d": _Line.destination,
    "-p": _Line.protocol,
    "-i": _Line.interface,
    "--dport": _Line.port,
    "--dports": _Line.port,
    "--sport": _Line.source_port,
    "--sports": _Line.source_port,
    "--ports": _Line.either_port,
    "--src-range": _Line.source_range,
    "--dst-range": _Line.destination_range,
    "--match-set": _Line.match_set,
    "--mark": _Line.mark,
    "--set-xmark": _Line.set_mark,
    "--set-mark": _Line.set_mark,
    "-m": _Line.module,
    "-j": _Line.jump,
    "-g": _Line.jump,
    "--comment": _Line.skip,
    "--log-prefix": _Line.skip,
    "--nflog-prefix": _Line.skip,
    "--string": _Line.skip,
}


def _networks(value: str) -> Spans:
    network = ipaddress.ip_network(value, strict=False)
    return ((int(network.network_address), int(network.broadcast_address)),)


def _range(value: str) -> Spans:
    first, _dash, last = value.partition("-")
    return ((int(ipaddress.ip_address(first)), int(ipaddress.ip_address(last or first))),)


def _ports(value: str) -> Spans:
    found = []
    for part in value.split(","):
        first, colon, last = part.partition(":")
        found.append((int(first or 0), int(last or MAX_PORT) if colon else int(first)))
    return spans.of(found)
