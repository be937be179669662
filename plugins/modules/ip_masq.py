#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq
short_description: Keep a node's IP masquerading as declared
version_added: 1.0.0
description:
  - Masquerades the traffic of pods to the outside with the address of the node, and keeps their addresses inside the
    ranges that you declare. The rules are those of the Go daemon ip-masq-agent, so a chain that it built is kept.
  - Manages one chain in the nat table, and the jump to it in C(POSTROUTING), for IPv4 and, with O(enable_ipv6), IPv6;
    or, with O(backend=nftables), one table of its own. Each family is written in one transaction; nothing is
    written when nothing differs, so packet counters survive.
  - Reads only its own chain and C(POSTROUTING), or its own table. Rules of other programs are never changed.
  - Chains are compared by meaning, not by text. The order of the exempt ranges, duplicates, overlaps and comments make
    no difference.
  - After a write the kernel is read again. If it did not keep the rules, the previous state is restored and the module
    fails.
  - Chains of earlier agents (C(NON-MASQUERADE-DAEMON), C(IP-MASQ), C(IP-MASQ-AGENT) and chains that this module built
    under another O(masq_chain)) to which C(POSTROUTING) still jumps are replaced in the same transaction. Those in
    other backends, and in IPv6 if O(enable_ipv6) is off, are removed and reported, as are left-over rules of ours.
