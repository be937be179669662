#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq_info
short_description: Show a node's IP masquerading, and which address other hosts see
version_added: 1.0.0
description:
  - Returns the active rules, whether they are in sync with the policy, and what is wrong on the node.
  - With O(destinations) it returns the source address that each destination sees, and the rule that decides that; with
    O(verify=true) every range whose traffic leaves with another source address than by the policy. These answers come
    from the kernel. The module copies the node's links, addresses, routes, sysctls, ipsets and netfilter rules into
    network namespaces, and sends packets through the copy. The node is not changed and no packet leaves it.
  - The policy is that of the options, as for M(kubenode.ip_masq.ip_masq). Without policy options it is that of the
    agent on the node, and without an agent that of the active rules.
options:
  destinations:
    description: IP addresses to explain.
    type: list
    elements: str
    default: []
  source:
    description:
      - The address of the pod that sends. It need not exist, but a route must lead to it. If not set, an address that a
        pod on this node could have; where no route leads to pods, the node itself.
    type: str
  protocol:
    description: The protocol of the packets to O(destinations).
    type: str
    choices: [tcp, udp, sctp, icmp]
    default: tcp
  port:
    description: The destination port of the packets to O(destinations).
    type: int
    default: 80
  verify:
    description: Test all traffic of pods against the policy.
    type: bool
    default: false
  max_questions:
    description:
      - How many packets O(verify=true) sends for each IP version, at most; V(0) is no limit. RV(questions_left_out)
        tells how many were left out.
    type: int
    default: 100000
  max_seconds:
    description: Seconds of CPU time that O(verify=true) may take; V(0) is no limit. What is left is in RV(untested).
    type: int
    default: 60
  pod_cidrs:
    description: Networks in which all pods of the node lie, for a node whose routes do not show them.
    type: list
    elements: str
    default: []
  ports:
    description: Return in RV(source_ports) how many source ports of the node are used, to which destinations.
    type: bool
    default: false
  config_file:
    description: Take the policy from this file on the node; as for M(kubenode.ip_masq.ip_masq).
    type: path
  config_dir:
    description: The directory of the agent's configuration, for a node whose agent was installed with another one.
    type: path
    default: /etc/ip-masq-agent
requirements:
  - iptables or nftables on the node
  - for O(destinations) and O(verify), permission to make network namespaces
extends_documentation_fragment:
  - kubenode.ip_masq.policy.asked
  - kubenode.ip_masq.attributes.info
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Show the active rules and what is wrong
  kubenode.ip_masq.ip_masq_info:

- name: Find out which address two servers see, and why
  kubenode.ip_masq.ip_masq_info:
    destinations: [10.20.0.5, 203.0.113.9]
    source: 10.244.1.7
    port: 443

- name: Fail where another program masquerades traffic to exempt ranges
  kubenode.ip_masq.ip_masq_info:
    verify: true
  register: masquerading
  failed_when: masquerading.conflicts | length > 0

- name: Test a node without the agent against a policy
  kubenode.ip_masq.ip_masq_info:
    non_masquerade_cidrs: [10.0.0.0/8]
    verify: true

# The same ad hoc:
#   ansible k8s_cluster -b -m kubenode.ip_masq.ip_masq_info -a 'destinations=10.20.0.5,203.0.113.9'
"""

RETURN = r"""
policy:
  description: The policy that the node was compared with.
  returned: always
  type: dict
  contains:
    origin:
      description: C(options), C(agent), C(active rules), or C(none) where there is no policy.
      type: str
    exempt:
      description: The exempt ranges by family, if that is managed, without exceptions inside of them.
      type: dict
      sample: {ipv4: [169.254.0.0/16, 10.0.0.0/8]}
