# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the scenarios' checks share. They run on a node, as root, beside ``world.py``.

A check prints a line for each assertion that holds, with the time it took if there is a limit, and ends at the first
that does not hold. The last line is a JSON object: how many things were checked, and how many packets.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import typing as t

import world
from support.variants import Nftables, Variant

AGENT = "/usr/local/sbin/ip-masq-agent"
#: Where a package has it.
PACKAGED = "/usr/sbin/ip-masq-agent"
SERVICE = "ip-masq-agent.service"
BOOT_SERVICE = "ip-masq-agent-boot.service"
TIMER = "ip-masq-agent.timer"
CONFIG = "/etc/ip-masq-agent/config"
DROP_INS = "/etc/ip-masq-agent/config.d"
CHAIN = "IP-MASQ-AGENT"
LINK_LOCAL = "169.254.0.0/16"
RFC1918 = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")

#: Where packets of the default policy leave from.
DEFAULT_PACKETS = {
    "10.99.0.1": "pod",
    "172.20.0.1": "pod",
    "192.168.77.1": "pod",
    "203.0.113.7": "node",
    "198.51.100.9": "node",
}

#: Seconds to wait for what has no limit of its own, and to add to each limit: the machine may be busy.
PATIENCE = 30.0
_PAUSE = 0.05

_counted = {"checks": 0, "packets": 0}


def run(*argv: str, stdin: str = "") -> subprocess.CompletedProcess:
    """Run a program, whatever comes of it."""
    return subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, text=True)


def sh(*argv: str, stdin: str = "") -> str:
    """Run a program that must succeed; its output."""
    done = run(*argv, stdin=stdin)
    if done.returncode != 0:
        fail("%s: exit status %d" % (" ".join(argv), done.returncode), done.stdout + done.stderr)
    return done.stdout


def fail(what: str, seen: object = "") -> t.NoReturn:
    """End the check."""
    print("NOT SO: %s" % what)
    if seen != "":
        print("seen: %s" % (seen if isinstance(seen, str) else json.dumps(seen, indent=1, default=str)))
    journal = run("journalctl", "-u", "ip-masq-agent*", "-n", "40", "--no-pager", "-o", "short-precise").stdout
    print("journal:\n" + journal)
    sys.exit(1)


def check(what: str, good: object, seen: object = "") -> None:
    """One thing that must be so.

    :param seen: what to show where it is not.
    """
    if not good:
        fail(what, seen)
    _counted["checks"] += 1
    print("ok: " + what, flush=True)


def equal(what: str, seen: object, wanted: object) -> None:
    """Two things that must be equal."""
    check(what, seen == wanted, {"seen": seen, "wanted": wanted})


def eventually(
    what: str,
    probe: t.Callable[[], object],
    promised: float = 0.0,
    since: t.Optional[float] = None,
    seen: t.Callable[[], object] = str,
) -> float:
    """Wait until a condition holds.

    :param promised: seconds, shown beside those it took. It fails after these and ``PATIENCE``.
    :param since: where the clock (time.monotonic) started; default: now.
    :param seen: what to show if it never holds.
    :returns: the seconds it took.
    """
    started = time.monotonic() if since is None else since
    asked = time.monotonic()
    while not probe():
        now = time.monotonic()
        if now - started > promised + PATIENCE:
            fail("%s, within %.0f s" % (what, promised + PATIENCE), seen())
        time.sleep(max(_PAUSE, now - asked))  # what it waits for needs the processor too
        asked = time.monotonic()
    took = time.monotonic() - started
    check("%s: %.1f s%s" % (what, took, " (expected within %g s)" % promised if promised else ""), True)
    return took


def packets(what: str, wanted: t.Mapping[str, str] = DEFAULT_PACKETS, protocol: str = "tcp") -> None:
    """New connections from the pod, and the source addresses seen outside; see ``world.py expect``."""
    answer = world.expect(wanted, 0, protocol)
    said = ", ".join("%s=%s" % pair for pair in wanted.items())
    equal("packets, %s: %s" % (what, said), answer["seen"], answer["expected"])
    _counted["packets"] += len(wanted)


def done(**more: object) -> None:
    """Say how much was checked, and more that the playbook wants to know."""
    print(json.dumps(dict(_counted, **more)))


# The rules


