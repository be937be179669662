# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How Services and packets of pods are handled on a node: modes of kube-proxy and the network plugin, by their rules.

What another mode left behind, and what stands in the way of kube-proxy's nftables mode. Reads, never writes. Status and
reports have it; no resync pays for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import typing as t

from .._errors import NodeError
from .._policy.policy import Config
from .._system import families, ipsets, ipvs_services, xtables
from .._system.backend_names import IPTABLES_LEGACY, IPTABLES_NFT, NFTABLES, VARIANTS
from .._system.families import FAMILIES, IPV4, Family
from .._system.node import Node
from .._system.printable import first_of
from . import rule_owners
from .iptables_syntax import NAT
from .listed_chains import ListedChains
from .ruleset import IGNORE

IPVS = "ipvs"
EBPF = "ebpf"
_KUBE_PROXY = "kube-proxy"
#: Modes of kube-proxy, in the order in which packets meet them.
_MODES = (IPTABLES_NFT, IPTABLES_LEGACY, IPVS, NFTABLES)
_PLUGINS = {
    *("Antrea", "AWS VPC CNI", "Calico", "Cilium", "flannel", "kindnet", "Kube-OVN", "kube-router", "OpenShift SDN"),
    *("OVN-Kubernetes", "Weave Net"),
}
#: Links of data planes in eBPF, which have rules of iptables as well.
_EBPF_LINKS = {"bpfin.cali": "Calico", "cilium_host": "Cilium"}

#: The chain that leads to all others of kube-proxy, and what it has in one of two modes.
_SERVICES, _OF_IPTABLES, _OF_IPVS = "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-NODE-PORT"
#: Kubelets before 1.28 make these too.
_SHARED = ("KUBE-MARK-MASQ", "KUBE-POSTROUTING")
#: Not the sets of kube-router, KUBE-SRC- and KUBE-DST-.
_SETS = r"KUBE-(6-)?(CLUSTER-IP|EXTERNAL-IP|HEALTH-CHECK|IPVS-IPS|LOAD-BALANCER|LOOP-BACK|NODE-PORT).*"
_LINK = "kube-ipvs0"

_RESTART = (
    "restart kube-proxy, which removes the rules of its other modes: kubectl -n kube-system delete pod -l "
    "k8s-app=kube-proxy --field-selector spec.nodeName=NODE; if they remain, drain and reboot the node"
)
#: Chains of kube-proxy alone: the kubelet's and kube-router's begin with KUBE- too.
_REMOVE_CHAINS = "%(save)s -c | grep -vE 'KUBE-(SE|SO|SV|E|XLB|FO|FW-|L|NODE|POST|PROXY|IPVS)' | %(restore)s -c"
_REMOVE_SETS = "ipset -n list | grep -E '^%s' | xargs -n 1 ipset destroy" % _SETS

#: What kube-proxy's nftables mode needs.
_LINUX, _NFT = (5, 13), (1, 0, 1)
#: What has iptables-legacy off by default.
_LINUX_WITHOUT_LEGACY = (6, 17)
_BEFORE_NFTABLES = "nftables mode"
#: kube-proxy's mark for what it masquerades
_MARK = 0x4000


class LeftBehind(t.NamedTuple):
    """What another mode of kube-proxy left, and the command that removes it."""

    what: str
    command: str


class StepBefore(t.NamedTuple):
    """What to do before something else, and why."""

    before: str
    do: str
    why: str


def find(node: Node, config: Config, listed: ListedChains) -> t.Dict[str, t.Any]:
    """Return what ``status --json`` has as ``data_plane``. What cannot be read is left out."""
    found = _Rules(listed)
    modes = [mode for mode in _MODES if mode in found.modes]
    left = [*found.leftovers, *_of_ipvs(modes)]
    if len(modes) > 1:
        left.insert(0, LeftBehind("kube-proxy is half moved: rules of %s at once" % " and ".join(modes), _RESTART))
    return {
        "kube_proxy": modes,
        "network_plugins": sorted(found.plugins),
        "leftovers": [one._asdict() for one in left],
        "steps": [one._asdict() for one in _steps(node, config, modes)],
    }


