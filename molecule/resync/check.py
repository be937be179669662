# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules are repaired after any damage: checked by what the kernel holds, packets, and status.

The time limits are resyncInterval and 2 s where the timer notices, and 2 s where a firewall unit was started,
restarted, reloaded or stopped. The second is checked with an interval of ten minutes, so that the timer does not
interfere.
"""

from __future__ import annotations

import os
import time
import typing as t
from functools import partial

from checks import (
    CHAIN,
    DAMAGE,
    DROP_INS,
    LEGACY,
    LOST,
    NATIVE,
    agent,
    check,
    check_rules,
    done,
    equal,
    eventually,
    in_sync,
    interval,
    iptables,
    journal,
    last_sync,
    lose,
    ours,
    packets,
    remembered,
    run,
    sh,
    write,
)

INTERVAL = 3.0
UFW_RULES = "/etc/ufw/before.rules"
SLOW = os.path.join(DROP_INS, "50-slow.json")


def repaired(what: str, damage: t.Callable[[], object], promised: float, real: bool = True) -> None:
    """Do damage, and check that it is repaired in time.

    :param real: whether our rules must have been lost; what damages them in some releases only must still be followed
        by a sync.
    """
    before, synced, wanted = remembered()["drift_repaired"], last_sync(), ours()
    damage()
    # From here: what damages the rules may take its own time.
    started = time.monotonic()

    def is_repaired() -> bool:
        # What runs no program comes first.
        repaired = remembered()["drift_repaired"]
        return last_sync() > synced and (repaired > before or not real) and ours() == wanted

    eventually("%s: repaired" % what, is_repaired, promised, started, ours)
    lost = remembered()["drift_repaired"] > before
    print("    %s" % ("our rules were lost, and repaired" if lost else "our rules were left alone"))
    equal("%s: the rules are those of before" % what, ours(), wanted)
    check("%s: status is in sync" % what, in_sync())
    packets("repaired after %s" % what)


def by_the_timer() -> None:
    """What nobody announces."""
    for what, damage in dict(DAMAGE, **{"everything is flushed": flush_everything}).items():
        repaired(what, damage, INTERVAL + 2)


def flush_everything() -> None:
    """As careless scripts do it, in one command: more damage would be repaired in between."""
    if LEGACY and not NATIVE:
        iptables("-F")
    else:
        sh("nft", "flush", "ruleset")


def synced_after(moment: float) -> bool:
    """Whether a sync ended after a moment."""
    return last_sync() > moment


def silent_ticks() -> None:
    """Ticks of the timer that find nothing to do leave the journal alone."""
    here = len(journal())
    for _tick in range(2):
        eventually("the timer ticks", partial(synced_after, last_sync()), INTERVAL)
    lose()

    def lines() -> t.List[str]:
        return [line for line in journal()[here:] if " ip-masq-agent[" in line]

    # What the ticks wrote would stand before what the repair writes.
    eventually("a repair is in the journal", lambda: bool(lines()), INTERVAL + 2, seen=lambda: str(lines()))
    check("only that is in the journal, nothing of the ticks before", len(lines()) == 1 and LOST in lines()[0], lines())


def slow(is_slow: bool) -> None:
    """Take the timer out of the way, or put it back, through the configuration alone."""
    if is_slow:
        write(SLOW, '{"resyncInterval": "10m"}')
    else:
        os.unlink(SLOW)
    wanted = "10min" if is_slow else "3s"
    eventually("the timer's interval is now %s" % wanted, lambda: interval() == wanted, seen=interval)
    eventually("no sync is under way", lambda: run("systemctl", "is-active", "ip-masq-agent.service").returncode)


def by_the_hooks() -> None:
    """What systemd sees."""
    # As an administrator would have saved them before there was an agent.
    for command, family in (("iptables", "v4"), ("ip6tables", "v6")):
        saved = sh(command + "-save", "-t", "nat").splitlines(keepends=True)
        write("/etc/iptables/rules." + family, "".join(line for line in saved if CHAIN not in line))
    for verb in ("start", "restart"):
        # It restores iptables, of which a table of our own has no part.
        repaired("netfilter-persistent: " + verb, partial(sh, "systemctl", verb, "netfilter-persistent"), 2, not NATIVE)

    # Stopped as well: firewalld would stop it on its own start, and nothing orders the two.
    for verb in ("start", "restart", "reload", "stop"):
        # It flushes nftables, of which iptables-legacy has no part.
        repaired("nftables: " + verb, partial(sh, "systemctl", verb, "nftables"), 2, real=NATIVE or not LEGACY)

    sh("firewall-offline-cmd", "--set-default-zone=trusted")
    for verb in ("start", "restart", "reload"):
        repaired("firewalld: " + verb, partial(firewalld, "systemctl", verb, "firewalld"), 2, real=False)


def firewalld(*argv: str) -> None:
    """Have firewalld do something, and wait until it did: systemd thinks so earlier.

    Which of it flushes our rules depends on its release (before 2.0.0 all of it), and is no matter here.
    """
    sh(*argv)
    sh("firewall-cmd", "--state")


def by_the_stop_of_firewalld() -> None:
    """It takes all rules with it, if its release does; the hook that is stopped before it asks for a sync."""
    repaired("firewalld: stop", partial(sh, "systemctl", "stop", "firewalld"), 2, real=False)
    # A hook that is stopped alone asks for none: the agent may be about to be removed.
    hook = "ip-masq-agent-firewall@nftables.service"
    sh("systemctl", "start", "nftables")
    # It starts behind nftables, and asks for a sync before it is active.
    eventually("the hook is active", lambda: run("systemctl", "is-active", hook).returncode == 0)
    eventually("no sync is under way", lambda: not sh("systemctl", "list-jobs", "--no-legend"))
    before = last_sync()
    sh("systemctl", "stop", hook)
    equal("no sync is requested", (sh("systemctl", "list-jobs", "--no-legend"), last_sync()), ("", before))


def by_the_timer_again() -> None:
    """firewall-cmd speaks to the daemon past systemd: the timer is the safety net."""
    repaired("firewall-cmd --reload", partial(firewalld, "firewall-cmd", "--reload"), INTERVAL + 2, real=False)


def masquerading_of_firewalld() -> None:
    """A rule that another program makes after ours: verify finds it, and its remedy works."""
    equal("verify: firewalld that does not masquerade", agent("verify").returncode, 0)
    sh("firewall-cmd", "--zone=trusted", "--add-masquerade")
    packets("while firewalld masquerades", {"10.99.0.1": "node", "203.0.113.7": "node"})
    found = agent("verify")
    equal("verify: firewalld that masquerades", found.returncode, 5)
    for words in (
        "the node's address, not the pod's own address (rule of firewalld)",
        "--zone trusted --remove-masquerade",
    ):
        check("verify says %r" % words, words in found.stdout, found.stdout)
    sh("firewall-cmd", "--zone=trusted", "--remove-masquerade")
    equal("verify: after the remedy", agent("verify").returncode, 0)
    packets("after the remedy")


def ufw(*argv: str) -> None:
    """Have ufw do something. Without --force it asks whoever is logged in by SSH."""
    sh("ufw", "--force", *argv)


def by_ufw() -> None:
    """Its own command works past systemd. As it is installed, it leaves the nat table alone."""
    for chain in ("incoming", "routed"):
        ufw("default", "allow", chain)
    before = remembered()["drift_repaired"]
    for verb in ("enable", "reload", "disable"):
        repaired("ufw %s" % verb, partial(ufw, verb), INTERVAL + 2, real=False)
    equal("ufw left our rules alone", remembered()["drift_repaired"], before)
    # As its manual page has it for masquerading; with a flush, because each reload adds to the table otherwise.
    with open(UFW_RULES, encoding="utf-8") as file:
        installed = file.read()
    write(UFW_RULES, "*nat\n:POSTROUTING ACCEPT [0:0]\n-F\nCOMMIT\n" + installed)
    for verb in ("enable", "reload"):
        repaired("ufw %s, which flushes nat" % verb, partial(ufw, verb), INTERVAL + 2, real=not NATIVE)
    sh("systemctl", "enable", "ufw")
    found = agent("verify").stdout
    told = "ufw.service is enabled: -F below *nat in %s removes all other rules" % UFW_RULES
    check("verify warns of it", told in found, found)
    sh("/lib/ufw/ufw-init", "stop")  # or its start finds it running, and does nothing
    slow(True)
    for verb in ("start", "restart", "stop"):
        # As it stops, it removes its own chains.
        repaired("ufw: " + verb, partial(sh, "systemctl", verb, "ufw"), 2, real=verb != "stop" and not NATIVE)
    write(UFW_RULES, installed)
    sh("sed", "-i", "s/^MANAGE_BUILTINS=.*/MANAGE_BUILTINS=yes/", "/etc/default/ufw")
    for verb in ("start", "stop"):
        repaired("ufw, all of it is its own: " + verb, partial(sh, "systemctl", verb, "ufw"), 2, real=not NATIVE)
    slow(False)
    # What follows looks at our rules first: they have to be there again.
    repaired("ufw disable, all of it is its own", partial(ufw, "disable"), INTERVAL + 2, real=False)
    sh("systemctl", "disable", "ufw")


check_rules("before any damage")
packets("before any damage")
equal("the timer's interval", interval(), "3s")
by_the_timer()
silent_ticks()
slow(True)
by_the_hooks()
slow(False)
by_ufw()
by_the_timer_again()
masquerading_of_firewalld()
slow(True)
by_the_stop_of_firewalld()
slow(False)
check_rules("after all of it")
done()
