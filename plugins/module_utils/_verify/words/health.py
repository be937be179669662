# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator should know about a node beside its rules: findings with stable codes. Reads, never writes."""

from __future__ import annotations

import typing as t

from ..._engine.rule_flushers import flushers
from ..._policy.values import Network
from ..._system import other_agents_running as agents
from ..._system.printable import shown
from ..._system.process import Runner

ERROR, WARNING, INFO = "error", "warning", "info"

#: The code of the finding that packets without a connection leave with an address that the policy hides.
LEAKS = "leaks"


class Health(t.NamedTuple):
    """One thing to know about a node. ``code`` is stable; ``remedy`` may be empty."""

    code: str
    severity: str
    text: str
    remedy: str


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
            "the process '%s' writes rules of its own for the same purpose" % shown(" ".join(agent.words)),
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
