# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ansible-playbook refuses before it reaches a node. The hosts of these inventories are not there."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from support.playbook_run import ansible_playbook

#: An attempt to reach one of the hosts is UNREACHABLE.
NOWHERE = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-o ConnectTimeout=1"}
HOSTS = ("n1", "n2", "n3", "n4")
NAMES = "ip_masq_agent_hosts=kube_node"
CIDRS = "ip_masq_agent_non_masquerade_cidrs"


class Inventory:
    """Four hosts in kube_node, an empty group, variables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: t.Dict[str, t.Dict[str, t.Any]] = {name: dict(NOWHERE) for name in HOSTS}
        self.group_vars: t.Dict[str, t.Any] = {}

    def play(self, playbook: str, *arguments: str) -> t.Tuple[int, str]:
        """Run ansible-playbook; exit status and output, which must show that no host was reached for.

        :param playbook: the name of one of the collection's, or the text of another.
        """
        text = {"kube_node": {"hosts": self.hosts, "vars": self.group_vars}, "calico_rr": {"hosts": {}}}
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(text))
        name = "kubenode.ip_masq." + playbook
        if "\n" in playbook:
            name = str(self.folder / "play.yml")
            Path(name).write_text(playbook)
        done = ansible_playbook(self.folder, "-i", "inventory.yml", name, *arguments)
        said = done.stdout + done.stderr
        assert "UNREACHABLE" not in said, said
        return done.returncode, said


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    """One in which nothing is wrong."""
    return Inventory(tmp_path)


@pytest.mark.parametrize(
    "playbook, arguments, message",
    [
        ("apply", ["-e", "ip_masq_agent_hosts=k8s_cluster"], "no host of the inventory matches 'k8s_cluster'. Groups"),
        ("status", ["-e", "ip_masq_agent_hosts=k8s_cluster", "--limit", "n1"], "Groups with hosts: kube_node"),
        (
            "remove",
            ["-e", "ip_masq_agent_hosts=n1:kube-node"],
            "no host of the inventory matches 'kube-node': the group kube_node has n[2-4]: write kube_node",
        ),
        ("remove", ["-e", "ip_masq_agent_hosts=calico_rr"], "no host of the inventory matches 'calico_rr'"),
        ("remove", ["-e", "ip_masq_agent_hosts=n1", "--limit", "n2"], "no host matches both 'n1' and --limit n2"),
        (
            "remove",
            ["-e", "ip_masq_agent_host=n1"],
            "ip_masq_agent_host is not a variable of kubenode.ip_masq; the nea",
        ),
        ("apply", [], "ip_masq_agent_hosts is not given: set a group or hosts on the command line"),
        ("status", [], "ip_masq_agent_hosts is not given"),
        ("remove", [], "ip_masq_agent_hosts is not given"),
    ],
)
def test_a_playbook_without_hosts_fails(
    inventory: Inventory, playbook: str, arguments: t.List[str], message: str
) -> None:
    status, said = inventory.play(playbook, *arguments)
    assert status != 0 and message in said and "PLAY [" not in said


@pytest.mark.parametrize("hosts", ["kube_node", "kube_node:!n1", "kube_node,k8s_cluster", ["n1", "n2"], "~n[23]"])
def test_any_pattern_of_ansible_will_do(inventory: Inventory, hosts: t.Any) -> None:
    status, said = inventory.play("apply", "-e", json.dumps({"ip_masq_agent_hosts": hosts}), "--list-hosts")
    # Plays that are about groups which an earlier play makes have no hosts yet.
    plays = [play for play in re.split(r"^  play #", said, flags=re.MULTILINE)[1:] if "pattern: []" not in play]
    assert status == 0 and len(plays) == 3 and "hosts (0)" not in "".join(plays)


@pytest.mark.parametrize("playbook", ["apply", "status", "remove"])
def test_nothing_is_demanded_where_nothing_is_run(inventory: Inventory, playbook: str) -> None:
    """A group that an earlier play makes, as kubespray makes k8s_cluster, is not there then."""
    assert inventory.play(playbook, "--syntax-check")[0] == 0
    assert inventory.play(playbook, "--list-tasks", "-e", "ip_masq_agent_hosts=k8s_cluster")[0] == 0


@pytest.mark.parametrize("playbook", ["apply", "status", "remove"])
def test_an_unknown_variable_is_refused_once(inventory: Inventory, playbook: str) -> None:
    inventory.group_vars["ip_masq_agent_non_masqerade_cidrs"] = ["10.0.0.0/8"]
    status, said = inventory.play(playbook, "-e", NAMES)
    assert status == 2 and said.count("fatal: ") == 1
    assert "the nearest is ip_masq_agent_non_masquerade_cidrs" in said
    assert "(n1" not in said, "all of them have it"


#: Shows the config file that follows from the variables of each host.
CONFIG = """
- hosts: kube_node
  gather_facts: false
  tasks:
    - debug:
        msg: "{{ lookup('kubenode.ip_masq.config').nonMasqueradeCIDRs | to_json }}"
