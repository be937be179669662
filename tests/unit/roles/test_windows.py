# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role ip_masq_windows on real files, with ansible-playbook; the modules of ansible.windows are simulated."""

from __future__ import annotations

import importlib.util
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from support.import_collection import location
from support.templates import template
from support.windows_node import MODULES, WindowsNodes, real_collection

PREFIX = "ip_masq_windows_"
ROLE = location() / "roles" / "ip_masq_windows"
GOLDEN = Path(__file__).parents[1] / "plugins/filter/outbound_nat"
PLAY = """
- hosts: all
  gather_facts: false
  roles:
    - role: kubenode.ip_masq.ip_masq_windows
"""
WRITE = ("-e", "ip_masq_windows_write=true")


def read(path: str) -> t.Any:
    """A file of the role."""
    return yaml.safe_load((ROLE / path).read_text(encoding="utf-8"))


SPEC = read("meta/argument_specs.yml")["argument_specs"]["main"]["options"]


def golden(shape: str, when: str) -> bytes:
    """One of the golden files of the filter."""
    return (GOLDEN / ("%s.%s.json" % (shape, when))).read_bytes()


class Nodes(WindowsNodes):
    """Nodes whose configurations are golden files."""

    def put(self, host: str, shape: str, name: str = "10-cni.conf") -> Path:
        """Write one of them."""
        path = self.folders[host] / name
        path.write_bytes(golden(shape, "before"))
        return path

    def play_role(self, *arguments: str) -> str:
        """A run that succeeds: what it printed, without line breaks of the output."""
        status, said = self.play(PLAY, *arguments)
        assert status == 0, said
        return said

    def files(self, host: str) -> t.Dict[str, bytes]:
        """All files of a host."""
        return {path.name: path.read_bytes() for path in self.folders[host].iterdir()}


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Two nodes, and a policy with two ranges."""
    made = Nodes(tmp_path, "w1", "w2")
    made.group_vars["ip_masq_agent_non_masquerade_cidrs"] = ["10.8.0.0/16", "192.0.2.0/24"]
    made.put("w1", "flannel_win_overlay")
    made.put("w2", "win_bridge")
    return made


def changed(said: str) -> t.Dict[str, int]:
    """The number of changed tasks of each host."""
    return {host: int(count) for host, count in re.findall(r"(?m)^(\S+) +: ok=\d+ +changed=(\d+)", said)}


def test_write_keeps_a_backup_and_every_other_byte_and_can_be_taken_back(nodes: Nodes) -> None:
    said = nodes.play_role(*WRITE)
    assert changed(said) == {"w1": 1, "w2": 1}
    for host, shape in (("w1", "flannel_win_overlay"), ("w2", "win_bridge")):
        files = nodes.files(host)
        assert files.pop("10-cni.conf") == golden(shape, "after")
        assert list(files.values()) == [golden(shape, "before")]
    assert "changed: only pods that are made from now on see it" in said
    # The backup is not a configuration, and a second run changes nothing.
    again = nodes.play_role(*WRITE)
    assert changed(again) == {"w1": 0, "w2": 0} and "10-cni.conf: unchanged" in again
    assert "only pods" not in again
    # Ranges that were added are removed by name.
    nodes.group_vars.update(
        ip_masq_agent_non_masquerade_cidrs=[], ip_masq_windows_remove_cidrs=["10.8.0.0/16", "192.0.2.0/24"]
    )
    nodes.play_role(*WRITE)
    assert nodes.files("w1")["10-cni.conf"] == golden("flannel_win_overlay", "before")
    assert nodes.files("w2")["10-cni.conf"] == golden("win_bridge", "before")


def test_every_shape_reaches_the_file_unharmed(tmp_path: Path) -> None:
    """Text that looks like JSON, a byte order mark and line ends survive Ansible's templates."""
    shapes = sorted(path.name[: -len(".before.json")] for path in GOLDEN.glob("*.before.json"))
    made = Nodes(tmp_path, *shapes)
    made.group_vars.update(
        ip_masq_agent_non_masquerade_cidrs="10.8.0.0/16,192.0.2.0/24,2001:db8::/32",
        ip_masq_agent_enable_ipv6=True,
        ip_masq_windows_backup=False,
    )
    for shape in shapes:
        made.put(shape, shape)
    made.play_role(*WRITE)
    for shape in shapes:
        assert made.files(shape) == {"10-cni.conf": golden(shape, "after")}