options:
  state:
    description:
      - V(present) sets the rules as declared.
      - V(absent) removes the chain and the jumps to it, or the table, in every backend and family.
    type: str
    choices: [present, absent]
    default: present
  non_masquerade_cidrs:
    description:
      - Destinations to which traffic keeps the pod's address, in CIDR notation without host bits.
      - Text is split at commas, in a list too, so that V(10.0.0.0/8,192.168.0.0/16) is a list of two.
      - V([]) is an empty list, so that everything except link-local destinations is masqueraded.
      - If not set, RFC 1918 (V(10.0.0.0/8), V(172.16.0.0/12), V(192.168.0.0/16)), or see
        O(nomasq_all_reserved_ranges).
    type: list
    elements: raw
  nomasq_all_reserved_ranges:
    description:
      - Make every reserved IPv4 range the default of O(non_masquerade_cidrs), not only RFC 1918.
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
    type: bool
    default: false
  masq_link_local_ipv6:
    description:
      - Masquerade traffic to V(fe80::/10) too.
    type: bool
    default: false
  enable_ipv6:
    description:
      - Manage IPv6 rules as well. Only then may O(non_masquerade_cidrs) hold IPv6 ranges.
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
      - Masquerade tcp, udp and sctp to these source ports only, each a port or C(FIRST-LAST). Ranges are used in
        proportion to their size.
      - If not set, the kernel chooses.
    type: list
    elements: raw
  backend:
    description:
      - What holds the rules. V(iptables_nft) and V(iptables_legacy) are the variants of iptables. V(nftables) is a
        table of its own, C(ip_masq_agent), with a set of the exempt ranges, and needs C(nft) 0.9.8 or later.
      - V(auto) chooses the iptables variant that Kubernetes uses on this node, as kubernetes-sigs/iptables-wrappers
        does. The kubelet's hint chains in the nft variant mean nft, otherwise rules in legacy tables mean legacy,
        otherwise nft. If iptables is not installed, or the kernel lacks the xt modules that its rules need, it chooses
        V(nftables).
      - If the backend changes, rules are in force in the new one before those in the old one are removed.
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
      - Traffic that is answered only if it leaves with the address of the node is left to other rules. With V(accept)
        and V(enforce) these are packets that kube-proxy or the CNI plugin portmap has marked for masquerading
        (C(0x4000), C(0x2000)) and packets from loopback addresses. With V(enforce) they are also connections whose
        destination was changed (DNAT), as those to Services and host ports.
      - V(enforce) does not work with kube-proxy in IPVS mode. A pod that reaches itself through a Service then gets no
        answer if the pods' range is exempt.
    type: str
    choices: [return, accept, enforce]
    default: return
  masquerade_cidrs:
    description:
      - Destinations that are masqueraded although a range of O(non_masquerade_cidrs) contains them. Of both lists the
        longest prefix decides. A range in both lists is refused.
      - With V(0.0.0.0/0) in O(non_masquerade_cidrs), only these are masqueraded.
    type: list
    elements: raw
  source_cidrs:
    description:
      - Manage connections from these sources only, as a rule those of pods. All others are left to later rules, in the
        families of which no source is named too.
      - If not set, the source does not matter.
    type: list
    elements: raw
  out_interfaces:
    description:
      - Manage traffic that leaves by these interfaces only. C(+) or C(*) at the end of a name means all interfaces with
        such a name.
      - If not set, the interface does not matter.
    type: list
    elements: raw
  except_interfaces:
    description:
      - Leave traffic that leaves by these interfaces to later rules. Names as in O(out_interfaces).
    type: list
    elements: raw
  skip_marks:
    description:
      - Leave packets with one of these marks to later rules, that is, to the program that marks them.
      - As with iptables, C(VALUE) is the whole mark, and C(VALUE/MASK) some of its bits. Programs share the mark, so
        as a rule their bits are given, such as V(0x4000/0x4000).
      - It is empty by default. What kube-proxy (C(0x4000)) and the CNI plugin portmap (C(0x2000)) mark is to be
        masqueraded anyway, and with O(exemption=accept) and O(exemption=enforce) is never exempt. It is for programs
        that give packets another address, such as an egress gateway, by rules after ours.
    type: list
    elements: raw
  snat:
    description:
      - Fixed addresses for connections that are masqueraded, instead of that of the interface. The first entry that
        matches counts; connections that none matches get the address of the interface.
      - The addresses must be on the node when the policy is applied, otherwise it is refused. See also
        O(snat_missing).
      - An entry acts in the family of its address. O(to_ports) and O(random_fully) apply as well.
      - "Keys of an entry: C(address) (an address, or C(FIRST-LAST), at most 256), and optionally C(out_interface) (a
        name as in O(out_interfaces)) and C(source_cidrs)."
    type: list
    elements: raw
  snat_missing:
    description:
      - What is done if an address of O(snat) or O(rules) goes away from the node later.
      - With V(masquerade) an entry of O(snat) is left out until the address is back, so that the next entry that
        matches, or the address of the interface, is used; an entry of O(rules) masquerades. With V(keep) the rules
        stay, and nothing answers to the missing address.
      - It is for the agent. This module refuses a policy with an address that is not on the node.
    type: str
    choices: [masquerade, keep]
    default: masquerade
  rules:
    description:
      - What becomes of connections, whatever the other lists, O(source_cidrs), O(out_interfaces) and
        O(except_interfaces) say. The first entry that matches counts.
      - "Keys of an entry: C(action), and as conditions C(sources), C(destinations) (both CIDRs), C(out_interfaces),
        C(protocols) (C(tcp), C(udp), C(sctp), C(icmp), which in IPv6 is ICMPv6) and C(ports) (destination ports, each a
        port or C(FIRST-LAST); without protocols those of tcp, udp and sctp). A condition that is not given matches
        everything; of several values one must match."
      - "Actions: C(exempt) keeps the source address, protected as O(exemption) says. C(masquerade) uses the address of
        O(snat) or of the interface, C(snat) the key C(address). C(skip) leaves the connection to later rules."
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
      - The agent on a node moves the jump three times within an hour if another program moves it away. After that the
        jump stays where it is until an hour is over, and C(ip-masq-agent status) names the program. This module keeps
        no state, and moves it each time.
    type: str
    default: keep
  flush_conntrack:
    description:
      - Whether open connections are removed from the kernel's connection tracking after a change of the rules, so that
        the new rules decide about them too. With V(none) they keep their source address until they end.
      - With V(changed) those are removed whose verdict is another one than before, and which do not have the address
        yet that they would get now. A UDP connection goes on with the new address; a TCP connection breaks, because the
        other side does not know it by that address.
      - Rules that were missing, or that are not of this collection's form, count as rules that masqueraded nothing.
      - The destination is that after DNAT, so connections through Services are judged by where they lead. Connections
        of the node itself stay. With O(exemption=accept) and O(exemption=enforce) those stay whose destination was
        changed, and with O(out_interfaces) and O(except_interfaces) those for which no route is found.
      - The kernel does not keep the mark of a packet with its connection. With O(skip_marks) those stay whose
        destination was changed; with other marks than C(0x4000) and C(0x2000) also those for which the mark would make
        a difference. A warning has their number.
      - At most 10000 connections are removed in each family, in at most 10 seconds. A warning says when a limit was
        met.
    type: str
    choices: [none, changed]
    default: none
  lock_timeout:
    description:
      - Seconds to wait for the xtables lock, and for another run of this module or of the node's agent.
    type: int
    default: 5
  config_file:
    description:
      - Read the policy from this file on the node, with the keys and the semantics of ip-masq-agent's config file. YAML
        requires PyYAML on the node, JSON does not. A file that does not exist means all defaults.
      - An unknown key is a warning, with the nearest known key.
      - In addition to ip-masq-agent's keys the file may hold C(enableIPv6), C(masqChain), C(randomFully), C(toPorts),
        C(backend), C(exemption), C(nomasqAllReservedRanges), C(masqueradeCIDRs), C(sourceCIDRs), C(outInterfaces),
        C(exceptInterfaces), C(skipMarks), C(snat), C(snatMissing), C(rules), C(jumpPosition) and C(flushConntrack). An
        option of this module that is not at its default overrides the key. Keys of entries are C(outInterface),
        C(sourceCIDRs) and so on, or as here.
    type: path
