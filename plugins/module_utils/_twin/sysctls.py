# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel settings that decide which way a packet takes, and what the twin sets by itself."""

from __future__ import annotations

import typing as t

_ROOT = "/proc/sys/net/"

#: Of the whole namespace. Forwarding comes first: to set it resets others.
_GLOBAL = (
    "ipv4/conf/all/forwarding",
    "ipv6/conf/all/forwarding",
    "ipv4/fib_multipath_hash_fields",
    "ipv4/fib_multipath_hash_policy",
    "ipv4/fwmark_reflect",
    "ipv4/ip_local_port_range",
    "ipv4/ip_nonlocal_bind",
    "ipv6/fib_multipath_hash_fields",
    "ipv6/fib_multipath_hash_policy",
    "ipv6/fwmark_reflect",
    "ipv6/ip_nonlocal_bind",
    "bridge/bridge-nf-call-ip6tables",
    "bridge/bridge-nf-call-iptables",
    "bridge/bridge-nf-filter-vlan-tagged",
    "bridge/bridge-nf-pass-vlan-input-dev",
    "ipv4/vs/conntrack",
    "ipv4/vs/snat_reroute",
    "netfilter/nf_conntrack_checksum",
    "netfilter/nf_conntrack_tcp_be_liberal",
    "netfilter/nf_conntrack_tcp_loose",
)
#: Of each link, and of ``all`` and ``default``.
_PER_LINK = {
    "ipv4": (
        "accept_local",
        "accept_source_route",
        "disable_policy",
        "disable_xfrm",
        "forwarding",
        "ignore_routes_with_linkdown",
        "route_localnet",
        "rp_filter",
        "src_valid_mark",
    ),
    "ipv6": ("disable_ipv6", "disable_policy", "forwarding", "ignore_routes_with_linkdown"),
}
#: What the twin does not copy: it answers at once, accepts no router, and writes nothing into the kernel's log.
OWN = {
    "ipv4/conf/all/log_martians": "0",
    "ipv4/conf/default/log_martians": "0",
    "ipv6/conf/all/accept_dad": "0",
    "ipv6/conf/default/accept_dad": "0",
    "ipv6/conf/default/accept_ra": "0",
    "ipv6/conf/default/addr_gen_mode": "1",
    "ipv6/conf/default/router_solicitations": "0",
    "netfilter/nf_conntrack_log_invalid": "0",
}
#: Whether the rules of all namespaces may write to the kernel's log. It is one setting for all of them.
LOGS_OF_ALL = "netfilter/nf_log_all_netns"


def read(links: t.Iterable[str]) -> t.Dict[str, str]:
    """Read the settings of this network namespace, by path; those that the kernel does not have are left out.

    :param links: names.
    """
    paths = list(_GLOBAL)
    for link in ("all", "default", *links):
        paths += ("%s/conf/%s/%s" % (family, link, key) for family, keys in _PER_LINK.items() for key in keys)
    found = {path: get(path) for path in paths}
    return {path: value for path, value in found.items() if value is not None}


def get(path: str) -> t.Optional[str]:
    """Read one setting; None if the kernel does not have it."""
    try:
        with open(_ROOT + path, encoding="utf-8") as opened:
            return opened.read().strip()
    except OSError:
        return None


def is_general(path: str) -> bool:
    """Return whether a setting is one of the whole namespace, and is made before there are links."""
    parts = path.split("/")
    return len(parts) != 4 or parts[2] in ("all", "default")


def write(settings: t.Mapping[str, str]) -> t.List[str]:
    """Make this namespace, which must be one of our own, behave as another.

    :returns: what could not be set.
    """
    missing = []
    for path, value in settings.items():
        try:
            with open(_ROOT + path, "w", encoding="utf-8") as opened:
                opened.write(value)
        except OSError as exc:
            missing.append("the setting net.%s (%s)" % (path.replace("/", "."), exc.strerror))
    return missing
