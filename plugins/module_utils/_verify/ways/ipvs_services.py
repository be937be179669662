# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services of IPVS, as rules that lead packets to one of their servers."""

from __future__ import annotations

import ipaddress
import shlex
import typing as t

from ..._rules.rules import ALL_BITS, DESTINATION, DROP, MARK, Branch, Match, Rule, RuleAction, Test
from ..._system.families import IPV6, SCTP, TCP, UDP, Family
from ..._system.services import pack

_FLAGS = {"-t": TCP, "--tcp-service": TCP, "-u": UDP, "--udp-service": UDP, "--sctp-service": SCTP}


def _rule(number: int, key: t.Any, servers: t.Sequence[t.Tuple[int, int]], unknown: t.Iterable[str]) -> Rule:
    """Return a service as a rule.

    :param key: its mark, or its address and service.
    """
    if isinstance(key, tuple):
        match = Match(destination=((key[0], key[0]),), service=((key[1], key[1]),))
    else:
        match = Match(tests=(Test(MARK, ALL_BITS, ((key, key),)),))
    branches = [
        Branch(match, RuleAction(DESTINATION, addresses=((address, address),), ports=((port, port),) if port else None))
        for address, port in servers
    ]
    several = len(branches) > 1
    branches = branches or [Branch(match, RuleAction(DROP))]
    return Rule(number, tuple(branches), tuple(unknown), chance=several, exhaustive=several)


def read(saved: str, family: Family) -> t.List[Rule]:
    """Read what ``ipvsadm --save --numeric`` prints, as far as it is about a family."""
    found: t.Dict[t.Any, t.List[t.Any]] = {}
    unknown: t.Dict[t.Any, t.Dict[str, None]] = {}
    for line in saved.splitlines():
        words = shlex.split(line)
        if len(words) < 3:
            continue
        key: t.Any = None
        if words[1] in _FLAGS:
            address = _endpoint(words[2], family)
            if address is not None:
                key = (address[0], pack(_FLAGS[words[1]], address[1]))
        elif words[1] in ("-f", "--fwmark-service") and ("-6" in words or "--ipv6" in words) == (family == IPV6):
            key = int(words[2])
        if key is None:
            # A server of a service by mark does not repeat its version.
            if words[0] not in ("-a", "--add-server") or words[1] not in ("-f", "--fwmark-service"):
                continue
            key = int(words[2])
            if key not in found:
                continue
        servers = found.setdefault(key, [])
        if words[0] in ("-a", "--add-server"):
            weight = words[words.index("-w") + 1] if "-w" in words else "1"
            server = _endpoint(words[words.index("-r") + 1], family) if "-r" in words else None
            if server is None:
                unknown.setdefault(key, {})["a server of another IP version"] = None
            elif weight != "0":
                servers.append(server)
            if "-m" not in words:
                unknown.setdefault(key, {})["a server that IPVS does not masquerade to"] = None
    return [_rule(number, key, servers, unknown.get(key, ())) for number, (key, servers) in enumerate(found.items(), 1)]


def _endpoint(text: str, family: Family) -> t.Optional[t.Tuple[int, int]]:
    """Return address and port, if it is of that family."""
    host, _colon, port = text.rpartition(":")
    if text.endswith("]") or not _colon:
        host, port = text, "0"
    address = ipaddress.ip_address(host.strip("[]"))
    return (int(address), int(port)) if address.version == family.version else None