class Here:
    """This node, for those who read rules in namespaces elsewhere."""

    @staticmethod
    def run(*argv: str, stdin: str = "", check: bool = True) -> str:
        """As ``support.namespaces.Namespace.run``."""
        return sh(*argv, stdin=stdin) if check else run(*argv, stdin=stdin).stdout

    @staticmethod
    def read(path: str) -> str:
        """As ``support.namespaces.Namespace.read``."""
        return run("cat", path).stdout


HERE = t.cast(t.Any, Here)
LEGACY = "legacy" in run("iptables", "--version").stdout
#: the variant of iptables that the node uses, and the one that it does not
HOST, OTHER = map(Variant, ("iptables_legacy", "iptables_nft") if LEGACY else ("iptables_nft", "iptables_legacy"))
#: where our rules are to be: what the role was told (see tasks/check.yml), else what it finds
NATIVE = os.environ.get("IP_MASQ_AGENT_BACKEND") == "nftables"
NFTABLES = Nftables(HOST.backend)
BACKEND = NFTABLES if NATIVE else HOST
#: everywhere where rules of ours can be
PLACES = (HOST, OTHER, NFTABLES)

_PER_RULE = "-m addrtype ! --dst-type LOCAL "
JUMP = _PER_RULE + "-j " + CHAIN


def ours(family: str = "ipv4", place: Variant = BACKEND, chain: str = CHAIN) -> t.List[str]:
    """The jumps to our chain, then its rules, in the words of iptables whatever the backend.

    :param chain: its name, where chains have names of their own.
    """
    chain = CHAIN if place is NFTABLES else chain
    return place.jumps(HERE, family, chain) + (place.rules(HERE, family, chain) or [])


def postrouting(family: str = "ipv4", place: Variant = HOST) -> t.List[str]:
    """The rules of POSTROUTING in a variant of iptables."""
    return place.rules(HERE, family, "POSTROUTING") or []


def exempt() -> t.List[str]:
    """The IPv4 ranges that the kernel exempts, in order."""
    return [rule.split()[1] for rule in BACKEND.rules(HERE, "ipv4") or [] if rule.startswith("-d ")]


def iptables(*arguments: str) -> None:
    """Change the nat table in the variant that the node uses."""
    sh(HOST.tool("ipv4"), "-w", "-t", "nat", *arguments)


def nft(*commands: str) -> None:
    """Change our own table, called TABLE, in one transaction."""
    sh("nft", "-f", "-", stdin="\n".join(commands).replace("TABLE", "ip ip_masq_agent") + "\n")


def flush() -> None:
    """Empty our chain."""
    DAMAGE["the chain is flushed"]()


def lose() -> None:
    """Take out a range that nothing else takes out: the journal has one line about it, which says what was repaired."""
    BACKEND.lose(HERE, "ipv4", LINK_LOCAL)


#: What that line says.
LOST = ": range added: " if NATIVE else ": rule added: -A " + CHAIN
#: Ways to damage our rules.
DAMAGE: t.Dict[str, t.Callable[[], None]] = {
    "the chain is flushed": lambda: iptables("-F", CHAIN),
    "the jump is deleted": lambda: iptables("-D", "POSTROUTING", str(len(postrouting()))),
    "a second jump, without its match": lambda: iptables("-A", "POSTROUTING", "-j", CHAIN),
    "a foreign rule in the chain": lambda: iptables("-I", CHAIN, "1", "-d", "203.0.113.0/24", "-j", "RETURN"),
}
if NATIVE:
    DAMAGE = {
        "the chain is flushed": lambda: nft("flush chain TABLE postrouting"),
        "the chain is deleted": lambda: nft("flush chain TABLE postrouting", "delete chain TABLE postrouting"),
        "a range is lost": lambda: nft("delete element TABLE exempt_ranges { 10.0.0.0/8 }"),
        "the set is flushed": lambda: nft("flush set TABLE exempt_ranges"),
        "another chain": lambda: nft(
            "add chain TABLE mine { type nat hook postrouting priority 90; }", "add rule TABLE mine masquerade"
        ),
        "a foreign rule in the chain": lambda: nft("insert rule TABLE postrouting ip daddr 203.0.113.0/24 return"),
    }
#: How many rules come back after a flush: nftables has the ranges in a set, which keeps them.
FLUSHED_RULES = 3 if NATIVE else 5


