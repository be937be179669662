# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every row of the decision table on nodes with kubelets that run, and every way in which a node can be odd."""

from __future__ import annotations

import stat
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError, IpMasqError, NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.healthz import wait_healthy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.manage import manage_kubelets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import process as runner
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.kubelet_result import as_return
from support import kubelet_distributions as made
from support.kubelet_node import KubeletNode, make_node, make_options

SET = "--non-masquerade-cidr=0.0.0.0/0"
KUBENET = "--network-plugin=kubenet"
RULE = (
    '-A POSTROUTING ! -d 10.0.0.0/8 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" '
    "-m addrtype ! --dst-type LOCAL -j MASQUERADE"
)
OTHER = "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"
#: Long enough for the slowest machine: nothing waits that long unless it fails.
PATIENCE = 120.0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[KubeletNode]:
    fresh = make_node(tmp_path, monkeypatch)
    fresh.postrouting = [OTHER]
    yield fresh
    fresh.close()


class Ended:
    """How a run ended: what the module returns, its failure and its warnings."""

    def __init__(
        self, node: KubeletNode, check: bool, healthy: t.Callable[[str, float], str], **options: t.Any
    ) -> None:
        given = {"healthz_url": node.healthz, "healthz_timeout": PATIENCE, "probe_timeout": PATIENCE, **options}
        report = manage_kubelets(make_options(**given), node.run, check, str(node.root), healthy)
        self.failure = report.failure
        self.warnings = report.warnings
        self.returned = as_return(report)
        self.decision, self.reason = report.decision, report.reason
        self.actions: t.List[str] = self.returned["actions"]
        self.changed: bool = self.returned["changed"]


def go(node: KubeletNode, check: bool = False, **options: t.Any) -> Ended:
    def healthy(url: str, _timeout: float) -> str:
        """As the real one, but it gives up once the kubelet ended or said that it is not well, however soon."""
        while True:
            problem = wait_healthy(url, 0.01)
            if not problem or "HTTP Error" in problem or any(one.state != "active" for one in node.services.values()):
                return problem
            time.sleep(0.01)

    return Ended(node, check, healthy, **options)


def start(node: KubeletNode, name: str = "kubelet") -> None:
    node.start(name)
    node.wait_healthy()


def tree(node: KubeletNode) -> t.Dict[str, t.Tuple[int, int, bytes]]:
    """Every file on the node, with its inode: one that was written again shows."""
    found = {}
    for path in sorted(node.root.rglob("*")):
        if path.is_file() and "proc" not in path.relative_to(node.root).parts:
            status = path.lstat()
            found[str(path)] = (status.st_ino, status.st_mode, path.read_bytes())
    return found


def untouched(node: KubeletNode, **options: t.Any) -> Ended:
    """Run, and show that nothing happened to the node."""
    before, rules = tree(node), list(node.postrouting)
    report = go(node, **options)
    assert not report.changed and report.actions == report.returned["files"] == report.returned["diff"] == []
    assert tree(node) == before and node.restarts() == [] and node.postrouting == rules
    return report


def refused(node: KubeletNode, error: t.Type[IpMasqError], said: str, **options: t.Any) -> None:
    """Run, see it refused, and show that nothing happened to the node."""
    before = tree(node)
    with pytest.raises(error, match=said):
        go(node, **options)
    assert tree(node) == before and node.restarts() == []


def settled(node: KubeletNode, **options: t.Any) -> Ended:
    """A second run changes nothing."""
    node.calls.clear()
    return untouched(node, **options)


# The table, on kubeadm.


