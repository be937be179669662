# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A protocol and a destination port as one number, a service, so that sets of them are intervals of numbers.

The port of a protocol without ports is 0.
"""

from __future__ import annotations

import typing as t

#: Of a question, where nobody names a port.
MAX_PORT = 0xFFFF
MAX_PROTOCOL = 0xFF
MAX_SERVICE = MAX_PROTOCOL << 16 | MAX_PORT


def pack(protocol: int, port: int = 0) -> int:
    """Return a protocol and a port as a service."""
    return protocol << 16 | port


def unpack(service: int) -> t.Tuple[int, int]:
    """Return protocol and port of a service."""
    return service >> 16, service & MAX_PORT


def span(protocol: int, first: int = 0, last: int = MAX_PORT) -> t.Tuple[int, int]:
    """Return a range of ports of a protocol as an interval of services."""
    return pack(protocol, first), pack(protocol, last)
