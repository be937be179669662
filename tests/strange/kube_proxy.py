# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of kube-proxy for Services: of its mode iptables, and of its mode nftables.

Shapes after kubernetes/kubernetes (pkg/proxy/iptables, pkg/proxy/nftables). At its start kube-proxy removes what it
left in the former mode.
"""

from __future__ import annotations

import typing as t

IPTABLES, NFT_133, NFT_136 = "iptables", "nftables 1.33", "nftables 1.36"
PODS = {4: "10.244.0.0/16", 6: "fd44::/64"}
_MARK = "meta mark set meta mark or 0x4000"


class Service(t.NamedTuple):
    """A Service. Addresses are by version of IP."""

    name: str
    addresses: t.Mapping[int, str]
    protocol: str
    port: int
    target: int
    node_port: int
    #: addresses of its pods
    ends: t.Mapping[int, t.Sequence[str]]
    #: externalTrafficPolicy: Local
    local: bool = False
    affinity: bool = False


class KubeProxy(t.NamedTuple):
    """What it knows."""

    services: t.Sequence[Service]
    #: the node's own, for NodePorts
    numbers: t.Mapping[int, t.Sequence[str]]
    #: of iptables: nothing, or ``-legacy``
    variant: str = ""

    def written(self, mode: str, version: int) -> t.Tuple[str, str]:
        """Return the tool with which kube-proxy writes its rules in a mode, and what it says."""
        if mode == IPTABLES:
            return self._tool(version), self._iptables(version)
        return "nft", (self._nftables_133 if mode == NFT_133 else self._nftables_136)(version)

    def removed(self, mode: str, version: int, half: bool = False) -> t.Tuple[str, str]:
        """Return the same for what it does to the rules of a mode when it starts in another one.

        :param half: the rules that lead to its chains stay, as after a kube-proxy that was killed.
        """
        if mode != IPTABLES:
            return "nft", "delete table %s kube-proxy\n" % _family(version)
        text = ""
        for table, text_of in self._tables(version).items():
            jumps = [line for line in text_of if line.split()[1] in _HOOKS]
            chains = sorted({line.split()[1] for line in text_of} - set(_HOOKS) - {"KUBE-MARK-MASQ", "KUBE-FIREWALL"})
            deleted = [line.replace("-A ", "-D ", 1).replace("-I POSTROUTING 1", "-D POSTROUTING") for line in jumps]
            text += "\n".join(["*" + table, *([] if half else deleted), *(":%s - [0:0]" % one for one in chains)])
            text += "\n" + "".join("-X %s\n" % one for one in ([] if half else chains)) + "COMMIT\n"
        return self._tool(version), text

    def _tool(self, version: int) -> str:
        return ("iptables" if version == 4 else "ip6tables") + self.variant

    def kubelet(self, version: int) -> t.Tuple[str, str]:
        """Return the chains of the kubelet, which stay, and a rule of a firewall.

        Without any rule that needs conntrack the kernel no longer tracks a family, and what is open is not translated.
        """
        text = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n"
        text += "*filter\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n"
        return self._tool(version), text

    def _iptables(self, version: int) -> str:
        text = ""
        for table, lines in self._tables(version).items():
            chains = sorted({line.split()[1] for line in lines} - set(_HOOKS) | {"KUBE-PROXY-CANARY"})
            text += "\n".join(["*" + table, *(":%s - [0:0]" % one for one in chains), *lines, "COMMIT"]) + "\n"
        return text

    def _tables(self, version: int) -> t.Dict[str, t.List[str]]:
        """Return the rules of the mode iptables, by table."""
        bits = 32 if version == 4 else 128
        nat = [
            "-A PREROUTING -j KUBE-SERVICES",
            "-A OUTPUT -j KUBE-SERVICES",
            "-I POSTROUTING 1 -j KUBE-POSTROUTING",
            "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000",
            "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
            "-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
            "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
        ]
        rejected = []
        for one in self.services:
            address, ends = "%s/%d" % (one.addresses[version], bits), one.ends[version]
            to = "-p %s %s-m %s --dport %d " % (one.protocol, _said(one), one.protocol, one.port)
            if not ends:
                reject = "icmp-port-unreachable" if version == 4 else "icmp6-port-unreachable"
                rejected.append("-A KUBE-SERVICES -d %s %s-j REJECT --reject-with %s" % (address, to, reject))
                continue
            nat.append("-A KUBE-SERVICES -d %s %s-j KUBE-SVC-%s" % (address, to, one.name))
            nat.append("-A KUBE-SVC-%s ! -s %s -d %s %s-j KUBE-MARK-MASQ" % (one.name, PODS[version], address, to))
            nat += self._endpoints(one, "KUBE-SVC-" + one.name, ends, bits)
            nat += self._external(one, version)
        nat.append("-A KUBE-NODEPORTS -j RETURN")  # so that the chain is there
        nat.append("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS")
        filtered = [
            "-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES",
            "-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES",
            "-A FORWARD -j KUBE-FORWARD",
            "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
            "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
            "-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            *rejected,
        ]
        filled = {line.split()[1] for line in filtered}
        return {"nat": nat, "filter": filtered + ([] if "KUBE-SERVICES" in filled else ["-A KUBE-SERVICES -j RETURN"])}

    @staticmethod
    def _endpoints(one: Service, chain: str, ends: t.Sequence[str], bits: int) -> t.Iterator[str]:
        names = ["KUBE-SEP-%s%d" % (one.name, place) for place in range(len(ends))]
        if one.affinity:
            for name in names:
                yield "-A %s -m recent --name %s --rcheck --seconds 10800 --reap --rsource -j %s" % (chain, name, name)
        for place, (name, end) in enumerate(zip(names, ends)):
            left = len(ends) - place
            chance = "-m statistic --mode random --probability %.10f " % (1 / left) if left > 1 else ""
            yield "-A %s %s%s-j %s" % (chain, _said(one), chance, name)
            yield "-A %s -s %s/%d %s-j KUBE-MARK-MASQ" % (name, end, bits, _said(one))
            seen = "-m recent --name %s --set --rsource " % name if one.affinity else ""
            words = (name, one.protocol, _said(one), seen, one.protocol, _at(end, one.target))
            yield "-A %s -p %s %s%s-m %s -j DNAT --to-destination %s" % words

    def _external(self, one: Service, version: int) -> t.Iterator[str]:
        if not one.node_port:
            return
        chain, service = "KUBE-EXT-" + one.name, "KUBE-SVC-" + one.name
        to = (one.protocol, _said(one), one.protocol, one.node_port)
        yield "-A KUBE-NODEPORTS -p %s %s-m %s --dport %d -j %s" % (*to, chain)
        if one.local:
            yield "-A %s -s %s -j %s" % (chain, PODS[version], service)
            yield "-A %s -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ" % chain
            yield "-A %s -m addrtype --src-type LOCAL -j %s" % (chain, service)
        else:
            yield "-A %s -j KUBE-MARK-MASQ" % chain
            yield "-A %s -j %s" % (chain, service)

    def _nftables_133(self, version: int) -> str:
        chains = ["chain mark-for-masquerade {\n %s\n }" % _MARK]
        for one in self.services:
            marks = "%s saddr != %s jump mark-for-masquerade" % (_family(version), PODS[version])
            address = (_family(version), one.addresses[version], one.protocol, one.port, marks)
            chains += self._chains(one, version, ["%s daddr %s %s dport %d %s" % address], True)
        return self._nftables(version, chains, "jump mark-for-masquerade", "", "")

    def _chains(self, one: Service, version: int, first: t.List[str], marks_hairpin: bool) -> t.Iterator[str]:
        """Yield a chain for each pod of a Service, and one that chooses among them."""
        ip, names, kept = _family(version), [], []
        for place, end in enumerate(one.ends[version]):
            names.append("endpoint-%s-ns/svc/%s/p%d__%d" % (one.name, one.protocol, one.port, place))
            known = "affinity-%s-%d" % (one.name, place)
            lines = ["%s saddr %s jump mark-for-masquerade" % (ip, end)] if marks_hairpin else []
            if one.affinity:
                kept.append("%s saddr @%s goto %s" % (ip, known, names[-1]))
                lines.append("update @%s { %s saddr timeout 3h }" % (known, ip))
            lines.append("meta l4proto %s dnat to %s" % (one.protocol, _at(end, one.target)))
            yield "chain %s {\n %s\n }" % (names[-1], "\n ".join(lines))
        if names:
            chosen = ", ".join("%d : goto %s" % pair for pair in enumerate(names))
            lines = [*first, *kept, "numgen random mod %d vmap { %s }" % (len(names), chosen)]
            yield "chain %s {\n %s\n }" % (_chain("service", one), "\n ".join(lines))

    def _nftables_136(self, version: int) -> str:
        ip = _family(version)
        chains: t.List[str] = []
        hairpins: t.Set[str] = set()
        for one in self.services:
            ends = one.ends[version]
            hairpins.update("%s . %s . %s . %d" % (end, end, one.protocol, one.target) for end in ends)
            if one.affinity:
                chains += self._chains(one, version, [], False)
            elif ends:
                pairs = ", ".join("%d : %s . %d" % (place, end, one.target) for place, end in enumerate(ends))
                rule = "meta l4proto %s dnat %s to numgen random mod %d map { %s }"
                rule %= (one.protocol, ip, len(ends), pairs)
                chains.append("chain %s {\n %s\n }" % (_chain("service", one), rule))
        kind = "%s . %s . inet_proto . inet_service" % (_type(version), _type(version))
        known = "elements = { %s }" % ", ".join(sorted(hairpins)) if hairpins else ""
        words = ' comment "service hairpin connections"\n'
        chains.append("set hairpin-connections {\n type %s\n%s %s\n }" % (kind, words, known))
        marked = "%s daddr @cluster-ips %s saddr != %s %s" % (ip, ip, PODS[version], _MARK)
        found = "ct status dnat %s saddr . %s daddr . meta l4proto . th dport @hairpin-connections" % (ip, ip)
        return self._nftables(version, chains, _MARK, marked, found + " masquerade fully-random")

    def _nftables(self, version: int, chains: t.List[str], mark: str, first: str, hairpin: str) -> str:
        """Return the table around the chains of Services."""
        ip, kind = _family(version), _type(version)
        key = kind + " . inet_proto . inet_service : verdict"
        ips, ports, none, no_ports, external = [], [], [], [], []
        for one in self.services:
            served = "%s . %s . %d : goto %s"
            if not one.ends[version]:
                none.append(served % (one.addresses[version], one.protocol, one.port, "reject-chain"))
                no_ports += ["%s . %d : goto reject-chain" % (one.protocol, one.node_port)] if one.node_port else []
                continue
            ips.append(served % (one.addresses[version], one.protocol, one.port, _chain("service", one)))
            if one.node_port:
                ports.append("%s . %d : goto %s" % (one.protocol, one.node_port, _chain("external", one)))
                service = "goto " + _chain("service", one)
                lines = [mark, service]
                if one.local:
                    lines = ["%s saddr %s %s" % (ip, PODS[version], service), "fib saddr type local " + mark]
                    lines += ["fib saddr type local " + service]
                external.append("chain %s {\n %s\n }" % (_chain("external", one), "\n ".join(lines)))
        sets = [
            "set affinity-%s-%d {\n type %s\n flags dynamic,timeout\n timeout 3h\n }" % (one.name, place, kind)
            for one in self.services
            if one.affinity
            for place in range(len(one.ends[version]))
        ]
        addresses = ", ".join(one.addresses[version] for one in self.services)
        numbers = ", ".join(self.numbers[version])
        parts = [
            ' comment "rules for kube-proxy"',
            'set cluster-ips {\n type %s\n comment "Active ClusterIPs"\n elements = { %s }\n }' % (kind, addresses),
            "set nodeport-ips {\n type %s\n elements = { %s }\n }" % (kind, numbers),
            *sets,
            "chain reject-chain {\n reject\n }",
            *chains,
            *external,
            _map("service-ips", key, ips),
            _map("service-nodeports", "inet_proto . inet_service : verdict", ports),
            _map("no-endpoint-services", key, none),
            _map("no-endpoint-nodeports", "inet_proto . inet_service : verdict", no_ports),
            _map("firewall-ips", key, []),
        ]
        text = "table %s kube-proxy {\n%s\n" % (ip, "\n".join(parts))
        return text + _HEAD % {"ip": ip, "first": first, "hairpin": hairpin} + "}\n"


def _family(version: int) -> str:
    return "ip" if version == 4 else "ip6"


def _type(version: int) -> str:
    return "ipv%d_addr" % version


def _at(address: str, port: int) -> str:
    return ("[%s]:%d" if ":" in address else "%s:%d") % (address, port)


def _chain(kind: str, one: Service) -> str:
    return "%s-%s-ns/svc/%s/p%d" % (kind, one.name, one.protocol, one.port)


def _said(one: Service) -> str:
    """Return the comment of a rule of iptables."""
    return '-m comment --comment "ns/%s:p" ' % one.name


def _map(name: str, kind: str, elements: t.Sequence[str]) -> str:
    known = "elements = { %s }\n " % ", ".join(elements) if elements else ""
    return "map %s {\n type %s\n %s}" % (name, kind, known)


_HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_HEAD = """chain services {
 %(first)s
 %(ip)s daddr . meta l4proto . th dport vmap @service-ips
 %(ip)s daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
 }
