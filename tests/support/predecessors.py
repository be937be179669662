# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The chains that earlier agents left on nodes, as input for iptables-restore. Only the comments are our own."""

from __future__ import annotations

import typing as t

RFC1918 = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
_NOT_LOCAL = " -m addrtype ! --dst-type LOCAL"


class Predecessor(t.NamedTuple):
    """One earlier agent's chain, for one family."""

    chain: str
    #: lines for iptables-restore
    lines: t.Tuple[str, ...]
    #: the module's options that mean the same
    options: t.Dict[str, t.Any]


def _chain(
    chain: str,
    prefix: str,
    cidrs: t.Sequence[str],
    per_rule: str = "",
    masquerade: str = "-j MASQUERADE",
    quotes: str = "",
    jumps: t.Optional[t.Sequence[str]] = None,
) -> t.Tuple[str, ...]:
    def noted(text: str) -> str:
        return ' -m comment --comment "%s%s %s%s"' % (quotes, prefix, text, quotes)

    lines = [":%s - [0:0]" % chain]
    for cidr in cidrs:
        # The daemons put the comment first; iptables lists it behind -d.
        lines.append("-A %s%s%s -d %s -j RETURN" % (chain, noted("stays inside"), per_rule, cidr))
    lines.append("-A %s%s%s %s" % (chain, noted("leaves as the node, last"), per_rule, masquerade))
    for comment in [noted("all that is not for this node")] if jumps is None else jumps:
        lines.append("-A POSTROUTING%s%s -j %s" % (comment, _NOT_LOCAL, chain))
    return tuple(lines)


_PLAIN = ' -m comment --comment "ip-masq-agent: by one release"'
_QUOTED = ' -m comment --comment "\\"ip-masq-agent: by another release\\""'
_V4 = ("169.254.0.0/16",) + RFC1918
_V6 = ("fe80::/10", "fc00::/7")
_OLD = {"random_fully": False}
_RANDOM = "-j MASQUERADE --random-fully"


def of(family: str) -> t.Dict[str, Predecessor]:
    """Return all predecessors that knew the family: name -> chain."""
    agent = "IP-MASQ-AGENT"
    six = family == "ipv6"
    cidrs = _V6 if six else _V4
    extra: t.Dict[str, t.Any] = {}
    if six:
        extra = {"enable_ipv6": True, "non_masquerade_cidrs": [*RFC1918, "fc00::/7"]}
    plain, random = dict(_OLD, **extra), dict(extra)
    found = {
        "2.0.1 and later": Predecessor(agent, _chain(agent, "ip-masq-agent:", cidrs), plain),
        "2.5 and later, random-fully": Predecessor(
            agent, _chain(agent, "ip-masq-agent:", cidrs, masquerade=_RANDOM), random
        ),
        "2.1.0 and later, own chain name": Predecessor(
            "MY-CHAIN", _chain("MY-CHAIN", "ip-masq-agent:", cidrs), dict(plain, masq_chain="MY-CHAIN")
        ),
        "2.10.0-2.12.1, quotes in the jump": Predecessor(
            agent, _chain(agent, "ip-masq-agent:", cidrs, masquerade=_RANDOM, jumps=[_QUOTED]), random
        ),
        "upgrade to 2.10.0, two jumps": Predecessor(
            agent, _chain(agent, "ip-masq-agent:", cidrs, masquerade=_RANDOM, jumps=[_PLAIN, _QUOTED]), random
        ),
        "upgrade from 2.12.1, two jumps": Predecessor(
            agent, _chain(agent, "ip-masq-agent:", cidrs, masquerade=_RANDOM, jumps=[_QUOTED, _PLAIN]), random
        ),
        "Azure v2": Predecessor(agent, _chain(agent, "ip-masq-agent:", cidrs, quotes='\\"', jumps=[_QUOTED]), plain),
        "a person": Predecessor(agent, _chain(agent, "do not touch", cidrs, masquerade=_RANDOM, jumps=[""]), random),
    }
    if not six:
        daemon = "NON-MASQUERADE-DAEMON"
        found.update(
            {
                "0.2.0-0.3.1": Predecessor(
                    daemon,
                    _chain(daemon, "non-masquerade-daemon:", cidrs, per_rule=_NOT_LOCAL),
                    dict(plain, masq_chain=daemon),
                ),
                "0.4.0-2.0.0": Predecessor(agent, _chain(agent, "ip-masq-agent:", cidrs, per_rule=_NOT_LOCAL), plain),
                "GCE, GKE and kOps scripts": Predecessor(
                    "IP-MASQ", _chain("IP-MASQ", "ip-masq:", cidrs), dict(plain, masq_chain="IP-MASQ")
                ),
            }
        )
    return found


#: family and name of each
ALL = [(family, name) for family in ("ipv4", "ipv6") for name in of(family)]
