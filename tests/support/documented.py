# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of README and documents, and what executes each of them.

A command begins with ``$`` or ``#``, the prompts of a user and of root, in a ``console`` block of Markdown or
reStructuredText, and goes on in the next line behind a backslash or in a quoted argument. Each is executed by
``tests/kernel/test_documented_commands.py``, unless it is in ``ELSEWHERE`` or ``NOT_HERE``.
"""

from __future__ import annotations

import re
import typing as t

from .import_collection import ROOT

VERSION = re.findall(r'(?m)^VERSION = "(.*)"$', (ROOT / "plugins/module_utils/_version.py").read_text())[0]

PAGES = sorted(
    (
        *ROOT.glob("*.md"),
        *(path for folder in ("docs", "examples", "roles", "tests") for path in (ROOT / folder).glob("**/*.md")),
        *(ROOT / "docs").glob("**/*.rst"),
    ),
    key=lambda path: (path != ROOT / "README.md", str(path)),
)

#: Another test that executes the command line as it is: its file, which has the line as text.
ELSEWHERE = {
    "ANSIBLE_CONFIG=kubespray/ansible.cfg ansible-playbook -b -i inventory/mycluster/inventory.ini site.yml": (
        "tests/kernel/test_kubespray.py"
    ),
    "ANSIBLE_CONFIG=kubespray/ansible.cfg ansible-playbook -b -i inventory/mycluster/inventory.ini reset.yml "
    "-e reset_confirmation=yes": "tests/kernel/test_kubespray.py",
    **dict.fromkeys(
        (
            "ansible-playbook -b -i inventory/mycluster/inventory.ini kubenode.ip_masq.kubespray",
            "ansible-playbook -b -i inventory/mycluster/inventory.ini kubenode.ip_masq.kubespray -CD",
            "ansible-playbook -b -i inventory/mycluster/inventory.ini kubenode.ip_masq.remove "
            "-e ip_masq_agent_hosts=kube_control_plane:kube_node",
            "ip-masq-agent explain 10.8.0.1 --source 10.233.64.9",
        ),
        "tests/kernel/test_kubespray.py",
    ),
    "ansible-playbook kubenode.ip_masq.apply -i hosts.ini -e ip_masq_agent_hosts=canary -e ip_masq_agent_verify=fail": (
        "tests/kernel/test_playbooks.py"
    ),
    "ansible-playbook kubenode.ip_masq.apply -i hosts.ini -e ip_masq_agent_hosts=kube_node "
    """-e '{"ip_masq_agent_serial": [1, "5%", "100%"]}'""": "tests/kernel/test_playbooks.py",
    "ansible-playbook nodes.yml -i hosts.ini": "tests/kernel/test_windows.py",
    "ansible-playbook nodes.yml -i hosts.ini -e ip_masq_windows_write=true -CD": "tests/kernel/test_windows.py",
    "ansible-playbook nodes.yml -i hosts.ini -e ip_masq_windows_write=true --limit 'windows[0]'": (
        "tests/kernel/test_windows.py"
    ),
    "ansible-playbook -i examples/racks/inventory.yml kubenode.ip_masq.apply -e ip_masq_agent_hosts=kube_node": (
        "tests/kernel/test_racks.py"
    ),
}

#: What ansible-galaxy needs to install this version.
_PRE_RELEASE = ":==" + VERSION if "-" in VERSION else ""

_GALAXY = "needs Galaxy; tools/setup installs the built artefact by the same command with --offline"
_NODES = "boots three nodes; `make test-molecule` goes through the same steps as `molecule test`"
_CLUSTER = "needs an API server"
_PYPY = "installs packages for PyPy into .cache and takes minutes"
_POOLS = "needs Calico; tests/kernel/test_kubespray.py does to rules what Felix does then"
_SELINUX = "needs SELinux; `make test-selinux` loads the same file in a guest"
_TCPDUMP = "needs tcpdump, which nothing else here does, and captures for a minute"
#: Why a command is not executed by any test.
NOT_HERE = {
    "ansible-galaxy collection install kubenode.ip_masq" + _PRE_RELEASE: _GALAXY,
    "ansible-galaxy collection install ansible.windows": _GALAXY,
    "tools/with-cgroup2 molecule converge -s default": _NODES,
    'tools/with-cgroup2 podman exec -it "$(tools/nodes prefix)-default-node-trixie" bash': _NODES,
    "tools/with-cgroup2 molecule destroy -s default": _NODES,
    "kubectl -n kube-system get configmap ip-masq-agent -o jsonpath='{.data.config}'": _CLUSTER,
    "kubectl -n kube-system get ds ip-masq-agent -o jsonpath='{.spec.template.spec.containers[*].args}'": _CLUSTER,
    "calicoctl.sh get ippool": _POOLS,
    """calicoctl.sh patch ippool default-pool --patch '{"spec": {"natOutgoing": false}}'""": _POOLS,
    """calicoctl.sh patch ippool default-pool-ipv6 --patch '{"spec": {"natOutgoing": false}}'""": _POOLS,
    """calicoctl.sh patch ippool default-pool --patch '{"spec": {"natOutgoing": true}}'""": _POOLS,
    "kubectl -n kube-system patch daemonset kube-flannel --type json -p "
    """'[ {"op": "test", "path": "/spec/template/spec/containers/0/command/1", "value": "--ip-masq"}, """
    """{"op": "remove", "path": "/spec/template/spec/containers/0/command/1"}]'""": _CLUSTER,
    "pypy3 -m venv .cache/pypy && .cache/pypy/bin/pip install -r requirements-dev-node.txt": _PYPY,
    ".cache/pypy/bin/python -m pytest tests/unit/plugins/module_utils": _PYPY,
    "kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE": _CLUSTER,
    "kubectl -n kube-system edit configmap kube-proxy": _CLUSTER,
    "kubectl -n kube-system rollout restart daemonset kube-proxy": _CLUSTER,
    "semodule -i ip-masq-agent.cil": _SELINUX,
    "timeout 60 tcpdump -nni eth0 -Q out 'src net 10.244.0.0/16 and not dst net 10.0.0.0/8'": _TCPDUMP,
}