def counters(family: str = "ipv4", chain: str = CHAIN) -> t.List[int]:
    """Packets that each rule of our chain has counted."""
    return [int(re.findall(r"-c ([0-9]+) ", line)[0]) for line in BACKEND.counters(HERE, family, chain)]


def check_counters(what: str, before: t.Sequence[int], family: str = "ipv4", chain: str = CHAIN) -> None:
    """Nobody wrote these rules anew: what they had counted is still there."""
    now = counters(family, chain)
    kept = len(now) == len(before) and all(new >= old for new, old in zip(now, before))
    check("%s: counters are kept, %s" % (what, before), kept and sum(before) > 0, {"before": before, "now": now})


def check_rules(
    what: str,
    ranges: t.Sequence[str] = (LINK_LOCAL,) + RFC1918,
    random_fully: bool = True,
    family: str = "ipv4",
    chain: str = CHAIN,
    jumps: int = 1,
) -> None:
    """One jump, after everything else in POSTROUTING; one RETURN a range, in order; MASQUERADE last. Nowhere else.

    Chains of earlier agents may have the jump's match in each rule too, and the same jump again behind it.
    """
    mine = CHAIN if NATIVE else chain
    wanted = ["-d %s -j RETURN" % cidr for cidr in BACKEND.in_order(ranges)]
    wanted.append("-j MASQUERADE" + " --random-fully" * random_fully)
    jump = _PER_RULE + "-j " + mine
    rules = BACKEND.rules(HERE, family, mine) or []
    equal("%s: %s, %d jump" % (what, family, jumps), BACKEND.jumps(HERE, family, mine), [jump] * jumps)
    if not NATIVE:
        equal("%s: %s, behind all others" % (what, family), postrouting(family)[-1], jump)
    equal("%s: %s, the rules of the policy" % (what, family), [rule.replace(_PER_RULE, "") for rule in rules], wanted)
    for place in PLACES:
        if place is not BACKEND:
            equal("%s: %s, none in %s" % (what, family, place), ours(family, place, chain), [])


# The agent


def agent(*arguments: str) -> subprocess.CompletedProcess:
    """Run the agent's command line."""
    return run(PACKAGED if os.path.exists(PACKAGED) else AGENT, *arguments)


def status() -> t.Dict[str, t.Any]:
    """What the agent says of itself."""
    done_ = agent("status", "--json")
    try:
        report = json.loads(done_.stdout)
    except ValueError:
        fail("ip-masq-agent status --json: exit status %d" % done_.returncode, done_.stdout + done_.stderr)
    report["exit status"] = done_.returncode
    return t.cast(t.Dict[str, t.Any], report)


def in_sync() -> bool:
    """Whether the agent says that its rules are there."""
    return bool(status()["in_sync"])


def remembered() -> t.Dict[str, t.Any]:
    """The agent's memory; cheaper than asking it."""
    with open("/var/lib/ip-masq-agent/state.json", encoding="utf-8") as state:
        return t.cast(t.Dict[str, t.Any], json.load(state))


def last_sync() -> float:
    """When a sync last ended well; 0 for never."""
    try:
        return os.stat("/run/ip-masq-agent/last-sync").st_mtime
    except OSError:
        return 0.0


def shown(unit: str, *properties: str) -> t.Dict[str, str]:
    """Properties of a unit, in words that do not depend on the release of systemd."""
    text = sh("systemctl", "show", unit, *("--property=" + name for name in properties))
    return dict(line.partition("=")[::2] for line in text.splitlines())


def interval() -> str:
    """The timer's interval as systemd writes it."""
    text = sh("systemctl", "show", TIMER, "--property=TimersMonotonic")  # one line for each way it is started
    return text.partition("OnUnitInactiveUSec=")[2].partition(" ;")[0]


def write(path: str, text: str) -> None:
    """Write a file as an editor does: a new one, moved into place."""
    with open(path + ".new~", "w", encoding="utf-8") as handle:
        handle.write(text)
    os.rename(path + ".new~", path)


def journal() -> t.List[str]:
    """What the agent's units have written, theirs and what systemd says of them."""
    sh("journalctl", "--sync")
    # It fails where it has nothing of any such unit.
    done_ = run("journalctl", "--no-pager", "--quiet", "-o", "short", "-u", "ip-masq-agent*.service")
    return done_.stdout.splitlines()