class _Rules:
    """What the chains of a node show."""

    def __init__(self, listed: ListedChains) -> None:
        self.modes: t.Set[str] = set()
        self.plugins: t.Set[str] = set()
        self.leftovers: t.List[LeftBehind] = []
        self._listed = listed
        for family in FAMILIES:
            if family == IPV4 or families.has_ipv6():
                for variant in VARIANTS:
                    with contextlib.suppress(NodeError):
                        self._of_iptables(variant, family)
                with contextlib.suppress(NodeError):
                    self._of_nftables(family)
        if ipvs_services.count() and _has_link(_LINK):
            self.modes.add(IPVS)
        for link, plugin in _EBPF_LINKS.items():
            if _has_link(link):
                self.plugins = {one for one in self.plugins if not one.startswith(plugin)} | {"%s %s" % (plugin, EBPF)}

    def _of_iptables(self, variant: str, family: Family) -> None:
        names = self._listed.names(variant, family)
        if any(_SERVICES in self._listed.jumps(variant, family, chain) for chain in ("PREROUTING", "OUTPUT")):
            self.modes.add(IPVS if _OF_IPVS in names and _OF_IPTABLES not in names else variant)
        else:
            kept = (one for one in names if one.startswith("KUBE-") and one not in _SHARED)
            left = sorted(one for one in kept if rule_owners.owner(NAT, one).name == _KUBE_PROXY)
            if left:
                tool = family.iptables + variant.replace("iptables_", "-")
                command = _REMOVE_CHAINS % {"save": tool + "-save", "restore": tool + "-restore"}
                self.leftovers.append(LeftBehind("%s, %s: chain %s" % (family, variant, first_of(left, 1)), command))
        jumps = self._listed.jumps(variant, family, "POSTROUTING")
        self._add({rule_owners.owner(NAT, one).name for one in jumps}, variant)

    def _of_nftables(self, family: Family) -> None:
        chains = self._listed.nft(family)
        if any(one.is_base and one.table == _KUBE_PROXY for one in chains):
            self.modes.add(NFTABLES)
        native = {one for one in chains if one.table not in {_KUBE_PROXY, *xtables.TABLES}}
        self._add({rule_owners.owner(one.table, one.name).name for one in native}, NFTABLES)

    def _add(self, programs: t.Set[str], how: str) -> None:
        self.plugins.update("%s %s" % (one, how) for one in programs & _PLUGINS)


def _has_link(name: str) -> bool:
    return os.path.isdir("/proc/sys/net/ipv4/conf/" + name)  # PyPy has no socket.if_nametoindex


def _of_ipvs(modes: t.Sequence[str]) -> t.Iterator[LeftBehind]:
    """Return what IPVS mode left beside chains: the link has the addresses of all Services."""
    if IPVS in modes:
        return
    if _has_link(_LINK):
        yield LeftBehind("the link %s" % _LINK, "ip link delete %s" % _LINK)
    with contextlib.suppress(NodeError):
        left = sorted(one.name for one in ipsets.read() if re.fullmatch(_SETS, one.name))
        if left:
            yield LeftBehind("ipset " + first_of(left, 1), _REMOVE_SETS)


def _steps(node: Node, config: Config, modes: t.Sequence[str]) -> t.Iterator[StepBefore]:
    """Return what to do before kube-proxy moves to nftables mode, if it is to, and before iptables-legacy goes."""
    linux = os.uname().release
    if {IPTABLES_NFT, IPTABLES_LEGACY, IPVS}.intersection(modes):
        if _version(linux) < _LINUX:
            yield StepBefore(_BEFORE_NFTABLES, "upgrade Linux to 5.13 or later", "this is Linux %s" % linux)
        with contextlib.suppress(NodeError):
            nft = node.tool("nft")
            if nft and nft.version and nft.version < _NFT:
                yield StepBefore(_BEFORE_NFTABLES, "upgrade nft to 1.0.1 or later", "this is nft %s" % nft.version_text)
        for do, why in _of_policy(config, modes):
            yield StepBefore(_BEFORE_NFTABLES, do, why)
    if config.backend == IPTABLES_LEGACY:
        passed = _version(linux) >= _LINUX_WITHOUT_LEGACY
        why = "iptables-legacy is off by default from Linux 6.17 on; this is Linux %s" % linux
        yield StepBefore("the next kernel" if passed else "Linux 6.17", "set backend to auto", why)


def _of_policy(config: Config, modes: t.Sequence[str]) -> t.Iterator[t.Tuple[str, str]]:
    """Return what to change of a policy that means something else with kube-proxy in nftables mode."""
    if config.leaks == IGNORE and {IPTABLES_NFT, IPTABLES_LEGACY}.intersection(modes):
        yield "set leaks to count", "only iptables mode drops packets without a connection; then they can leave"
    if any(one.mask & one.value & _MARK for one in config.skip_marks):
        yield (
            "look at skip_marks",
            "from Kubernetes 1.36 on connections of pods to themselves through a Service have no mark 0x4000",
        )
    if config.exemption == "enforce" and config.except_interfaces and IPVS in modes:
        yield "look at except_interfaces", "kube-proxy needs it in IPVS mode only"


def _version(release: str) -> t.Tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", release)[:2]))
