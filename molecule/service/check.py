# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent's service can do in its sandbox, and what must not stop repairs: ``check.py sandbox``."""

from __future__ import annotations

import glob
import os
import pwd
import re
import shutil
import stat
import sys
import time
import typing as t
from pathlib import Path

from checks import (
    AGENT,
    BACKEND,
    CONFIG,
    DROP_INS,
    LINK_LOCAL,
    RFC1918,
    SERVICE,
    check,
    check_rules,
    done,
    equal,
    eventually,
    exempt,
    flush,
    journal,
    packets,
    run,
    sh,
    shown,
    write,
)
from support import cni_results

METRICS_DIR = "/var/lib/node_exporter"
METRICS = os.path.join(METRICS_DIR, "ip_masq_agent.prom")
LOCK = "/run/xtables.lock"
LOG_SERVICE, LOG_DIR = "ip-masq-agent-log.service", "/var/log/ip-masq-agent"
TIMESTAMPS = "/proc/sys/net/netfilter/nf_conntrack_timestamp"


def synced(what: str) -> None:
    """A run of the service repairs a flush."""
    flush()
    sh("systemctl", "start", SERVICE)
    check_rules(what)


def metrics_of_others() -> None:
    """The directory belongs to node_exporter's user."""
    about = os.stat(METRICS_DIR)
    equal("%s is another user's" % METRICS_DIR, pwd.getpwuid(about.st_uid).pw_name, "nobody")
    before = os.stat(METRICS).st_mtime_ns
    sh("systemctl", "start", SERVICE)
    check("the service writes metrics there", os.stat(METRICS).st_mtime_ns > before)
    equal("everybody may read them", stat.S_IMODE(os.stat(METRICS).st_mode), 0o644)


def metrics_gone() -> None:
    """The directory disappears: repairs continue, and the journal has one warning."""
    here = len(journal())
    os.rename(METRICS_DIR, METRICS_DIR + ".away")
    for again in range(2):
        synced("without the directory of the metrics, run %d" % (again + 1))
        equal("the service is well", shown(SERVICE, "Result"), {"Result": "success"})
    warned = [line for line in journal()[here:] if "metrics not written" in line]
    check("one warning names the reason", len(warned) == 1 and METRICS_DIR in warned[0], warned)
    os.rename(METRICS_DIR + ".away", METRICS_DIR)
    os.unlink(METRICS)
    sh("systemctl", "start", SERVICE)
    check("metrics are back with their directory", os.path.exists(METRICS))


def config_of_others() -> None:
    """A file that only its owner may read, who is not root."""
    path = os.path.join(DROP_INS, "10-site.json")
    with open(path + ".new~", "w", encoding="utf-8") as handle:
        handle.write('{"nonMasqueradeCIDRs": ["100.64.0.0/10", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]}')
    shutil.chown(path + ".new~", "nobody")
    os.chmod(path + ".new~", 0o600)
    os.rename(path + ".new~", path)
    wanted = BACKEND.in_order([LINK_LOCAL, "100.64.0.0/10", *RFC1918])
    eventually("the edit acts", lambda: sorted(exempt()) == sorted(wanted), seen=exempt)
    os.unlink(path)
    eventually("its removal too", lambda: exempt() == BACKEND.in_order([LINK_LOCAL, *RFC1918]), seen=exempt)


def lock_file() -> None:
    """The lock file of iptables-legacy is deleted."""
    sh("systemctl", "start", SERVICE)
    os.unlink(LOCK)
    synced("after the lock file was deleted")
    equal("its mode", stat.S_IMODE(os.stat(LOCK).st_mode), 0o600)


def idle(unit: str) -> bool:
    """Whether a oneshot unit is not under way."""
    return shown(unit, "ActiveState")["ActiveState"] == "inactive"


def exposure(figures: t.Sequence[str]) -> None:
    """What systemd thinks of each service is what the documentation says, for the release that it names."""
    wanted = dict(figure.split("=") for figure in figures)
    services = ("", "-boot", "-recover", "-firewall@nftables")
    seen = {}
    for name in services:
        last = sh("systemd-analyze", "security", "--no-pager", "ip-masq-agent%s.service" % name).splitlines()[-1]
        seen["ip-masq-agent%s.service" % name.partition("@")[0].replace("firewall", "firewall@")] = last.split()[-3]
    print("    %s" % seen)
    if sh("systemctl", "--version").split()[1] == "257":
        equal("the documentation has the figures of systemd-analyze security", seen, wanted)