def test_flag_not_supported_and_not_set(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    start(node)
    report = untouched(node)
    assert report.decision == "not_applicable" and report.warnings == () and report.failure == ""
    assert report.reason == "kubelet.service (kubeadm, v1.30.4) does not set --non-masquerade-cidr; nothing to do"


@pytest.mark.parametrize("policy", ["auto", "absent"])
def test_flag_not_supported_and_set_in_an_editable_file(node: KubeletNode, policy: str) -> None:
    path = made.kubeadm(node, "1.30.4", 'KUBELET_EXTRA_ARGS="--v=3 %s"\n' % SET)
    node.start("kubelet")
    checked = go(node, check=True, policy=policy)
    assert node.restarts() == [] and checked.changed
    report = go(node, policy=policy)
    assert report.decision == "remove_stale" and report.failure == ""
    assert report.actions == ["edited %s" % path, "restarted kubelet.service"]
    assert report.returned == checked.returned
    (diff,) = report.returned["diff"]
    assert (diff["before"], diff["after"]) == (
        'KUBELET_EXTRA_ARGS="--v=3 %s"\n' % SET,
        'KUBELET_EXTRA_ARGS="--v=3"\n',
    )
    assert node.read(path) == b'KUBELET_EXTRA_ARGS="--v=3"\n'
    assert node.services["kubelet"].state == "active"
    assert settled(node, policy=policy).decision == "not_applicable"


@pytest.mark.parametrize("policy", ["auto", "absent"])
def test_flag_not_supported_and_set_by_kubespray(node: KubeletNode, policy: str) -> None:
    made.kubespray(node, "1.30.4", SET)
    report = untouched(node, policy=policy)
    assert report.decision == "managed_elsewhere"
    assert "cannot start with it" in report.failure
    assert "variable kubelet_custom_flags" in report.failure and made.KUBESPRAY_ENV in report.failure


@pytest.mark.parametrize("version", ["1.24.0", "1.30.4"])
@pytest.mark.parametrize("extra", ["", SET])
def test_flag_not_supported_with_policy_present(node: KubeletNode, version: str, extra: str) -> None:
    made.kubeadm(node, version, "KUBELET_EXTRA_ARGS=%s\n" % extra)
    report = untouched(node, policy="present")
    assert report.decision == "unsupported"
    assert "would not start with it. It needs no flag: set policy to auto" in report.failure


def test_flag_supported_with_kubenet(node: KubeletNode, tmp_path: Path) -> None:
    path = made.kubeadm(node, "1.23.17", flags=KUBENET)
    start(node)
    node.postrouting.append(RULE)
    checked = go(node, check=True)
    report = go(node)
    assert report.decision == "set" and report.failure == "" and report.changed
    assert (
        report.actions
        == checked.actions
        == [
            "edited %s" % path,
            "restarted kubelet.service",
            "deleted the kubenet rule '%s' (%s)" % (RULE, tmp_path / "programs" / "iptables-nft"),
        ]
    )
    assert node.read(path) == b"KUBELET_EXTRA_ARGS=%s\n" % SET.encode()
    assert node.postrouting == [OTHER]
    assert "before the upgrade to Kubernetes 1.24" in " ".join(report.warnings)
    assert settled(node).decision == "already_set"


def test_kubenet_on_a_kubespray_node_is_left_to_the_operator(node: KubeletNode) -> None:
    made.kubespray(node, "1.23.17", KUBENET)
    start(node)
    node.postrouting.append(RULE)
    report = untouched(node)
    assert report.decision == "managed_elsewhere" and report.failure == ""
    assert "add %s to the kubespray variable kubelet_custom_flags" % SET in report.warnings[0]
    assert "was not deleted" in report.warnings[1]
    assert "kubelet_custom_flags" in untouched(node, policy="present").failure


def test_policy_absent_before_an_upgrade(node: KubeletNode) -> None:
    path = made.kubeadm(node, "1.23.17", "KUBELET_EXTRA_ARGS=%s\n" % SET, flags=KUBENET)
    start(node)
    node.postrouting.append(RULE)
    report = go(node, policy="absent")
    assert report.decision == "remove" and node.read(path) == b"KUBELET_EXTRA_ARGS=\n"
    assert "kubenet then masquerades traffic to destinations outside 10.0.0.0/8" in " ".join(report.warnings)
    # kubenet writes its rule again, so taking it away would only flap.
    assert RULE in node.postrouting
    assert settled(node, policy="absent").decision == "absent"


@pytest.mark.parametrize("policy, failed", [("auto", False), ("present", True), ("absent", False)])
def test_no_kubelet(node: KubeletNode, policy: str, failed: bool) -> None:
    report = untouched(node, policy=policy)
    assert report.decision == "no_kubelet" and bool(report.failure) is failed
    assert "a kubelet service was not found on this node" in report.reason
    # As before the cluster is installed.
    assert report.warnings == ()


def test_a_kubelet_that_was_named_and_is_not_there_is_a_warning(node: KubeletNode) -> None:
    report = untouched(node, unit="kubelet-2")
    assert report.decision == "no_kubelet" and report.warnings == (report.reason,) and "kubelet-2" in report.reason


@pytest.mark.parametrize("policy, failed", [("auto", False), ("present", True), ("absent", True)])
def test_no_binary(node: KubeletNode, policy: str, failed: bool) -> None:
    made.kubeadm(node, "1.23.17", "KUBELET_EXTRA_ARGS=%s\n" % SET, flags=KUBENET)
    node.path("/usr/bin/kubelet").unlink()
    report = untouched(node, policy=policy)
    assert report.decision == "unknown" and "No such file" in report.reason and bool(report.failure) is failed


def test_a_probe_that_hangs(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=%s\n" % SET, hang=True)
    report = untouched(node, probe_timeout=0.2)
    assert report.decision == "unknown" and "timed out after 0.2 seconds" in report.warnings[0]


def test_a_script_in_the_unit_with_the_option_binary(node: KubeletNode) -> None:
    path = made.plain(node, "1.23.17", opts=KUBENET)
    node.services["kubelet"].argv[0] = "/opt/start-kubelet"
    assert untouched(node).decision == "unknown"
    binary = "/usr/bin/kubelet"
    report = go(node, binary=binary, args_file=path, args_variable="KUBELET_OPTS", restart=False)
    assert report.decision == "set" and report.returned["restart_needed"]
    assert node.read(path) == ('KUBELET_OPTS="%s %s"\n' % (KUBENET, SET)).encode()


def test_a_kubelet_that_no_service_started(node: KubeletNode) -> None:
    node.program("/rootfs/kubelet", "1.23.17")
    node.start_stray("/rootfs/kubelet", KUBENET)
    node.wait_healthy()
    node.postrouting.append(RULE)
    report = untouched(node)
    assert (
        report.decision == "unknown"
        and "runs kubenet, and no service that this module knows starts it" in report.reason
    )
    assert "was not deleted" in report.warnings[-1]


def test_no_systemd(node: KubeletNode) -> None:
    def run(argv: t.Sequence[str], **_how: t.Any) -> runner.Outcome:
        return runner.Outcome(1, "", "System has not been booted with systemd")

    report = manage_kubelets(make_options(), run, False, str(node.root))
    assert report.decision == "unknown" and "System has not been booted" in report.warnings[0]
    with pytest.raises(NodeError, match="System has not been booted"):
        manage_kubelets(make_options(policy="present"), run, False, str(node.root))


def test_cri_dockerd_with_kubenet(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    start(node)
    node.program("/usr/bin/cri-dockerd", "1.23.17", process="cri-dockerd")
    # The stand-in of cri-dockerd is a stand-in kubelet of another name; 0.0.0.0/0 keeps it from writing rules.
    node.start_stray("/usr/bin/cri-dockerd", KUBENET, SET, "--healthz-port=0", process="cri-dockerd")
    node.postrouting.append(RULE)
    report = untouched(node)
    assert report.decision == "cri_dockerd_kubenet" and "--network-plugin=cni" in report.warnings[0]
    assert "--network-plugin=cni" in untouched(node, policy="present").failure


# Leftover rules.


@pytest.mark.parametrize("version", ["1.23.17", "1.30.4"])
def test_a_leftover_rule_is_deleted_where_kubenet_does_not_run(node: KubeletNode, version: str) -> None:
    made.kubeadm(node, version)
    start(node)
    node.postrouting = [RULE, OTHER, RULE]
    checked = go(node, check=True)
    assert node.postrouting == [RULE, OTHER, RULE] and checked.changed
    assert checked.returned["leftover_rules"] == [RULE, RULE]
    report = go(node)
    assert report.changed and node.postrouting == [OTHER] and report.actions == checked.actions
    assert report.returned == checked.returned and report.returned["diff"][0]["before"] == RULE + "\n"
    assert node.restarts() == []
    settled(node)


def test_a_leftover_rule_stays_while_the_old_process_runs(node: KubeletNode) -> None:
    path = made.kubeadm(node, "1.23.17", flags=KUBENET)
    start(node)
    node.postrouting.append(RULE)
    report = go(node, restart=False)
    assert report.changed and report.returned["restart_needed"] and SET.encode() in node.read(path)
    assert RULE in node.postrouting and "was not deleted" in report.warnings[-1]
    again = untouched(node, restart=False)
    assert again.returned["restart_needed"] and again.decision == "already_set"
    # What was put off is done by the next run that may.
    last = go(node)
    assert last.actions[0] == "restarted kubelet.service" and last.changed and node.postrouting == [OTHER]
    settled(node)


def test_a_leftover_rule_stays_while_a_reconfigured_kubelet_was_not_restarted(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", flags=KUBENET)
    start(node)
    node.write(made.KUBEADM_FLAGS, 'KUBELET_KUBEADM_ARGS="--network-plugin=cni"\n')
    node.postrouting.append(RULE)
    report = untouched(node)
    assert report.decision == "not_needed" and "was not deleted" in report.warnings[0]


def test_a_rule_that_comes_back_at_once_is_an_error(node: KubeletNode) -> None:
    made.kubeadm(node, "1.30.4")
    node.postrouting = [RULE]

    class Stubborn(t.List[str]):
        def remove(self, rule: str) -> None:
            pass

    node.postrouting = Stubborn([RULE])
    assert "was deleted and is present again" in go(node).failure


# kubenet, where it is named and cannot run: it is part of the kubelet's own container runtime.


@pytest.mark.parametrize("runtime", ["--container-runtime=remote", "--container_runtime remote"])
def test_kubenet_with_a_remote_runtime_does_not_run(node: KubeletNode, runtime: str) -> None:
    made.kubeadm(node, "1.23.17", flags="%s %s" % (KUBENET, runtime))
    start(node)
    node.postrouting.append(RULE)
    report = go(node)
    assert report.decision == "not_needed" and report.warnings == ()
    assert report.returned["kubelets"][0]["kubenet"] is False
    # Nothing on the node writes the rule again, so an old one goes.
    assert node.restarts() == [] and report.returned["files"] == [] and node.postrouting == [OTHER]


def test_kubenet_with_docker_named_runs(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", flags=KUBENET + " --container-runtime=remote --container-runtime=docker")
    start(node)
    assert go(node).decision == "set"


# Other distributions: what their kubelet would refuse is named, and nothing is edited.

ELSEWHERE: t.Dict[str, t.Callable[[KubeletNode, str], str]] = {
    "k3s": lambda node, version: made.rancher(node, version, config='kubelet-arg:\n  - "%s"\n' % SET[2:]),
    "rke2": lambda node, version: made.rancher(node, version, "rke2", 'kubelet-arg:\n- "%s"\n' % SET[2:], agent=True),
    "k0s": lambda node, version: made.k0s(node, version, "--v=2 " + SET),
    "microk8s": lambda node, version: made.microk8s(node, version, SET + "\n"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_flag_is_not_added_elsewhere(node: KubeletNode, name: str) -> None:
    if name in ("k3s", "rke2"):
        place = made.rancher(node, "1.23.17", name)
    else:
        place = {"k0s": made.k0s, "microk8s": made.microk8s}[name](node, "1.23.17")
    assert untouched(node).decision == "not_needed"
    report = untouched(node, policy="present")
    assert report.decision == "managed_elsewhere" and report.failure.endswith(place)


def test_microk8s_with_kubenet(node: KubeletNode) -> None:
    """As up to 1.13, which ran it with docker."""
    path = made.microk8s(node, "1.13.4", KUBENET + "\n--non-masquerade-cidr=10.152.183.0/24\n")
    node.postrouting.append(RULE)
    report = untouched(node)
    assert report.decision == "managed_elsewhere" and report.failure == ""
    assert "outside 10.152.183.0/24" in report.warnings[0] and report.warnings[0].endswith(path)
    assert "was not deleted" in report.warnings[1]


def test_a_place_that_the_kubelet_does_not_read(node: KubeletNode) -> None:
    made.plain(node, "1.23.17", opts=KUBENET)
    node.write("/etc/other.conf", "X=1\n")
    said = "would have no effect: kubelet.service .* does not read it, or sets the flag after it; nothing was changed"
    refused(node, ConfigError, said, args_file="/etc/other.conf", args_variable="X")


def test_two_kubelets_and_one_that_needs_the_operator(node: KubeletNode) -> None:
    """All is decided before anything is edited."""
    made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=%s\n" % SET)
    made.k0s(node, "1.30.4", SET)
    report = untouched(node)
    assert [one["decision"] for one in report.returned["kubelets"]] == ["remove_stale", "managed_elsewhere"]
    assert report.decision == "managed_elsewhere" and "--kubelet-extra-args" in report.failure


def test_report_changes_nothing_and_never_fails(node: KubeletNode) -> None:
    made.kubespray(node, "1.30.4", SET)
    report = untouched(node, policy="report")
    assert report.decision == "managed_elsewhere" and not report.failure


# Restart, and the way back.


def test_a_stopped_kubelet_is_not_started(node: KubeletNode) -> None:
    path = made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=%s\n" % SET)
    node.services["kubelet"].active = "inactive"
    report = go(node)
    assert report.actions == ["edited %s" % path] and node.restarts() == []
    assert not report.returned["restart_needed"]
    settled(node)


@pytest.mark.parametrize("how", ["refuse", "unhealthy"])
def test_a_kubelet_that_does_not_start_gets_its_original_file_back(node: KubeletNode, how: str) -> None:
    text = b"# kept\r\nKUBELET_EXTRA_ARGS='--v=2  '\r\n"
    path = made.kubeadm(node, "1.23.17", text, flags=KUBENET, **{how: [SET]})
    node.path(path).chmod(0o640)
    start(node)
    node.postrouting.append(RULE)
    report = go(node)
    assert not report.changed and report.actions == report.returned["files"] == []
    assert "kubelet.service did not become healthy within 120 seconds" in report.failure
    assert report.failure.endswith("; original file restored, kubelet restarted")
    assert node.read(path) == text and stat.S_IMODE(node.path(path).stat().st_mode) == 0o640
    assert node.restarts() == ["kubelet.service"] * 2
    assert RULE in node.postrouting
    node.wait_healthy()


def test_healthz_of_another_program_does_not_count(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", flags=KUBENET, refuse=[SET])
    start(node)

    def healthy(_url: str, _timeout: float) -> str:
        process = node.services["kubelet"].process
        if node.restarts()[1:] == [] and node.restarts() and process:
            process.wait()
        return ""

    failure = Ended(node, False, healthy).failure
    assert "(another program answers; the service is activating); see journalctl -u kubelet.service" in failure
    assert failure.endswith("; original file restored, kubelet restarted")


def test_a_failed_rollback_reports_both_errors(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", flags=KUBENET)
    start(node)
    node.before_start = lambda: node.program("/usr/bin/kubelet", "1.23.17", refuse=[KUBENET])
    report = go(node)
    assert report.failure.count("did not become healthy") == 2
    assert "; the restart with the original file failed too: " in report.failure
    assert not report.changed


def test_a_rollback_that_cannot_write_is_reported(node: KubeletNode) -> None:
    path = made.kubeadm(node, "1.23.17", flags=KUBENET)
    start(node)

    def interfere() -> None:
        node.path(path).unlink()
        node.path(path).symlink_to("/dev/null")
        node.program("/usr/bin/kubelet", "1.23.17", refuse=[KUBENET])

    node.before_start = interfere
    report = go(node)
    assert report.changed and report.returned["files"] == [path] and report.actions == []
    assert "restoring %s failed too: " % path in report.failure and "is a symlink" in report.failure


# healthz, which is asked before the first write where a restart follows.

UNVERIFIABLE = "cannot verify a restart of kubelet.service"


def without_answer(node: KubeletNode, check: bool = False, **options: t.Any) -> str:
    """Run with the real wait for healthz, which soon gives up. Return the failure."""
    before = tree(node)
    report = Ended(node, check, wait_healthy, **{"healthz_timeout": 0.3, **options})
    assert tree(node) == before and node.restarts() == [] and not report.changed
    assert UNVERIFIABLE in report.failure
    return report.failure


def test_a_kubelet_without_healthz_is_not_edited(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", flags=KUBENET + " --healthz-port=0")
    node.start("kubelet")
    failure = without_answer(node)
    assert node.healthz + " did not return 200" in failure
    assert "nothing was changed; set healthz_url" in failure and "set restart to false" in failure
    assert without_answer(node, check=True) == failure


CONFIG = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.mark.parametrize("where", ["config", "flag", "flag over config"])
def test_healthz_is_asked_where_the_kubelet_has_it(node: KubeletNode, where: str) -> None:
    flags, config = KUBENET, CONFIG
    if where == "config":
        config += "healthzBindAddress: 127.0.0.1\nhealthzPort: %d\n" % node.port
    else:
        flags += " --healthz-port=%d" % node.port
        config += "healthzPort: 1\n" if "over" in where else ""
    node.write("/var/lib/kubelet/config.yaml", config)
    path = made.kubeadm(node, "1.23.17", flags=flags, port=1)
    start(node)
    assert go(node, healthz_url="").actions == ["edited %s" % path, "restarted kubelet.service"]


@pytest.mark.parametrize("config, flags", [("healthzPort: 0\n", ""), ("healthzPort: 10248\n", " --healthz-port=0")])
def test_a_disabled_healthz_is_reported_as_disabled(node: KubeletNode, config: str, flags: str) -> None:
    node.write("/var/lib/kubelet/config.yaml", CONFIG + config)
    made.kubeadm(node, "1.23.17", flags=KUBENET + flags)
    node.start("kubelet")
    assert "its healthz endpoint is disabled (port 0)" in without_answer(node, healthz_url="")


def test_a_kubelet_that_keeps_failing_is_not_asked_first(node: KubeletNode) -> None:
    """It has no healthz because of the very flag that is to go."""
    path = made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=%s\n" % SET)
    node.start("kubelet")
    assert go(node).returned["files"] == [path] and node.services["kubelet"].state == "active"


# Odd files: a clear message, and nothing changed.


def test_a_malformed_file(node: KubeletNode) -> None:
    made.kubeadm(node, "1.23.17", b'KUBELET_EXTRA_ARGS="--v=2\n', flags=KUBENET)
    for check in (False, True):
        refused(node, ConfigError, "line 1: unterminated quote; file unchanged", check=check)


def test_an_edit_by_another_program_is_kept(node: KubeletNode, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made.kubeadm(node, "1.23.17", flags=KUBENET)
    start(node)
    theirs = "KUBELET_EXTRA_ARGS=--v=9\n"
    postrouting = node._iptables

    def in_between(program: str, words: t.Sequence[str]) -> t.Any:
        node.write(path, theirs)
        return postrouting(program, words)

    # Rules are looked for after the files were decided on and before they are read for the edit.
    monkeypatch.setattr(node, "_iptables", in_between)
    assert go(node).changed
    assert node.read(path) == ("KUBELET_EXTRA_ARGS=--v=9 %s\n" % SET).encode()


# Options.


@pytest.mark.parametrize(
    "options, said",
    [
        ({"binary": "kubelet"}, "binary 'kubelet' must be an absolute path"),
        ({"healthz_timeout": 0}, "healthz_timeout 0 must be greater than 0"),
        ({"probe_timeout": float("nan")}, "probe_timeout nan must be"),
        ({"probe_timeout": 3601}, "probe_timeout 3601 must be greater than 0 and at most 3600"),
        ({"healthz_url": "file:///etc/passwd"}, "healthz_url 'file:///etc/passwd' must be an http or https URL"),
        ({"args_file": "/etc/x"}, "must be set together"),
        ({"args_file": "etc/x", "args_variable": "X"}, "args_file 'etc/x' must be an absolute path"),
        ({"args_file": made.KUBESPRAY_ENV, "args_variable": "KUBELET_ARGS"}, "is never edited"),
    ],
)
def test_invalid_options_are_refused(node: KubeletNode, options: t.Dict[str, t.Any], said: str) -> None:
    refused(node, ConfigError, said, **options)
    assert node.calls == []