#: What commands of the pages begin with.
PROGRAMS = (
    r"(?:[A-Z_]+=\S+ )*(?:ansible(?:-\w+)?|make|tools/[\w-]+|nft|ip6?tables(?:-\w+)?|ip-masq-agent|kubectl|systemctl|"
    r"jq|journalctl|conntrack|molecule|podman|git|ip(?= address)|python3?|pip|rpm|dpkg|apt|apt-get|"
    r"calicoctl\.sh|pypy3|semodule|sysctl|tcpdump|timeout)\b"
)


class Command(t.NamedTuple):
    """A command line of a page."""

    #: page and line, for messages
    where: str
    #: without the comment behind it
    text: str
    #: what the page prints below it
    output: t.List[str]


def commands() -> t.List[Command]:
    """Return all commands in the order of the pages, the README first; each once."""
    found: t.Dict[str, Command] = {}
    for page in PAGES:
        for command in of_page(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))):
            found.setdefault(command.text, command)
    return list(found.values())


#: In Markdown, and in reStructuredText.
_BLOCKS = (
    re.compile(r"(?ms)^(?P<indent> *)```console\n(?P<lines>.*?)^ *```$"),
    re.compile(r"(?m)^\.\. code-block:: console\n\n(?P<lines>(?:(?P<indent> {4}).*\n)+)"),
)


def of_page(text: str, name: str) -> t.Iterator[Command]:
    """Return the commands of one page."""
    for block in (block for pattern in _BLOCKS for block in pattern.finditer(text)):
        first = text.count("\n", 0, block.start("lines")) + 1
        command: t.Optional[Command] = None
        lines = [line[len(block.group("indent")) :] for line in block.group("lines").splitlines()]
        for number, line in enumerate(lines, first):
            if line.startswith(("$ ", "# ")):
                if command:
                    yield command
                command = Command("%s:%d" % (name, number), re.sub(r" +# .*", "", line[2:]).strip(), [])
            elif command and not command.output and _goes_on(command.text):
                command = command._replace(text="%s %s" % (command.text.rstrip("\\ "), line.strip()))
            elif command:
                command.output.append(line)
        if command:
            yield command


def _goes_on(text: str) -> bool:
    return text.endswith("\\") or text.count("'") % 2 == 1


def without_blocks(text: str) -> str:
    """Return a page without its blocks of commands."""
    for pattern in _BLOCKS:
        text = pattern.sub("", text)
    return text