def restarts() -> None:
    """A restart that comes before the script has set its trap is no failure."""
    here = len(journal())
    for _again in range(50):
        sh("systemctl", "--no-block", "restart", SERVICE)
    eventually("they are finished", lambda: idle(SERVICE))
    failed = [line for line in journal()[here:] if "Failed with result" in line or "Main process exited" in line]
    equal("50 restarts in a row are 50 restarts", failed, [])


def traceback() -> None:
    """What the agent writes without a priority reaches the journal."""
    aside = AGENT + ".aside"
    os.rename(AGENT, aside)
    write(AGENT, '#!/usr/bin/python3 -I\nraise RuntimeError("of the check")\n')
    os.chmod(AGENT, 0o755)
    here = len(journal())
    check("the service fails", run("systemctl", "start", SERVICE).returncode)
    os.rename(aside, AGENT)
    eventually(
        "the journal has the reason", lambda: any("RuntimeError: of the check" in line for line in journal()[here:])
    )
    sh("systemctl", "start", SERVICE)


def units() -> None:
    """systemd has nothing to say against the units."""
    files = [path for path in glob.glob("/etc/systemd/system/ip-masq-agent*") if os.path.isfile(path)]
    verified = run("systemd-analyze", "verify", *files)
    equal("systemd-analyze verify", (verified.returncode, verified.stdout + verified.stderr), (0, ""))


def connections() -> None:
    """A connection that has ended is found in the log, with the name of its pod."""
    equal("the log is for root alone", stat.S_IMODE(os.stat(LOG_DIR).st_mode), 0o700)
    active = {"ActiveState": "active"}
    eventually("ulogd runs", lambda: shown(LOG_SERVICE, "ActiveState") == active)
    remote = ("-p", "tcp", "-d", "203.0.113.7")
    run("conntrack", "-D", *remote)
    packets("that are logged", {"203.0.113.7": "node"})
    found = re.search(r"src=(\S+) .* dst=(\S+) sport=([0-9]+) dport=([0-9]+)", sh("conntrack", "-L", *remote))
    assert found
    pod, node, server_port, port = found.groups()
    cni_results.write(
        Path("/var/lib/cni/results"), "default/web-0", pod, netns="/run/netns/pod", written=time.time() - 60
    )
    sh("systemctl", "start", LOG_SERVICE.replace(".", "-keep."))
    sh("conntrack", "-D", *remote)
    needle = '"reply.l4.dport": %s,' % port
    eventually("the log has it", lambda: needle in Path(LOG_DIR, "connections.log").read_text(encoding="ascii"))
    began = re.findall(needle + '.*"flow.start.sec": ([0-9]+)', Path(LOG_DIR, "connections.log").read_text())[-1]
    check("the kernel tells when it began", int(began))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(began)))
    ends = ("%s:%s" % (node, port), "--to", "203.0.113.7:" + server_port)
    answer = sh(AGENT, "who", *ends, "--at", at).splitlines()[0]
    check("the pod is named", "%s:" % pod in answer and " (default/web-0) -> " in answer, answer)
    check("the sysctl is set", Path(TIMESTAMPS).read_text() == "1\n")
    sh("systemctl", "stop", LOG_SERVICE)
    check("the sysctl is restored", Path(TIMESTAMPS).read_text() == "0\n")
    sh("systemctl", "start", LOG_SERVICE)


def works() -> None:
    """The service repairs drift."""
    equal("its last run went well", shown(SERVICE, "Result"), {"Result": "success"})
    synced("a run of the service")
    packets("after it")


if __name__ == "__main__":
    if sys.argv[1] == "sandbox":
        check("the configuration is there", os.path.exists(CONFIG))
        exposure(sys.argv[2:])
        for part in (
            units,
            metrics_of_others,
            metrics_gone,
            config_of_others,
            lock_file,
            restarts,
            traceback,
            connections,
        ):
            t.cast(t.Callable[[], None], part)()
    works()
    done()
