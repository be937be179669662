# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of an agent where SELinux or AppArmor is enforcing, in a virtual machine: tools/test-vm --lsm NAME.

It is run by systemd, as root, on Debian 12, and counts what the kernel denies. It ends with the number of checks. It
has the standard library, and in /srv the built collection and the stand-in for the kubelet.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import agent_options, agent_task, kubelet_task
from support import fake_kubelet

AUDIT = Path("/var/log/audit/audit.log")
METRICS = Path("/var/lib/prometheus/node-exporter")
DROP_IN = Path("/etc/ip-masq-agent/config.d/more.json")
KUBELET_FILE = Path("/etc/default/kubelet")
TIMER = "ip-masq-agent.timer"
MODULE = Path("/srv/collections/ansible_collections/kubenode/ip_masq/examples/selinux/ip-masq-agent.cil")
#: A program that its profile does not let read /etc/shadow: what AppArmor denies is seen and counted.
WALLED = Path("/usr/local/bin/walled")
#: Seconds.
LONGEST = 300.0
#: So long that no tick of the timer comes by chance.
NEVER = "24h"

KUBELET_UNIT = """
[Service]
EnvironmentFile=-%s
ExecStart=/usr/bin/kubelet --v=2 $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1
"""
PROFILE = """
#include <tunables/global>
%s {
  #include <abstractions/base>
  deny /etc/shadow r,
  audit deny /etc/gshadow r,
}
"""

checks: t.List[bool] = []


def check(title: str, passed: bool) -> None:
    """Count and print a check."""
    checks.append(passed)
    print("%s: %s" % ("ok" if passed else "NOT SO", title), flush=True)


def run(*argv: str) -> str:
    """Return what a program prints. No program gets the console, which iptables may not write to."""
    quiet = subprocess.DEVNULL
    return subprocess.run(argv, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True, check=False).stdout


def comes(title: str, is_so: t.Callable[[], bool]) -> None:
    """Check what comes about without anything else that is done."""
    deadline = time.monotonic() + LONGEST
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.5)
    check(title, is_so())


def apply(title: str, backend: str = "iptables_nft", **options: t.Any) -> None:
    """Do what the module ip_masq_agent does."""
    params = {name: about.get("default") for name, about in agent_options.AGENT.items()}
    config = {"backend": backend, "nonMasqueradeCIDRs": ["10.0.0.0/8"], "resyncInterval": NEVER}
    done = agent_task.carry_out(dict(params, config=config, **options), check=False)
    check("%s %s" % (title, done.failure), not done.failure and bool(done.returned["changed"]))
    if options.get("verify"):
        verified = done.returned["verification"]
        check("verify: %s" % verified["summary"], verified["verified"] is True)


def edit(cidr: str, **keys: str) -> None:
    """Write a drop-in, as an operator."""
    DROP_IN.write_text(json.dumps(dict(keys, nonMasqueradeCIDRs=[cidr])))


def rules() -> str:
    """Return the rules of the agent that iptables of the nft variant has."""
    return run("iptables-nft", "-t", "nat", "-S")


def has(cidr: str) -> t.Callable[[], bool]:
    """Return whether such a rule is there, as a question."""
    return lambda: "-d %s" % cidr in rules()


def sync() -> None:
    """Run the service, and see that it did not fail."""
    run("systemctl", "restart", "ip-masq-agent.service")
    result = run("systemctl", "show", "--property=Result", "ip-masq-agent.service").strip()
    check("the service: %s" % result, result == "Result=success")


