# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``to_ports: auto``: local ports of the node that are neither NodePorts nor reserved.

A rule takes one range, so the largest contiguous one counts. It follows from settings of the node alone: it is the same
in each run until one of them changes.
"""

from __future__ import annotations

import typing as t

from .._errors import ConfigError, NodeError
from .._policy.policy import Config, file_key
from .._policy.values import AUTO_PORTS, PortRange
from .._system import intervals
from .._system.local_ports import LocalPorts, read_local_ports

#: Ports below which a range is refused: so many connections to one destination and port are possible.
LEAST = 1024


def largest_range(local: LocalPorts, node_ports: PortRange) -> t.Optional[PortRange]:
    """Return the largest range of local ports without reserved ports and NodePorts; None if there is none.

    Of several, the first.

    :param node_ports: of Services.
    """
    taken = intervals.of([*local.reserved, node_ports])
    free = [PortRange(*span) for span in intervals.difference(intervals.of([(local.first, local.last)]), taken)]
    return max(free, key=lambda ports: ports.size, default=None)


def with_auto_ports(config: Config, label: t.Callable[[str], str] = str) -> Config:
    """Return a policy with the range of this node in place of ``to_ports: auto``.

    :param label: turns an option name into what the operator wrote.
    :raises ConfigError: with the settings and the remedy. NodeError: the settings cannot be read.
    """
    if config.to_ports != AUTO_PORTS:
        return config
    option = label("to_ports")
    try:
        local = read_local_ports()
    except NodeError as exc:
        raise NodeError("%s: auto: %s" % (option, exc)) from None
    ports = largest_range(local, config.node_port_range)
    size = 0 if ports is None else ports.size
    if ports is None or size < LEAST:
        reserved = ",".join(str(PortRange(*span)) for span in local.reserved) or "empty"
        raise ConfigError(
            "%s: auto: the largest free range has %d ports, and %d are needed: net.ipv4.ip_local_port_range is %d-%d, "
            "net.ipv4.ip_local_reserved_ports is %s, %s is %s: widen net.ipv4.ip_local_port_range, or set port ranges "
            "in %s"
            % (option, size, LEAST, *local[:2], reserved, label("node_port_range"), config.node_port_range, option)
        )
    return config._replace(to_ports=(ports,))


def or_any_ports(config: Config) -> t.Tuple[Config, t.Tuple[str, ...]]:
    """Return the same for an active policy. With an error, which is returned, the kernel chooses: rules come first."""
    try:
        return with_auto_ports(config, file_key), ()
    except (ConfigError, NodeError) as exc:
        return config._replace(to_ports=()), ("%s; the kernel chooses source ports until then" % exc,)
