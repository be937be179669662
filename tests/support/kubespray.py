# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A kubespray that does nothing to nodes, with the real one's names: files, plays, groups, variables, settings.

What matters to another playbook of the same run is as in kubespray 2.31: ``k8s_cluster`` is a group that its first play
makes, defaults are those of a role, and nodes get facts such as ``main_ip``.

``SEEN`` are its defaults, as they were read; the collection's own table and these files are compared with it.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import yaml


class Seen(t.NamedTuple):
    """A default of kubespray, and where it was read."""

    value: t.Any
    #: below ``roles/``
    file: str
    commit: str


#: On the development branch, after 2.32.
_MAIN = ("kubespray_defaults/defaults/main/main.yml", "2ed6d5f")
_CALICO = ("network_plugin/calico_defaults/defaults/main.yml", "2ed6d5f")
#: Where these were read has a file only at commits that changed it, and not their order: each is a version of the role
#: as it is now, which need not be the last. The values of other versions that were read are the same: of the files
#: above at 00034d7 (the first 16,000 characters, from when Kubernetes 1.35 is known), 11c9e1c and f580de3, of the API
#: server at 01c07b8. flannel's template at 781464e has --ip-masq as the second word of the command and no variable for
#: it, kube-ovn at 0da77fb has none for natOutgoing. The plays below are in playbooks/cluster.yml at 15fdafd. What
#: ansible-core the development branch asks for was not found: the versions read of ansible_version.yml and
#: requirements.txt are older.
_API_SERVER = ("kubernetes/control-plane/defaults/main/main.yml", "64fe508")
_CILIUM = ("network_plugin/cilium/defaults/main.yml", "0111aed")
_KUBE_ROUTER = ("network_plugin/kube-router/defaults/main.yml", "2cfbbcb")
_KUBE_PROXY = "kubernetes/control-plane/defaults/main/kube-proxy.yml"
_MACVLAN = ("network_plugin/macvlan/defaults/main.yml", "007d371")

#: A whole tree, between 2.31 and 2.32. All other values here are the same in it.
_TREE = "46dbdd3"

#: The variables that the collection reads and that have a default.
SEEN: t.Dict[str, Seen] = {
    "ipv4_stack": Seen(True, *_MAIN),
    "ipv6_stack": Seen("{{ enable_dual_stack_networks | default(false) }}", *_MAIN),
    "kube_network_plugin": Seen("calico", *_MAIN),
    "kube_pods_subnet": Seen("10.233.64.0/18", *_MAIN),
    "kube_pods_subnet_ipv6": Seen("fd85:ee78:d8a6:8607::1:0000/112", *_MAIN),
    "kube_proxy_mode": Seen("ipvs", *_MAIN),
    "kube_proxy_remove": Seen(False, *_MAIN),
    "kube_service_addresses": Seen("10.233.0.0/18", *_MAIN),
    "kube_service_addresses_ipv6": Seen("fd85:ee78:d8a6:8607::1000/116", *_MAIN),
    "kube_apiserver_node_port_range": Seen("30000-32767", *_API_SERVER),
    "nat_outgoing": Seen(True, *_CALICO),
    "nat_outgoing_ipv6": Seen(False, *_CALICO),
    "cilium_enable_bpf_masquerade": Seen(False, *_CILIUM),
    "cilium_enable_ipv4_masquerade": Seen(True, *_CILIUM),
    "cilium_enable_ipv6_masquerade": Seen(True, *_CILIUM),
    "cilium_ip_masq_agent_enable": Seen(False, *_CILIUM),
    "kube_router_extra_args": Seen([], *_KUBE_ROUTER),
    "enable_nat_default_gateway": Seen(True, *_MACVLAN),
    "calico_bpf_enabled": Seen(False, _CALICO[0], _TREE),
    "calico_ipip_mode": Seen("Never", _CALICO[0], _TREE),
    "calico_network_backend": Seen("vxlan", _CALICO[0], _TREE),
    "calico_vxlan_mode": Seen("Always", _CALICO[0], _TREE),
    "cilium_auto_direct_node_routes": Seen(False, _CILIUM[0], _TREE),
    "cilium_deploy_additionally": Seen(False, _MAIN[0], _TREE),
    "cilium_enable_bgp_control_plane": Seen(False, _CILIUM[0], _TREE),
    "cilium_kube_proxy_replacement": Seen(False, _CILIUM[0], _TREE),
    "cilium_tunnel_mode": Seen("vxlan", _CILIUM[0], _TREE),
    "flannel_backend_type": Seen("vxlan", "network_plugin/flannel/defaults/main.yml", _TREE),
    "kube_network_plugin_multus": Seen(False, _MAIN[0], _TREE),
    "kube_ovn_network_type": Seen("geneve", "network_plugin/kube-ovn/defaults/main.yml", _TREE),
    "kube_proxy_masquerade_all": Seen(False, _KUBE_PROXY, _TREE),
    "kube_proxy_masquerade_bit": Seen(14, _KUBE_PROXY, _TREE),
    "kube_router_annotations_all": Seen([], _KUBE_ROUTER[0], _TREE),
    "kube_router_annotations_master": Seen([], _KUBE_ROUTER[0], _TREE),
    "kube_router_annotations_node": Seen([], _KUBE_ROUTER[0], _TREE),
    "kube_router_peer_router_ips": Seen(None, _KUBE_ROUTER[0], _TREE),
    "kube_router_run_service_proxy": Seen(False, _KUBE_ROUTER[0], _TREE),
}

