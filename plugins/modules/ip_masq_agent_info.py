#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq_agent_info
short_description: Report the state of a node's IP masquerading
version_added: 1.0.0
description:
  - Returns what the installed agent reports, as C(ip-masq-agent status --json) does, and what
    M(kubenode.ip_masq.ip_masq_agent) with the same options would change.
options:
  config:
    description:
      - The configuration to compare the node's file C(config) with, as for M(kubenode.ip_masq.ip_masq_agent). If not
        set, the file is not compared.
    type: dict
  enabled: {description: &same As for M(kubenode.ip_masq.ip_masq_agent)., type: bool, default: true}
  config_dir: {description: *same, type: path, default: /etc/ip-masq-agent}
  bin_dir: {description: *same, type: path, default: /usr/local/sbin}
  metrics_dir: {description: *same, type: path}
  python: {description: *same, type: path}
  lock_timeout:
    description: Seconds to wait for the xtables lock.
    type: int
    default: 5
requirements:
  - systemd on the node
extends_documentation_fragment:
  - kubenode.ip_masq.attributes.info
  - kubenode.ip_masq.attributes.handed
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Get the report of the agent
  kubenode.ip_masq.ip_masq_agent_info:
  register: masquerading

- name: Also compare the node with a policy
  kubenode.ip_masq.ip_masq_agent_info:
    config:
      nonMasqueradeCIDRs: [10.0.0.0/8, 100.64.0.0/10]
      resyncInterval: 5m
  register: masquerading
"""

RETURN = r"""
installed:
  description: Whether the agent is installed on the node.
  returned: success
  type: bool
report:
  description:
    - What C(ip-masq-agent status --json) prints.
    - C(state) and C(verdict), its sentence with the next step.
    - C(in_sync), C(differs) (pending changes), C(not_checked) (unreadable), C(errors), C(notes), C(failing),
      C(missing_addresses) (of snat and rules).
    - C(config) (C(sources), C(problem)), C(config_errors), C(backend), C(families) (C(rules), C(jump), C(counters)),
      C(policy_hash), C(version), C(previous_config) (the policy before, as a config file has it; null if unknown).
    - C(last_sync) (seconds since the epoch), C(last_change), C(last_error) (C(time), C(lines)), C(last_applied)
      (C(by), C(time), C(edited) since), C(last_verification) (C(time), C(verified), C(questions), C(conflicts),
      C(summary)).
    - C(data_plane) is what rules and links show. C(kube_proxy) has its modes, C(iptables_nft), C(iptables_legacy),
      C(ipvs) or C(nftables); two if the node is half moved, none if it does not run. C(network_plugins) has the plugin
      and what holds its rules, C(leftovers) what another mode left behind (C(what), C(command) that removes it).
      C(steps) has what to do before kube-proxy is moved to nftables mode, or before iptables-legacy is gone
      (C(before), C(do), C(why)).
    - C(drift_repaired), C(connections_flushed), C(repairs_undone) (C(family), C(backend), C(what), C(times), C(first),
      C(last), C(program), C(advice)).
    - C(conntrack) (C(entries), C(limit), C(insert_failed), C(drops), C(early_drops)); null if not known.
    - C(source_ports) (C(fullest), C(problem)) has the destination for which the largest share of source ports is used,
      as in RV(kubenode.ip_masq.ip_masq_info#module:source_ports.destinations), and why not all connections were read.
      It is null if the kernel tracks too few connections for any to use 80 % of the ports from 1024 up.
    - C(units) (C(differ), C(problem)) has units that are stopped, disabled, masked, failed or missing. It is null if
      systemd cannot be read.
  returned: when the agent is installed and can report
  type: dict
  sample: {state: in sync, version: 1.0.0, in_sync: true}
rules_left:
  description:
    - Rules of an agent that was removed, as RV(kubenode.ip_masq.ip_masq#module:actions), that
      M(kubenode.ip_masq.ip_masq_agent) with O(kubenode.ip_masq.ip_masq_agent#module:state=absent) would remove.
  returned: when the agent is not installed
  type: list
  elements: dict
  sample: [{family: ipv4, backend: iptables_nft, action: chain removed, rule: -N IP-MASQ-AGENT}]
notes:
  description: Files with rules of the agent that another service restores at boot, with the remedy, a line each.
  returned: when the agent is not installed
  type: list
  elements: str
problems:
  description: Why the agent cannot report, the node cannot be compared, or a removal would fail.
  returned: success
  type: list
  elements: str
  sample: ["cannot run /usr/local/sbin/ip-masq-agent: No such file or directory"]
differs:
  description: The keys of the node's file C(config) whose values mean something else than those of O(config).
  returned: when the agent is installed and O(config) is given
  type: list
  elements: str
  sample: [nonMasqueradeCIDRs]
differences:
  description:
    - For each key of RV(differs) two texts for people, with the value of the node's file as C(node) and that of
      O(config) as C(config); of lists without an order the entries that the other one lacks.
  returned: when the agent is installed and O(config) is given
  type: dict
  sample: {nonMasqueradeCIDRs: {node: 100.64.0.0/10, config: "172.16.0.0/12, 192.168.0.0/16"}}
service_failure:
  description: How the last run of C(ip-masq-agent.service) failed, as systemd reports it. Empty if it did not.
  returned: when the agent is installed
  type: str
  sample: result exit-code, exit status 203
pending:
  description:
    - What M(kubenode.ip_masq.ip_masq_agent) would do to files and units, a line each; without the file C(config) if
      RV(differs) has a key.
  returned: when the agent is installed
  type: list
  elements: str
  sample: ["start: ip-masq-agent.timer"]
"""

from ansible.module_utils.basic import AnsibleModule

# Ansible sends along what a module imports; program is here because the installed program begins there and is compared.
from ..module_utils._tasks import program  # noqa: F401  # pylint: disable=unused-import
from ..module_utils._tasks.agent_info_task import carry_out
from ..module_utils._tasks.agent_options import INFO as ARGUMENT_SPEC


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    carry_out(module.params, module.check_mode).end(module)


if __name__ == "__main__":
    main()
