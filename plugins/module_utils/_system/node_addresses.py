# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The addresses of the node, as the kernel lists them (rtnetlink(7))."""

from __future__ import annotations

import errno
import ipaddress
import struct
import typing as t

from . import netlink
from .families import BY_NUMBER

Address = t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]

_GET_ADDRESS = 22
_IFA = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


def node_addresses() -> t.List[Address]:
    """Return every address of this network namespace, on whatever link, without loopback and link-local ones.

    :raises NodeError: the kernel refuses the request.
    """
    found: t.Dict[Address, None] = {}
    with netlink.Netlink(netlink.ROUTE) as kernel:
        for family in BY_NUMBER:
            try:
                messages = kernel.dump(_GET_ADDRESS, struct.pack("B", family).ljust(_IFA.size, b"\0"), "addresses")
            except netlink.KernelError as exc:
                if exc.code in (errno.EAFNOSUPPORT, errno.EOPNOTSUPP):  # a kernel without IPv6
                    continue
                raise
            for message in messages:
                known = netlink.attributes(message.body[_IFA.size :])
                value = known.get(_IFA_LOCAL, known.get(_IFA_ADDRESS))
                if value:
                    found[ipaddress.ip_address(value)] = None
    return [address for address in found if not address.is_loopback and not address.is_link_local]
