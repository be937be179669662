#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_masquerade
short_description: Keep the kubelet from masquerading, on every version of Kubernetes
version_added: 1.0.0
description:
  - Up to Kubernetes 1.23 a kubelet with kubenet masquerades traffic to destinations outside its cluster range by a rule
    of its own, unless it is started with C(--non-masquerade-cidr=0.0.0.0/0). Kubernetes 1.24 removed that flag, and a
    kubelet refuses to start with a flag that it does not support.
  - Tests whether the node's own kubelet binary supports the flag, finds where its arguments come from, and decides. On
    current clusters the decision is to do nothing.
  - Changes one argument, and keeps every other byte of the file, its mode, owner and labels. Files that kubeadm,
    kubespray, k3s, RKE2, k0s or MicroK8s write are never edited; the module reports what to change instead.
  - Restarts the kubelet only after a change, and waits until its healthz endpoint returns 200. If it does not, the
    original file is restored, the kubelet is restarted with it, and the module fails with both errors.
  - Deletes the rule that kubenet left in C(POSTROUTING), in both iptables variants and families, once no program on the
    node writes it again.
options:
  policy:
    description:
      - V(auto) sets the flag where it is needed (kubenet, before 1.24), removes it where the binary no longer supports
        it, and does nothing elsewhere.
      - V(present) sets the flag, with or without kubenet. Fails before any change where the kubelet does not support
        it.
      - V(absent) removes the flag wherever it may be edited.
      - V(report) decides as V(auto) does, and changes nothing.
    type: str
    choices: [auto, present, absent, report]
    default: auto
  unit:
    description: The service that runs the kubelet. If not set, each in use of C(kubelet), k3s, RKE2, k0s and MicroK8s.
    type: str
    default: ''
  binary:
    description: The kubelet's program, for a service that starts it through a script. The script is not run to test it.
    type: str
    default: ''
  args_file:
    description: For a unit of your own, the file that it reads with C(EnvironmentFile=) and that may be edited.
    type: str
    default: ''
  args_variable:
    description: The variable in O(args_file) that C(ExecStart=) passes to the kubelet.
    type: str
    default: ''
  restart:
    description:
      - Restart the kubelet after a change. With V(false) RV(restart_needed) is returned, and a kubenet rule stays until
        the restart.
    type: bool
    default: true
  healthz_url:
    description:
      - A URL that returns 200 while the kubelet is healthy, as requested from the node. If not set, it follows from the
        kubelet's own configuration, and is C(http://127.0.0.1:10248/healthz) by default.
      - If a running kubelet does not return 200 before a change with a restart, the module fails and changes nothing.
    type: str
    default: ''
  healthz_timeout:
    description: Seconds to wait for O(healthz_url) after a restart.
    type: float
    default: 120
  probe_timeout:
    description: Seconds to wait for each answer of the binary. A kubelet whose binary does not answer is not changed.
    type: float
    default: 10
requirements:
  - systemd on the node
notes:
  - Running pods are not affected by a restart of the kubelet. Use C(serial) so that not all nodes do it at once.
  - A file that is a symlink or has other hard links is not edited, because it is managed elsewhere.
seealso:
  - module: kubenode.ip_masq.ip_masq
extends_documentation_fragment:
  - kubenode.ip_masq.attributes
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Set or remove the flag as this node's kubelet needs (nothing to do since Kubernetes 1.24)
  kubenode.ip_masq.kubelet_masquerade:

- name: Only report the decision and its reason
  kubenode.ip_masq.kubelet_masquerade:
    policy: report
  register: kubelet

- name: Remove the flag before an upgrade to Kubernetes 1.24
  kubenode.ip_masq.kubelet_masquerade:
    policy: absent

- name: Manage a kubelet that a unit of our own starts through a script
  kubenode.ip_masq.kubelet_masquerade:
    unit: node-agent
    binary: /opt/kubernetes/kubelet
    args_file: /etc/node-agent/kubelet.env
    args_variable: KUBELET_OPTS

# The same ad hoc, changing nothing:
#   ansible k8s_cluster -b -m kubenode.ip_masq.kubelet_masquerade -a policy=report
"""

RETURN = r"""
decision:
  description:
    - The decision for the node. With several kubelets the most severe one.
    - V(not_applicable), the binary does not support the flag, and the flag is not set.
    - V(not_needed), the flag would have no effect, because kubenet does not run.
    - V(set) and V(already_set), kubenet runs and the flag keeps it from masquerading.
    - V(remove_stale), the binary does not support the flag, and the flag is set.
    - V(remove) and V(absent), with O(policy=absent).
    - V(managed_elsewhere), a change is needed that this module does not make; RV(reason) has the place.
    - V(unsupported), O(policy=present), and the binary does not support the flag.
    - V(cri_dockerd_kubenet), cri-dockerd runs kubenet, which has no flag against it.
    - V(unknown), the binary gave no usable answer; V(no_kubelet), no kubelet was found. Nothing is changed.
  returned: when the node could be inspected
  type: str
  sample: not_applicable
reason:
  description: The decision in a sentence.
  returned: when the node could be inspected
  type: str
  sample: kubelet.service (kubeadm, v1.30.4) does not support or set --non-masquerade-cidr; nothing to do
kubelets:
  description: Every kubelet that was found.
  returned: when the node could be inspected
  type: list
  elements: dict
  contains:
    unit:
      description: Its service.
      type: str
      sample: kubelet.service
    distribution:
      description: Who keeps its arguments (V(kubeadm), V(kubespray), V(plain), V(k3s), V(rke2), V(k0s), V(microk8s)).
      type: str
    version:
      description: Its version, empty if unknown.
      type: str
      sample: v1.30.4
    flag_supported:
      description: Whether its binary supports the flag, None if unknown.
      type: bool
    kubenet:
      description: Whether it is configured for kubenet, and kubenet can run.
      type: bool
    configured:
      description: Every place that sets the flag, and the value; the last one counts.
      type: list
      elements: dict
      sample: [{where: "/etc/default/kubelet, KUBELET_EXTRA_ARGS", value: 10.0.0.0/8}]
    decision:
      description: As RV(decision), for this kubelet.
      type: str
    reason:
      description: The decision in a sentence.
      type: str
actions:
  description: What was changed, or in check mode would be, in this order.
  returned: when the node could be inspected
  type: list
  elements: str
  sample: [edited /etc/default/kubelet, restarted kubelet.service]
files:
  description: Files that were changed, or in check mode would be.
  returned: when the node could be inspected
  type: list
  elements: str
  sample: [/etc/default/kubelet]
leftover_rules:
  description: Rules of kubenet that were found in C(POSTROUTING), as C(iptables -S) prints them.
  returned: when the node could be inspected
  type: list
  elements: str
restart_needed:
  description: Whether a change waits for a restart of the kubelet, with O(restart=false).
  returned: when the node could be inspected
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._tasks.agent_options import KUBELET as ARGUMENT_SPEC
from ..module_utils._tasks.kubelet_task import carry_out


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    carry_out(module.params, module.check_mode).end(module)


if __name__ == "__main__":
    main()
