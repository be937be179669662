# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of an agent where SELinux is enforcing, in a virtual machine: tools/test-vm --selinux. Ends with a count.

It is run by systemd, as root, on Debian 12. The standard library is all that it has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import typing as t
from pathlib import Path

sys.path.insert(0, "/srv/collections")

from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import agent_options, agent_task

AUDIT = Path("/var/log/audit/audit.log")
METRICS = Path("/var/lib/prometheus/node-exporter")
#: What a node needs for no denial at all: with NoNewPrivileges= the domain of iptables cannot be entered. The kernel
#: then starts it in the domain of the agent, in which it works.
ALLOWED = "(allow initrc_t iptables_t (process2 (nnp_transition)))\n"
#: Seconds.
LONGEST = 300.0

checks: t.List[bool] = []


def check(title: str, passed: bool) -> None:
    """Count and print a check."""
    checks.append(passed)
    print("%s: %s" % ("ok" if passed else "NOT SO", title), flush=True)


def run(*argv: str) -> str:
    """Return what a program prints. No program gets the console, which iptables may not write to."""
    quiet = subprocess.DEVNULL
    return subprocess.run(argv, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True, check=False).stdout


def apply(title: str, **options: t.Any) -> None:
    """Do what the module ip_masq_agent does."""
    params = {name: about.get("default") for name, about in agent_options.AGENT.items()}
    done = agent_task.carry_out(dict(params, config={"nonMasqueradeCIDRs": ["10.0.0.0/8"]}, **options), check=False)
    check("%s %s" % (title, done.failure), not done.failure and bool(done.returned["changed"]))


def rules() -> str:
    """Return the rules of the agent."""
    return run("iptables-nft", "-t", "nat", "-S")


def sync() -> None:
    """Run the service, and see that it did not fail."""
    run("systemctl", "restart", "ip-masq-agent.service")
    result = run("systemctl", "show", "--property=Result", "ip-masq-agent.service").strip()
    check("the service: %s" % result, result == "Result=success")


def denials() -> t.List[str]:
    """Return what was denied up to now, without times and process ids."""
    found = re.findall(r"^type=(?:USER_)?AVC .*denied.*$", AUDIT.read_text(errors="replace"), re.MULTILINE)
    return [re.sub(r"^.*?denied|pid=\d+|ino=\d+", "", line) for line in found]


def live() -> None:
    """Install the agent, use all of its units, move it to a new directory in /opt, remove it."""
    apply("install")
    sync()
    check("rules", "-d 10.0.0.0/8" in rules())
    Path("/etc/ip-masq-agent/config.d/more.json").write_text('{"nonMasqueradeCIDRs": ["172.16.0.0/12"]}')
    deadline = time.monotonic() + LONGEST
    while "-d 172.16.0.0/12" not in rules() and time.monotonic() < deadline:
        time.sleep(1)
    check("an edit acts", "-d 172.16.0.0/12" in rules())
    run("iptables-nft", "-t", "nat", "-F")
    sync()
    check("drift is repaired", "-d 172.16.0.0/12" in rules())
    METRICS.mkdir(parents=True)
    apply("metrics", metrics_dir=str(METRICS))
    sync()
    check("metrics are written", (METRICS / "ip_masq_agent.prom").exists())
    apply("another place", bin_dir="/opt/masq/bin")
    label = os.getxattr("/opt/masq/bin/ip-masq-agent", "security.selinux").decode()
    check("its label: %s" % label, ":bin_t:" in label)
    sync()
    apply("removal", state="absent", bin_dir="/opt/masq/bin")


def main() -> None:
    """Count what is denied, without and with the rule that allows it."""
    check("SELinux is enforcing", run("getenforce").strip() == "Enforcing")
    before = len(denials())
    live()
    found = denials()[before:]
    check("denied: only the domain of iptables", all("{ nnp_transition }" in line for line in found))
    for line in sorted(set(found)):
        print("%d x %s" % (found.count(line), line))
    Path("/root/ip-masq-agent.cil").write_text(ALLOWED)
    run("semodule", "-i", "/root/ip-masq-agent.cil")
    METRICS.joinpath("ip_masq_agent.prom").unlink(missing_ok=True)
    METRICS.rmdir()
    before = len(denials())
    live()
    check("denied with the rule: %s" % denials()[before:], not denials()[before:])


if __name__ == "__main__":
    try:
        main()
    finally:
        print("%d passed, %d failed" % (sum(checks), checks.count(False) + (sys.exc_info()[0] is not None)), flush=True)
