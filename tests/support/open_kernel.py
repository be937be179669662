# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A kernel with open connections, in place of what conntrack and the routes say."""

from __future__ import annotations

import ipaddress
import time
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import open_connections
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Flow
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.routes import LOCAL, UNICAST

#: An address of the node.
NODE = int(ipaddress.ip_address("198.51.100.1"))


class Kernel:
    """What is open, what the routes are, and what was removed."""

    def __init__(self, monkeypatch: t.Any, flows: t.Sequence[Flow], interface: str = "eth0") -> None:
        self.flows = list(flows)
        #: by source and destination
        self.interfaces: t.Dict[t.Tuple[int, int], str] = {}
        self.default: t.Optional[str] = interface
        self.removed: t.List[Flow] = []
        self.own = NODE
        self.clock = 0.0
        monkeypatch.setattr(conntrack, "read", self.read)
        monkeypatch.setattr(conntrack, "remove", self.remove)
        monkeypatch.setattr(open_connections, "Routes", lambda _version: self)
        monkeypatch.setattr(time, "monotonic", lambda: self.clock)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def read(self, _version: int) -> t.Iterator[Flow]:
        """Return each connection."""
        return iter(self.flows)

    def remove(self, _version: int, flows: t.Sequence[Flow]) -> int:
        """Remove connections."""
        self.removed += flows
        return len(flows)

    def kind(self, address: int) -> int:
        """Return the type of an address."""
        return LOCAL if address == NODE else UNICAST

    def preferred(self, _address: int) -> t.Optional[int]:
        """Return the source address that a route names."""
        return self.own

    def interface(self, source: int, destination: int) -> t.Optional[str]:
        """Return the link by which packets leave."""
        return self.interfaces.get((source, destination), self.default)
