# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that remove rules of other programs when they start, and the configuration that makes them do so."""

from __future__ import annotations

import glob
import re
import typing as t

from .._errors import NodeError
from .._system.backend_names import IPTABLES_NFT, NFTABLES, VARIANTS
from .._system.process import Runner

#: Services whose start, restart or reload may remove rules of others (all are ordered before network-pre.target).
FIREWALLS = ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables", "ufw")


class Flusher(t.NamedTuple):
    """A service that removes rules of others when it starts, and the line of its configuration that makes it do so."""

    #: one of ``FIREWALLS``
    service: str
    #: as of glob(7)
    path: str
    pattern: str
    effect: str
    remedy: str
    #: those whose rules it removes
    backends: t.Tuple[str, ...] = VARIANTS

    @property
    def unit(self) -> str:
        """The unit of that service."""
        return self.service + ".service"

    def words(self) -> t.Tuple[str, str]:
        """Return the effect and the remedy, for people."""
        return self.effect % self.path, self.remedy % self.path


_FLUSHERS = (
    *(
        Flusher(
            "nftables",
            path,
            r"^\s*flush\s+ruleset\b",
            "flush ruleset in %s removes all rules of the node, those of kube-proxy and of the network plugin too",
            "flush only your own tables in %s, or disable the service",
            (IPTABLES_NFT, NFTABLES),
        )
        # The second is that of RHEL and its likes, and of SUSE.
        for path in ("/etc/nftables.conf", "/etc/sysconfig/nftables.conf")
    ),
    *(
        Flusher(
            unit,
            path,
            r"^\*nat\b",
            "%s has a table nat, and restoring it removes all other rules of this table",
            "remove the table nat from %s, or disable the service",
        )
        for unit, path in (
            ("netfilter-persistent", "/etc/iptables/rules.v4"),
            ("iptables", "/etc/sysconfig/iptables"),
        )
    ),
    Flusher(
        "firewalld",
        "/etc/firewalld/firewalld.conf",
        r"^\s*FirewallBackend\s*=\s*iptables\b",
        "FirewallBackend=iptables in %s makes each reload remove all rules of iptables",
        "set FirewallBackend=nftables in %s, or disable the service",
    ),
    # Before 2.0, where the distribution has not repaired it: seen in the code of 0.9.3 and 1.3.3, and not of 2.3.1.
    Flusher(
        "firewalld",
        "/usr/lib/python3*/*-packages/firewall/core/fw.py",
        r"for backend in self\.all_backends\(\):\s+rules = backend\.build_flush_rules\(\)",
        "this release of firewalld (%s) removes all rules of iptables at each start and reload, also with "
        "FirewallBackend=nftables",
        "upgrade firewalld (in %s) to 2.0 or later, set backend to nftables, or disable the service",
    ),
    Flusher(
        "ufw",
        "/etc/default/ufw",
        r"^\s*MANAGE_BUILTINS\s*=\s*[\"']?yes\b",
        "MANAGE_BUILTINS=yes in %s removes all rules of iptables",
        "set MANAGE_BUILTINS=no in %s, or disable the service",
    ),
    Flusher(
        "ufw",
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
