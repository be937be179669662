# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of the pages that are made of the code, and how words of pages are counted.

A table is between ``<!-- NAME: written by tools/tables -->`` (or another tool) and ``<!-- end -->``; without an end it
goes to the end of the page.
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import POLICY_OPTIONS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import conditions

from . import agent_metrics
from .import_collection import ROOT

_GENERATED = re.compile(
    r"(?s)<!-- (?P<name>[\w-]+): written by tools/(?P<tool>\w+) -->\n(?P<text>.*?)(?:<!-- end -->|\Z)"
)
#: Where an option has more than its row.
_SEE = {
    "snat": "[policies](policies.md#fixed-addresses)",
    "rules": "[policies](policies.md#single-protocols-and-ports)",
    "to_ports": "[policies](policies.md#source-ports)",
    "skip_marks": "[policies](policies.md#marks-of-other-programs)",
    "exemption": "[nftables](nftables.md#how-strongly-exempt-traffic-is-protected)",
    "jump_position": "[the jump](operations.md#the-place-of-the-jump)",
    "flush_conntrack": "[open connections](operations.md#open-connections)",
    "leaks": "[leaks](leaks.md)",
    "bin_dir": "[packages](releases.md#without-ansible-tarball-deb-rpm)",
    "port_metrics": "[source ports](operations.md#source-ports)",
    "metrics_dir": "[metrics](operations.md#logs-metrics-alerts)",
    "verify": "[verification](verification.md)",
    "kubelet": "[kubelet](kubelet.md)",
}
#: Defaults that the role computes.
_COMPUTED = {
    "non_masquerade_cidrs": "RFC 1918",
    "source_cidrs": "all",
    "out_interfaces": "all",
    "python": "`/usr/bin/python3`",
    "packages": "iptables or nftables",
}
_PREFIX = "ip_masq_agent_"


def by_hand(page: Path) -> str:
    """Return the text of a page without its generated tables, and without the addresses of links at its end."""
    return re.sub(r"(?m)^\[[^]]+\]: \S+$", "", _GENERATED.sub("", page.read_text(encoding="utf-8")))


def written(page: Path) -> str:
    """Return the text of a page with the tables of ``tools/tables`` as they have to be."""

    def table(found: t.Match[str]) -> str:
        if found["tool"] != "tables":
            return found.group()
        whole = found.group()
        start = found.start("text") - found.start()
        return whole[:start] + TABLES[found["name"]]() + whole[start + len(found["text"]) :]

    return _GENERATED.sub(table, page.read_text(encoding="utf-8"))


def _markdown(text: str) -> str:
    """Return a description of Ansible as Markdown; names of variables without the prefix."""
    text = re.sub(r"O\([\w.]+\.(\w+)#module:(\w+)\)", r"`ansible-doc kubenode.ip_masq.\1`", text)
    return re.sub(r"\b[VCMO]\(((?:%s)?)([^)]*)\)" % _PREFIX, r"`\2`", text).replace("|", "\\|")


def _variables() -> t.Dict[str, t.Dict[str, t.Any]]:
    spec = yaml.safe_load((ROOT / "roles/ip_masq_agent/meta/argument_specs.yml").read_text(encoding="utf-8"))
    options = spec["argument_specs"]["main"]["options"]
    return {name[len(_PREFIX) :]: option for name, option in options.items()}


def _cells(name: str, option: t.Dict[str, t.Any]) -> t.Tuple[str, str]:
    """Return default and description of a variable of the role."""
    default = option.get("default")
    if isinstance(default, bool):
        default = str(default).lower()
    shown = _COMPUTED.get(name) or ("none" if default in (None, []) else "`%s`" % default)
    told = option["description"]
    text = _markdown(" ".join(told) if isinstance(told, list) else told)
    return shown, text + (" More: %s" % _SEE[name] if name in _SEE else "")


def _policy() -> str:
    variables = _variables()
    lines = ["| role: `ip_masq_agent_...`, module: `...`, config file: `...` | default | meaning |", "|---|---|---|"]
    for option in POLICY_OPTIONS:
        only = "" if option.of_module else " (role only)"
        cells = _cells(option.name, variables[option.name])
        key = ", `%s`" % option.key if option.key != option.name else ""
        lines.append("| `%s`%s%s | %s | %s |" % (option.name, only, key, *cells))
    return "\n".join(lines) + "\n"


def _role() -> str:
    policy = {option.name for option in POLICY_OPTIONS}
    lines = ["| `ip_masq_agent_...` | default | meaning |", "|---|---|---|"]
    for name, option in _variables().items():
        if name not in policy and not name.startswith("kubelet_"):
            lines.append("| `%s` | %s | %s |" % (name, *_cells(name, option)))
    return "\n".join(lines) + "\n"


def _metrics() -> str:
    lines = ["| metric | meaning |", "|---|---|"]
    for name, title in re.findall(r"(?m)^# HELP (\w+) (.*)$", agent_metrics.TEXT):
        labels = re.search(r"(?m)^%s\{(.*)\}" % name, agent_metrics.TEXT)
        shown = "{%s}" % ",".join(re.findall(r'(\w+)="', labels.group(1))) if labels else ""
        lines.append("| `%s%s` | %s |" % (name, shown, title.rstrip(".")))
    return "\n".join(lines) + "\n"


def _alerts() -> str:
    groups = yaml.safe_load((ROOT / "docs/monitoring/ip-masq-agent.rules.yml").read_text(encoding="utf-8"))["groups"]
    lines = ["| alert | severity | meaning |", "|---|---|---|"]
    for rule in (rule for group in groups for rule in group["rules"]):
        text = rule["annotations"]["summary"].partition("{{ $labels.instance }}: ")[2]
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", re.sub(r"\{\{ \$value.*?\}\}", "...", text))
        lines.append("| `%s` | %s | %s |" % (rule["alert"], rule["labels"]["severity"], text))
    return "\n".join(lines) + "\n"


def _conditions() -> str:
    """Return what ``verify`` makes of each condition."""
    lines = []
    for area in conditions.AREAS.values():
        lines += [
            "",
            "## %s" % area.title,
            "",
            "From %s." % area.source,
            "",
            "| condition | result | text |",
            "|---|---|---|",
        ]
        for row in area.rows:
            lines.append("| %s | %s | %s |" % (", ".join("`%s`" % name for name in row.names), row.result, row.text))
    return "\n".join(lines) + "\n"


#: The tables of tools/tables, by name.
TABLES: t.Dict[str, t.Callable[[], str]] = {
    "policy": _policy,
    "role": _role,
    "metrics": _metrics,
    "alerts": _alerts,
    "conditions": _conditions,
}
