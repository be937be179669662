# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
short_description: Summarize the IP masquerading of a fleet of nodes
version_added: 0.1.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Summarizes what M(kubenode.ip_masq.ip_masq_agent_info) returned on many nodes. The playbook
    C(kubenode.ip_masq.status) prints it.
positional: hostvars
options:
  _input:
    description: Names of hosts. Those that were not queried are left out.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars), in which each host has its result as C(ip_masq_agent__asked).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Query the node
  kubenode.ip_masq.ip_masq_agent_info:
  register: ip_masq_agent__asked

- name: Show the summary
  ansible.builtin.debug:
    msg: "{{ (ansible_play_hosts_all | kubenode.ip_masq.fleet(hostvars)).lines }}"
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(lines) are what the nodes have in common, a line for each node that is not as declared, and one with the counts.
    - C(off) are the names of the nodes that are not as declared.
  type: dict
"""

import re
import typing as t

from ..module_utils._policy.policy import POLICY_OPTIONS
from ..plugin_utils.names import some_of
from ..plugin_utils.role_variables import PREFIX

#: Where the playbook keeps what a node answered.
ASKED = PREFIX + "_asked"

_APPLY = "run kubenode.ip_masq.apply"
_VARIABLES = {key.key: PREFIX + key.name for key in POLICY_OPTIONS}

#: Good states; every other one is off.
_GOOD = ("in sync", "absent")
#: Different notes that are shown.
_NOTES = 5


class _Node(t.NamedTuple):
    """What is known of one node: its state in a word or two, why, and what its agent reports."""

    state: str
    why: str
    report: t.Mapping[str, t.Any] = {}


def fleet(hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Any]) -> t.Dict[str, t.List[str]]:
    """See above."""
    views = {host: hostvars[host] for host in hosts if host in hostvars}
    nodes = {host: _judge(view[ASKED], view.get(PREFIX + "state")) for host, view in views.items() if ASKED in view}
    off = [host for host, node in nodes.items() if node.state not in _GOOD]
    lines = list(_in_common(nodes)) + ["%s: %s: %s" % (host, nodes[host].state, nodes[host].why) for host in off]
    return {"lines": [*lines, _count(nodes)], "off": off}


def _judge(asked: t.Mapping[str, t.Any], wanted: t.Optional[str]) -> _Node:
    """The state of a node is the first thing that is wrong with it; the reasons are all of them."""
    report = asked.get("report") or {}
    if wanted == "absent" and not asked.get("installed", True):
        return _Node("absent", "")
    found = list(_findings(asked, report, wanted))
    if not found:
        return _Node("in sync", "", report)
    # The state is said once, whatever else is wrong is named.
    state, why = found[0]
    return _Node(state, "; ".join([why] + ["%s: %s" % more for more in found[1:]]), report)


def _findings(
    asked: t.Mapping[str, t.Any], report: t.Mapping[str, t.Any], wanted: t.Optional[str]
) -> t.Iterator[t.Tuple[str, str]]:
    """What is wrong with a node: a state and the reason, worst first."""
    if asked.get("unreachable"):
        yield "unreachable", _line(asked.get("msg", ""))
        return
    if "installed" not in asked:
        yield "not checked", _line(asked.get("msg", "the module returned nothing"))
        return
    if not asked["installed"]:
        yield "not installed", _APPLY
        return
    if wanted == "absent":
        yield "not removed", "%sstate is absent; %s" % (PREFIX, _APPLY)
        return
    if asked["problems"]:
        yield "no report", _line("; ".join(asked["problems"]))
    if report:
        if report["config"]["problem"]:
            yield "broken config", "%s; the last valid configuration stays in force" % report["config"]["problem"]
        if report["errors"]:
            yield "failing", _first(report["errors"])
        elif not report["in_sync"]:
            yield "drifted", "pending changes: " + _first([_action(action) for action in report["differs"]])
        # Of a broken config and of errors now, these would say the same again.
        if not report["config"]["problem"] and not report["errors"]:
            if report["failing"]:
                yield "failing", "last resync: " + _first((report["last_error"] or {}).get("lines") or ["no message"])
            elif asked["service_failure"]:
                yield "failing", "ip-masq-agent.service: %s; %s" % (asked["service_failure"], _APPLY)
    if asked.get("differs") and not report.get("config", {}).get("problem"):
        names = [_VARIABLES.get(key, key) for key in asked["differs"]]
        yield "policy differs from inventory", "%s; %s" % (", ".join(names), _APPLY)
    if asked["pending"]:
        yield "to be applied", _first(asked["pending"])


def _in_common(nodes: t.Mapping[str, _Node]) -> t.Iterator[str]:
    """What the nodes report beside their state: versions, backends, drop-ins, repairs, notes."""
    versions: t.Dict[str, t.List[str]] = {}
    backends: t.Dict[str, t.List[str]] = {}
    drop_ins: t.Dict[str, t.List[str]] = {}
    notes: t.Dict[str, t.List[str]] = {}
    repaired: t.List[t.Tuple[int, str]] = []
    for host, node in nodes.items():
        if not node.report:
            continue
        versions.setdefault(node.report["version"], []).append(host)
        backends.setdefault("%(name)s %(version)s" % node.report["backend"], []).append(host)
        for source in node.report["config"]["sources"]:
            if "/config.d/" in source:
                drop_ins.setdefault(source.rpartition("/")[2], []).append(host)
        for note in node.report["notes"]:
            notes.setdefault(note, []).append(host)
        if node.report["drift_repaired"]:
            repaired.append((node.report["drift_repaired"], host))
    if versions:
        yield "agent %s; %s" % (_spread(versions), _spread(backends))
    if drop_ins:
        yield "drop-ins: " + ", ".join("%s (%s)" % (name, some_of(hosts)) for name, hosts in sorted(drop_ins.items()))
    if repaired:
        most = sorted(repaired, key=lambda pair: -pair[0])
        yield "drift repaired: " + some_of(["%s (%d)" % (host, count) for count, host in most])
    for note, hosts in sorted(notes.items(), key=lambda pair: -len(pair[1]))[:_NOTES]:
        yield "note: %s (%s)" % (note, "all nodes" if len(hosts) == len(nodes) else some_of(hosts))
    if len(notes) > _NOTES:
        yield "%d more notes: see ip-masq-agent status on the nodes" % (len(notes) - _NOTES)


def _spread(found: t.Mapping[str, t.List[str]]) -> str:
    """What most nodes have, then what fewer have, with their names."""
    most, *fewer = sorted(found.items(), key=lambda pair: -len(pair[1]))
    return ", ".join([most[0]] + ["%s (%s)" % (what, some_of(hosts)) for what, hosts in fewer])


def _count(nodes: t.Mapping[str, _Node]) -> str:
    """How many nodes there are of each state, and the names of those that are off."""
    states: t.Dict[str, t.List[str]] = {}
    for host, node in nodes.items():
        states.setdefault(node.state, []).append(host)
    counts = ["%d %s" % (len(states[state]), state) for state in _GOOD if state in states]
    counts += [
        "%d %s (%s)" % (len(hosts), state, some_of(hosts))
        for state, hosts in sorted(states.items(), key=lambda pair: -len(pair[1]))
        if state not in _GOOD
    ]
    return "%d node%s: %s" % (len(nodes), "" if len(nodes) == 1 else "s", ", ".join(counts) or "none was queried")


def _action(action: t.Mapping[str, str]) -> str:
    """One thing that a sync would do, without the comment of the rule."""
    rule = re.sub(r' -m comment --comment (?:"[^"]*"|\S+)', "", action["rule"])
    return "%s, %s: %s: %s" % (action["family"], action["backend"], action["action"], rule)


def _first(lines: t.Sequence[str]) -> str:
    """The first of several lines, and how many more there are."""
    return _line(lines[0]) + (" (and %d more)" % (len(lines) - 1) if len(lines) > 1 else "")


def _line(text: t.Any) -> str:
    """Text on one line."""
    return " ".join(str(text).split())


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """The filters of this file."""
        return {"fleet": fleet}
