#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq_agent
short_description: Install the agent that keeps a node's IP masquerading as the policy defines it
version_added: 1.0.0
description:
  - Installs an agent, which is one program, its configuration, and systemd units that start a resync at an interval,
    after an edit of the configuration, and after a firewall was restarted, reloaded or stopped.
  - Applies the policy at once, as M(kubenode.ip_masq.ip_masq) does; the agent runs the same code.
  - If something was changed, or if the last run of the agent's service failed, starts that service once, and fails
    with the lines of the journal if it fails. In check mode it warns instead.
  - The role P(kubenode.ip_masq.ip_masq_agent#role) calls this module once with the whole configuration.
options:
  state:
    description:
      - V(present) installs the agent and sets the rules.
      - V(absent) removes the rules in all variants and families, the units, and the files that the agent wrote or read,
        including the configuration. The paths are those of the agent that is installed.
      - With V(absent) it is an error if a package of the distribution owns the agent's files; the message has the
        command to run before.
    type: str
    choices: [present, absent]
    default: present
  config:
    description:
      - The content of the file C(config) in O(config_dir), with the keys of ip-masq-agent's own file, such as
        C(nonMasqueradeCIDRs). Each policy option of M(kubenode.ip_masq.ip_masq) is a key there, written as
        C(enableIPv6) is for C(enable_ipv6); C(resyncInterval) and C(portMetrics) are the only others.
      - An unknown key is an error. Text in place of a list, and in one, is split at commas.
      - Without C(nonMasqueradeCIDRs) the default list is written to the file, so that drop-ins add to it.
      - If not set, the file on the node is kept.
    type: dict
  applied_by:
    description:
      - What applies O(config), for people, such as the name of a playbook. C(ip-masq-agent status) shows it with the
        time. If not set, what the node has is kept.
    type: str
  enabled:
    description: Whether the units run, now and after a boot. If not, all is installed, and the rules are set once.
    type: bool
    default: true
  config_dir:
    description:
      - The directory of the file C(config) and its drop-ins in C(config.d), for the agent alone. If it is neither empty
        nor new, its name is C(ip-masq-agent).
      - Like O(bin_dir), O(metrics_dir) and O(python) it must not be within C(/home), C(/root), C(/run/user), C(/tmp) or
        C(/var/tmp), which the agent's service does not see.
    type: path
    default: /etc/ip-masq-agent
  bin_dir:
    description:
      - The directory of the program. Its modules are in C(lib/ip-masq-agent) beside this directory.
      - On a node with the agent's package, V(/usr/local/sbin) means where the package has it.
    type: path
    default: /usr/local/sbin
  metrics_dir:
    description:
      - The directory of node_exporter's textfile collector, in which the agent writes C(ip_masq_agent.prom). It must
        exist, and may belong to another user. If not set, no metrics are written.
      - A symbolic link on the way to it is followed if only root can change it, and only when the agent is installed.
    type: path
  python:
    description:
      - The Python (3.8 or later) that runs the agent. If not set, C(/usr/bin/python3) if it is 3.8 or later, else the
        one that runs this module.
    type: path
  lock_timeout:
    description: Seconds to wait for the xtables lock, and for a run of the agent. The agent's own runs wait 5 seconds.
    type: int
    default: 5
  verify:
    description:
      - Whether to test afterwards with C(ip-masq-agent verify) that all traffic matches the policy, whichever program's
        rules decide. The module does not fail for the result, which is in RV(verification).
      - Not done in check mode, after a failure, or with O(state=absent).
    type: bool
    default: false
  verify_before:
    description:
      - If rules would change, whether to test before anything is written, with packets through a copy of the node's
        network state, that all traffic would match the policy.
      - If rules of other programs undo the policy, the module fails, in check mode too, and leaves the node as it is.
        The message has the ranges, the program and the remedy. If not all can be tested, it warns and goes on.
      - A rule that the kubelet's kubenet left behind is no failure with O(kubelet), because
        M(kubenode.ip_masq.kubelet_masquerade) deletes it.
    type: bool
    default: false
  connection_log:
    description:
      - Megabytes that a log of connections that have ended may take in C(/var/log/ip-masq-agent), from V(16). V(0) is
        no log; what was logged stays until O(state=absent).
      - C(ip-masq-agent who --at) reads it. C(ulogd) of the distribution writes it (on Debian the package
        C(ulogd2-json), for RHEL C(ulogd) of EPEL), without which the module fails before anything is touched. While it
        runs, the sysctl C(net.netfilter.nf_conntrack_timestamp) is V(1).
    type: int
    default: 0
  kubelet:
    description:
      - If set, also returns in RV(kubelet) what M(kubenode.ip_masq.kubelet_masquerade) with these options would do,
        which saves a call of that module on nodes that need no change. Nothing is done to a kubelet.
    type: dict
    suboptions:
      policy:
        description: &same As for M(kubenode.ip_masq.kubelet_masquerade).
        type: str
        choices: [auto, present, absent, report]
        default: auto
      unit: {description: *same, type: str, default: ''}
      binary: {description: *same, type: str, default: ''}
      args_file: {description: *same, type: str, default: ''}
      args_variable: {description: *same, type: str, default: ''}
      restart: {description: *same, type: bool, default: true}
      healthz_url: {description: *same, type: str, default: ''}
      healthz_timeout: {description: *same, type: float, default: 120}
      probe_timeout: {description: *same, type: float, default: 10}
requirements:
  - iptables or nftables on the node
  - systemd on the node
attributes:
  diff_mode:
    description: Shows rules, the configuration and files that are edited, before and after; a line for other changes.
extends_documentation_fragment:
  - kubenode.ip_masq.attributes
  - kubenode.ip_masq.attributes.handed
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Apply the default policy and keep it applied
  kubenode.ip_masq.ip_masq_agent:
    config: {}

- name: Apply a policy, resync every five minutes, and write metrics
  kubenode.ip_masq.ip_masq_agent:
    config:
      nonMasqueradeCIDRs: [10.0.0.0/8, 100.64.0.0/10]
      resyncInterval: 5m
    metrics_dir: /var/lib/node_exporter/textfile

- name: Apply a policy, and see whether other programs' rules undo it
  kubenode.ip_masq.ip_masq_agent:
    config:
      nonMasqueradeCIDRs: [10.0.0.0/8]
    verify: true
  register: applied
  failed_when: applied.failed or applied.verification.verified is false

- name: Remove the agent, its rules and its files
  kubenode.ip_masq.ip_masq_agent:
    state: absent
"""

RETURN = r"""
missing_package:
  description: A package whose program the node needs for the backend and does not have. Nothing was touched.
  returned: failure, if a program is missing
  type: str
version:
  description: The version of the agent that is installed.
  returned: with O(state=present)
  type: str
  sample: 1.0.0
files:
  description: The files that were written or removed, or in check mode would be; one entry for the agent's modules.
  returned: success
  type: list
  elements: str
  sample: [/etc/ip-masq-agent/config]
services:
  description: Changes of units and directories, or in check mode those that would be made.
  returned: success
  type: list
  elements: str
  sample: ["start: ip-masq-agent.timer"]
rules:
  description:
    - The return values of M(kubenode.ip_masq.ip_masq) for the rules, without C(changed) and C(diff). After a failure
      with O(verify_before=true), what would have been done.
  returned: success, or if O(verify_before=true) made it fail
  type: dict
proposal:
  description:
    - What the test with O(verify_before=true) found. C(questions), C(questions_left_out), C(conflicts), C(untested),
      C(limits) and C(health) are those of M(kubenode.ip_masq.ip_masq_info).
  returned: with O(verify_before=true), if rules would change
  type: dict
  contains:
    verified:
      description: Whether all traffic matches the policy with the new rules, None if not all could be tested.
      type: bool
    summary:
      description: The result, or why there is none, in a sentence.
      type: str
      sample: 24 kinds of packets, all match the policy
    undone:
      description: Where rules of other programs undo the policy. Also at the end of C(effects_summary) in RV(rules).
      type: list
      elements: str
      sample:
        - "10.8.0.0/16 sees the node's address, not the pod's own address (rule of Calico); remedy: natOutgoing: false"
verification:
  description:
    - What C(ip-masq-agent verify --json) prints, and how it ended in C(exit_status).
    - C(verified), C(summary), C(questions), C(questions_left_out), C(conflicts), C(untested), C(limits) and C(health)
      are as in RV(proposal). Of these only C(verified) and C(summary) are there if the program printed no result.
  returned: success, with O(verify=true), not in check mode
  type: dict
  contains:
    exit_status:
      description:
        - V(0) if all traffic matches the policy, V(5) if not, V(6) if not all could be tested. Negative is the number
          of the signal that ended the program. None if it could not be started, or ran longer than an hour.
      type: int
kubelet:
  description:
    - The return values of M(kubenode.ip_masq.kubelet_masquerade) in check mode, without C(changed) and C(diff).
    - Its key C(failure) has the message with which that module would fail; empty if it would not.
  returned: success, with O(kubelet)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

# Ansible sends along what a module imports; program is here because the program that this module installs begins there.
from ..module_utils._tasks import program  # noqa: F401  # pylint: disable=unused-import
from ..module_utils._tasks.agent_options import AGENT as ARGUMENT_SPEC
from ..module_utils._tasks.agent_task import carry_out


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    carry_out(module.params, module.check_mode).end(module)


if __name__ == "__main__":
    main()
