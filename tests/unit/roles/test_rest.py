# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of the result of its one remote call: of the verification, and of what the kubelet needs."""

from __future__ import annotations

import json
import re
import sys
import typing as t

import pytest
from support.playbook_run import ansible_playbook

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: kubenode.ip_masq.ip_masq_agent
        tasks_from: rest
      vars:
        ip_masq_agent__manage_kubelet: false
- hosts: ip_masq_agent_kubelet_to_update
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: updated later
"""
#: what the module returns, what is said of it, whether the role fails where that was asked for
ENDINGS: t.Dict[str, t.Tuple[t.Optional[int], str, bool]] = {
    "declared": (0, "", False),
    "differs": (5, "31 questions, not all", True),
    "no_copy": (1, "not verified: no namespaces", False),
    "broken": (1, "not verified: exit status 1: it broke", False),
    "killed": (-9, "not verified: exit status -9: ", True),
    "missing": (None, "not verified: cannot run", True),
}
#: what the module returns about the kubelet, what is said of it
KUBELETS: t.Dict[str, t.Tuple[t.Dict[str, t.Any], str]] = {
    "nothing": ({"actions": [], "failure": ""}, ""),
    "refused": (
        {"actions": [], "failure": "not supported"},
        "not supported",
    ),
    "later": ({"actions": ["edited /etc/default/kubelet"], "failure": ""}, "updated later"),
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of one run: a host for each ending and each of two values of the variable, and for each kind of kubelet."""
    root = tmp_path_factory.mktemp("rest")
    hosts: t.Dict[str, t.Dict[str, t.Any]] = {}
    for name, (status, said, _fails) in ENDINGS.items():
        for wanted in ("warn", "fail"):
            applied = {"verification": {"exit_status": status, "summary": said}}
            hosts["%s_%s" % (name, wanted)] = {
                "ip_masq_agent__applied": applied,
                "ip_masq_agent_verify": wanted,
                "ip_masq_agent_kubelet": False,
            }
    for name, (kubelet, _said) in KUBELETS.items():
        hosts["kubelet_" + name] = {"ip_masq_agent__applied": {"kubelet": kubelet}}
    reached = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (root / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": reached}}))
    (root / "play.yml").write_text(PLAY)
    return ansible_playbook(root, "-i", "inventory.json", "play.yml").stdout


def messages(output: str, host: str) -> t.List[str]:
    """What was printed for a host."""
    return re.findall(r'(?m)^(?:ok|fatal): \[%s\].* => \{(?:\n +"changed": false,)?\s*"msg": "(.*)"' % host, output)


def failed(output: str, host: str) -> bool:
    """Whether the recap counts a host as failed."""
    (count,) = re.findall(r"(?m)^%s +: ok=.* failed=(\d) " % host, output)
    return count != "0"


@pytest.mark.parametrize("wanted", ["warn", "fail"])
@pytest.mark.parametrize("name", ENDINGS)
def test_only_what_was_asked_to_fail_fails(output: str, name: str, wanted: str) -> None:
    _status, said, fails = ENDINGS[name]
    host = "%s_%s" % (name, wanted)
    assert failed(output, host) == (wanted == "fail" and fails), output
    assert messages(output, host) == ([said] if said else []), output


@pytest.mark.parametrize("name", KUBELETS)
def test_a_kubelet_is_left_alone_or_fails_or_is_updated_later(output: str, name: str) -> None:
    kubelet, said = KUBELETS[name]
    assert failed(output, "kubelet_" + name) == bool(kubelet["failure"]), output
    assert said in "".join(re.findall(r"(?m)^(?:ok|fatal): \[kubelet_%s\].*(?:\n.*)?" % name, output)), output