#: What is set in files of its sample inventory, which operators copy: below ``group_vars``, as read at commits 00d9774
#: (all.yml), 00f1281 (k8s-cluster.yml) and f580de3 (k8s-net-calico.yml). The last but one is from before
#: ``ipv4_stack``. Here are those that the collection reads, and those that are templates.
SAMPLE: t.Dict[str, t.Dict[str, t.Any]] = {
    "all/all.yml": {"bin_dir": "/usr/local/bin"},
    "k8s_cluster/k8s-cluster.yml": {
        "kube_config_dir": "/etc/kubernetes",
        "kube_script_dir": "{{ bin_dir }}/kubernetes-scripts",
        "kube_cert_dir": "{{ kube_config_dir }}/ssl",
        "kube_version": "v1.28.3",
        "credentials_dir": "{{ inventory_dir }}/credentials",
        "kube_network_plugin": "calico",
        "kube_network_plugin_multus": False,
        "kube_service_addresses": "10.233.0.0/18",
        "kube_pods_subnet": "10.233.64.0/18",
        "enable_dual_stack_networks": False,
        "kube_service_addresses_ipv6": "fd85:ee78:d8a6:8607::1000/116",
        "kube_pods_subnet_ipv6": "fd85:ee78:d8a6:8607::1:0000/112",
        # Of a filter that is not there without netaddr's collection.
        "kube_apiserver_ip": "{{ kube_service_addresses | ipaddr('net') | ipaddr(1) | ipaddr('address') }}",
        "kube_proxy_mode": "ipvs",
        "kube_proxy_nodeport_addresses": (
            "{%- if kube_proxy_nodeport_addresses_cidr is defined -%} [{{ kube_proxy_nodeport_addresses_cidr }}] "
            "{%- else -%} [] {%- endif -%}"
        ),
        "cluster_name": "cluster.local",
        "dns_domain": "{{ cluster_name }}",
        # It writes a file, if it is evaluated.
        "kubeadm_certificate_key": (
            "{{ lookup('password', credentials_dir + '/kubeadm_certificate_key.creds length=64 chars=hexdigits') "
            "| lower }}"
        ),
        "kubeadm_patches": {"enabled": False, "source_dir": "{{ inventory_dir }}/patches"},
    },
    "k8s_cluster/k8s-net-calico.yml": {"calico_cni_name": "k8s-pod-network", "calico_pool_blocksize": 26},
}

#: Settings of a checkout. The cache of facts is in a folder of the test.
CONFIG = """
[ssh_connection]
pipelining=True
[defaults]
force_valid_group_names = ignore
host_key_checking=False
gathering = smart
fact_caching = jsonfile
fact_caching_connection = %s
fact_caching_timeout = 86400
timeout = 300
stdout_callback = default
display_skipped_hosts = no
library = ./library
callbacks_enabled = profile_tasks
roles_path = roles:$VIRTUAL_ENV/usr/local/share/kubespray/roles
deprecation_warnings=False
inventory_ignore_extensions = ~, .orig, .bak, .ini, .cfg, .retry, .pyc, .pyo, .creds, .gpg
[inventory]
ignore_patterns = artifacts, credentials
"""

_CLUSTER = """
- name: Common tasks for every playbooks
  import_playbook: boilerplate.yml
- name: Invoke kubeadm and install a CNI
  hosts: k8s_cluster
  gather_facts: false
  any_errors_fatal: "{{ any_errors_fatal | default(true) }}"
  roles:
    - { role: kubespray_defaults }
  tasks:
    - name: Show what the cluster was made with
      debug:
        msg: "kubespray made {{ kube_pods_subnets }} {{ kube_service_subnets }} with {{ kube_network_plugin }}"
"""

