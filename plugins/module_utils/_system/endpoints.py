# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends of connections: an address with a port. Reads nothing of a node."""

from __future__ import annotations

import contextlib
import ipaddress
import typing as t

from .._errors import ConfigError


class Endpoint(t.NamedTuple):
    """An address with a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return ("[%s]:%d" if ":" in self.address else "%s:%d") % self


def parse_endpoint(text: str) -> Endpoint:
    """Parse an address with a port: ``192.0.2.1:4711``, ``[2001:db8::1]:4711``.

    :raises ConfigError: it is not.
    """
    address, _colon, port = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:
        address = ""  # the address alone, or one whose end is not clear
    known = None
    with contextlib.suppress(ValueError):
        known = ipaddress.ip_address(address)
    if known is None or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ConfigError("%r is not an address with a port: write 192.0.2.1:4711 or [2001:db8::1]:4711" % text)
    return Endpoint(str(known), int(port))


def parse_endpoints(seen: str, remote: t.Optional[str]) -> t.Tuple[Endpoint, t.Optional[Endpoint]]:
    """Parse both ends of a connection.

    :raises ConfigError: one of them is not an address with a port, or they are not of the same IP version.
    """
    node, other = parse_endpoint(seen), None if remote is None else parse_endpoint(remote)
    if other is not None and (":" in other.address) != (":" in node.address):
        raise ConfigError("%s and %s are not of the same IP version" % (node, other))
    return node, other
