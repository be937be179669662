# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files from which rules of ours come back. Those that programs write: tests/kernel/test_playbooks.py."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import rule_comments, saved_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import files

CHAIN = "IP-MASQ-AGENT"
CHAIN_FOUND = "chain IP-MASQ-AGENT"
TABLE_FOUND = "table ip_masq_agent"
JUMP = '-A POSTROUTING -m comment --comment "%s" -m addrtype ! --dst-type LOCAL -j MINE'

#: A line, and what it is about.
LINES = {
    ":IP-MASQ-AGENT - [0:0]": CHAIN_FOUND,
    ":KUBE-POSTROUTING - [0:0]": "",
    "-A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN": CHAIN_FOUND,
    "[7:420] -A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN": CHAIN_FOUND,
    "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT": CHAIN_FOUND,
    "-I POSTROUTING 1 -g IP-MASQ-AGENT": CHAIN_FOUND,
    "iptables -t nat --append POSTROUTING --jump IP-MASQ-AGENT": CHAIN_FOUND,
    # Others whose name begins or ends in the same way, what takes ours away, and what is no rule.
    "-A POSTROUTING -j IP-MASQ-AGENT-2": "",
    "-A POSTROUTING -j MY-IP-MASQ-AGENT": "",
    "-A KUBE-SERVICES -m comment --comment IP-MASQ-AGENT -j ACCEPT": "",
    "-D POSTROUTING -j IP-MASQ-AGENT": "",
    "# -A POSTROUTING -j IP-MASQ-AGENT": "",
    "delete table ip ip_masq_agent": "",
    "destroy table ip6 ip_masq_agent": "",
    # Whatever the chain is called; an agent of another maker has another comment.
    JUMP % rule_comments.JUMP: "chain MINE",
    JUMP % rule_comments.LEAK_JUMP: "chain MINE",
    JUMP % "ip-masq-agent: ensure nat POSTROUTING directs all non-LOCAL destination traffic to MINE": "",
    # nft
    "table ip ip_masq_agent {": TABLE_FOUND,
    "add table ip6 ip_masq_agent": TABLE_FOUND,
    "table ip ip_masq_agent_2 {": "",
    "table inet ip_masq_agent {": "",
    "\tchain IP-MASQ-AGENT {": CHAIN_FOUND,
    "\t\tfib daddr type != local counter packets 0 bytes 0 jump IP-MASQ-AGENT": CHAIN_FOUND,
    "add rule ip nat IP-MASQ-AGENT ip daddr 10.0.0.0/8 return": CHAIN_FOUND,
    '\t\tjump MINE comment "%s"' % rule_comments.JUMP: "chain MINE",
}


def write(root: Path, contents: t.Mapping[str, str]) -> None:
    """Write files below a directory."""
    for path, content in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


@pytest.mark.parametrize("line", LINES)
def test_what_a_line_is_about(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"etc/iptables/rules.v4": "*nat\n%s\nCOMMIT\n" % line})
    found = saved_rules.notes([CHAIN], str(tmp_path))
    expected = "/etc/iptables/rules.v4 has the %s (line 2): when netfilter-persistent " % LINES[line]
    assert [note.startswith(expected) for note in found] == [True] * bool(LINES[line]), found


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "etc/iptables"
    folder.mkdir(parents=True)
    os.mkfifo(str(folder / "rules.v4"))
    (folder / "rules.v6").mkdir()
    (folder / "rules-save").symlink_to(tmp_path / "gone")
    (tmp_path / "etc/nftables.conf").symlink_to("/dev/null")
    write(tmp_path, {"etc/ufw": "a file"})
    assert saved_rules.notes([CHAIN], str(tmp_path)) == ()


def test_what_cannot_be_read_is_said_beside_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_rules, "_BYTES", 1 << 20)
    write(tmp_path, {"etc/iptables/rules.v4": ":IP-MASQ-AGENT - [0:0]\n" + "\0" * (1 << 20)})
    found = saved_rules.notes([CHAIN], str(tmp_path))
    assert [note.split(": ")[0] for note in found] == [
        "/etc/iptables/rules.v4 has the chain IP-MASQ-AGENT (line 1)",
        "/etc/iptables/rules.v4 was not searched for rules of the agent",
    ]

    def refuse(path: str) -> t.BinaryIO:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(files, "open_regular", refuse)
    assert saved_rules.notes([CHAIN], str(tmp_path)) == (
        "/etc/iptables/rules.v4 was not searched for rules of the agent: Permission denied",
    )


def test_files_that_include_each_other_without_end_are_left(tmp_path: Path) -> None:
    write(tmp_path, {"etc/nftables.conf": 'include "/etc/nftables.d/*"\n'})
    write(
        tmp_path, {"etc/nftables.d/%d" % n: 'include "/etc/nftables.d/*"\ntable ip ip_masq_agent\n' for n in range(99)}
    )
    assert 50 < len(saved_rules.notes([], str(tmp_path))) < 70