requirements:
  - iptables or nftables on the node
attributes:
  check_mode:
    support: full
    description: Reports what would change and writes nothing.
  diff_mode:
    support: full
    description: Shows the rules before and after, as C(iptables -S) or C(nft list table) prints them.
  idempotent:
    support: full
    description: A second run with the same options changes nothing.
  platform:
    support: full
    platforms: linux
    description: Needs root on Linux.
notes:
  - The nat table sees the first packet of a connection only. Connections that were open before a change keep their
    source address, unless O(flush_conntrack=changed).
  - A rule of another program that comes later in C(POSTROUTING) can still masquerade what this module exempts, unless
    O(exemption) prevents it. Such rules are reported as warnings.
seealso:
  - name: ip-masq-agent
    description: The Go daemon with the same rules.
    link: https://github.com/kubernetes-sigs/ip-masq-agent
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Masquerade everything but RFC 1918 and link-local destinations
  kubenode.ip_masq.ip_masq:

- name: Keep pod addresses inside the data centre, in both families
  kubenode.ip_masq.ip_masq:
    non_masquerade_cidrs:
      - 10.0.0.0/8
      - 100.64.0.0/10
      - fd00:10::/32
    enable_ipv6: true

- name: Masquerade everything that leaves the node
  kubenode.ip_masq.ip_masq:
    non_masquerade_cidrs: []
    masq_link_local: true

- name: Keep the low ports and the node ports for other uses
  kubenode.ip_masq.ip_masq:
    to_ports:
      - 1024-29999
      - 32768-65535

- name: Protect exempt traffic from other programs' NAT rules
  kubenode.ip_masq.ip_masq:
    exemption: enforce

- name: Masquerade only what goes to one network, and only if it comes from pods
  kubenode.ip_masq.ip_masq:
    non_masquerade_cidrs: [0.0.0.0/0]
    masquerade_cidrs: [203.0.113.0/24]
    source_cidrs: [10.244.0.0/16]

- name: Decide before Calico does, also about connections that are open
  kubenode.ip_masq.ip_masq:
    jump_position: before:cali-POSTROUTING
    flush_conntrack: changed

- name: Exempt thousands of ranges with a constant-time lookup
  kubenode.ip_masq.ip_masq:
    backend: nftables
    cidr_limit: 20000
    non_masquerade_cidrs: "{{ routed_ranges }}"

- name: Give connections of one namespace's pods a fixed address, and let monitoring see pods
  kubenode.ip_masq.ip_masq:
    snat:
      - address: 192.0.2.7
        source_cidrs: [10.244.8.0/24]
    rules:
      - action: exempt
        destinations: [203.0.113.9/32]
        protocols: [tcp]
        ports: [9090, 9100-9110]

- name: Apply the policy of a file on the node
  kubenode.ip_masq.ip_masq:
    config_file: /etc/ip-masq-agent/config

- name: Remove the chain and its jumps
  kubenode.ip_masq.ip_masq:
    state: absent

# Ad hoc, in check mode:
#   ansible kube_node -b -m kubenode.ip_masq.ip_masq -a 'non_masquerade_cidrs=10.0.0.0/8,192.168.0.0/16' -CD
"""

RETURN = r"""
backend:
  description: What holds the rules.
  returned: when the node has a usable iptables or nft
  type: dict
  contains:
    name:
      description: The backend in use.
      type: str
      sample: iptables_nft
    version:
      description: The version that the node's program reports.
      type: str
      sample: 1.8.9
families:
  description:
    - The active rules by family (C(ipv4), C(ipv6)), or in check mode those that would be active.
    - Empty with O(state=absent).
  returned: when the node has a usable iptables or nft
  type: dict
  contains:
    ipv4:
      description: The rules of one family.
      type: dict
      contains:
        rules:
          description: The chain, as C(iptables -S) prints it; the table, as C(nft list table) does, one range per line.
          type: list
          elements: str
          sample:
            - -A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "ip-masq-agent ..." -j RETURN
            - -A IP-MASQ-AGENT -m comment --comment "ip-masq-agent ..." -j MASQUERADE --random-fully
        jump:
          description: The jump to it; none with nftables, where the chain has a hook of its own.
          type: str
          sample: -A POSTROUTING -m addrtype ! --dst-type LOCAL -m comment --comment "..." -j IP-MASQ-AGENT
    ipv6:
      description: The same for IPv6, with O(enable_ipv6=true).
      type: dict