def units() -> None:
    """Wait for what each unit does by itself."""
    edit("172.16.0.0/12")
    comes("path unit: an edit acts", has("172.16.0.0/12"))
    run("systemctl", "start", "nftables.service")
    comes("hook: rules after the start of a firewall that flushes", has("172.16.0.0/12"))
    run("iptables-nft", "-t", "nat", "-F")
    run("systemctl", "restart", "nftables.service")
    comes("hook: rules after its restart", has("172.16.0.0/12"))
    run("systemctl", "stop", "nftables.service")
    apply("metrics", metrics_dir=str(METRICS))
    metrics = METRICS / "ip_masq_agent.prom"
    metrics.unlink(missing_ok=True)
    edit("172.16.0.0/12", resyncInterval="5s")
    comes("timer: its interval is set", lambda: "5s" in run("systemctl", "show", "--property=TimersMonotonic", TIMER))
    run("iptables-nft", "-t", "nat", "-F")
    comes("timer: its tick repairs drift", has("172.16.0.0/12"))
    comes("timer: its tick writes metrics", metrics.exists)
    edit("172.16.0.0/12", resyncInterval=NEVER)


def backends() -> None:
    """Use the other backends in the sandbox of the service, and load the modules of one."""
    apply("backend nftables", backend="nftables")
    run("nft", "flush", "ruleset")
    sync()
    check("rules of nft", "10.0.0.0/8" in run("nft", "list", "ruleset"))
    apply("backend iptables_legacy", backend="iptables_legacy")
    run("iptables-legacy", "-t", "nat", "-F")
    run("iptables-legacy", "-t", "nat", "-X")
    for module in ("iptable_nat", "ip_tables"):
        run("modprobe", "-r", module)
    for name in ("/run/ip-masq-agent/" + name for name in os.listdir("/run/ip-masq-agent")):
        os.unlink(name)
    os.rmdir("/run/ip-masq-agent")
    sync()
    check("rules of iptables-legacy", "-d 10.0.0.0/8" in run("iptables-legacy", "-t", "nat", "-S"))


def kubelet(title: str, version: str, before: str, after: str) -> None:
    """Have the kubelet's arguments edited, and the kubelet restarted."""
    fake_kubelet.install("/usr/bin/kubelet", version)
    Path("/etc/systemd/system/kubelet.service").write_text(KUBELET_UNIT % KUBELET_FILE)
    KUBELET_FILE.write_text(before)
    labelled = label(KUBELET_FILE)
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", "kubelet.service")
    params = {name: about.get("default") for name, about in agent_options.KUBELET.items()}
    done = kubelet_task.carry_out(dict(params, healthz_timeout=LONGEST), check=False)
    check("kubelet, %s: %s" % (title, done.failure), not done.failure and bool(done.returned["changed"]))
    check("kubelet: its arguments", KUBELET_FILE.read_text() == after)
    check("kubelet: the label of their file: %s" % labelled, label(KUBELET_FILE) == labelled)
    state = run("systemctl", "show", "--property=SubState", "kubelet.service").strip()
    check("kubelet: %s" % state, state == "SubState=running")
    run("systemctl", "stop", "kubelet.service")


def ufw() -> None:
    """Start ufw with rules that flush the table nat."""
    apply("install, beside ufw")
    rules_of_ufw = Path("/etc/ufw/before.rules")
    rules_of_ufw.write_text("*nat\n-F\nCOMMIT\n" + rules_of_ufw.read_text())
    Path("/etc/ufw/ufw.conf").write_text("ENABLED=yes\nLOGLEVEL=off\n")
    before = repairs()
    run("systemctl", "restart", "ufw.service")
    comes("hook: rules after the start of ufw, which flushes", lambda: repairs() > before and has("10.0.0.0/8")())
    apply("removal", state="absent")


def repairs() -> int:
    """Return how often lost rules were repaired."""
    return int(json.loads(Path("/var/lib/ip-masq-agent/state.json").read_text())["drift_repaired"])


def label(path: Path) -> str:
    """Return the label of SELinux; empty where there is none."""
    try:
        return os.getxattr(path, "security.selinux").decode().rstrip("\0")
    except OSError:
        return ""


def begin() -> None:
    """Install the agent, and run its service."""
    apply("install", verify=True)
    sync()
    check("rules", has("10.0.0.0/8")())