def test_a_misspelled_variable_is_refused_before_a_node_is_touched(nodes: Nodes) -> None:
    before = {host: nodes.files(host) for host in nodes.folders}
    nodes.hosts["w2"]["ip_masq_windows_remove_cidr"] = ["10.8.0.0/16"]
    status, said = nodes.play(PLAY, *WRITE)
    assert status == 2
    assert "ip_masq_windows_remove_cidr is not a variable of kubenode.ip_masq; the nearest is " in said
    assert "ip_masq_windows_remove_cidrs (w2)" in said
    assert {host: nodes.files(host) for host in nodes.folders} == before


class Mixed(t.NamedTuple):
    """What one run over nodes of which most have something wrong left behind."""

    nodes: Nodes
    status: int
    said: str
    #: host -> its files before the run
    before: t.Dict[str, t.Dict[str, bytes]]
    #: what a template in a file would have made
    trap: Path

    def failure(self, host: str) -> str:
        """The message with which a host failed; it did fail."""
        (found,) = re.findall(r"(?m)^(?:fatal|failed): \[%s\].*$" % host, self.said)
        return str(found)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    """One run that writes, and shows the differences."""
    made = Nodes(
        tmp_path_factory.mktemp("mixed"),
        *("good", "unknown", "template", "template_cidr", "file", "missing", "empty", "default_paths"),
    )
    made.group_vars["ip_masq_agent_non_masquerade_cidrs"] = ["10.8.0.0/16", "192.0.2.0/24"]
    trap = made.root / "trap"
    text = ("{{ lookup('pipe', 'touch %s') }}" % trap).encode()
    for host in ("good", "unknown", "template_cidr", "file", "missing"):
        made.put(host, "win_bridge")
    (made.folders["unknown"] / "20-other.conflist").write_text('{"plugins": [], "hns": {"Type": "OutBoundNAT"}}')
    # One line, which is the whole of the diff.
    path = made.folders["template"] / "10-cni.conf"
    path.write_bytes(golden("sdnbridge_flat", "before").replace(b"l2bridge", text))
    path = made.folders["template_cidr"] / "10-cni.conf"
    path.write_bytes(golden("win_bridge", "before").replace(b"10.244.0.0/16", text))
    made.hosts["file"]["ip_masq_windows_paths"] = [str(made.folders["file"] / "10-cni.conf")]
    made.hosts["missing"]["ip_masq_windows_paths"] = [str(made.folders["missing"]), "/no/such/path"]
    made.put("empty", "win_bridge", "10-cni.txt")
    del made.hosts["default_paths"]["ip_masq_windows_paths"]
    before = {host: made.files(host) for host in made.folders}
    status, said = made.play(PLAY, *WRITE, "--diff")
    return Mixed(made, status, said, before, trap)


class TestMixed:
    """Nodes of one inventory: what is wrong on one does not concern the others."""

    def test_only_nodes_with_something_wrong_fail(self, mixed: Mixed) -> None:
        assert mixed.status == 2
        assert sorted(re.findall(r"(?m)^(\S+) +: ok=.* failed=1 ", mixed.said)) == sorted(
            ["unknown", "template_cidr", "missing", "empty", "default_paths"]
        )
        assert mixed.nodes.files("good")["10-cni.conf"] == golden("win_bridge", "after")

    @pytest.mark.parametrize("host", ["unknown", "template_cidr", "missing", "empty"])
    def test_files_of_nodes_that_fail_stay_as_they_are(self, mixed: Mixed, host: str) -> None:
        assert mixed.nodes.files(host) == mixed.before[host]

    def test_a_file_of_an_unknown_shape_fails(self, mixed: Mixed) -> None:
        failure = mixed.failure("unknown")
        assert "20-other.conflist: hns: an OutBoundNAT policy in a place that is not known" in failure
        assert "The file is unchanged" in failure

    def test_text_of_a_file_is_never_a_template(self, mixed: Mixed) -> None:
        assert not mixed.trap.exists(), mixed.said
        kept = mixed.nodes.files("template")["10-cni.conf"]
        assert b"{{ lookup('pipe', 'touch " in kept and kept != mixed.before["template"]["10-cni.conf"]
        assert "is not a CIDR" in mixed.failure("template_cidr")

    def test_paths_may_be_files_and_must_exist(self, mixed: Mixed) -> None:
        assert "/no/such/path: no such file or directory: correct ip_masq_windows_paths" in mixed.failure("missing")
        assert mixed.nodes.files("file")["10-cni.conf"] == golden("win_bridge", "after")

    def test_a_node_without_a_configuration_fails(self, mixed: Mixed) -> None:
        assert "no CNI configuration in %s: name it in" % mixed.nodes.folders["empty"] in mixed.failure("empty")
        assert r"no CNI configuration in C:\Program Files\containerd\cni\conf, C:\etc\cni\net.d, C:\k" in (
            mixed.failure("default_paths").replace("\\\\", "\\")
        )


