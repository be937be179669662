# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role makes of the result of its one remote call: of the verification, and of what the kubelet needs."""

from __future__ import annotations

import json
import re
import shutil
import sys
import typing as t

import pytest
from support.import_collection import location
from support.playbook_run import ansible_playbook

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: kubenode.ip_masq.ip_masq_agent
        tasks_from: after_apply
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
    "matches": (0, "", False),
    "differs": (5, "31 kinds of packets, not all", True),
    "no_copy": (6, "not verified: no namespaces", False),
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
        for wanted in ("warn", "fail", "before"):
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


@pytest.mark.parametrize("wanted", ["warn", "fail", "before"])
@pytest.mark.parametrize("name", ENDINGS)
def test_only_what_was_asked_to_fail_fails(output: str, name: str, wanted: str) -> None:
    _status, said, fails = ENDINGS[name]
    host = "%s_%s" % (name, wanted)
    assert failed(output, host) == (wanted != "warn" and fails), output
    assert messages(output, host) == ([said] if said else []), output


@pytest.mark.parametrize("name", KUBELETS)
def test_a_kubelet_is_left_alone_or_fails_or_is_updated_later(output: str, name: str) -> None:
    kubelet, said = KUBELETS[name]
    assert failed(output, "kubelet_" + name) == bool(kubelet["failure"]), output
    assert said in "".join(re.findall(r"(?m)^(?:ok|fatal): \[kubelet_%s\].*(?:\n.*)?" % name, output)), output


#: Whether the kubelet was changed, what the verification says after that (none: it is not done again), and whether the
#: role, which was asked to fail, fails.
UPDATES: t.Dict[str, t.Tuple[bool, t.Optional[int], bool]] = {
    "repaired": (True, 0, False),
    "still": (True, 5, True),
    "unchanged": (False, None, True),
}
#: Takes the place of a module: returns what one of its options says.
MODULE = """
from ansible.module_utils.basic import AnsibleModule

def main():
    told = {"kubelet_masquerade": "unit", "ip_masq_agent": "python"}["%s"]
    module = AnsibleModule(argument_spec={told: {"type": "json"}, **{name: {"type": "raw"} for name in OTHERS}})
    module.exit_json(**module.from_json(module.params[told]))

OTHERS = "policy binary args_file args_variable restart healthz_url healthz_timeout probe_timeout".split()
OTHERS += "state config applied_by enabled config_dir bin_dir metrics_dir lock_timeout verify kubelet".split()
OTHERS += ["verify_before", "connection_log"]

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As ``output``, of nodes that are not in order before their kubelet is updated."""
    root = tmp_path_factory.mktemp("updates")
    here = root / "ansible_collections/kubenode/ip_masq"
    shutil.copytree(location(), here)
    for path in (here / "plugins/action").glob("*.py"):
        path.unlink()
    for name in ("kubelet_masquerade", "ip_masq_agent"):
        (here / "plugins/modules" / (name + ".py")).write_text(MODULE % name)
    hosts = {}
    for name, (changed, after, _fails) in UPDATES.items():
        hosts[name] = {
            "ip_masq_agent__applied": {
                "verification": {"exit_status": 5, "summary": "before"},
                "kubelet": {"actions": ["kubenet's rule deleted"], "failure": ""},
            },
            "ip_masq_agent__manage_kubelet": True,
            "ip_masq_agent_verify": "fail",
            # The stand-ins are told by an option of theirs that is passed on as it is.
            "ip_masq_agent_kubelet_unit": json.dumps({"changed": changed}),
            "ip_masq_agent_python": json.dumps({"verification": {"exit_status": after, "summary": "after"}}),
        }
    reached = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (root / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": reached}}))
    (root / "play.yml").write_text(PLAY.replace("ip_masq_agent__manage_kubelet: false", "{}"))
    return ansible_playbook(root, "-i", "inventory.json", "play.yml", ANSIBLE_COLLECTIONS_PATH=str(root)).stdout


@pytest.mark.parametrize("name", UPDATES)
def test_what_counts_is_the_verification_after_the_update_of_the_kubelet(updated: str, name: str) -> None:
    _changed, after, fails = UPDATES[name]
    assert failed(updated, name) == fails, updated
    assert messages(updated, name) == ([] if after == 0 else ["after" if after else "before"]), updated
