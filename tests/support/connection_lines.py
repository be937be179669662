# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of the log of connections."""

from __future__ import annotations

import json
import typing as t


def line(start: t.Any = 1000, end: t.Any = 1010, port: t.Any = 40123, **changed: t.Any) -> bytes:
    """Return a line as ulogd 2.0.8 writes it."""
    data = {
        "dvc": "Netfilter",
        "orig.ip.protocol": 6,
        "orig.l4.sport": 45736,
        "orig.l4.dport": 443,
        "orig.raw.pktlen": 0,
        "orig.raw.pktcount": 0,
        "reply.ip.protocol": 6,
        "reply.l4.sport": 443,
        "reply.l4.dport": port,
        "reply.raw.pktlen": 0,
        "reply.raw.pktcount": 0,
        "ct.mark": 0,
        "ct.id": 203049824,
        "ct.event": 4,
        "flow.start.sec": int(start),
        "flow.start.usec": int(start * 1e6) % 1000000,
        "flow.end.sec": int(end),
        "flow.end.usec": int(end * 1e6) % 1000000,
        "oob.family": 2,
        "oob.protocol": 0,
        "src_ip": "10.244.1.2",
        "dest_ip": "203.0.113.10",
        "reply.ip.saddr.str": "203.0.113.10",
        "reply.ip.daddr.str": "198.51.100.1",
    }
    data.update(changed)
    return json.dumps(data).encode("ascii") + b"\n"
