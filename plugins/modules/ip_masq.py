#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq
short_description: Keep a node's IP masquerading as the policy defines it
version_added: 1.0.0
description:
  - Masquerades the traffic of pods to the outside with the address of the node, and keeps their addresses for the
    ranges you list. The rules are those of the Go daemon ip-masq-agent, so a chain that it built is kept.
  - Manages one chain in the nat table, and the jump to it in C(POSTROUTING), or, with O(backend=nftables), one table of
    its own. Rules of other programs are never changed. Each family is written in one transaction.
  - Chains are compared by meaning, not by text. Nothing is written when nothing differs, so packet counters survive.
  - After a write the kernel is read again. If it did not keep the rules, the previous state is restored and the module
    fails.
  - Chains of earlier agents (C(NON-MASQUERADE-DAEMON), C(IP-MASQ), C(IP-MASQ-AGENT) and chains that this module built
    under another O(masq_chain)) are replaced in the same transaction, or removed if they are in another backend, or in
    IPv6 if O(enable_ipv6) is off.
options:
  state:
    description:
      - V(present) sets the rules of the policy.
      - V(absent) removes the chain and the jumps to it, or the table, in every backend and family.
    type: str
    choices: [present, absent]
    default: present
  lock_timeout:
    description: Seconds to wait for the xtables lock, and for another run of this module or of the node's agent.
    type: int
    default: 5
  config_file:
    description:
      - Read the policy from this file on the node, with the keys and the semantics of ip-masq-agent's config file. YAML
        requires PyYAML on the node, JSON does not. A file that does not exist means all defaults.
      - An unknown key is a warning. A file with unknown keys only is an error, such as a whole ConfigMap.
      - Each other policy option of this module is a key too, written as C(enableIPv6) is for O(enable_ipv6). An option
        that is not at its default overrides the key.
    type: path
requirements:
  - iptables or nftables on the node
attributes:
  diff_mode:
    description: Shows the rules before and after, and at the end what changes for packets.
notes:
  - A rule of another program that comes later in C(POSTROUTING) can still masquerade what this module exempts, unless
    O(exemption) prevents it. Such rules are reported as warnings.
seealso:
  - name: ip-masq-agent
    description: The Go daemon with the same rules.
    link: https://github.com/kubernetes-sigs/ip-masq-agent
extends_documentation_fragment:
  - kubenode.ip_masq.policy
  - kubenode.ip_masq.attributes
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Masquerade everything but RFC 1918 and link-local destinations
  kubenode.ip_masq.ip_masq:

- name: Keep pod addresses inside the data centre, in both families
  kubenode.ip_masq.ip_masq:
    non_masquerade_cidrs: [10.0.0.0/8, 100.64.0.0/10, fd00:10::/32]
    enable_ipv6: true

- name: Masquerade everything that leaves the node
  kubenode.ip_masq.ip_masq:
    non_masquerade_cidrs: []
    masq_link_local: true

- name: Keep the low ports and the node ports for other uses
  kubenode.ip_masq.ip_masq:
    to_ports: [1024-29999, 32768-65535]

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
      description: The version that the node's program reports; empty without one.
      type: str
      sample: 1.8.9
families:
  description: The active rules by family, or in check mode those that would be active. Empty with O(state=absent).
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
          sample: [-A IP-MASQ-AGENT -d 10.0.0.0/8 -j RETURN, -A IP-MASQ-AGENT -j MASQUERADE --random-fully]
        jump:
          description: The jump to it; None with nftables, where the chain has a hook of its own.
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
    backend:
      description: The backend that was changed.
      type: str
    action:
      description:
        - One of C(chain created), C(chain removed), C(rule added), C(rule removed), C(rules added), C(rules removed),
          C(rules reordered), C(unreadable chain rewritten), C(chain emptied), C(jump added), C(jump moved),
          C(jump replaced), C(jump moved to its position), C(jump removed), C(duplicate jump removed),
          C(jump of an earlier agent removed), C(chain of an earlier agent removed).
        - With nftables also C(table created), C(table removed), C(set created), C(range added), C(range removed),
          C(ranges added), C(ranges removed), C(set removed), C(foreign part removed),
          C(priority of the chain changed).
      type: str
    rule:
      description: The rule, as C(iptables -S) prints it; a count where more than 100 were added or removed.
      type: str
      sample: -A IP-MASQ-AGENT -d 10.0.0.0/8 -m comment --comment "ip-masq-agent ..." -j RETURN