def test_a_wrong_policy_is_refused_before_a_node_is_reached(nodes: Nodes) -> None:
    nodes.hosts["w2"]["ip_masq_agent_non_masquerade_cidrs"] = ["10.0.0.1/8"]
    before = nodes.files("w1")
    status, said = nodes.play(PLAY, *WRITE)
    assert status == 2 and "ip_masq_agent_non_masquerade_cidrs: '10.0.0.1/8' has host bits set" in said
    assert nodes.files("w1") == before and "Look for CNI" not in said


@pytest.mark.parametrize(
    "variables, windows",
    [
        ({}, False),
        ({"ansible_connection": "ssh"}, False),
        ({"ansible_connection": "winrm"}, True),
        ({"ansible_connection": "ansible.builtin.psrp"}, True),
        ({"ansible_connection": "ssh", "ansible_shell_type": "powershell"}, True),
        ({"ansible_connection": "ssh", "ansible_shell_type": "cmd"}, True),
        ({"ansible_facts": {"os_family": "Windows"}}, True),
        ({"ansible_facts": {"os_family": "Debian"}}, False),
        ({"ansible_connection": "winrm", "ip_masq_windows_node": False}, False),
        ({"ip_masq_windows_node": "true"}, True),
    ],
)
def test_what_a_windows_host_is_told_by(variables: t.Dict[str, t.Any], windows: bool) -> None:
    assert template(read("vars/main.yml")["ip_masq_windows__is_windows"], variables) is windows


class TestInterface:
    """The simulated modules, and the tasks, against the documentation of the real ones."""

    TASKS: t.ClassVar[t.List[t.Dict[str, t.Any]]] = read("tasks/node.yml")
    USED = sorted(key.rpartition(".")[2] for task in TASKS for key in task if key.startswith("ansible.windows."))

    @staticmethod
    def documented(module: str, what: str = "DOCUMENTATION") -> t.Dict[str, t.Any]:
        """What ansible.windows documents of a module."""
        folder = real_collection() / "plugins/modules"
        sidecar = folder / (module + ".yml")
        if sidecar.exists():
            found = yaml.safe_load(sidecar.read_text(encoding="utf-8"))[what]
        else:
            source = (folder / (module + ".py")).read_text(encoding="utf-8")
            (text,) = re.findall(r"(?ms)^%s = r?(?:'''|\"\"\")(.*?)(?:'''|\"\"\")" % what, source)
            found = yaml.safe_load(text)
        return t.cast(t.Dict[str, t.Any], found)

    def test_all_modules_that_are_used_are_simulated(self) -> None:
        assert (
            self.USED
            == sorted(path.stem for path in MODULES.glob("*.py"))
            == ["slurp", "win_copy", "win_find", "win_stat"]
        )

    @pytest.mark.parametrize("module", USED)
    def test_options_are_those_documented(self, module: str) -> None:
        options = self.documented(module)["options"]
        spec = importlib.util.spec_from_file_location("simulated_" + module, MODULES / (module + ".py"))
        assert spec and spec.loader
        simulated = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(simulated)
        for name, about in simulated.OPTIONS.items():
            assert about["type"] == options[name]["type"], name
            assert bool(about.get("default")) == (options[name].get("default") in (True, "yes")), name
        (task,) = [task for task in self.TASKS if "ansible.windows." + module in task]
        assert set(task["ansible.windows." + module]) <= set(options)

    def test_what_is_returned_is_documented(self) -> None:
        stat = self.documented("win_stat", "RETURN")["stat"]["contains"]
        assert {"exists", "isdir"} <= set(stat)
        assert "path" in self.documented("win_find", "RETURN")["files"]["contains"]
        assert {"content", "encoding"} <= set(self.documented("slurp", "RETURN"))
        assert "backup_file" in self.documented("win_copy", "RETURN")


@pytest.mark.parametrize("name", sorted(set(SPEC) | set(read("defaults/main.yml"))))
def test_variables_are_documented_with_their_defaults(name: str) -> None:
    assert name.startswith(PREFIX) and SPEC[name]["description"]
    assert SPEC[name].get("default") == read("defaults/main.yml").get(name)


def test_every_variable_is_used() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for name in ("tasks", "vars") for path in (ROLE / name).iterdir())
    assert {name for name in SPEC if re.search(r"\b%s\b" % name, texts)} == set(SPEC)
