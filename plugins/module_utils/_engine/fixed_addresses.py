# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the fixed addresses of a policy are on the node: what leaves with any other one is never answered.

A policy that names such an address is refused when it is new. If an address goes away later, the option
``snat_missing`` says what is done.
"""

from __future__ import annotations

import typing as t

from .._errors import ConfigError, NodeError
from .._policy.policy import Config
from .._policy.snat_and_rules import address_ranges, addresses
from .._policy.values import MASQUERADE, AddressRange
from .._system.node_addresses import Address, node_addresses
from .._system.printable import first_of

#: By value of the option snat_missing, what an address is missing for.
_CONSEQUENCES = {
    "keep": "what it is about leaves with it nevertheless, and is not answered (snat_missing is keep)",
    "masquerade": "what it is about leaves with another address of the node until it is back",
    "drop": "new connections that it is about are dropped until it is back (snat_missing is drop)",
}

#: Addresses of the node that a message names.
_SHOWN = 8


def require_addresses(config: Config) -> None:
    """Refuse a policy with fixed addresses that are not on the node.

    :raises ConfigError: with the entry, the addresses of the node, and how to add one.
    """
    missing = _missing(config)
    for option, position, entry in address_ranges(config):
        gone = _first(entry, missing)
        if gone is not None:
            listed = first_of(node_addresses(), _SHOWN) or "none"
            raise ConfigError(
                "%s: entry %d: %s is not an address of this node, which has %s: add it (ip address add %s/%d dev "
                "INTERFACE), or correct the entry" % (option, position, gone, listed, gone, gone.max_prefixlen)
            )


def without_missing(config: Config) -> t.Tuple[Config, t.Tuple[Address, ...]]:
    """Return the policy for the addresses that the node has now, with notes, and the addresses that it lacks.

    With ``snat_missing: masquerade``, entries of ``snat`` whose address is missing are left out, and those of ``rules``
    masquerade. With ``snat_missing: drop`` they are marked.
    """
    missing = _missing(config)
    notes = tuple(
        "%s: entry %d: %s is not an address of this node: %s"
        % (option, position, _first(entry, missing), _CONSEQUENCES[config.snat_missing])
        for option, position, entry in address_ranges(config)
        if _first(entry, missing)
    )
    config = config._replace(notes=config.notes + notes)
    if not missing or config.snat_missing == "keep":
        return config, missing
    if config.snat_missing == "drop":
        marked = tuple(entry._replace(dropped=bool(_first(entry.address, missing))) for entry in config.snat)
        entries = tuple(rule._replace(dropped=bool(_first(rule.address, missing))) for rule in config.rules)
        return config._replace(snat=marked, rules=entries), missing
    rules = tuple(
        rule._replace(action=MASQUERADE, address=None) if _first(rule.address, missing) else rule
        for rule in config.rules
    )
    snat = tuple(entry for entry in config.snat if not _first(entry.address, missing))
    return config._replace(snat=snat, rules=rules), missing


def _missing(config: Config) -> t.Tuple[Address, ...]:
    """Return the addresses of a policy that the node lacks; none if the kernel does not answer: nothing is claimed."""
    wanted = addresses(config)
    try:
        known = node_addresses() if wanted else []
    except NodeError:
        return ()
    return tuple(one for one in wanted if one not in known)


def _first(entry: t.Optional[AddressRange], missing: t.Sequence[Address]) -> t.Optional[Address]:
    """Return the first address of an entry that the node lacks."""
    return next((address for address in entry.addresses() if address in missing), None) if entry else None