flushed:
  description: By family, how many open connections O(flush_conntrack=changed) removed, or in check mode would remove.
  returned: when the node has a usable iptables or nft
  type: dict
  sample: {ipv4: 12}
effects:
  description:
    - Which packets the rules treat differently than before this run, or in check mode would treat, the largest group
      first. A packet is in one group at most. See C(docs/operations.md) for what is compared.
  returned: when the node has a usable iptables or nft
  type: list
  elements: dict
  contains:
    family:
      description: C(ipv4) or C(ipv6).
      type: str
    destinations:
      description: The destinations. Of more than 100 ranges the largest.
      type: list
      elements: str
      sample: [10.5.0.0/16]
    destinations_except:
      description: Ranges in RV(effects[].destinations) that are not concerned. Of more than 100 the largest.
      type: list
      elements: str
    destinations_omitted:
      description: The number of ranges that were left out of these lists.
      type: int
    sources:
      description: The same for sources. Empty means all.
      type: list
      elements: str
    sources_except:
      description: The same as RV(effects[].destinations_except).
      type: list
      elements: str
    sources_omitted:
      description: The same as RV(effects[].destinations_omitted).
      type: int
    pods:
      description: Namespace and name of the pods, for those of the sources that are one address.
      returned: if a name is known
      type: dict
      sample: {10.244.1.7/32: default/web-7c5ddbdf54-x2x9k}
    out_interfaces:
      description:
        - The interfaces by which the packets leave. Empty means all. C(*) at the end means every name that begins so,
          C(!) in front means not. The last entry that has a name counts; a list that begins with C(!) has all others.
      type: list
      elements: str
      sample: ["eth*", "!eth1"]
    services:
      description: Protocols and destination ports. Empty means all; C(!) in front of each means all but these.
      type: list
      elements: str
      sample: [tcp/443]
    packets:
      description:
        - Empty for packets of new connections without a mark of O(skip_marks); else C(with mark 0x200/0xf00) and the
          like, C(with other marks) where packets without a mark are skipped, C(without a connection) for O(leaks).
      type: str
    before:
      description:
        - The source address that they had before. C(pod) - their own, because they were exempt; C(node) - that of the
          interface; a fixed address or range; C(not managed) - the rules left them alone; C(dropped); C(unknown) - the
          rules before could not be read.
        - With what differs behind it, as in C(pod (exemption accept)), C(node, ports 50000-50001) or
          C(node (ports at random)).
      type: str
      sample: pod
    after:
      description: The same for the rules of this run.
      type: str
    ports_before:
      description: From how many source ports one was chosen, if that differs. Fewer ports come with a warning.
      type: int
    ports_after:
      description: The same for the rules of this run.
      type: int
    open_connections:
      description:
        - How many open connections have another source address than the rules give them now. O(flush_conntrack=changed)
          removes these. None if they could not be counted; a warning has the reason.
      type: int
effects_omitted:
  description: The number of further groups; RV(effects) has 100 at most.
  returned: when the node has a usable iptables or nft
  type: int
effects_summary:
  description:
    - The effects in words, a line each, 20 at most; a sentence if rules are rewritten without an effect. The diff ends
      with them.
  returned: when the node has a usable iptables or nft
  type: list
  elements: str
  sample: ["10.5.0.0/16: pod -> node, 12 open connections"]
other_nat:
  description:
    - Chains of other programs that the same traffic meets, such as those of a CNI plugin. They may masquerade exempt
      traffic. Empty with O(state=absent).
  returned: when the node has a usable iptables or nft
  type: list
  elements: str
  sample: ["ipv4, iptables_nft: POSTROUTING jumps to cali-POSTROUTING of Calico, which may masquerade exempt traffic"]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._tasks.rules_task import ARGUMENT_SPEC, FILE_POLICY, carry_out


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        mutually_exclusive=[("config_file", name) for name in FILE_POLICY],
        supports_check_mode=True,
    )
    carry_out(module.params, module.check_mode).end(module)


if __name__ == "__main__":
    main()
