# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the node itself whose peers ask from which port they send. Reads, never writes."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import sys
import typing as t

from .._errors import NodeError
from . import files
from .local_ports import read_local_ports

#: The number of a slot, the local address as words of the machine, the port, and a peer, which none has that serves.
_SOCKET = re.compile(r"\s*\d+: ([0-9A-F]{8,32}):([0-9A-F]{4}) 0+:0000 07 ")
#: Of VXLAN (RFC 7348, and the kernel's own default) and GENEVE (RFC 8926), which send from other ports anyway.
_TUNNELS = {4789, 8472, 6081}


def udp_servers() -> t.Tuple[int, ...]:
    """Return the ports outside of the local ones to which UDP sockets are bound for other hosts (proc(5)).

    Empty if that cannot be read.
    """
    found = set()
    for name in ("udp", "udp6"):
        for line in files.lines("/proc/net/" + name):
            bound = _SOCKET.match(line)
            if bound and not _address(bound[1]).is_loopback:
                found.add(int(bound[2], 16))
    with contextlib.suppress(NodeError):
        local = read_local_ports()
        return tuple(port for port in sorted(found - _TUNNELS) if port and not local.first <= port <= local.last)
    return ()


def _address(words: str) -> t.Any:
    data = bytes.fromhex(words)
    swapped = (data[at : at + 4][::-1] for at in range(0, len(data), 4))
    found = ipaddress.ip_address(b"".join(swapped) if sys.byteorder == "little" else data)
    return getattr(found, "ipv4_mapped", None) or found


def nfs_servers() -> t.Tuple[t.Any, ...]:
    """Return the addresses of servers whose exports are mounted, as nfs(5) shows them; empty if that is not known."""
    found: t.Dict[t.Any, None] = {}
    for line in files.lines("/proc/mounts"):
        fields = line.split()
        address = re.search(r"(?:^|,)addr=([0-9a-f.:]+)", fields[3]) if len(fields) > 3 else None
        if address and fields[2] in ("nfs", "nfs4"):
            with contextlib.suppress(ValueError):  # whatever a mount calls its address
                found[ipaddress.ip_address(address[1])] = None
    return tuple(found)