_FILES = {
    "galaxy.yml": "namespace: kubernetes_sigs\nname: kubespray\nversion: 2.31.0\n",
    "playbooks/boilerplate.yml": """
- name: Inventory setup and validation
  hosts: all
  gather_facts: false
  tags: always
  roles:
    - dynamic_groups
    - network_facts
""",
    "playbooks/cluster.yml": _CLUSTER,
    "playbooks/scale.yml": _CLUSTER.replace("hosts: k8s_cluster", "hosts: kube_node"),
    "playbooks/upgrade_cluster.yml": _CLUSTER,
    "playbooks/reset.yml": """
- name: Common tasks for every playbooks
  import_playbook: boilerplate.yml
- name: Reset cluster
  hosts: etcd:k8s_cluster:calico_rr
  gather_facts: false
  pre_tasks:
    - name: Reset Confirmation
      pause:
        prompt: "Are you sure you want to reset cluster state? Type 'yes' to reset your cluster."
      register: reset_confirmation_prompt
      run_once: true
      when:
        - not (skip_confirmation | default(false) | bool)
        - reset_confirmation is not defined
    - name: Check confirmation
      fail:
        msg: "Reset confirmation failed"
      when:
        - not reset_confirmation | default(false) | bool
        - not reset_confirmation_prompt.user_input | default("") == "yes"
  roles:
    - { role: kubespray_defaults }
  tasks:
    - name: Flush iptables
      iptables:
        table: nat
        flush: true
      when: flush_iptables | default(false) | bool
""",
    "roles/dynamic_groups/tasks/main.yml": """
- name: Match needed groups by their old names or definition
  vars:
    group_mappings:
      kube_control_plane: [kube-master]
      kube_node: [kube-node]
      k8s_cluster: [kube_node, kube_control_plane, calico_rr]
  group_by:
    key: "{{ item.key }}"
  when: group_names | intersect(item.value) | length > 0
  loop: "{{ group_mappings | dict2items }}"
""",
    "roles/network_facts/tasks/main.yaml": """
- name: Set main ip
  set_fact:
    cacheable: true
    main_ip: "{{ ip | default('203.0.113.99') }}"
    main_access_ip: "{{ access_ip | default(ip | default('203.0.113.99')) }}"
""",
    "roles/kubespray_defaults/defaults/main/main.yml": yaml.safe_dump(
        {name: seen.value for name, seen in SEEN.items() if seen.file == _MAIN[0]}
    ),
    "roles/kubespray_defaults/vars/main/main.yml": "".join(
        "%s: >-\n  {%%- if ipv4_stack and ipv6_stack -%%}{{ %s }},{{ %s_ipv6 }}{%%- elif ipv4_stack -%%}{{ %s }}"
        "{%%- else -%%}{{ %s_ipv6 }}{%%- endif -%%}\n" % (both, one, one, one, one)
        for both, one in (("kube_pods_subnets", "kube_pods_subnet"), ("kube_service_subnets", "kube_service_addresses"))
    ),
}
#: Playbooks at the top of a checkout.
_TOP = ("cluster", "scale", "upgrade-cluster", "reset")


def write_checkout(folder: Path) -> Path:
    """Make a checkout of the repository, in which its playbooks are run."""
    for name in _TOP:
        inside = "playbooks/%s.yml" % name.replace("-", "_")
        _write(folder / (name + ".yml"), "- name: Run it\n  ansible.builtin.import_playbook: %s\n" % inside)
    (folder / "facts").mkdir(parents=True, exist_ok=True)
    _write(folder / "ansible.cfg", CONFIG % (folder / "facts"))
    return _write_rest(folder)


def write_collection(collections: Path) -> Path:
    """Make the collection kubernetes_sigs.kubespray in a directory of collections."""
    return _write_rest(collections / "ansible_collections/kubernetes_sigs/kubespray")


def write_sample(inventory: Path, **changed: t.Any) -> None:
    """Write the variables of its sample inventory, some of k8s-cluster.yml changed by the operator."""
    for name, variables in SAMPLE.items():
        edited = {**variables, **(changed if name.endswith("k8s-cluster.yml") else {})}
        _write(inventory / "group_vars" / name, yaml.safe_dump(edited, sort_keys=False))


def _write_rest(folder: Path) -> Path:
    for name, text in _FILES.items():
        _write(folder / name, text)
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def site(kubespray: str, ours: t.Sequence[str]) -> str:
    """Write an operator's playbook that runs one of kubespray's and then, or before it, some of this collection.

    :param kubespray: what to import of kubespray.
    :param ours: what to import of this collection, without its name; ``-`` is where kubespray's goes.
    """
    names = [kubespray if one == "-" else "kubenode.ip_masq." + one for one in ours]
    return "".join("- name: Import %s\n  ansible.builtin.import_playbook: %s\n" % (name, name) for name in names)
