# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pod of a fleet is behind a connection: the question to each node, and the answer of all of them."""

from __future__ import annotations

import re
import typing as t

from ..module_utils._connection_log.moments import parse_moment
from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import naming
from ..module_utils._system.endpoints import parse_endpoints
from ..module_utils._system.families import PORT_PROTOCOLS
from ._names import alike, grouped, number_of_nodes, one_line, some_of, thousands

#: The variables of hosts with what they answered: whether they have the address, and who has the connection.
ADDRESSES, ANSWER = "ip_masq_agent__addresses", "ip_masq_agent__who"

#: So many connections, and reasons of nodes that know none, are shown.
_CONNECTIONS, _REASONS = 100, 5

Hostvars = t.Mapping[str, t.Mapping[str, t.Any]]


def ask(seen: t.Any, remote: t.Any, protocol: t.Any, at: t.Any) -> t.Tuple[str, t.List[str]]:
    """Return the address that nodes are queried about, and the arguments of ``ip-masq-agent``.

    :param seen: address and port that the other side saw.
    :param remote: address and port of the other side; empty or None: any.
    :param at: a time, for what the node logged; empty or None: now.
    :raises ConfigError: one of them is not valid; names the variable of the playbook.
    """
    if not seen:
        raise ConfigError("ip_masq_address is not given: -e ip_masq_address=192.0.2.1:4711, IPv6 as [2001:db8::1]:4711")
    if protocol not in PORT_PROTOCOLS:
        raise ConfigError("ip_masq_protocol: %r is unknown: use %s" % (protocol, ", ".join(PORT_PROTOCOLS)))
    with naming("ip_masq_address, ip_masq_to"):
        node, other = parse_endpoints(str(seen), str(remote) if remote else None)
    if at:
        with naming("ip_masq_at"):
            parse_moment(str(at))
    when = ("--at", str(at)) if at else ()
    to = () if other is None else ("--to", str(other))
    return node.address, ["who", str(node), *to, "--protocol", str(protocol), *when]


def reply(address: str, hosts: t.Sequence[str], hostvars: Hostvars) -> t.Dict[str, t.Any]:
    """Return what all hosts together answered about the connection of an address, as the filter ``who`` does."""
    answers = {host: hostvars[host].get(ADDRESSES) for host in hosts if host in hostvars}
    holders = [host for host, answer in answers.items() if _has(answer, address)]
    silent = [host for host, answer in answers.items() if not _answered(answer)]
    unknown = "; %s did not answer: %s" % (number_of_nodes(len(silent)), some_of(silent)) if silent else ""
    if not holders:
        asked = number_of_nodes(len(answers) - len(silent))
        return {"holders": [], "lines": ["no node has %s: %s searched%s" % (address, asked, unknown)], "found": False}
    found: t.List[t.Tuple[str, str]] = []
    missed: t.List[t.Tuple[str, str]] = []
    for host in holders:
        answer = hostvars[host].get(ANSWER) or {}
        lines = [one_line(line) for line in answer.get("stdout_lines") or ()]
        if answer.get("rc") == 0 and lines:
            found += [(line, host) for line in lines]
        else:
            missed.append((_why(answer), host))
    # What the others with the address answered does not matter once the connection is found.
    lines = _found(found) if found else _missed(missed, address)
    if len(holders) > 1 and (found or len(lines) > 1):
        several = "%s have %s: %s" % (number_of_nodes(len(holders)), address, some_of(holders))
        lines = [*lines, several] if found else [several, *lines]
    return {"holders": holders, "lines": lines, "found": bool(found)}


def _found(pairs: t.Iterable[t.Tuple[str, str]]) -> t.List[str]:
    """Return a line for each connection, with the hosts that know it."""
    lines = ["%s: %s" % (some_of(hosts), line) for line, hosts in grouped(pairs).items()]
    left = len(lines) - _CONNECTIONS
    return lines[:_CONNECTIONS] + (["and %s more: give ip_masq_to" % thousands(left)] if left > 0 else [])


def _missed(pairs: t.Sequence[t.Tuple[str, str]], address: str) -> t.List[str]:
    """Return a line for hosts whose reasons differ at most in numbers, most hosts first."""
    kinds = alike((host, why, host) for why, host in pairs)
    lines = []
    for why, hosts in kinds[:_REASONS]:
        several = "%s (%s) have" % (some_of(hosts), number_of_nodes(len(hosts)))
        who = several if hosts[1:] else hosts[0] + " has"
        lines.append("%s %s: %s" % (who, address, why))
    left = sum(len(hosts) for _why, hosts in kinds[_REASONS:])
    return lines + (["and %s more" % number_of_nodes(left)] if left else [])


def _answered(answer: t.Any) -> bool:
    return isinstance(answer, t.Mapping) and answer.get("rc") == 0


def _has(answer: t.Any, address: str) -> bool:
    """Return whether ``ip address show`` lists an address, and not only as the other end of a link."""
    listed = str(answer.get("stdout", "")) if _answered(answer) else ""
    return re.search(r"\binet6? %s[ /]" % re.escape(address), listed) is not None


def _why(answer: t.Mapping[str, t.Any]) -> str:
    """Return why a host does not know the connection."""
    said = one_line(answer.get("stderr") or answer.get("msg") or "it did not answer")
    return re.sub(r"^ip-masq-agent: ", "", said)