backend:
  description: What holds the rules, as RV(kubenode.ip_masq.ip_masq#module:backend).
  returned: always
  type: dict
  sample: {name: iptables_nft, version: 1.8.9}
in_sync:
  description: Whether the active rules are those of the policy; None if the policy was taken from them.
  returned: always
  type: bool
families:
  description: The active rules, as RV(kubenode.ip_masq.ip_masq#module:families), and what they have counted.
  returned: always
  type: dict
  contains:
    ipv4:
      description: The rules of one family.
      type: dict
      contains:
        counters:
          description: C(exempt_packets), C(exempt_bytes), C(masqueraded_packets), C(masqueraded_bytes).
          type: dict
health:
  description: What to know about the node; empty if there is nothing.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - One of C(out_of_sync), C(unreadable), C(invalid_configuration), C(not_configured), C(agent_failing),
          C(conflict), C(not_tested), C(leaks), C(no_copy), C(foreign_nat_rule), C(ipv6_not_managed),
          C(pods_not_exempt), C(all_sources), C(enforce_with_ipvs), C(everything_exempt), C(nothing_exempt),
          C(overlapping_ranges), C(flushes_at_boot), C(other_agent), C(kubenet_leftover), C(few_source_ports),
          C(connections_full), C(note). Codes do not change.
      type: str
    severity:
      description: C(error), C(warning) or C(info).
      type: str
    text:
      description: The finding.
      type: str
    remedy:
      description: What to do; may be empty.
      type: str
explanations:
  description: The answers for O(destinations), in their order.
  returned: always
  type: list
  elements: dict
  contains:
    destination:
      description: The destination.
      type: str
      sample: 10.20.0.5
    source:
      description: The address of the pod; None for the node itself.
      type: str
      sample: 10.244.1.7
    pod:
      description: Namespace and name of the pod, from the results that libcni keeps on the node.
      returned: if the name is known
      type: str
      sample: default/web-7c5ddbdf54-x2x9k
    protocol:
      description: The protocol.
      type: str
    port:
      description: The destination port.
      type: int
    outcome:
      description:
        - C(sent) where the packet left the node, C(delivered) where the node received it, C(rejected), C(dropped), or
          C(not tested).
      type: str
    policy:
      description: What the destination sees by the policy. C(pod), C(node) or a fixed address; None outside its scope.
      type: str
    seen:
      description: What the destination sees. C(pod), C(node), another address, or None if nothing leaves.
      type: str
    seen_address:
      description: The source address that the destination sees.
      type: str
      sample: 198.51.100.1
    interface:
      description: The link over which the packet leaves.
      type: str
      sample: eth0
    agrees:
      description:
        - Whether this matches the policy, or a program such as kube-proxy has to translate the address. None outside
          the policy's scope, if nothing leaves, if only some of the RV(explanations[].alternatives) agree, or if
          RV(explanations[].not_understood) is not empty.
      type: bool
    decided_by:
      description:
        - The rule that set the source address, the last NAT rule that let the packet pass, or the rule that keeps it
          from connection tracking. C(owner) is the program that made it, or C(unknown).
      type: dict
      sample: {backend: iptables_nft, table: ip nat, chain: cali-nat-outgoing, rule: "-A ...", owner: Calico}
    dropped_by:
      description: The rule or the routing decision that ended the packet's way.
      type: str
    remedy:
      description: How to make it match the policy.
      type: str
    alternatives:
      description:
        - Other answers that are possible for the same question. Each has C(outcome), C(seen), C(seen_address),
          C(interface), C(agrees), C(decided_by) and C(dropped_by).
      type: list
      elements: dict
    depends_on:
      description:
        - What decides between RV(explanations[].alternatives), such as the source port, or the order of two chains of
          the same priority.
      type: list
      elements: str
    not_understood:
      description: Rules and routes that may change the answer by a condition that is not understood.
      type: list
      elements: str
conflicts:
  description: With O(verify=true), the ranges whose traffic does not match the policy.
  returned: always
  type: list
  elements: dict
  contains:
    range:
      description: The destinations.
      type: str
      sample: 10.0.0.0/8
    policy:
      description: What the destination sees by the policy, in the words of RV(conflicts[].seen).
      type: str
    seen:
      description: C(pod), C(node), another address, or C(own) for connections of the node itself, with their address.
      type: str
    decided_by:
      description: As in RV(explanations[].decided_by).
      type: dict
    owner:
      description: The program that made the rule. C(unknown), or C(none) where a rule is missing.
      type: str
    severity:
      description: C(error); C(warning) where it happens sometimes.
      type: str
    remedy:
      description: How to end it, in the owner's own configuration.
      type: str
    services:
      description: Protocols and ports, where it concerns only some.
      type: list
      elements: str
      sample: [tcp/443, udp/53 from port 4000-4010]
    sources:
      description: Networks of pods, where it concerns only some.
      type: list
      elements: str
    pods:
      description: As RV(kubenode.ip_masq.ip_masq#module:effects[].pods).
      returned: if a name is known
      type: dict
untested:
  description:
    - With O(verify=true), why not all traffic was tested; empty if all was. Each has C(code), such as C(unknown_rule),
      C(no_pods), C(time) or C(limit), which does not change, C(text), and C(ranges), the destinations concerned, empty
      for all.
  returned: always
  type: list
  elements: dict
verified:
  description:
    - With O(verify=true), whether all traffic matches the policy. None if packets could not be tested, or without a
      policy.
  returned: always
  type: bool
summary:
  description: With O(verify=true), the result in one line. Empty without.
  returned: always
  type: str
  sample: 214 kinds of packets, all match the policy
questions:
  description: How many packets O(verify=true) tested.
  returned: always
  type: int
questions_left_out:
  description: How many more packets would have to be tested, beyond the limit, to leave nothing out.
  returned: always
  type: int
source_ports:
  description: With O(ports=true), the use of source ports. None without.
  returned: always
  type: dict
  contains:
    destinations:
      description:
        - The 100 destinations for which the largest share of ports is used, the largest first. Each has C(protocol),
          C(address) (of the node, which has ports of its own), C(destination) and C(port) (both after DNAT), C(zone)
          (of conntrack, of the answers; V(0) without), C(used) and C(available) (how many ports). A connection that
          has ended counts until the kernel forgets it.
      type: list
      elements: dict
      contains:
        ranges:
          description:
            - The ports that the kernel chooses from. With O(to_ports) these, otherwise V(1024-65535). For a connection
              whose own source port is lower V(600-1023) or V(1-511).
            - Each has C(ports), C(used) and C(available).
          type: list
          elements: dict
          sample: [{ports: 1024-65535, used: 310, available: 64512}]
        sources:
          description:
            - Who opened the connections, 20 at most, the most first. Each has C(address), C(connections), and C(pod) if
              they had packets since the pod has the address.
          type: list
          elements: dict
    destinations_left_out:
      description: How many more there are.
      type: int
    connections_not_counted:
      description: Connections of those with the fewest, where pods have too many destinations to count all.
      type: int
    errors:
      description: Why the active rules, which have the ports of O(to_ports), could not be read.
      type: list
      elements: str
    conntrack:
      description:
        - The table of connections. C(entries) and C(limit); since the boot C(insert_failed) (connections that could not
          be added, in most cases because no source port was free), C(drops) (packets dropped, in most cases because the
          table was full) and C(early_drops) (connections removed to make room). None if the kernel does not show them.
      type: dict
limits:
  description:
    - What is on the node and not in the copy, such as eBPF programs and IPsec policies, each with C(code) and C(text).
      Answers can be wrong where they decide.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._tasks.rules_info_task import ARGUMENT_SPEC, carry_out
from ..module_utils._tasks.rules_task import FILE_POLICY


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        mutually_exclusive=[("config_file", name) for name in FILE_POLICY],
        supports_check_mode=True,
    )
    carry_out(module.params, module.check_mode).end(module)


if __name__ == "__main__":
    main()
