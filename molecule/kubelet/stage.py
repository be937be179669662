# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a node one row of the decision table, and look at it. Runs on the node as root.

``stage.py set CASE``: a stand-in kubelet under a unit as distributions write it, with the case's version and files.
``stage.py look``: JSON: whether the kubelet answers healthz, when it was started, its arguments, the files that hold
them, and kubenet's rules in POSTROUTING.
``stage.py restart``: restarts the kubelet and has it set up a pod, which is when kubenet ensures its rule.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import time
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

KUBELET = "/usr/bin/kubelet"
KUBESPRAY_KUBELET = "/usr/local/bin/kubelet"
UNIT = Path("/etc/systemd/system/kubelet.service")
DROP_IN = Path("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf")
EXTRA = Path("/etc/default/kubelet")
KUBEADM_FLAGS = Path("/var/lib/kubelet/kubeadm-flags.env")
CONFIG = Path("/var/lib/kubelet/config.yaml")
KUBESPRAY_ENV = Path("/etc/kubernetes/kubelet.env")
CRI_UNIT = Path("/etc/systemd/system/cri-docker.service")
HEALTHZ = "http://127.0.0.1:10248"
#: seconds for a kubelet to come up; it takes a tenth of one
PATIENCE = 30.0
FAKE = str(Path(__file__).resolve().parents[2] / "support/fake_kubelet.py")

_UNIT = """[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=%s
Restart=always
StartLimitInterval=0
RestartSec=1

[Install]
WantedBy=multi-user.target
"""
_DROP_IN = """[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
_FLAG = "--non-masquerade-cidr=0.0.0.0/0"
_KUBENET = 'KUBELET_KUBEADM_ARGS="--network-plugin=kubenet"\n'

#: One for each row of the table in docs/kubelet.md, and what can go wrong.
CASES: t.Dict[str, t.Dict[str, t.Any]] = {
    "current": {"version": "1.30.4"},
    "demanded": {"version": "1.30.4"},
    "stale": {"version": "1.30.4", "extra": '# mine\nKUBELET_EXTRA_ARGS="--v=2 %s"\n' % _FLAG},
    "stale_kubespray": {"version": "1.30.4", "kubespray": _FLAG},
    "cni": {"version": "1.23.17", "flags": 'KUBELET_KUBEADM_ARGS="--network-plugin=cni"\n'},
    "kubenet": {"version": "1.23.17", "flags": _KUBENET, "extra": "KUBELET_EXTRA_ARGS=--v=2\n"},
    "remote_runtime": {"version": "1.23.17", "flags": _KUBENET.replace('"\n', ' --container-runtime=remote"\n')},
    "no_healthz": {"version": "1.23.17", "flags": _KUBENET, "config": "healthzPort: 0\n"},
    "rollback": {"version": "1.23.17", "flags": _KUBENET, "extra": "KUBELET_EXTRA_ARGS=--v=2\n", "refuse": [_FLAG]},
    "hanging": {"version": "1.30.4", "hang": True},
    "leftover": {"version": "1.30.4", "leftover": True},
    "cri_dockerd": {"version": "1.30.4", "cri_dockerd": True},
    "nothing": {},
}


def sh(*argv: str, check: bool = True) -> str:
    """Run a program."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=check, text=True)
    return done.stdout


def iptables() -> str:
    """The iptables of this node's alternatives, which is what a kubelet would run."""
    return "/usr/sbin/iptables"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def clear() -> None:
    """Take the case before away."""
    for unit in (UNIT, CRI_UNIT):
        if unit.exists():
            sh("systemctl", "stop", unit.name)
    for path in [
        UNIT,
        DROP_IN,
        EXTRA,
        KUBEADM_FLAGS,
        CONFIG,
        KUBESPRAY_ENV,
        CRI_UNIT,
        *map(Path, glob.glob("/usr*/bin/kubelet*")),
    ]:
        if path.exists():
            path.unlink()
    for rule in kubenet_rules():
        sh("sh", "-c", "%s --wait -t nat %s" % (iptables(), rule.replace("-A ", "-D ", 1)))


def install(path: str, case: t.Mapping[str, t.Any], *more: str) -> None:
    """Install a stand-in."""
    argv = ["python3", "-B", FAKE, "install", path, "--version", case["version"], "--iptables", iptables()]
    argv += ["--hang"] if case.get("hang") else []
    for word in case.get("refuse", ()):
        argv.append("--refuse=" + word)
    sh(*argv, *more)


