# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sets of networks on the controller: what others do not cover, and what one list has twice.

netaddr is given nothing but what the grammar of the node has read, because its releases read the same text differently.
"""

from __future__ import annotations

import typing as t

from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import parse_networks, split_entries

try:
    import netaddr
except ImportError:
    netaddr = None

#: Why sets cannot be compared; empty if they can.
MISSING = "" if netaddr else "netaddr is not installed on the controller: pip install netaddr"


def _netaddr() -> t.Any:
    """Return netaddr.

    :raises ConfigError: it is missing.
    """
    if MISSING:
        raise ConfigError(MISSING)
    return netaddr


def read_networks(networks: t.Any) -> t.List[str]:
    """Read networks in CIDR notation, as the grammar of the node writes them.

    :param networks: a list, or text; text is split at commas, as an entry too.
    :raises ConfigError: it is no list, or an entry is no CIDR.
    """
    return [str(network) for network in parse_networks(split_entries(networks))]


def uncovered(networks: t.Any, covering: t.Any) -> t.List[str]:
    """Return the parts of networks that are in none of the others, merged and sorted.

    :raises ConfigError: an entry is no CIDR, or netaddr is missing.
    """
    ours, theirs = (_netaddr().IPSet(read_networks(one)) for one in (networks, covering))
    return [str(network) for network in (ours - theirs).iter_cidrs()]


def uncovered_entries(networks: t.Sequence[str], covering: t.Sequence[str]) -> t.Iterator[t.Tuple[str, t.List[str]]]:
    """Return each network that others do not cover, and the parts of it that they do not.

    :param networks: as ``read_networks`` returns them.
    :raises ConfigError: netaddr is missing.
    """
    sets = _netaddr().IPSet
    theirs = sets(covering)
    for network in networks:
        left = [str(part) for part in (sets([network]) - theirs).iter_cidrs()]
        if left:
            yield network, left


def said_twice(networks: t.Sequence[str]) -> t.Iterator[t.Tuple[t.List[str], str]]:
    """Find entries that one network would do for, and that network, which may be an entry too.

    :param networks: as ``read_networks`` returns them.
    :raises ConfigError: netaddr is missing.
    """
    parsed = [_netaddr().IPNetwork(network) for network in networks]
    for wide in _netaddr().cidr_merge(parsed):
        inside = [str(network) for network in parsed if network in wide]
        if len(inside) > 1:
            yield sorted(set(inside) - {str(wide)}, key=inside.index) or [str(wide)], str(wide)


def overlaps(networks: t.Sequence[str]) -> t.Iterator[t.Tuple[str, str]]:
    """Find each network that is in another one, and the widest that it is in.

    :param networks: as ``read_networks`` returns them.
    :raises ConfigError: netaddr is missing.
    """
    wide = None
    # In this order what is in a network comes behind it.
    for network in sorted(map(_netaddr().IPNetwork, networks)):
        if wide is not None and network in wide:
            yield str(network), str(wide)
        else:
            wide = network