actions:
  description: What was changed, or in check mode would be, in this order.
  returned: when the node has a usable iptables or nft
  type: list
  elements: dict
  contains:
    family:
      description: C(ipv4) or C(ipv6).
      type: str
      sample: ipv4
    backend:
      description: The backend that was changed.
      type: str
      sample: iptables_nft
    action:
      description:
        - One of C(chain created), C(chain removed), C(rule added), C(rule removed), C(rules added), C(rules removed),
          C(rules reordered), C(unreadable chain rewritten), C(jump added), C(jump moved), C(jump replaced),
          C(jump moved to its position), C(jump removed), C(duplicate jump removed),
          C(jump of an earlier agent removed), C(chain of an earlier agent removed).
        - With nftables also C(table created), C(table removed), C(set created), C(range added), C(range removed),
          C(ranges added), C(ranges removed), C(set removed), C(foreign part removed),
          C(priority of the chain changed).
      type: str
      sample: rule added
    rule:
      description: The rule, as C(iptables -S) prints it; a count where more than 100 were added or removed.
      type: str
      sample: -A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "ip-masq-agent ..." -j RETURN
flushed:
  description:
    - By family, how many open connections were removed, or in check mode would be.
    - Empty if no rule was changed, and with O(flush_conntrack=none).
  returned: when the node has a usable iptables or nft
  type: dict
  sample: {ipv4: 12}
other_nat:
  description:
    - Chains of other programs that the same traffic meets, such as those of a CNI plugin. They may masquerade exempt
      traffic; their rules are not evaluated.
    - Empty with O(state=absent).
  returned: when the node has a usable iptables or nft
  type: list
  elements: str
  sample: ["ipv4, iptables_nft: POSTROUTING jumps to cali-POSTROUTING of Calico, which may masquerade exempt traffic"]
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._engine.detect import Node
from ..module_utils._engine.module_result import rules_diff, rules_return
from ..module_utils._engine.other_actors import find_other_actors
from ..module_utils._engine.reconcile import reconcile
from ..module_utils._errors import ConfigError, IpMasqError
from ..module_utils._policy.config_file import load
from ..module_utils._policy.policy import DEFAULTS, POLICY_OPTIONS, Config, build, file_key, split_lists
from ..module_utils._system.node_warning import named
from ..module_utils._system.process import run

#: What a config file decides; the other policy options are flags of the reference agent and go with a file.
FILE_POLICY = tuple(option.name for option in POLICY_OPTIONS if option.of_module and option.in_reference_file)
FLAGS = tuple(option.name for option in POLICY_OPTIONS if option.of_module and not option.in_reference_file)

ARGUMENT_SPEC = dict(
    {option.name: option.argument for option in POLICY_OPTIONS if option.of_module},
    state={"type": "str", "choices": ["present", "absent"], "default": "present"},
    lock_timeout={"type": "int", "default": 5},
    config_file={"type": "path"},
)

#: seconds; longer than any sane holder of the lock, shorter than a play should hang
LONGEST_LOCK_TIMEOUT = 3600


def read_config(params: t.Mapping[str, t.Any]) -> Config:
    """The policy that the options ask for, with notes on it.

    :raises ConfigError: bad input, with the option or key, the value and the remedy.
    """
    given = split_lists({name: params[name] for name in FILE_POLICY + FLAGS if params[name] is not None})
    if not params["config_file"]:
        return build(given)
    document = load(params["config_file"])
    values = dict(document.values)
    values.update((name, given[name]) for name in FLAGS if name in given and given[name] != DEFAULTS[name])
    try:
        config = build(values, label=file_key)
    except ConfigError as exc:
        raise ConfigError("%s: %s" % (params["config_file"], exc)) from None
    return config._replace(notes=document.notes + config.notes)


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        mutually_exclusive=[("config_file", name) for name in FILE_POLICY],
        supports_check_mode=True,
    )
    present = module.params["state"] == "present"
    lock_timeout = module.params["lock_timeout"]
    try:
        if not 0 <= lock_timeout <= LONGEST_LOCK_TIMEOUT:
            raise ConfigError("lock_timeout: %d is outside 0-%d seconds" % (lock_timeout, LONGEST_LOCK_TIMEOUT))
        config = read_config(module.params)
        node = Node(run, lock_timeout)
        result = reconcile(node, config, present, module.check_mode, new=True)
    except IpMasqError as exc:
        module.fail_json(msg=str(exc))
    for note in result.notes + result.remarks:
        module.warn(named(note))
    returned = dict(rules_return(result, present), changed=result.changed, diff=rules_diff(result))
    returned["other_nat"] = find_other_actors(node, config.families) if present else []
    if result.errors:
        module.fail_json(msg="; ".join(result.errors), **returned)
    module.exit_json(**returned)


if __name__ == "__main__":
    main()
