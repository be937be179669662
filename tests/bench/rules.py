# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies of several sizes, rules of other programs, and the programs that read and write them."""

from __future__ import annotations

import ipaddress
import itertools
import shutil
import typing as t

from support.many_ranges import many_ranges

CHAIN = "IP-MASQ-AGENT"
TABLE = "ip_masq_agent"

#: Numbers of exempt ranges that are measured.
SIZES = (4, 64, 1000, 10000)
#: Rules of other programs on the full node.
OTHERS = 50000

NFT, LEGACY, NFTABLES = "iptables_nft", "iptables_legacy", "nftables"


def cidrs(count: int) -> t.List[str]:
    """Return so many ranges: RFC 1918 and RFC 6598 if they are few, else such that no two can be merged."""
    if count <= 4:
        return ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"][:count]
    return many_ranges(count)


def policy(size: int) -> t.Dict[str, t.Any]:
    """Return the options of a policy with so many exempt ranges."""
    return {"cidr_limit": max(size, 64), "non_masquerade_cidrs": cidrs(size)}


#: What ``narrowed`` adds to a policy.
NARROWED = ", 1000 exceptions, 4 sources"


def narrowed(size: int) -> t.Dict[str, t.Any]:
    """Return the same with 1,000 exceptions, spread over the ranges, and 4 sources.

    Of each five, four are masqueraded although an exempt range contains them, and one is exempt inside of these.
    """
    wide: t.List[t.Any] = [ipaddress.ip_network(cidr) for cidr in cidrs(size)]
    step = max(size // 800, 1)
    places = [(wide[number * step % size], number // size) for number in range(800)]
    inner = [next(itertools.islice(network.subnets(new_prefix=28), place, None)) for network, place in places]
    exempt = [str(next(network.subnets(new_prefix=30))) for network in inner[:200]]
    return {
        "cidr_limit": size + 1000,
        "non_masquerade_cidrs": cidrs(size) + exempt,
        "masquerade_cidrs": list(map(str, inner)),
        "source_cidrs": ["10.244.0.0/16", "10.245.0.0/17", "172.16.8.0/22", "192.0.2.128/25"],
    }


#: What ``guarded`` adds to a policy, with each value of leaks.
GUARDED = {"ignore": ", 1 source", "drop": ", 1 source, leaks dropped"}


def guarded(leaks: str) -> t.Dict[str, t.Any]:
    """Return the options of a policy for the pods alone, and what it does with packets that nat does not see."""
    return {**policy(0), "source_cidrs": ["10.244.0.0/16"], "leaks": leaks}


def services(count: int) -> str:
    """Return so many nat rules as kube-proxy writes them, ten for a Service, as text for iptables-restore --noflush."""
    chains, rules = [":KUBE-SERVICES - [0:0]"], ["-A PREROUTING -j KUBE-SERVICES"]
    for number in range(count // 10):
        chain = "KUBE-SVC-%08d" % number
        address = ipaddress.ip_address("10.96.0.0") + number
        chains.append(":%s - [0:0]" % chain)
        rules.append("-A KUBE-SERVICES -d %s/32 -p tcp -m tcp --dport 80 -j %s" % (address, chain))
        for pod in range(1, 10):
            target = "10.244.%d.%d:8080" % (number % 256, pod)
            rules.append("-A %s -p tcp -m tcp -j DNAT --to-destination %s" % (chain, target))
    return "\n".join(["*nat", *chains, *rules, "COMMIT", ""])


def program(name: str) -> str:
    """Return the full path of a program.

    :raises RuntimeError: it is not there.
    """
    path = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        raise RuntimeError("%s is not installed: run `make setup`" % name)
    return path


def iptables(backend: str, action: str = "") -> str:
    """Return the iptables program of a backend; of iptables-nft for nftables, which others use beside it."""
    return program("iptables-" + ("legacy" if backend == LEGACY else "nft") + action)


def backends() -> t.List[str]:
    """Return the backends that the installed module offers."""
    from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.rules_task import ARGUMENT_SPEC

    choices = t.cast(t.Sequence[str], ARGUMENT_SPEC["backend"]["choices"])
    return [choice for choice in choices if choice != "auto"]
