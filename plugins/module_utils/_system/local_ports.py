# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports from which the kernel chooses for sockets of the node (ip-sysctl.rst of Linux), for both families."""

from __future__ import annotations

import os
import re
import typing as t

from .._errors import NodeError
from . import files, intervals

RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"

#: Bytes; the kernel gives a list of reserved ports in one read, and 32,768 of them take 190,000.
_LONGEST = 1 << 18

_RESERVED = r"([0-9]{1,5})(?:-([0-9]{1,5}))?"


class LocalPorts(t.NamedTuple):
    """The settings of a network namespace."""

    first: int
    last: int
    reserved: intervals.Spans = ()


def read_local_ports() -> LocalPorts:
    """Read the settings of this network namespace; raise NodeError if they cannot be read."""
    limits = re.match(r"\s*([0-9]{1,5})\s+([0-9]{1,5})\s*\Z", _read(RANGE))
    reserved = _read(RESERVED).strip()
    parts = [re.match(_RESERVED + r"\Z", part) for part in reserved.split(",")] if reserved else []
    if limits is None or None in parts:
        raise NodeError("cannot read %s: unknown format" % (RANGE if limits is None else RESERVED))
    pairs = ((int(one[1]), int(one[2] or one[1])) for one in parts if one is not None)
    return LocalPorts(int(limits[1]), int(limits[2]), intervals.of(pairs))


def _read(path: str) -> str:
    with files.failing_to("read", path), files.open_regular(path) as handle:
        return os.read(handle.fileno(), _LONGEST).decode("ascii", "replace")