def live() -> None:
    """Install the agent, use all of its units, move it to a new directory in /opt, remove it."""
    if Path("/run/ip-masq-agent").exists():
        apply("removal", state="absent")
        Path("/run/xtables.lock").unlink(missing_ok=True)
    begin()
    labelled = bool(label(Path("/etc")))
    lock = label(Path("/run/xtables.lock"))
    check("the label of the lock file: %s" % lock, ":iptables_" in lock or not labelled)
    METRICS.mkdir(parents=True)
    units()
    backends()
    apply("another place", bin_dir="/opt/masq/bin")
    moved = label(Path("/opt/masq/bin/ip-masq-agent"))
    check("the label of a program in it: %s" % moved, ":bin_t:" in moved or not labelled)
    sync()
    apply("removal", state="absent", bin_dir="/opt/masq/bin")
    flag = "--non-masquerade-cidr=0.0.0.0/0"
    kubelet("a flag that it no longer has", "1.27.16", "KUBELET_EXTRA_ARGS=%s\n" % flag, "KUBELET_EXTRA_ARGS=\n")
    with_kubenet = "KUBELET_EXTRA_ARGS=--network-plugin=kubenet"
    kubelet("with kubenet", "1.23.17", with_kubenet + "\n", "%s %s\n" % (with_kubenet, flag))
    for path in METRICS.iterdir():
        path.unlink()
    METRICS.rmdir()


def denials() -> t.List[str]:
    """Return what was denied up to now, or only complained about, without times and process ids."""
    pattern = r"^type=(?:USER_)?AVC .*(?:denied|apparmor=\"(?:DENIED|ALLOWED)\").*$"
    found = re.findall(pattern, AUDIT.read_text(errors="replace"), re.MULTILINE)
    return [re.sub(r"^.*?(?=denied|apparmor)|pid=\d+|ino=\d+", "", line) for line in found]


def count(what: str, of: t.Callable[[], None], expected: str = "") -> None:
    """Do something, and count what is denied.

    :param expected: what each denial has in it; nothing for none at all.
    """
    before = len(denials())
    of()
    time.sleep(2)  # auditd writes a moment later
    found = denials()[before:]
    for line in sorted(set(found)):
        print("%d x %s" % (found.count(line), line))
    title = "%s: %d denied" % (what, len(found))
    check(title + (", each has %s" % expected) * bool(expected), all(expected and expected in line for line in found))


def selinux() -> None:
    """Live without and with the module that allows what is denied."""
    check("SELinux is enforcing", run("getenforce").strip() == "Enforcing")
    count("without the module", begin, "{ nnp_transition }")
    run("semodule", "-i", str(MODULE))
    check("the module is installed", "ip-masq-agent" in run("semodule", "-l").split())
    count("with the module", live)


def apparmor() -> None:
    """Live beside the profiles of Debian's packages."""
    check("AppArmor is enabled", Path("/sys/module/apparmor/parameters/enabled").read_text() == "Y\n")
    WALLED.write_bytes(Path("/bin/cat").read_bytes())
    WALLED.chmod(0o755)
    Path("/etc/apparmor.d/walled").write_text(PROFILE % WALLED)
    run("apparmor_parser", "-r", "/etc/apparmor.d/walled")
    loaded = Path("/sys/kernel/security/apparmor/profiles").read_text().splitlines()
    enforced = [line for line in loaded if line.endswith("(enforce)")]
    check("%d profiles are loaded, %d of them enforced" % (len(loaded), len(enforced)), len(enforced) > 5)
    before = len(denials())
    run(str(WALLED), "/etc/gshadow")
    comes("a denial is counted", lambda: len(denials()) == before + 1)
    count("AppArmor", live)
    ufw()


if __name__ == "__main__":
    try:
        for words in ("link add cni0 type bridge", "address add 10.244.1.1/24 dev cni0", "link set cni0 up"):
            run("ip", *words.split())  # verify asks about packets of pods
        {"selinux": selinux, "apparmor": apparmor}[sys.argv[1]]()
    finally:
        print(run("journalctl", "--no-pager", "--priority=err", "--output=short-monotonic"))
        print("%d passed, %d failed" % (sum(checks), checks.count(False) + (sys.exc_info()[0] is not None)), flush=True)
