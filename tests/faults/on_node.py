# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the node: ``python3 -B -m faults.on_node prepare|try|before-boot|after-boot [WORD...]``.

Prints a line of JSON for each scenario.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import typing as t

from . import fuse, jobs, paths, programs, user
from .node import CHAIN, EXTRA_RANGE, Broken, Node, must, properties
from .scenario import Outcome, Scenario, play, prepare


def everything(node: Node) -> t.Iterator[Scenario]:
    """All there is."""
    yield from jobs.timer()
    yield from jobs.scenarios()
    yield from jobs.limits()
    yield from jobs.environment()
    yield from programs.locks()
    yield from user.scenarios()
    yield from paths.yaml_modules()
    yield from programs.programs(node)
    yield from paths.scenarios()


#: Parts of names: a scenario of each class, and the ones that stopped an agent of the past.
SAMPLE = (
    "six restarts of the timer",
    "service is missing for a tick",
    "the recovery is late",
    "start of ufw",
    "stop of nftables",
    "LimitNOFILE=6",
    "XTABLES_LIBDIR=",
    "a stopped sync holds",
    "link to a loop",
    "link to /etc/ip-masq-agent/config.d",
    "FUSE of its own never answers, for everybody",
    "yaml.py that ends the process with 0",
    "program, ip6tables hangs",
    "/tmp: loop",
    "/var/lib: FIFO",
    "/run/xtables.lock: FIFO",
    "/run/ip-masq-agent: FUSE never",
    "/etc/ip-masq-agent/config: FUSE EACCES",
    "sync.pyc: FIFO",
    "/var/lib/ip-masq-agent: full",
)


def outcomes(node: Node, words: t.Sequence[str]) -> t.Iterator[Outcome]:
    """Try the scenarios with one of the words in their names, or all, one after the other."""
    prepare(node)
    for scenario in everything(node):
        if not words or any(word in "%s, %s" % (scenario.kind, scenario.name) for word in words):
            yield play(node, scenario)


def own_directories() -> None:
    """Copy directories of the image: those of a lower layer of overlayfs cannot be renamed."""
    packages = [path for path in sys.path if path.startswith("/usr/local/lib") and os.path.isdir(path)]
    for path in ("/var", "/home", "/root", "/tmp", *packages, "/usr/lib/python3/dist-packages"):
        if not os.path.isdir(path):
            os.makedirs(path)
        mounts = [line.split()[4] for line in _lines("/proc/self/mountinfo") if line.split()[4].startswith(path + "/")]
        subprocess.run(["cp", "-a", "-x", path, path + ".new"], check=True)
        for mounted in mounts:
            fuse.mount(mounted, path + ".new" + mounted[len(path) :], flags=fuse.MS_BIND)
            fuse.unmount(mounted)
        if os.path.ismount(path):
            fuse.unmount(path)
        shutil.rmtree(path)
        os.rename(path + ".new", path)


def _lines(path: str) -> t.List[str]:
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


_KUBELET = """[Service]
ExecStart=/bin/sleep infinity

[Install]
WantedBy=multi-user.target
"""


def before_install() -> None:
    """Make the node as it is before there is an agent."""
    own_directories()
    if user.USER not in "".join(_lines("/etc/passwd")):
        line = ["useradd", "--system", "--uid", str(user.USER_ID), "--user-group", "--no-create-home", user.USER]
        subprocess.run(line, check=True)
    os.makedirs(paths.METRICS, exist_ok=True)
    for path in (os.path.dirname(paths.METRICS), paths.METRICS):
        os.chown(path, user.USER_ID, user.USER_ID)
    with open("/etc/systemd/system/kubelet.service", "w", encoding="utf-8") as unit:
        unit.write(_KUBELET)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    subprocess.run(["systemctl", "enable", "--now", "kubelet"], check=True)
    for path in ("/run/user", "/home", "/root", "/var/log"):
        os.makedirs(path, exist_ok=True)
    if not os.path.exists("/run/xtables.lock"):
        os.close(os.open("/run/xtables.lock", os.O_CREAT, 0o600))


_BOOT_KUBELET = """[Service]
ExecStart=/bin/sh -c '{ nft list ruleset; iptables-save; } >/var/lib/kubelet-saw; exec sleep infinity'

[Install]
WantedBy=multi-user.target
"""
#: Seconds that firewalls hang at boot: longer than a kubelet may wait.
_BOOT_HANGS = 80
#: Seconds that a kubelet may wait for us at boot.
_BOOT_LIMIT = 35.0


def before_boot(_node: Node) -> None:
    """Have all firewalls hang at the next boot."""
    for firewall in jobs.FIREWALLS:
        text = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep %d\n" % _BOOT_HANGS
        text = "[Unit]\nBefore=network-pre.target\nWants=network-pre.target\n" + text
        path = "/etc/systemd/system/%s.service" % firewall
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(path, "w", encoding="utf-8") as unit:
            unit.write(text)
        # Not by systemctl: packages have aliases for each other.
        with contextlib.suppress(FileExistsError):
            os.symlink(unit.name, "/etc/systemd/system/multi-user.target.wants/%s.service" % firewall)
    with open("/etc/systemd/system/kubelet.service", "w", encoding="utf-8") as unit:
        unit.write(_BOOT_KUBELET)
    must("systemctl", "daemon-reload")
    must("systemctl", "enable", "kubelet")


def after_boot(node: Node) -> t.Iterator[Outcome]:
    """See when the kubelet was started, and that there were rules."""
    (hung,) = properties("ufw.service", "Unit", "InactiveExitTimestampMonotonic")
    (kubelet,) = properties("kubelet.service", "Unit", "ActiveEnterTimestampMonotonic")
    waited = (int(kubelet) - int(hung)) / 1e6 if int(kubelet or 0) else float("inf")
    good = waited <= _BOOT_LIMIT
    yield Outcome(
        "boot", "all firewalls hang: the kubelet starts", good, "%.1f s" % waited, [] if good else node.state()
    )
    saw = "".join(_lines("/var/lib/kubelet-saw"))
    there = EXTRA_RANGE in saw and (CHAIN in saw or "ip_masq_agent" in saw)
    yield Outcome("boot", "all firewalls hang: rules before the kubelet", there, "there" if there else "NOT THERE", [])


def main(argv: t.Sequence[str]) -> int:
    """Run what is named."""
    os.chdir("/")
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    if argv[0] == "prepare":
        before_install()
        return 0
    node = Node(os.environ.get("IP_MASQ_AGENT_BACKEND", "auto"))
    failed = 0
    try:
        if argv[0] == "before-boot":
            before_boot(node)
            return 0
        for outcome in after_boot(node) if argv[0] == "after-boot" else outcomes(node, argv[1:]):
            failed += outcome.good is False
            print(json.dumps(outcome._asdict()), flush=True)
    except Broken as exc:
        failed += 1
        print(json.dumps(Outcome("node", "the node", False, str(exc), node.state())._asdict()))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
