# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What our chain does with traffic to a destination, and which rule decides.

Only our chain is evaluated. What other rules of POSTROUTING do to the same traffic is not claimed; notes name them.
"""

from __future__ import annotations

import ipaddress
import typing as t

from .._engine.backend import View
from .._engine.detect import Node
from .._engine.other_actors import find_other_actors
from .._engine.ruleset import Address, Exempt, Masquerade, applies, service_number
from .._errors import NodeError
from .._system.ip_families import IPV4, IPV6
from .effective_policy import require_policy
from .memory import read_memory
from .paths import Paths
from .sync import dry_run


def decision_lines(
    node: Node, where: Paths, to: str, sender: t.Optional[str], protocol: str = "tcp", port: int = 80
) -> t.Iterator[str]:
    """The answer, a line each.

    :param to: the address of the destination.
    :param sender: the address of the pod, where one is given.
    :param protocol: as in a question to the twin. :param port: of the destination.

    :raises ConfigError: there is no valid configuration.
    :raises NodeError: the rules cannot be read.
    """
    destination = ipaddress.ip_address(to)
    remembered = read_memory(where)
    policy, config = require_policy(where, remembered)
    family = IPV4 if destination.version == 4 else IPV6
    if family == IPV6 and not config.enable_ipv6:
        yield "%s: IPv6 is not managed (enableIPv6 is off), so there is no chain of ours" % destination
        return
    result = dry_run(node, where, config, remembered)
    change = next((change for change in result.managed if change.family == family), None)
    if change is None:
        raise NodeError("; ".join(result.errors) or "no managed rules for %s" % family)
    route = _route(node, destination)
    yield from _decision(destination, sender, route, change.plan.found, service_number(protocol, port, family))
    if result.changed:
        yield "note: active rules differ from the configuration; see ip-masq-agent status"
    if route:
        yield "route: " + route
    for remark in list(result.remarks) + find_other_actors(node, [family]):
        yield "note: " + remark
    if policy.problem:
        yield "note: the configuration is broken, the last valid one stays in force: " + policy.problem


def _decision(
    destination: Address, sender: t.Optional[str], route: str, found: View, service: t.Optional[int] = None
) -> t.Iterator[str]:
    """What the active rules of our chain do with a connection, and the rule that decides."""
    who = sender or "the pod"
    source = None if sender is None else ipaddress.ip_address(sender)
    words = route.split()
    interface = words[words.index("dev") + 1] if "dev" in words[:-1] else None
    if found.ruleset is None:
        yield "%s: managed rules are missing or modified; run ip-masq-agent sync" % destination
        return
    rules = found.ruleset.rules
    deciding = next(
        (
            number
            for number, rule in enumerate(rules)
            if applies(rule, destination, source, interface, service) and getattr(rule, "protocol", None) is None
        ),
        None,
    )
    rule = None if deciding is None else rules[deciding]
    if isinstance(rule, Masquerade) and rule.address is not None:
        yield "%s: our chain gives connections of %s the address %s" % (destination, who, rule.address)
    elif isinstance(rule, Exempt):
        yield "%s is in the exempt range %s: our chain exempts connections of %s" % (destination, rule.network, who)
    elif isinstance(rule, Masquerade):
        where = "in no exempt range" if rule.network is None else "in the masqueraded range %s" % rule.network
        yield "%s is %s: our chain masquerades connections of %s" % (destination, where, who)
    else:
        by = " by %s" % interface if interface else ""
        yield "%s%s: our chain is not about connections of %s, and leaves them to later rules" % (destination, by, who)
    if deciding is not None and len(found.rules) == len(rules):
        yield "rule %d of %d: %s" % (deciding + 1, len(rules), found.rules[deciding])


def _route(node: Node, destination: Address) -> str:
    """The kernel's route to a destination (ip-route(8)); empty if iproute2 is not installed."""
    try:
        done = node.run(["ip", "-o", "route", "get", str(destination)])
    except NodeError:
        return ""
    words = done.stdout.replace("\\", " ").split()
    if words[:1] == ["local"]:
        return " ".join(words) + " (an address of this node: such traffic bypasses our chain)"
    return " ".join(words)
