# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator should know about a node beside its rules: findings with stable codes. Reads, never writes."""

from __future__ import annotations

import glob
import re
import typing as t

from .._engine.iptables_syntax import shown
from .._engine.nftables_backend import NAME as NFTABLES
from .._errors import NodeError
from .._policy.values import Network
from .._system import reference_agents as agents
from .._system.iptables_tool import NFT, VARIANTS
from .._system.process import Runner

ERROR, WARNING, INFO = "error", "warning", "info"


class Health(t.NamedTuple):
    """One thing to know about a node. ``code`` is stable; ``remedy`` may be empty."""

    code: str
    severity: str
    text: str
    remedy: str


class Flusher(t.NamedTuple):
    """A service that removes rules of others when it starts, and the line of its configuration that makes it do so."""

    unit: str
    #: as of glob(7)
    path: str
    pattern: str
    effect: str
    remedy: str
    #: those whose rules it removes
    backends: t.Tuple[str, ...] = VARIANTS

    def words(self) -> t.Tuple[str, str]:
        """Return the effect and the remedy, for people."""
        return self.effect % self.path, self.remedy % self.path


_FLUSHERS = (
    Flusher(
        "nftables.service",
        "/etc/nftables.conf",
        r"^\s*flush\s+ruleset\b",
        "flush ruleset in %s removes all rules of the node, those of kube-proxy and of the network plugin too",
        "flush only your own tables in %s, or disable the service",
        (NFT, NFTABLES),
    ),
    Flusher(  # RHEL and its likes, SUSE
        "nftables.service",
        "/etc/sysconfig/nftables.conf",
        r"^\s*flush\s+ruleset\b",
        "flush ruleset in %s removes all rules of the node, those of kube-proxy and of the network plugin too",
        "flush only your own tables in %s, or disable the service",
        (NFT, NFTABLES),
    ),
    Flusher(
        "netfilter-persistent.service",
        "/etc/iptables/rules.v4",
        r"^\*nat\b",
        "%s has a table nat, and restoring it removes all other rules of this table",
        "remove the table nat from %s, or disable the service",
    ),
    Flusher(
        "iptables.service",
        "/etc/sysconfig/iptables",
        r"^\*nat\b",
        "%s has a table nat, and restoring it removes all other rules of this table",
        "remove the table nat from %s, or disable the service",
    ),
    Flusher(
        "firewalld.service",
        "/etc/firewalld/firewalld.conf",
        r"^\s*FirewallBackend\s*=\s*iptables\b",
        "FirewallBackend=iptables in %s makes each reload remove all rules of iptables",
        "set FirewallBackend=nftables in %s, or disable the service",
    ),
    # Before 2.0, where the distribution has not repaired it: seen in the code of 0.9.3 and 1.3.3, and not of 2.3.1.
    Flusher(
        "firewalld.service",
        "/usr/lib/python3*/*-packages/firewall/core/fw.py",
        r"for backend in self\.all_backends\(\):\s+rules = backend\.build_flush_rules\(\)",
        "this release of firewalld (%s) removes all rules of iptables at each start and reload, also with "
        "FirewallBackend=nftables",
        "upgrade firewalld (in %s) to 2.0 or later, set backend to nftables, or disable the service",
    ),
    Flusher(
        "ufw.service",
        "/etc/default/ufw",
        r"^\s*MANAGE_BUILTINS\s*=\s*[\"']?yes\b",
        "MANAGE_BUILTINS=yes in %s removes all rules of iptables",
        "set MANAGE_BUILTINS=no in %s, or disable the service",
    ),
    Flusher(
        "ufw.service",
        "/etc/ufw/before*.rules",
        r"^\*nat\b(?:\n(?!COMMIT).*)*\n-F\s*(?:POSTROUTING)?\s*$",
        "-F below *nat in %s removes all other rules of this table",
        "flush only your own chains in %s, or disable the service",
    ),
)


def flushers(run: Runner, root: str = "") -> t.Iterator[Flusher]:
    """Yield enabled services that remove rules of others when they start.

    :param root: the directory below which their configuration is.
    """
    for flusher in _FLUSHERS:
        for path in sorted(glob.glob(glob.escape(root) + flusher.path)):
            try:
                with open(path, encoding="utf-8", errors="replace") as configuration:
                    flushes = re.search(flusher.pattern, configuration.read(), re.MULTILINE)
                enabled = flushes and run(["systemctl", "is-enabled", flusher.unit]).stdout.strip() == "enabled"
            except (OSError, NodeError):  # no such configuration, or no systemd
                continue
            if enabled:
                yield flusher._replace(path=path[len(root) :])


def boot_flushers(run: Runner, root: str = "") -> t.Iterator[Health]:
    """Report services that remove rules of others, as ``flushers``."""
    for flusher in flushers(run, root):
        effect, remedy = flusher.words()
        text = "%s is enabled: %s, at boot and whenever it starts" % (flusher.unit, effect)
        yield Health("flushes_at_boot", WARNING, text, remedy)


def reference_agents(proc: str = "/proc") -> t.Iterator[Health]:
    """Find running ip-masq-agents of other makers, whose chain has the same name by default."""
    for agent in agents.running(proc):
        yield Health(
            "other_agent",
            WARNING,
            "the process '%s' writes rules of its own for the same purpose" % shown(agent.command),
            "remove the DaemonSet (kubectl -n kube-system delete daemonset ip-masq-agent), or uninstall this agent",
        )


def range_health(networks: t.Sequence[Network], masqueraded: t.Sequence[Network] = ()) -> t.Iterator[Health]:
    """Find exempt ranges that are probably not meant.

    :param masqueraded: ranges inside of them that are not exempt.
    """
    excepted = {network.version for network in masqueraded}
    if not networks:
        yield Health("nothing_exempt", INFO, "no range is exempt: all traffic that leaves is masqueraded", "")
    for network in networks:
        if not network.prefixlen and network.version not in excepted:
            yield Health(
                "everything_exempt",
                WARNING,
                "%s is exempt: no traffic is masqueraded" % network,
                "remove it unless the network routes the pods' addresses",
            )
    # In order, so that a network stands behind the largest one that could contain it.
    last: t.Optional[Network] = None
    for network in sorted(networks, key=lambda one: (one.version, int(one.network_address), one.prefixlen)):
        if last is None or last.version != network.version or network.network_address not in last:
            last = network
        elif network.version not in excepted:
            yield Health("overlapping_ranges", INFO, "%s lies in %s" % (network, last), "remove it")
