# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module ip_masq_info does on a node: active rules, answers about packets, a verification, source ports."""

from __future__ import annotations

import typing as t

from .._agent import ports
from .._agent.effective_policy import choose_policy
from .._agent.paths import Paths
from .._errors import IpMasqError, NodeError
from .._kubelet.kubenet_rules import find_leftovers
from .._policy.policy import POLICY_OPTIONS
from .._policy.snat_and_rules import RULE_PROTOCOLS
from .._system import defaults_and_limits, process
from .._system.node import Node
from .._verify.inspection import ComparedPolicy, Request, inspect, request
from .._verify.words.health import WARNING, Health
from .rules_task import read_config
from .task_result import Done, Params

#: Without defaults: what is not given is not compared.
POLICY_SPEC: t.Dict[str, t.Dict[str, t.Any]] = {
    option.name: {key: value for key, value in option.argument.items() if key != "default"}
    for option in POLICY_OPTIONS
    if option.of_module
}

#: Options for the place of the rules, not for what they do.
_PLACES = {"masq_chain", "backend"}

ARGUMENT_SPEC: t.Dict[str, t.Dict[str, t.Any]] = dict(
    POLICY_SPEC,
    destinations={"type": "list", "elements": "str", "default": []},
    source={"type": "str"},
    protocol={"type": "str", "choices": list(RULE_PROTOCOLS), "default": defaults_and_limits.PROTOCOL},
    port={"type": "int", "default": defaults_and_limits.PORT},
    verify={"type": "bool", "default": False},
    max_questions={"type": "int", "default": defaults_and_limits.MAX_QUESTIONS},
    max_seconds={"type": "int", "default": defaults_and_limits.MAX_SECONDS},
    pod_cidrs={"type": "list", "elements": "str", "default": []},
    ports={"type": "bool", "default": False},
    config_file={"type": "path"},
    config_dir={"type": "path", "default": "/etc/ip-masq-agent"},
)


def kubenet_health(node: Node) -> t.Iterator[Health]:
    """Find rules that kubenet left. If they cannot be read, other findings say so."""
    try:
        leftovers = find_leftovers(node)
    except NodeError:
        return
    for rule in leftovers:
        yield Health(
            "kubenet_leftover",
            WARNING,
            "%s, %s: a rule that kubenet left: %s" % (rule.family, rule.variant, rule.line),
            "run the module kubelet_masquerade, or delete the rule",
        )


def carry_out(params: Params, check: bool) -> Done:
    """Inspect the node.

    :param params: a value for each option of ``ARGUMENT_SPEC``.
    :param check: makes no difference; nothing is changed.
    """
    given = {name: params[name] for name in POLICY_SPEC if params[name] is not None}
    try:
        wanted = request(**{name: params[name] for name in Request._fields})
        asked = read_config(params) if params["config_file"] or set(given) - _PLACES else None

        def policy() -> ComparedPolicy:
            return choose_policy(Paths(config_dir=params["config_dir"]), asked, given)

        node = Node(process.run)
        found = inspect(node, policy, wanted)
        del found["networks"]
        found["health"] += [one._asdict() for one in kubenet_health(node)]
        found["source_ports"] = ports.build_report(node, policy()) if params["ports"] else None
        if params["ports"]:
            uses, counted = found["source_ports"]["destinations"], found["source_ports"]["conntrack"]
            for code, words, remedy in ports.scarce(uses, counted):
                found["health"].append(Health(code, WARNING, words, remedy)._asdict())
    except IpMasqError as exc:
        return Done({}, failure=str(exc))
    return Done(dict(found, changed=False))
