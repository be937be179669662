# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program iptables of one variant and family: how it is found, called, and what its errors mean."""

from __future__ import annotations

import contextlib
import os
import re
import typing as t

from .._errors import LockHeld, NodeError
from . import defaults_and_limits, files, selinux_labels, xtables_lock
from .backend_names import IPTABLES_LEGACY, IPTABLES_NFT
from .families import FAMILIES, Family
from .node import Node, Tool
from .process import Outcome, Runner, which

_SUFFIXES = {IPTABLES_NFT: "-nft", IPTABLES_LEGACY: "-legacy"}
#: All names under which one may be found; none is of use without its iptables-restore.
PROGRAMS = tuple(
    family.iptables + suffix + action
    for family in FAMILIES
    for suffix in (*_SUFFIXES.values(), "")
    for action in ("", "-restore")
)
#: What a program calls its variant behind its version. Before 1.8 there was one variant, and no word for it.
_REPORTED = {IPTABLES_NFT: ("nf_tables",), IPTABLES_LEGACY: ("legacy", "")}

#: First release with ``--random-fully``, and in which iptables-restore has ``-w`` (iptables 1.6.2 release notes).
RANDOM_FULLY_SINCE = RESTORE_WAITS_SINCE = (1, 6, 2)

#: What both variants exit with when the xtables lock stays taken (xtables 1.8, RESOURCE_PROBLEM).
RESOURCE_PROBLEM = 4

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_REFERENCES = r"Chain \S+ \(([0-9]+) references\)"

#: Seconds that a program may take once it has the lock, to list a chain, and to write. The second family is to have its
#: turn within the time limit of a resync.
_LISTING_PATIENCE, _PATIENCE = 20.0, 120.0


class IptablesTool:
    """See the module.

    :ivar run: as ``process.run``.
    """

    def __init__(self, run: Runner, variant: str, family: Family, tool: Tool, lock_timeout: int) -> None:
        """Describe one program of iptables.

        :param lock_timeout: seconds to wait for the xtables lock.
        """
        self.run = run
        self.variant = variant
        self.family = family
        self.path = tool.path
        self._version = tool.version
        self._lock_timeout = lock_timeout

    def has_table(self, name: str) -> bool:
        """Return whether it may be asked for a table. Asking iptables-legacy for a table creates it."""
        return self.variant == IPTABLES_NFT or name in legacy_tables(self.family)

    def list_chain(self, chain: str, table: str = "nat") -> Outcome:
        """Print the rules of one chain."""
        return self._call(table, "-S", chain)

    def references(self, chain: str, table: str = "nat") -> int:
        """Return how many rules lead to a chain of a table; 0 if it is not there.

        :raises NodeError: the table cannot be read.
        """
        done = self._call(table, "-nL", chain)
        found = re.match(_REFERENCES, done.stdout)
        if found is None and done.rc == RESOURCE_PROBLEM:
            raise self.error("cannot read the chain %s" % chain, done)
        return int(found.group(1)) if found else 0

    def resync_listing(self, chain: str, table: str) -> t.List[str]:
        """Return the command with which a resync lists a chain; with ``-v`` behind it also counters."""
        return self._argv(defaults_and_limits.RESYNC_LOCK_TIMEOUT, table, "-S", chain)

    def delete(self, chain: str, *words: str) -> Outcome:
        """Delete one rule of the nat table."""
        return self._call("nat", "-D", chain, *words)

    def _call(self, table: str, *words: str) -> Outcome:
        return self.run(self._argv(self._lock_timeout, table, *words), timeout=self._lock_timeout + _LISTING_PATIENCE)

    def restore(self, text: str) -> Outcome:
        """Hand one transaction to iptables-restore; chains that it does not name stay as they are."""
        wait = self._wait(self._lock_timeout) if self._version >= RESTORE_WAITS_SINCE else []
        argv = [self.path + "-restore"] + wait + ["--noflush"]
        return self.run(argv, stdin=text, timeout=self._lock_timeout + _PATIENCE)

    def _argv(self, lock_timeout: int, table: str, *words: str) -> t.List[str]:
        return [self.path, *self._wait(lock_timeout), "-t", table, *words]

    def _wait(self, seconds: int) -> t.List[str]:
        return xtables_lock.wait(self.variant == IPTABLES_LEGACY, self._version, seconds)

    def error(self, what: str, done: Outcome, error: t.Type[NodeError] = NodeError) -> NodeError:
        """Return the error that a failed call of this program is.

        :param what: what it could not do, or did not.
        :param error: its class, unless the xtables lock was the reason.
        """
        said = done.error_text
        if done.rc == RESOURCE_PROBLEM and "lock" in said and "can't open" not in said:
            return LockHeld(
                "%s %s: timed out after lock_timeout waiting for the xtables lock, held by %s. Wait for it, or raise "
                "lock_timeout" % (self.path, what, xtables_lock.holder())
            )
        advice = ""
        if "lock file" in said and "Permission denied" in said and selinux_labels.enabled():
            advice = ". SELinux denies it, unless the file has the label of its policy: run 'restorecon %s'" % (
                xtables_lock.PATH
            )
        elif "Permission denied" in said:
            advice = ". It lacks CAP_NET_ADMIN: run it as root of the host, or in a privileged container"
        elif "missing kernel module" in said or "Couldn't load" in said or "can't initialize" in said:
            advice = (
                ". The kernel lacks a module that iptables needs: install the kernel's extra modules (RHEL-likes: "
                "kernel-modules-extra), or set backend to nftables"
            )
        return error("%s %s: %s%s" % (self.path, what, said, advice))


def find_tool(node: Node, variant: str, family: Family) -> t.Optional[Tool]:
    """Find the program of one variant and family, with its iptables-restore; None if the node does not have it."""
    for name in (family.iptables + _SUFFIXES[variant], family.iptables):
        tool = node.tool(name)
        # Of a version that we cannot read nothing is known, a variant neither.
        if tool and tool.version and tool.variant in _REPORTED[variant] and which(tool.path + "-restore"):
            return tool
    return None


def find(node: Node, variant: str, family: Family) -> t.Optional[IptablesTool]:
    """Find the program as ``find_tool``, ready for use."""
    tool = find_tool(node, variant, family)
    return None if tool is None else IptablesTool(node.run, variant, family, tool, node.lock_timeout)


def has_legacy() -> bool:
    """Return whether the kernel has loaded the modules of iptables-legacy, or has them built in."""
    return os.path.exists("/proc/net/ip_tables_names")


def load_legacy(run: Runner) -> None:
    """Have systemd load the kernel modules of iptables-legacy where they are missing; the agent itself may not.

    The kernel loads all others when they are needed. Best effort: a kernel may have none, or have them built in.
    """
    if not has_legacy():
        with contextlib.suppress(NodeError):
            run(["systemctl", "start", "modprobe@ip_tables.service", "modprobe@ip6_tables.service"], timeout=10.0)


def legacy_tables(family: Family) -> t.List[str]:
    """List the legacy tables that exist in this network namespace; reading the list creates none."""
    return files.lines("/proc/net/%s_tables_names" % family.nft)
