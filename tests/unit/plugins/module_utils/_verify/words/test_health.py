# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings about a node beside its rules: services that flush rules, and other agents."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.words import health

#: firewalld of Debian 12, and what of it differs in Debian 13.
FIREWALLD = "usr/lib/python3/dist-packages/firewall/core/fw.py"
FLUSHES = "        for backend in self.%s_backends():\n            rules = backend.build_flush_rules()\n"


def _run(state: str) -> t.Any:
    return lambda argv, **_options: Outcome(0 if state == "enabled" else 1, state + "\n", "")


@pytest.mark.parametrize(
    ("path", "text", "state", "unit"),
    [
        ("etc/nftables.conf", "#!/usr/sbin/nft -f\n\nflush ruleset\n", "enabled", "nftables.service"),
        ("etc/nftables.conf", "  flush  ruleset", "enabled", "nftables.service"),
        ("etc/nftables.conf", "# flush ruleset\nflush table inet mine\n", "enabled", None),
        ("etc/nftables.conf", "flush ruleset\n", "disabled", None),
        ("etc/iptables/rules.v4", "*filter\nCOMMIT\n*nat\nCOMMIT\n", "enabled", "netfilter-persistent.service"),
        ("etc/iptables/rules.v4", "*filter\nCOMMIT\n", "enabled", None),
        ("etc/sysconfig/iptables", "*nat\nCOMMIT\n", "enabled", "iptables.service"),
        ("etc/firewalld/firewalld.conf", "FirewallBackend=iptables\n", "enabled", "firewalld.service"),
        ("etc/firewalld/firewalld.conf", "#FirewallBackend=iptables\nFirewallBackend=nftables\n", "enabled", None),
        ("etc/sysconfig/nftables.conf", "flush ruleset\n", "enabled", "nftables.service"),
        (FIREWALLD, FLUSHES % "all", "enabled", "firewalld.service"),
        (FIREWALLD, FLUSHES % "enabled", "enabled", None),
        ("etc/default/ufw", "MANAGE_BUILTINS=yes\n", "enabled", "ufw.service"),
        ("etc/default/ufw", "MANAGE_BUILTINS=no\n", "enabled", None),
        ("etc/ufw/before.rules", "*nat\n:POSTROUTING ACCEPT [0:0]\n-F\nCOMMIT\n", "enabled", "ufw.service"),
        ("etc/ufw/before6.rules", "*nat\n-F POSTROUTING\nCOMMIT\n", "enabled", "ufw.service"),
        ("etc/ufw/before.rules", "*nat\n-A POSTROUTING -j ACCEPT\nCOMMIT\n*filter\n-F\nCOMMIT\n", "enabled", None),
        ("etc/unrelated", "", "enabled", None),
    ],
)
def test_services_that_flush(tmp_path: Path, path: str, text: str, state: str, unit: t.Optional[str]) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    found = list(health.boot_flushers(_run(state), str(tmp_path)))
    assert [one.text.split()[0] for one in found] == ([unit] if unit else [])
    assert all(one.code == "flushes_at_boot" and "/" + path in one.text and one.remedy for one in found)


def test_running_reference_agent(tmp_path: Path) -> None:
    for pid, words in (("7", b"/ip-masq-agent\0--v=2\0"), ("8", b"python3\0/usr/local/sbin/ip-masq-agent\0sync\0")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(words)
    (found,) = health.reference_agents(str(tmp_path))
    assert found.code == "other_agent" and "'/ip-masq-agent --v=2'" in found.text
