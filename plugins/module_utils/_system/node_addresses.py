# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The addresses of the node, as the kernel lists them (rtnetlink(7))."""

from __future__ import annotations

import ipaddress
import struct
import typing as t

from . import netlink

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

GET_ADDRESS = 22
#: family, length of the prefix, flags, scope, link
IFA = struct.Struct("=BBBBI")
IFA_ADDRESS, IFA_LOCAL = 1, 2


def address_of(body: bytes) -> t.Optional[Address]:
    """Return the address that a message is about; None if it has none."""
    known = netlink.attributes(body[IFA.size :])
    value = known.get(IFA_LOCAL, known.get(IFA_ADDRESS))
    return ipaddress.ip_address(value) if value else None


def node_addresses() -> t.List[Address]:
    """Return every address of this network namespace, on whatever link, without loopback and link-local ones.

    :raises NodeError: the kernel refuses the request.
    """
    with netlink.Netlink(netlink.ROUTE) as kernel:
        bodies = kernel.dump_families(GET_ADDRESS, IFA.size, "addresses")
    found = dict.fromkeys(map(address_of, bodies))
    return [one for one in found if one is not None and not one.is_loopback and not one.is_link_local]