"""


def write_vaulted(inventory: Inventory, text: str) -> t.Tuple[str, str]:
    """Have all hosts take their ranges from a vault, one of a list for the first host; the option with the password."""
    (inventory.folder / "password").write_text("secret\n")
    for folder, name, before in (("group_vars", "kube_node", ""), ("host_vars", "n1", "- 10.9.0.0/16\n  - ")):
        vault = VaultLib([("default", VaultSecret(b"secret"))]).encrypt(text).decode("ascii")
        lines = "%s:%s!vault |\n" % (CIDRS, "\n  " + before if before else " ")
        lines += "".join("          %s\n" % line for line in vault.splitlines())
        (inventory.folder / folder).mkdir(exist_ok=True)
        (inventory.folder / folder / (name + ".yml")).write_text(lines)
    return "--vault-password-file", str(inventory.folder / "password")


def test_ranges_from_a_vault_are_read_as_others(inventory: Inventory) -> None:
    option = write_vaulted(inventory, "10.0.0.0/8,100.64.0.0/10")
    status, said = inventory.play(CONFIG, *option)
    shown = [json.loads(json.loads(text)) for text in re.findall(r'"msg": (".*")', said)]
    assert status == 0 and shown.count(["10.0.0.0/8", "100.64.0.0/10"]) == 3, said
    # ansible-core 2.22 shows no plain text of a vault that is one of a list.
    (mixed,) = (one for one in shown if one[0] == "10.9.0.0/16")
    assert mixed[1] in ("10.0.0.0/8,100.64.0.0/10", "$REDACTED$")
    option = write_vaulted(inventory, "10.0.0.1/8,100.64.0.0/10")
    status, said = inventory.play("apply", "-e", NAMES, *option)
    assert status == 2 and CIDRS + ": '10.0.0.1/8' has host bits set" in said, said


def test_a_missing_password_of_a_vault_is_one_line_with_the_variable(inventory: Inventory) -> None:
    write_vaulted(inventory, "10.0.0.0/8")
    (inventory.folder / "group_vars/kube_node.yml").unlink()
    status, said = inventory.play("apply", "-e", NAMES)
    (line,) = re.findall(r'(?m)^ +"(ip_masq_.*)"$', said)
    assert status == 2 and re.fullmatch(CIDRS + r": .*no vault secrets found\.? \(n1\)", line), said


@pytest.mark.parametrize("playbook", ["apply", "status"])
def test_a_policy_that_one_host_refuses_is_refused_once_for_all(inventory: Inventory, playbook: str) -> None:
    inventory.group_vars.update(
        kube_pods_subnets="10.233.64.0/18,10.234.0.0/16",
        ip_masq_agent_non_masquerade_cidrs=["{{ kube_pods_subnets }}", "{{ site | default('10.0.0.0/8') }}"],
        ip_masq_agent_python="{{ other_python | default(omit) }}",
    )
    inventory.hosts["n2"]["site"] = inventory.hosts["n4"]["site"] = "10.0.0.1/8"
    inventory.hosts["n3"]["ip_masq_agent_non_masquerade_cidrs"] = "{{ nowhere_defined }}"
    status, said = inventory.play(playbook, "-e", NAMES, "-e", "ip_masq_agent_serial=1")
    assert status == 2 and said.count("fatal: ") == 1
    assert (
        "ip_masq_agent_non_masquerade_cidrs: '10.0.0.1/8' has host bits set: the aligned network is 10.0.0.0/8 (n[2,4])"
    ) in said
    assert "ip_masq_agent_non_masquerade_cidrs: 'nowhere_defined' is undefined" in said


BAD, GOOD, OTHER = ({CIDRS: [cidr]} for cidr in ("10.0.0.1/8", "10.0.0.0/8", "172.16.0.0/12"))
SITE, SITES = {CIDRS: ["{{ site }}"]}, {name: {"site": "10.0.%d.0/16" % (name == "n3")} for name in HOSTS}
ALIGNED = CIDRS + ": %r has host bits set: the aligned network is %s"
REFUSED = ALIGNED % ("10.0.0.1/8", "10.0.0.0/8")


class Case(t.NamedTuple):
    """A play of an operator's own with the role's check, and what that says."""

    said: str = ""
    #: host -> variables in the inventory
    hosts: t.Mapping[str, t.Mapping[str, t.Any]] = {}
    #: of the role
    parameters: t.Mapping[str, t.Any] = {}
    #: of the play
    variables: t.Mapping[str, t.Any] = {}
    #: host -> facts that a task before sets
    facts: t.Mapping[str, t.Mapping[str, t.Any]] = {}


CASES = {
    "nothing is set": Case(),
    "a parameter of the role": Case(REFUSED, parameters=BAD),
    "a variable of the play": Case(REFUSED, variables=BAD),
    "a host other than the first": Case(REFUSED + " (n2)", {"n2": BAD}),
    "a host other than the first, which has its own": Case(REFUSED + " (n2)", {"n1": GOOD, "n2": BAD}),
    "the first host": Case(REFUSED + " (n1)", {"n1": BAD, "n2": GOOD}),
    "all hosts": Case(REFUSED, dict.fromkeys(HOSTS, BAD)),
    "a parameter overrides the inventory": Case("", {"n1": BAD, "n2": BAD}, parameters=GOOD),
    "a variable of the play overrides the inventory": Case("", {"n1": GOOD, "n2": BAD}, variables=OTHER),
    "a parameter that depends on the host": Case(
        ALIGNED % ("10.0.1.0/16", "10.0.0.0/16") + " (n3)", SITES, parameters=SITE
    ),
    "a variable of the play that depends on the host": Case(
        ALIGNED % ("10.0.1.0/16", "10.0.0.0/16") + " (n3)", SITES, variables=SITE
    ),
    "a fact": Case(REFUSED + " (n4)", facts={"n4": BAD}),
    "all is to be removed": Case("", {"n2": BAD}, parameters={"ip_masq_agent_state": "absent"}),
    "a host on which all is to be removed": Case("", {"n3": dict(BAD, ip_masq_agent_state="absent")}),
    "a list that is null": Case(
        CIDRS + ": null could mean two things: write [] to exempt no range, or remove it for the default (n2)",
        {"n2": {CIDRS: None}},
    ),
    "a name": Case(
        "ip_masq_agent_backends is not a variable of kubenode.ip_masq; the nearest is ip_masq_agent_backend",
        parameters={"ip_masq_agent_backends": "auto"},
    ),
    "two things": Case(
        "ip_masq_agent_hostz is not a variable of kubenode.ip_masq; the nearest is ip_masq_agent_hosts (n1); "
        + REFUSED + " (n4)",
        {"n1": {"ip_masq_agent_hostz": 1}, "n4": BAD},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> t.Dict[str, str]:
    """What the check said in each of ``CASES``, which are plays of one playbook, each for hosts of its own."""
    inventory = Inventory(tmp_path_factory.mktemp("cases"))
    inventory.hosts.clear()
    plays = []
    for number, case in enumerate(CASES.values()):
        for name in HOSTS:
            inventory.hosts["%s-%d" % (name, number)] = {**NOWHERE, **case.hosts.get(name, {})}
        facts = [
            {"ansible.builtin.set_fact": dict(values), "when": "inventory_hostname == '%s-%d'" % (name, number)}
            for name, values in case.facts.items()
        ]
        check = {
            "ansible.builtin.import_role": {"name": "kubenode.ip_masq.ip_masq_agent", "tasks_from": "check"},
            "vars": dict(case.parameters),
            "ignore_errors": True,
        }
        play = {"hosts": "*-%d" % number, "gather_facts": False, "vars": dict(case.variables)}
        plays.append({**play, "tasks": [*facts, check]})
    status, output = inventory.play(yaml.safe_dump(plays))
    assert status == 0, output
    results = re.findall(r"(?ms)^fatal: \[n1-(\d+)\]: FAILED! => (\{.*?^\})$", output)
    found = {number: "; ".join(json.loads(result)["msg"]) for number, result in results}
    return {name: re.sub(r"-\d+\b", "", found.get(str(number), "")) for number, name in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES)
def test_the_role_checks_each_host_with_the_variables_that_it_will_have(checked: t.Dict[str, str], case: str) -> None:
    assert checked[case] == CASES[case].said


@pytest.mark.parametrize("preflight, status, printed", [(None, 0, 1), ("warn", 0, 1), ("fail", 2, 1), ("ignore", 0, 0)])
def test_remarks_are_printed_or_fail_or_are_left_out(
    inventory: Inventory, preflight: t.Optional[str], status: int, printed: int
) -> None:
    inventory.group_vars.update({CIDRS: ["10.0.0.0/8"]})
    inventory.hosts["n2"][CIDRS] = ["10.0.0.0/8", "192.168.0.0/16"]
    if preflight:
        inventory.group_vars["ip_masq_agent_preflight"] = preflight
    check = {"name": "kubenode.ip_masq.ip_masq_agent", "tasks_from": "check"}
    play = {"hosts": "kube_node", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": check}]}
    ended, said = inventory.play(yaml.safe_dump([play]))
    assert ended == status, said
    said = re.sub(r"(?m)^\[ERROR\]: .*$", "", said)  # ansible-core 2.19 and later: an error, before its result
    assert said.count(CIDRS + " differs: 192.168.0.0/16 is exempt on n2, and not on n[1,3-4]") == printed, said


def test_the_whole_role_begins_with_the_check(inventory: Inventory) -> None:
    inventory.hosts["n3"].update(BAD)
    whole = {"hosts": "kube_node", "gather_facts": False, "roles": ["kubenode.ip_masq.ip_masq_agent"]}
    status, said = inventory.play(yaml.safe_dump([whole]))
    assert status == 2 and said.count("fatal: ") == 1 and REFUSED + " (n3)" in said


def test_the_lookup_of_the_config_file_templates_the_host_s_variables(inventory: Inventory) -> None:
    inventory.group_vars.update(
        site_ranges=["10.8.0.0/16"],
        ip_masq_agent_non_masquerade_cidrs="{{ site_ranges + ['10.9.0.0/16'] }}",
        ip_masq_agent_enable_ipv6="{{ 'yes' }}",
        ip_masq_agent_masq_chain="{{ omit }}",
    )
    status, said = inventory.play(
        "- hosts: n1\n  gather_facts: false\n  connection: local\n  tasks:\n    - ansible.builtin.debug:\n"
        "        msg: \"KEYS {{ lookup('kubenode.ip_masq.config') | to_json }} END\"\n"
    )
    assert status == 0, said
    found = re.search(r"KEYS (.*) END", said)
    assert found
    keys = json.loads(found.group(1).replace('\\"', '"'))
    assert keys["nonMasqueradeCIDRs"] == ["10.8.0.0/16", "10.9.0.0/16"]
    assert (keys["enableIPv6"], keys["masqChain"]) == (True, "IP-MASQ-AGENT")
