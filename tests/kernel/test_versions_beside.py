# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions beside each other: others' tables, written by each nft and iptables, on a node that has each nft itself."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from strange.kube_proxy import IPTABLES, NFT_133, NFT_136
from strange.moving import Moving
from support.agent_node import AgentNode
from support.namespaces import Namespace
from support.program_versions import RELEASES, Nft, iptables_of

Nfts = t.Dict[str, Nft]

#: What kube-proxy, Calico and others run.
LISTINGS = ("list ruleset", "-j list ruleset", "list tables", "list sets", "list chains")
#: A node whose Services have session affinity, NodePorts, several pods and none.
KUBE_PROXY = Moving(20).kube_proxy

CALICO = """
table ip calico {
    comment "created by Calico"
    set cali40all-ipam-pools { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 }; }
    set cali40masq-ipam-pools { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 }; }
    set cali40this-host { type ipv4_addr; elements = { 127.0.0.1, 192.0.2.1 }; }
    set cali40s-named { type ipv4_addr . inet_proto . inet_service; elements = { 10.244.1.2 . tcp . 8080 }; }
    map filter-cali-from-wl-dispatch { type ifname : verdict; elements = { "cali0" : goto filter-cali-fw-0 }; }
    chain filter-cali-fw-0 {
        ct state established,related counter accept
        ct state invalid counter drop
        counter meta mark set meta mark & 0xfffeffff comment "cali:4fwMGHcdsGxLqgBL;"
        ip daddr . meta l4proto . th dport @cali40s-named counter meta mark set mark or 0x10000
        meta mark & 0x10000 == 0x10000 counter return
    }
    chain filter-cali-FORWARD {
        iifname "cali*" counter iifname vmap @filter-cali-from-wl-dispatch
    }
    chain filter-FORWARD {
        type filter hook forward priority filter; policy accept;
        counter jump filter-cali-FORWARD
    }
    chain nat-cali-nat-outgoing {
        ip saddr @cali40masq-ipam-pools ip daddr != @cali40all-ipam-pools counter masquerade fully-random
    }
    chain nat-POSTROUTING {
        type nat hook postrouting priority srcnat; policy accept;
        counter jump nat-cali-nat-outgoing comment "cali:O3lYWMrLQYEMJtB5;"
    }
}
"""
SETS = """
table inet beside {
    counter total { }
    quota much { over 10 mbytes }
    set plain { type ipv4_addr; flags interval; auto-merge; elements = { 192.0.2.0/24, 198.51.100.7 }; }
    set typed { typeof ip daddr; flags interval; elements = { 192.0.2.0/24 }; }
    set pairs { typeof ip saddr . tcp dport; flags interval; elements = { 10.0.0.0/8 . 80-90, 10.9.0.1 . 443 }; }
    set aged { type ipv4_addr; flags dynamic,timeout; timeout 1h; }
    map marks { typeof ip daddr : ct mark; flags interval; elements = { 192.0.2.0/25 : 0x1 }; }
    map ways { type ipv4_addr . inet_service : verdict; flags interval; elements = { 10.0.0.0/8 . 80-90 : accept }; }
    chain seen {
        type filter hook forward priority 10;
        counter name "total"
        ip daddr @plain counter
        ip daddr @typed update @aged { ip saddr timeout 5m }
        ip saddr . tcp dport @pairs ct mark set ip daddr map @marks
        ip daddr . tcp dport vmap @ways
        ip daddr . tcp dport vmap { 10.1.0.0/16 . 1-9 : accept }
    }
}
"""
#: By name: text for nft.
TABLES = {
    "kube-proxy 1.33": KUBE_PROXY.written(NFT_133, 4)[1],
    "kube-proxy 1.36": KUBE_PROXY.written(NFT_136, 4)[1],
    "Calico": CALICO,
    "sets": SETS,
}
#: Of nft 0.9.8: a table that it has no words for, and lines at which it aborts.
OLDEST, WITHOUT, ABORTS = "bullseye", "kube-proxy 1.36", ("ways", "vmap")
POLICY = {"nonMasqueradeCIDRs": ["10.0.0.0/8"], "sourceCIDRs": ["10.244.0.0/16"]}


@pytest.mark.parametrize("writer", RELEASES)
def test_each_version_reads_and_heals_beside_what_each_other_wrote(nfts: Nfts, writer: str, tmp_path: Path) -> None:
    for name in [*TABLES, IPTABLES]:
        if (writer, name) == (OLDEST, WITHOUT):
            continue
        with Namespace() as ns:
            if name == IPTABLES:
                ns.run(str(iptables_of(writer, "nft") / "iptables-nft-restore"), stdin=KUBE_PROXY.written(name, 4)[1])
            else:
                nfts[writer].write(ns, _text(writer, name))
            folder = tmp_path / name.replace(" ", "-")
            folder.mkdir()
            _heals_with_each(ns, nfts, folder, "iptables_nft" if name == IPTABLES else "nftables")


def _text(writer: str, name: str) -> str:
    lines = TABLES[name].splitlines()
    if (writer, name) == (OLDEST, "sets"):
        lines = [line for line in lines if not any(word in line for word in ABORTS)]
    return "\n".join(lines) + "\n"


def _heals_with_each(ns: Namespace, nfts: Nfts, folder: Path, backend: str) -> None:
    """Damage our rules beside those of a namespace, and have them repaired with each version of nft in turn."""
    before = {release: _listed(ns, nft) for release, nft in nfts.items()}
    node = AgentNode(ns, folder)
    node.wire()
    node.synced(backend=backend, exemption="return" if backend == "iptables_nft" else "enforce", **POLICY)
    for release, nft in nfts.items():
        places = [nft.path, iptables_of(release, "nft"), node.path, os.environ["PATH"]]
        path = ":".join(map(str, places))
        assert list(_used(node, nfts["sid"], backend, path)) == [], release
        assert _listed(ns, nft) == before[release], "listings are as without our rules"


def _listed(ns: Namespace, nft: Nft) -> t.List[int]:
    return [nft.call(ns, *listing.split()).returncode for listing in LISTINGS]


def _used(node: AgentNode, newest: Nft, backend: str, path: str) -> t.Iterator[t.Tuple[str, int]]:
    """Damage, repair and read; yield what did not end well."""
    if backend == "nftables":
        newest.write(node.ns, "delete table ip ip_masq_agent\n")
    else:
        node.ns.run("iptables-nft", "-t", "nat", "-F", "IP-MASQ-AGENT")
    commands: t.Dict[str, t.Sequence[t.Union[str, Path]]] = {
        "resync": [node.paths.resync],
        "status": [node.agent, "status"],
        "verify": [node.agent, "verify"],
    }
    for name, command in commands.items():
        done = node.call(*command, PATH=path)
        if done.returncode:
            yield "%s (%s)" % (name, (done.stderr or done.stdout)[-300:]), done.returncode
    shown = newest.call(node.ns, "list", "ruleset").stdout
    if "ip-masq-agent: leaves with the address of the node" not in shown:
        yield "no rules", 1