chain masquerading {
 meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random
 %(hairpin)s
 }
chain firewall-check {
 %(ip)s daddr . meta l4proto . th dport vmap @firewall-ips
 }
chain nodeport-endpoints-check {
 %(ip)s daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
 }
chain service-endpoints-check {
 %(ip)s daddr . meta l4proto . th dport vmap @no-endpoint-services
 }
chain cluster-ips-check {
 %(ip)s daddr @cluster-ips reject comment "Reject traffic to invalid ports of ClusterIPs"
 }
chain filter-prerouting-pre-dnat {
 type filter hook prerouting priority dstnat - 10; policy accept;
 ct state new jump firewall-check
 }
chain filter-output-pre-dnat {
 type filter hook output priority -110; policy accept;
 ct state new jump firewall-check
 }
chain filter-input {
 type filter hook input priority filter; policy accept;
 ct state new jump nodeport-endpoints-check
 ct state new jump service-endpoints-check
 }
chain filter-forward {
 type filter hook forward priority filter; policy accept;
 ct state new jump service-endpoints-check
 ct state new jump cluster-ips-check
 }
chain filter-output {
 type filter hook output priority filter; policy accept;
 ct state new jump service-endpoints-check
 ct state new jump cluster-ips-check
 }
chain nat-prerouting {
 type nat hook prerouting priority dstnat; policy accept;
 jump services
 }
chain nat-output {
 type nat hook output priority -100; policy accept;
 jump services
 }
chain nat-postrouting {
 type nat hook postrouting priority srcnat; policy accept;
 jump masquerading
 }
"""
