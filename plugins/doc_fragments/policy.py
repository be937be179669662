# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of a policy. ASKED: without defaults, where an option that is not set demands nothing."""

from __future__ import annotations

import re


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  non_masquerade_cidrs:
    description:
      - Destinations to which traffic keeps the pod's address, in CIDR notation without host bits.
      - Text is split at commas, in a list too, so that V(10.0.0.0/8,192.168.0.0/16) is a list of two.
      - V([]) is an empty list, so that everything except link-local destinations is masqueraded.
      - Null is refused. If not set, RFC 1918 (V(10.0.0.0/8), V(172.16.0.0/12), V(192.168.0.0/16)), or see
        O(nomasq_all_reserved_ranges).
    type: list
    elements: raw
  nomasq_all_reserved_ranges:
    description:
      - Make every reserved IPv4 range the default of O(non_masquerade_cidrs), not only RFC 1918. These are
        V(10.0.0.0/8), V(172.16.0.0/12), V(192.168.0.0/16), V(100.64.0.0/10), V(192.0.0.0/24), V(192.0.2.0/24),
        V(192.88.99.0/24), V(198.18.0.0/15), V(198.51.100.0/24), V(203.0.113.0/24) and V(240.0.0.0/4).
    type: bool
    default: false
  cidr_limit:
    description:
      - Refuse a list of more entries than this. An iptables chain is walked rule by rule for every new connection; the
        backend V(nftables) uses a constant-time set lookup.
    type: int
    default: 64
  masq_link_local:
    description:
      - Masquerade traffic to V(169.254.0.0/16) too.
      - A range of O(non_masquerade_cidrs) that contains it, such as V(0.0.0.0/0), still exempts it. To masquerade it
        inside of such a range, name it in O(masquerade_cidrs) as well.
    type: bool
    default: false
  masq_link_local_ipv6:
    description:
      - Masquerade traffic to V(fe80::/10) too. For a range of O(non_masquerade_cidrs) that contains it, see
        O(masq_link_local).
    type: bool
    default: false
  enable_ipv6:
    description: Manage IPv6 rules as well. Only then may O(non_masquerade_cidrs) hold IPv6 ranges.
    type: bool
    default: false
  masq_chain:
    description:
      - The name of the chain in the nat table. At most 28 characters.
      - With O(backend=nftables) it has no effect, except that a chain of that name is removed from iptables.
    type: str
    default: IP-MASQ-AGENT
  random_fully:
    description:
      - Choose source ports fully at random, where the node's iptables supports it (1.6.2 and later). This avoids lost
        packets when two connections get the same port at the same moment.
    type: bool
    default: true
  to_ports:
    description:
      - Masquerade tcp, udp and sctp to these source ports only, each a port or C(FIRST-LAST).
      - Of several ranges, each packet that opens a connection draws one, in proportion to their size. If no port of it
        is free, the packet is dropped although another range has room, and the connection waits for its next packet (of
        TCP, the next SYN, a second later or more). C(ip-masq-agent ports) and
        O(kubenode.ip_masq.ip_masq_info#module:ports) show how many ports of each range are used.
      - If not set, or with V([]), the kernel chooses, also among NodePorts and outside of the node's local ports.
      - V(auto) is a range that is found on the node, in each run and each resync. It is the largest part of
        C(net.ipv4.ip_local_port_range) without O(node_port_range) and C(net.ipv4.ip_local_reserved_ports), which hold
        for IPv6 too. A node where it has fewer than 1024 ports is refused. If it gets so few later, the kernel
        chooses, and each resync reports an error.
      - A connection for which no port is free gets no answer, because the kernel drops its packets. A port is free if
        no other connection to the same destination and port uses it.
    type: list
    elements: raw
  node_port_range:
    description:
      - The NodePorts of the cluster, C(FIRST-LAST), as of C(--service-node-port-range) of kube-apiserver. Only
        O(to_ports=auto) uses it.
    type: str
    default: 30000-32767
  backend:
    description:
      - What holds the rules. V(iptables_nft) and V(iptables_legacy) are the variants of iptables. V(nftables) is a
        table of its own, C(ip_masq_agent), with a set of the exempt ranges, and needs no program.
      - V(auto) chooses the iptables variant that Kubernetes uses on this node, as kubernetes-sigs/iptables-wrappers
        does. The kubelet's hint chains in the nft variant mean nft, otherwise rules in legacy tables mean legacy,
        otherwise nft. If iptables is not installed, or the kernel lacks the xt modules that its rules need, it chooses
        V(nftables).
      - The agent keeps the choice of V(auto) until the kubelet's hint appears in the other variant, or the node loses
        the program or the kernel modules. The journal then has both backends and the reason.
      - If the backend changes, rules of the new one are active before those of the old one are removed.
    type: str
    choices: [auto, iptables_nft, iptables_legacy, nftables]
    default: auto
  exemption:
    description:
      - How strongly exempt traffic is protected from other NAT rules.
      - With V(return), as in ip-masq-agent, other NAT rules can still masquerade it.
      - With V(accept) no later rule of C(POSTROUTING) can. With O(backend=nftables) this is the same as V(return).
      - With V(enforce) no other rule can, in iptables or in another nftables chain, earlier or later. It needs
        nftables, and O(backend=auto) then means nftables.
      - V(accept) and V(enforce) need O(source_cidrs), so that guests of other programs, such as Docker, keep being
        masqueraded.
      - Traffic that is answered only if it leaves with the address of the node is left to other rules. With V(accept)
        and V(enforce) these are packets that kube-proxy or the CNI plugin portmap has marked for masquerading
        (C(0x4000), C(0x2000)), packets from loopback addresses, and connections whose destination was changed (DNAT),
        as those to Services and host ports.
      - With kube-proxy in IPVS mode V(enforce) needs the interfaces of pods in O(except_interfaces). A pod that reaches
        itself through a Service gets no answer without, if the pods' range is exempt.
    type: str
    choices: [return, accept, enforce]
    default: return
  masquerade_cidrs:
    description:
      - Destinations that are masqueraded although a range of O(non_masquerade_cidrs) contains them. Of both lists the
        longest prefix decides. A range in both lists is refused.
      - With V(0.0.0.0/0) in O(non_masquerade_cidrs), only these are masqueraded.
      - If not set, or with V([]), there are no such ranges.
    type: list
    elements: raw
  source_cidrs:
    description:
      - Manage connections from these sources only, as a rule those of pods. All others are left to later rules, also in
        a family without a source in the list.
      - If not set, or with V([]), connections from all sources are managed. An empty list means all here, and none in
        O(non_masquerade_cidrs).
    type: list
    elements: raw
  out_interfaces:
    description:
      - Manage traffic that leaves by these interfaces only. C(+) or C(*) at the end of a name means all interfaces with
        such a name.
      - If not set, or with V([]), traffic by all interfaces is managed. An empty list means all here, and none in
        O(non_masquerade_cidrs).
    type: list
    elements: raw
  except_interfaces:
    description:
      - Leave traffic that leaves by these interfaces to later rules. Names as in O(out_interfaces).
      - If not set, or with V([]), there are no such interfaces.
    type: list
    elements: raw
  skip_marks:
    description:
      - Leave packets with one of these marks to later rules, that is, to the program that marks them.
      - As with iptables, C(VALUE) is the whole mark, and C(VALUE/MASK) some of its bits. Programs share the mark, so
        as a rule their bits are given, such as V(0x4000/0x4000). V(0) is a packet without a mark, which most packets
        are.
      - If not set, or with V([]), there are no such marks. What kube-proxy (C(0x4000)) and the CNI plugin portmap
        (C(0x2000)) mark is to be masqueraded anyway, and with O(exemption=accept) and O(exemption=enforce) is never
        exempt. The option is for programs that give packets another address, such as an egress gateway, by rules after
        ours.
    type: list
    elements: raw
  snat:
    description:
      - Fixed addresses for connections that are masqueraded, instead of that of the interface. The first entry that
        matches counts; connections that none matches get the address of the interface.
      - The addresses must be on the node when the policy is applied, otherwise it is refused. See also
        O(snat_missing).
      - If not set, or with V([]), there are none. In an entry an empty C(source_cidrs) means all sources.
      - An entry acts in the family of its address. O(to_ports) and O(random_fully) apply as well.
      - "Keys of an entry: C(address) (an address, or C(FIRST-LAST), at most 256), and optionally C(out_interface) (a
        name as in O(out_interfaces)), C(source_cidrs) and C(ports_mapping), which is C(random) or C(keep)."
      - With C(ports_mapping=keep) a connection keeps its source port where that is free, and in O(to_ports) where these
        are set. So a UDP socket has the same port at all destinations, which STUN, SIP, WireGuard and Tailscale need.
        With C(random) it has a random one at each. If not given, O(random_fully) decides.
    type: list
    elements: raw
  snat_missing:
    description:
      - What is done if an address of O(snat) or O(rules) goes away from the node later.
      - With V(masquerade) an entry of O(snat) is left out until the address is back, so that the next entry that
        matches, or the address of the interface, is used; an entry of O(rules) masquerades. With V(keep) the rules
        stay, and nothing answers to the missing address. With V(drop) new connections of the entry are dropped until
        the address is back, so that no other address is ever seen outside; entries must name their sources then, or
        the node itself would be cut off. Of an address range, one missing address is enough.
      - With V(drop) it makes no difference that kube-proxy has marked packets for masquerading; those with a mark of
        O(skip_marks) pass. So do, with O(backend=nftables), those that a NAT chain in front of ours masquerades.
      - It is for the agent. M(kubenode.ip_masq.ip_masq) refuses a policy
        with an address that is not on the node.
    type: str
    choices: [masquerade, keep, drop]
    default: masquerade
  rules:
    description:
      - What becomes of connections, whatever the other lists, O(source_cidrs), O(out_interfaces) and
        O(except_interfaces) are. The first entry that matches counts. If not set, or with V([]), there are none.
      - "Keys of an entry: C(action), and as conditions C(sources), C(destinations) (both CIDRs), C(out_interfaces),
        C(protocols) (C(tcp), C(udp), C(sctp), C(icmp), which in IPv6 is ICMPv6) and C(ports) (destination ports, each a
        port or C(FIRST-LAST); without protocols those of tcp, udp and sctp). A condition that is not given, or
        that is an empty list, matches everything; of several values one must match."
      - An entry acts in the families of its addresses. With sources, destinations or an C(address) of IPv4 alone it
        decides about no IPv6 connection, and one with sources of one family and destinations of the other decides about
        none at all.
      - "Actions: C(exempt) keeps the source address, protected by O(exemption). C(masquerade) uses the address of
        O(snat) or of the interface, C(snat) the key C(address). C(skip) leaves the connection to later rules."
      - With actions C(masquerade) and C(snat) an entry may have C(ports_mapping), as one of O(snat). In an entry that
        masquerades it counts before that of O(snat).
      - With an iptables backend each combination of values is a rule; more than 4096 are refused. With
        O(backend=nftables) each entry is a rule or a few, however long its lists are.
    type: list
    elements: raw
  jump_position:
    description:
      - Where in C(POSTROUTING) the jump is. What comes first decides about packets that several programs would
        translate.
      - With V(keep) a new jump is added at the end, and one that is there stays where it is.
      - With V(first) no rule is in front of it. With V(last) only rules are behind it that no packet reaches.
      - With C(before:CHAIN) and C(after:CHAIN) it is anywhere in front of, or behind, all rules that lead to a chain of
        another program, and directly beside them when it has to be moved. If no rule leads to that chain, there is a
        warning, and the jump stays where it is.
      - The jump is never placed behind a rule that lets no packet pass.
      - With O(backend=nftables) there is no jump. V(first) and V(last) set the priority of the chain to -199, the
        lowest that a NAT chain can have, and 2147483647, the highest; V(keep) is 100, that of C(POSTROUTING). A place
        beside a chain of iptables is refused.
      - If another program moves the jump away, each resync of the agent moves it back, and C(ip-masq-agent status)
        names the program from the second time on.
    type: str
    default: keep
  flush_conntrack:
    description:
      - Whether open connections are removed from the kernel's connection tracking after a change of the rules, so that
        the new rules decide about them too. With V(none) they keep their source address until they end.
      - With V(changed) those are removed whose verdict is another one than before, and which do not have the address
        yet that they would get now. A UDP connection goes on with the new address; a TCP connection breaks, because the
        other side does not know it by that address.
      - Rules that were missing, or that are not of this collection's form, count as rules that masqueraded nothing; for
        the latter there is a warning. Connections that a rule in front of the jump decides about stay.
      - The destination is that after DNAT, so connections through Services are judged by where they lead. Connections
        of the node itself stay. With O(exemption=accept) and O(exemption=enforce) those stay whose destination was
        changed, and with O(out_interfaces) and O(except_interfaces) those for which no route is found.
      - The kernel does not keep the mark of a packet with its connection. With O(skip_marks) those stay whose
        destination was changed; with other marks than C(0x4000) and C(0x2000) also those for which the mark would make
        a difference. A warning has their number.
      - It takes at most 10 seconds in each family. If that is not enough, a warning has the numbers of connections that
        were read, removed and are still tracked.
    type: str
    choices: [none, changed]
    default: none
  leaks:
    description:
      - What becomes of packets that the policy masquerades and that NAT does not see, because they belong to no
        connection. They leave with the address of the pod. Examples are a late C(FIN) or C(RST), a C(SYN,ACK) without
        a C(SYN), an ICMP error about an unknown connection, a packet with a wrong checksum, and all that is not
        tracked.
      - With V(ignore) there are no rules for them. With V(count) they are counted, with V(drop) counted and dropped.
      - V(count) and V(drop) need O(source_cidrs), the networks of the pods. Packets from these networks are examined,
        unless they are for the same networks, for the node itself, or multicast. What is exempt, skipped or left out by
        O(out_interfaces), O(except_interfaces), O(skip_marks) or O(rules) passes, as connections do.
      - Packets of open connections pass, whatever address they have.
      - With O(backend=nftables) the chain is behind source NAT, so the first packet of a connection that another
        program kept from being masqueraded is a leak too. The iptables backends use a chain in the table mangle, for
        packets in the states C(INVALID) and C(UNTRACKED).
    type: str
    choices: [ignore, count, drop]
    default: ignore
"""

    ASKED: str = re.sub("^    default: .*\n", "", DOCUMENTATION, flags=re.MULTILINE)