def stage(name: str) -> None:
    """Make the node that case."""
    clear()
    case = CASES[name]
    if not case:
        sh("systemctl", "daemon-reload")
        return
    if "kubespray" in case:
        install(KUBESPRAY_KUBELET, case)
        write(UNIT, _UNIT % (KUBESPRAY_KUBELET + " $KUBELET_ARGS") + "")
        text = UNIT.read_text(encoding="utf-8").replace(
            "ExecStart=", "EnvironmentFile=-/etc/kubernetes/kubelet.env\nExecStart=", 1
        )
        write(UNIT, text)
        write(
            KUBESPRAY_ENV, 'KUBELET_ARGS="--config=/etc/kubernetes/kubelet-config.yaml \\\n %s"\n' % case["kubespray"]
        )
    else:
        install(KUBELET, case)
        write(UNIT, _UNIT % KUBELET)
        write(DROP_IN, _DROP_IN)
        write(KUBEADM_FLAGS, case.get("flags", 'KUBELET_KUBEADM_ARGS="--max-pods=110"\n'), 0o640)
        write(EXTRA, case.get("extra", "KUBELET_EXTRA_ARGS=\n"))
        write(CONFIG, case.get("config", "healthzPort: 10248\n"))
    if case.get("leftover"):
        comment = "kubenet: SNAT for outbound traffic from cluster"
        rule = ["!", "-d", "10.0.0.0/8", "-m", "comment", "--comment", comment]
        rule += ["-m", "addrtype", "!", "--dst-type", "LOCAL", "-j", "MASQUERADE"]
        sh(iptables(), "--wait", "-t", "nat", "-A", "POSTROUTING", *rule)
    if case.get("cri_dockerd"):
        install("/usr/bin/cri-dockerd", dict(case, version="1.23.17"), "--port", "10999", "--process", "cri-dockerd")
        write(CRI_UNIT, _UNIT % "/usr/bin/cri-dockerd --network-plugin=kubenet")
    sh("systemctl", "daemon-reload")
    for unit in (UNIT, CRI_UNIT):
        if unit.exists():
            sh("systemctl", "restart", unit.name)
    if name == "no_healthz":
        wait(lambda: bool(kubenet_rules()))
        return
    # One that has a flag that it does not know never comes up.
    wait(lambda: healthy() or "auto-restart" in sh("systemctl", "show", "-p", "SubState", "kubelet"))
    if case.get("cri_dockerd"):
        wait(lambda: bool(kubenet_rules()))


def wait(condition: t.Callable[[], bool]) -> None:
    """Wait until something is so, with an end."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(
                "the node did not come into the state of the case:\n"
                + sh("systemctl", "status", "kubelet", check=False)
            )
        time.sleep(0.1)


def healthy() -> bool:
    """What healthz says."""
    try:
        with urllib.request.urlopen(HEALTHZ + "/healthz", timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def kubenet_rules() -> t.List[str]:
    """Rules with kubenet's comment."""
    lines = sh(iptables(), "--wait", "-t", "nat", "-S", "POSTROUTING").splitlines()
    return [line for line in lines if "kubenet: SNAT" in line]


def look() -> t.Dict[str, t.Any]:
    """What can be seen of the node."""
    shown = sh("systemctl", "show", "kubelet", "-p", "MainPID", "-p", "ActiveState")
    about = dict(line.split("=", 1) for line in shown.splitlines())
    pid = about["MainPID"]
    try:
        arguments = Path("/proc", pid, "cmdline").read_text(encoding="utf-8").split("\0")[2:-1]
    except (FileNotFoundError, ProcessLookupError):  # not running, or it has just ended and systemd starts it again
        arguments = []
    files = (UNIT, DROP_IN, EXTRA, KUBEADM_FLAGS, KUBESPRAY_ENV)
    return {
        "healthy": healthy(),
        "pid": pid,
        "arguments": arguments,
        "files": {str(path): path.read_text(encoding="utf-8") for path in files if path.exists()},
        "kubenet_rules": kubenet_rules(),
        "other_rules": [
            line for line in sh(iptables(), "--wait", "-t", "nat", "-S").splitlines() if "kubenet: SNAT" not in line
        ],
    }


def restart() -> None:
    """What an operator does, and what a new pod causes."""
    sh("systemctl", "restart", "kubelet")
    wait(healthy)
    with urllib.request.urlopen(HEALTHZ + "/setup-pod", timeout=5):
        pass


if __name__ == "__main__":
    os.environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if sys.argv[1] == "set":
        stage(sys.argv[2])
    elif sys.argv[1] == "restart":
        restart()
    print(json.dumps(look()))
