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
      - Text is split at commas, in a list too. V([]) exempts link-local destinations only. Null is refused.
      - If not set, RFC 1918, or every reserved range with O(nomasq_all_reserved_ranges).
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
      - Refuse a list of more entries. An iptables chain is walked rule by rule for every new connection; V(nftables)
        uses a constant-time set lookup.
    type: int
    default: 64
  masq_link_local:
    description:
      - Masquerade traffic to V(169.254.0.0/16) too.
      - A range of O(non_masquerade_cidrs) that contains it, such as V(0.0.0.0/0), still exempts it, unless it is in
        O(masquerade_cidrs).
    type: bool
    default: false
  masq_link_local_ipv6:
    description: Masquerade traffic to V(fe80::/10) too, as O(masq_link_local) does.
    type: bool
    default: false
  enable_ipv6:
    description: Manage IPv6 rules as well. Only then may O(non_masquerade_cidrs) hold IPv6 ranges.
    type: bool
    default: false
  masq_chain:
    description:
      - The name of the chain in the nat table, of at most 28 characters. With O(backend=nftables) a chain of that name
        is removed from iptables.
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
        is free, the packet is dropped although another range has room, and the connection waits for its next packet.
        C(ip-masq-agent ports) and O(kubenode.ip_masq.ip_masq_info#module:ports) show how many are used.
      - If not set, or with V([]), the kernel chooses, also among NodePorts and outside of the node's local ports.
      - V(auto) is the largest part of C(net.ipv4.ip_local_port_range) without O(node_port_range) and
        C(net.ipv4.ip_local_reserved_ports), found again in each run and each resync. It needs 1024 ports.
    type: list
    elements: raw
  node_port_range:
    description: The NodePorts of the cluster, C(FIRST-LAST). Only O(to_ports=auto) uses it.
    type: str
    default: 30000-32767
  backend:
    description:
      - What holds the rules. V(iptables_nft) and V(iptables_legacy) are the variants of iptables. V(nftables) is a
        table of its own, C(ip_masq_agent), with a set of the exempt ranges, and needs no program.
      - V(auto) is the iptables variant that Kubernetes uses on the node. The kubelet's hint chains in the nft variant
        mean nft, otherwise rules in legacy tables mean legacy, otherwise nft. Without iptables or its xt modules in the
        kernel it is V(nftables).
      - The agent keeps the choice of V(auto) until the kubelet's hint appears in the other variant, or the node loses
        the program or the kernel modules.
    type: str
    choices: [auto, iptables_nft, iptables_legacy, nftables]
    default: auto
  exemption:
    description:
      - How strongly exempt traffic is protected from other NAT rules. With V(return), as in ip-masq-agent, they can
        still masquerade it. With V(accept) no later rule of C(POSTROUTING) can; with O(backend=nftables) this is the
        same as V(return). With V(enforce) no other rule can; it needs nftables, which O(backend=auto) then means.
      - V(accept) and V(enforce) need O(source_cidrs), so that guests of other programs keep being masqueraded. They
        leave to other rules what is answered only if it leaves with the address of the node, such as connections to
        Services and host ports.
      - With kube-proxy in IPVS mode V(enforce) needs the interfaces of pods in O(except_interfaces).
    type: str
    choices: [return, accept, enforce]
    default: return
  masquerade_cidrs:
    description:
      - Destinations that are masqueraded although a range of O(non_masquerade_cidrs) contains them. Of both lists the
        longest prefix decides. A range in both lists is refused.
      - If not set, or with V([]), there are no such ranges.
    type: list
    elements: raw
  source_cidrs:
    description:
      - Manage connections from these sources only, as a rule those of pods. All others are left to later rules, also in
        a family without a source in the list.
      - If not set, or with V([]), connections from all sources are managed.
    type: list
    elements: raw
  out_interfaces:
    description:
      - Manage traffic that leaves by these interfaces only. C(+) or C(*) at the end of a name means all interfaces with
        such a name. If not set, or with V([]), traffic by all interfaces is managed.
    type: list
    elements: raw
  except_interfaces:
    description:
      - Leave traffic that leaves by these interfaces, named as in O(out_interfaces), to later rules. If not set, or
        with V([]), there are none.
    type: list
    elements: raw
  skip_marks:
    description:
      - Leave packets with one of these marks to the program that marks them, such as an egress gateway that gives
        packets another address by rules after ours. The marks of kube-proxy and portmap need not be listed.
      - C(VALUE) is the whole mark, and C(VALUE/MASK) some of its bits, such as V(0x4000/0x4000). V(0) is a packet
        without a mark, which most packets are. If not set, or with V([]), there are no such marks.
    type: list
    elements: raw
  snat:
    description:
      - Fixed addresses for connections that are masqueraded, instead of that of the interface. The first entry that
        matches counts. If not set, or with V([]), there are none.
      - "Keys of an entry: C(address) (an address of the node, or C(FIRST-LAST), at most 256), and optionally
        C(out_interface) (a name as in O(out_interfaces)), C(source_cidrs) and C(ports_mapping)."
      - With C(ports_mapping=keep) a connection keeps its source port where that is free, and in O(to_ports) where these
        are set, so that a UDP socket has the same port at all destinations. With C(random) it has a random one at each.
        If not given, O(random_fully) decides.
    type: list
    elements: raw
  snat_missing:
    description:
      - What is done if an address of O(snat) or O(rules), or one of an address range, goes away from the node later.
        M(kubenode.ip_masq.ip_masq) refuses a policy with an address that is not on the node.
      - With V(masquerade) the next entry of O(snat) that matches, or the address of the interface, is used until it is
        back. With V(keep) the rules stay, and nothing answers to the missing address. With V(drop) new connections of
        the entry are dropped; entries must name their sources then, or the node itself would be cut off.
      - With V(drop) packets with a mark of O(skip_marks) pass, and with O(backend=nftables) those that a NAT chain in
        front of ours masquerades.
    type: str
    choices: [masquerade, keep, drop]
    default: masquerade
  rules:
    description:
      - What becomes of connections, whatever the other lists, O(source_cidrs), O(out_interfaces) and
        O(except_interfaces) are. The first entry that matches counts. If not set, or with V([]), there are none.
      - "Keys of an entry: C(action), and as conditions C(sources), C(destinations) (both CIDRs), C(out_interfaces),
        C(protocols) (C(tcp), C(udp), C(sctp), C(icmp), which in IPv6 is ICMPv6) and C(ports) (destination ports, each a
        port or C(FIRST-LAST)). A condition that is not given matches everything; of several values one must match."
      - An entry with ranges or an address of one family acts in that family only.
      - "Actions: C(exempt) keeps the source address, protected by O(exemption). C(masquerade) uses the address of
        O(snat) or of the interface, C(snat) the key C(address), both with C(ports_mapping) as in O(snat). C(skip)
        leaves the connection to later rules."
      - With an iptables backend each combination of values is a rule; more than 4096 are refused.
    type: list
    elements: raw
  jump_position:
    description:
      - Where in C(POSTROUTING) the jump is, never behind a rule that lets no packet pass. With V(keep) a new jump is
        added at the end, and stays where it is.
      - With V(first) no rule is in front of it. With V(last) only rules are behind it that no packet reaches. With
        C(before:CHAIN) and C(after:CHAIN) it is in front of, or behind, all rules that lead to a chain of another
        program; without such a rule there is a warning, and the jump stays.
      - With O(backend=nftables) V(first) and V(last) set the priority of the chain to -199 and 2147483647, the lowest
        and the highest that there is; V(keep) is 100. A place beside a chain is refused.
      - If another program moves the jump away, each resync moves it back, and C(ip-masq-agent status) names the program
        from the second time on.
    type: str
    default: keep
  flush_conntrack:
    description:
      - With V(changed) open connections are removed from the kernel's connection tracking if a change of the rules
        changes their verdict and they do not have their new address yet. UDP goes on with the new address; TCP breaks.
        With V(none) they keep their source address until they end.
      - Connections of the node itself stay, and those that a rule in front of the jump decides about. See
        C(docs/operations.md) for others that stay; a warning has what is not considered.
      - It takes at most 10 seconds in each family; a warning has the numbers of connections that are left.
    type: str
    choices: [none, changed]
    default: none
  leaks:
    description:
      - What becomes of packets that the policy masquerades and that NAT does not see, because they belong to no
        connection, such as a late C(FIN). They leave with the address of the pod. See C(docs/leaks.md) for which there
        are, and for what each backend covers.
      - With V(ignore) there are no rules for them. With V(count) they are counted, with V(drop) counted and dropped;
        both need O(source_cidrs), the networks of the pods.
    type: str
    choices: [ignore, count, drop]
    default: ignore
"""

    ASKED: str = re.sub("^    default: .*\n", "", DOCUMENTATION, flags=re.MULTILINE)
