#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_masquerade
short_description: Make the kubelet leave masquerading alone, on every version
version_added: 0.1.0
description:
  - Up to Kubernetes 1.23 a kubelet with kubenet masquerades what leaves its cluster range by a rule of its own,
    unless it is started with C(--non-masquerade-cidr=0.0.0.0/0). Kubernetes 1.24 removed that flag, and a kubelet
    refuses to start with a flag that it does not know.
  - Asks the node's own kubelet binary whether it knows the flag, finds where its arguments come from (kubeadm,
    kubespray, k3s, RKE2, k0s, MicroK8s, or a unit of your own), and decides. On current clusters the decision is to
    do nothing.
  - Changes one argument, and keeps every other byte of the file, its mode, owner and labels. Files that kubeadm or
    kubespray write are never edited; the module says which variable to change instead.
  - Restarts the kubelet only after a change, and waits for its healthz. If it does not come up, the old file is put
    back, the kubelet is restarted with it, and the module fails with both errors.
  - Deletes the rule that kubenet left in C(POSTROUTING), in both iptables variants and families, once nothing on the
    node will write it again.
options:
  policy:
    description:
      - V(auto) sets the flag where it is needed (kubenet, before 1.24), takes a stale one out where the binary does not
        know it any more, and does nothing elsewhere.
      - V(present) demands the flag, with or without kubenet. Fails before anything is edited where the kubelet does not
        know it.
      - V(absent) takes the flag out, wherever it may be edited.
      - V(report) decides as V(auto) does, and changes nothing.
    type: str
    choices: [auto, present, absent, report]
    default: auto
  unit:
    description:
      - The service that runs the kubelet. When not given, C(kubelet) and the services of k3s, RKE2, k0s and MicroK8s
        are looked for, and every one in use is dealt with.
    type: str
    default: ''
  binary:
    description:
      - Ask this program whether it knows the flag, instead of the one that the service starts. For services that start
        the kubelet through a script, which is never run to ask it.
    type: str
    default: ''
  layout:
    description:
      - How the arguments are kept. V(auto) tells it from the service; anything else looks at nodes of that layout only,
        and with O(unit) takes that service for it.
    type: str
    choices: [auto, kubeadm, kubespray, plain, k3s, rke2, k0s, microk8s]
    default: auto
  args_file:
    description:
      - For a unit of your own, the file that it reads with C(EnvironmentFile=) and that may be edited.
    type: str
    default: ''
  args_variable:
    description:
      - The variable in O(args_file) that C(ExecStart=) passes on.
    type: str
    default: ''
  restart:
    description:
      - Restart the kubelet after a change. With V(false) a change is made, RV(restart_needed) says so, and a kubenet
        rule stays until the restart.
    type: bool
    default: true
  healthz_url:
    description:
      - What answers 200 when the kubelet is healthy, as asked from the node. When not given, the URL follows from
        C(healthzBindAddress) and C(healthzPort) in the kubelet's configuration file or the flags for them, and is
        C(http://127.0.0.1:10248/healthz) by default.
      - Asked before the first change if a restart follows. A kubelet that runs and does not answer is left alone, and
        the module fails, because the restart could not be verified.
    type: str
    default: ''
  healthz_timeout:
    description:
      - Seconds that the kubelet has for that after a restart.
    type: float
    default: 120
  probe_timeout:
    description:
      - Seconds that the binary has for each question. A kubelet that does not answer is not touched.
    type: float
    default: 10
requirements:
  - systemd on the node
attributes:
  check_mode:
    support: full
    description: Says what would change; edits, restarts and deletes nothing.
  diff_mode:
    support: full
    description: Shows the files and rules before and after.
  idempotent:
    support: full
    description: A second run with the same options changes nothing.
  platform:
    support: full
    platforms: linux
    description: Needs root on Linux with systemd.
notes:
  - Running pods are not affected by a restart of the kubelet. Use C(serial) so that not all nodes restart theirs at
    once; a module cannot see the other nodes.
  - A file that is a symbolic link or has other hard links is not edited, because somebody else keeps it.
  - k0s is reported on only, because its arguments are in its unit.
seealso:
  - module: kubenode.ip_masq.ip_masq
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Do what this node's kubelet needs, which is nothing since Kubernetes 1.24
  kubenode.ip_masq.kubelet_masquerade:

- name: Only say what would be decided, and why
  kubenode.ip_masq.kubelet_masquerade:
    policy: report
  register: kubelet

- name: Take the flag out before an upgrade to Kubernetes 1.24
  kubenode.ip_masq.kubelet_masquerade:
    policy: absent

- name: A kubelet that a unit of our own starts through a script
  kubenode.ip_masq.kubelet_masquerade:
    unit: node-agent
    binary: /opt/kubernetes/kubelet
    args_file: /etc/node-agent/kubelet.env
    args_variable: KUBELET_OPTS

- name: Edit now, restart in the maintenance window
  kubenode.ip_masq.kubelet_masquerade:
    restart: false

# The same ad hoc, only looking:
#   ansible k8s_cluster -b -m kubenode.ip_masq.kubelet_masquerade -a policy=report
"""

RETURN = r"""
decision:
  description:
    - What was decided for the node. With several kubelets the gravest decision.
    - V(not_applicable), the binary does not know the flag and is not given it.
    - V(not_needed), the flag would do nothing, because kubenet does not run.
    - V(set) and V(already_set), kubenet runs and the flag stops it from masquerading.
    - V(remove_stale), the binary does not know the flag that it is given.
    - V(remove) and V(absent), with O(policy=absent).
    - V(managed_elsewhere), a change is needed that only you can make; RV(reason) says where.
    - V(unsupported), the flag is demanded of a binary that does not know it.
    - V(cri_dockerd_kubenet), cri-dockerd runs kubenet, which has no flag to stop it.
    - V(unknown), the binary gave no answer; V(no_kubelet), there is none. Neither is touched.
  returned: when the node could be looked at
  type: str
  sample: not_applicable
reason:
  description: The decision in a sentence.
  returned: when the node could be looked at
  type: str
  sample: >-
    kubelet.service (kubeadm, v1.30.4) does not know --non-masquerade-cidr and is not given it: it masquerades
    nothing, so there is nothing to do
layouts:
  description: How arguments are kept on this node.
  returned: when the node could be looked at
  type: list
  elements: str
  sample: [kubeadm]
version:
  description: The version of the (first) kubelet, empty if it could not be told.
  returned: when the node could be looked at
  type: str
  sample: v1.30.4
flag_known:
  description: Whether the (first) kubelet's binary knows the flag, none if it could not be told.
  returned: when the node could be looked at
  type: bool
  sample: false
kubenet:
  description: Whether the (first) kubelet is configured for kubenet.
  returned: when the node could be looked at
  type: bool
  sample: false
kubelets:
  description: Every kubelet that was found.
  returned: when the node could be looked at
  type: list
  elements: dict
  contains:
    unit:
      description: Its service.
      type: str
      sample: kubelet.service
    layouts:
      description: How its arguments are kept; two, where one tool took over a node from another.
      type: list
      elements: str
      sample: [kubeadm]
    version:
      description: Its version, empty if it could not be told.
      type: str
      sample: v1.30.4
    flag_known:
      description: Whether its binary knows the flag, none if it could not be told.
      type: bool
      sample: false
    kubenet:
      description: Whether it is configured for kubenet.
      type: bool
      sample: false
    configured:
      description: Every place that gives it the flag, and the value; the last one counts.
      type: list
      elements: dict
      contains:
        where:
          description: The file and variable, or the unit.
          type: str
          sample: /etc/default/kubelet, KUBELET_EXTRA_ARGS
        value:
          description: The value.
          type: str
          sample: 10.0.0.0/8
    decision:
      description: The decision for this kubelet.
      type: str
      sample: not_applicable
    reason:
      description: The decision in a sentence.
      type: str
actions:
  description: What was done, or in check mode would be, in this order.
  returned: when the node could be looked at
  type: list
  elements: str
  sample: [edited /etc/default/kubelet, restarted kubelet.service]
files:
  description: Files that were changed, or in check mode would be.
  returned: when the node could be looked at
  type: list
  elements: str
  sample: [/etc/default/kubelet]
leftover_rules:
  description: Rules of kubenet that were found in C(POSTROUTING), as C(iptables -S) prints them.
  returned: when the node could be looked at
  type: list
  elements: str
  sample: []
restart_needed:
  description: Whether a change waits for a restart of the kubelet, with O(restart=false).
  returned: when the node could be looked at
  type: bool
  sample: false
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._kubelet.distributions import LAYOUTS
from ..module_utils._kubelet.manage import POLICIES, Options, Report, converge
from ..module_utils.errors import IpMasqError
from ..module_utils.runner import run

ARGUMENT_SPEC = {
    "policy": {"type": "str", "choices": list(POLICIES), "default": "auto"},
    "unit": {"type": "str", "default": ""},
    "binary": {"type": "str", "default": ""},
    "layout": {"type": "str", "choices": ["auto"] + list(LAYOUTS), "default": "auto"},
    "args_file": {"type": "str", "default": ""},
    "args_variable": {"type": "str", "default": ""},
    "restart": {"type": "bool", "default": True},
    "healthz_url": {"type": "str", "default": ""},
    "healthz_timeout": {"type": "float", "default": 120},
    "probe_timeout": {"type": "float", "default": 10},
}


def as_return(report: Report) -> t.Dict[str, t.Any]:
    """The module's return values for what a run found and did."""
    kubelets = [
        {
            "unit": seen.kubelet.unit.name + ".service",
            "layouts": list(seen.kubelet.layouts),
            "version": seen.probe.version or "",
            "flag_known": seen.probe.known,
            "kubenet": seen.kubenet,
            "configured": [{"where": place.where, "value": value} for place, value in seen.configured],
            "decision": decision.name,
            "reason": decision.reason,
        }
        for seen, decision in report.seen
    ]
    first = kubelets[0] if kubelets else {"version": "", "flag_known": None, "kubenet": False}
    return {
        "changed": report.changed,
        "decision": report.decision,
        "reason": report.reason,
        "layouts": sorted({layout for seen, _decision in report.seen for layout in seen.kubelet.layouts}),
        "version": first["version"],
        "flag_known": first["flag_known"],
        "kubenet": first["kubenet"],
        "kubelets": kubelets,
        "actions": list(report.actions),
        "files": list(report.files),
        "leftover_rules": list(report.leftovers),
        "restart_needed": report.restart_needed,
        "diff": [
            {"before_header": name, "after_header": name, "before": before, "after": after}
            for name, before, after in report.diff
        ],
    }


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        report = converge(Options(**module.params), run, module.check_mode)
    except IpMasqError as exc:
        module.fail_json(msg=str(exc))
    for warning in report.warnings:
        module.warn(warning)
    if report.failure:
        module.fail_json(msg=report.failure, **as_return(report))
    module.exit_json(**as_return(report))


if __name__ == "__main__":
    main()
