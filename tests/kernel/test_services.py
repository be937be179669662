# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services and host ports work beside our rules, whatever ``exemption`` says and whoever's rules come first."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import Question
from support.modules import apply, info
from support.namespaces import Namespace
from support.services import (
    CLUSTER_PORT,
    HOST_PORT,
    LOCAL_PORT,
    PORT,
    SERVICES,
    Services,
    ipvs_sets,
    kube_proxy_iptables,
    kube_proxy_ipvs,
    kube_proxy_nftables,
    kubelet_host_port,
    load_iptables,
    load_ipvs,
    portmap_iptables,
    portmap_nftables,
)
from support.topology import ADDRESSES, Topology, ask, serving
from support.twins import build
from support.unnamed_namespaces import inside
from support.variants import EXEMPT_RANGES, EXEMPTIONS, PODS, VARIANTS, Variant

INSERTED, APPENDED = "-I POSTROUTING 1", "-A POSTROUTING"

Load = t.Callable[[Namespace, Variant, Services], None]


def _iptables(add: str, *shapes: t.Callable[..., t.Any]) -> Load:
    return lambda node, variant, s: load_iptables(node, variant, s, add, *shapes)


def _nftables(*shapes: t.Callable[[Services], str]) -> Load:
    return lambda node, _variant, s: node.run("nft", "-f", "-", stdin="".join(shape(s) for shape in shapes))


def _each(*loads: Load) -> Load:
    def load(node: Namespace, variant: Variant, s: Services) -> None:
        for one in loads:
            one(node, variant, s)

    return load


def _kube_proxy_135(s: Services) -> str:
    return kube_proxy_nftables(s, marks_hairpin=True)


def _kube_proxy_136(s: Services) -> str:
    return kube_proxy_nftables(s, marks_hairpin=False)


def _virtual_services(node: Namespace, _variant: Variant, s: Services) -> None:
    load_ipvs(node, s)


def _kube_proxy_masquerade_all(s: Services, add: str) -> t.List[str]:
    return kube_proxy_ipvs(s, add, masquerade_all=True)


#: Who serves Services and host ports; whether these rules are loaded after ours.
THEIRS: t.Dict[str, t.Tuple[Load, bool]] = {
    "iptables: kube-proxy, portmap": (_iptables(INSERTED, kube_proxy_iptables, portmap_iptables), False),
    "iptables: kube-proxy, portmap, behind ours": (_iptables(APPENDED, kube_proxy_iptables, portmap_iptables), True),
    "iptables: kube-proxy, kubelet, behind ours": (_iptables(APPENDED, kube_proxy_iptables, kubelet_host_port), True),
    "nftables: kube-proxy up to 1.35, portmap, after ours": (_nftables(_kube_proxy_135, portmap_nftables), True),
    "nftables: kube-proxy 1.36, portmap": (_nftables(_kube_proxy_136, portmap_nftables), False),
    "nftables: kube-proxy 1.36, portmap, after ours": (_nftables(_kube_proxy_136, portmap_nftables), True),
    "iptables: kube-proxy, nftables: portmap": (
        _each(_iptables(INSERTED, kube_proxy_iptables), _nftables(portmap_nftables)),
        False,
    ),
    "iptables: kube-proxy, nftables: portmap, behind ours": (
        _each(_iptables(APPENDED, kube_proxy_iptables), _nftables(portmap_nftables)),
        True,
    ),
    "nftables: kube-proxy up to 1.35, iptables: portmap, behind ours": (
        _each(_nftables(_kube_proxy_135), _iptables(APPENDED, portmap_iptables)),
        True,
    ),
    "nftables: kube-proxy 1.36, iptables: portmap, behind ours": (
        _each(_nftables(_kube_proxy_136), _iptables(APPENDED, portmap_iptables)),
        True,
    ),
    "IPVS: kube-proxy, iptables: portmap": (
        _each(_virtual_services, _iptables(INSERTED, kube_proxy_ipvs, portmap_iptables)),
        False,
    ),
    "IPVS: kube-proxy, nftables: portmap": (
        _each(_virtual_services, _iptables(INSERTED, kube_proxy_ipvs), _nftables(portmap_nftables)),
        False,
    ),
    "IPVS: kube-proxy, masqueradeAll, iptables: portmap": (
        _each(_virtual_services, _iptables(INSERTED, _kube_proxy_masquerade_all, portmap_iptables)),
        False,
    ),
}

IPVS = {theirs for theirs in THEIRS if theirs.startswith("IPVS")}
MASQUERADE_ALL = {theirs for theirs in IPVS if "masqueradeAll" in theirs}
#: What ``enforce`` needs beside IPVS: else a pod that reaches itself gets no answer, and the module warns of it.
WITH_IPVS = {"except_interfaces": ["pods"]}


class Case(t.NamedTuple):
    """One new connection."""

    name: str
    #: who opens it: ``pod``, ``node`` or ``outside``
    client: str
    #: address, or ADDRESS@PORT
    destination: str
    #: the address that the endpoint must see
    source: str


def _cases(family: str, masquerade_all: bool = False) -> t.List[Case]:
    a, s = ADDRESSES[family], SERVICES[family]
    cases = [
        Case("hairpin through ClusterIP", "pod", s.virtual, a.gateway),
        Case("hairpin through NodePort", "pod", "%s@%d" % (a.node, LOCAL_PORT), a.gateway),
        Case("hairpin through host port", "pod", "%s@%d" % (a.node, HOST_PORT), a.gateway),
        Case("ClusterIP, from a pod", "pod", s.virtual_remote, a.node if masquerade_all else a.pod),
        Case("ClusterIP, from the node", "node", s.virtual_remote, a.node),
        Case("ClusterIP of a local pod, from the node", "node", s.virtual, a.gateway),
        Case("NodePort Cluster, from outside", "outside", "%s@%d" % (a.node, CLUSTER_PORT), a.node),
        Case("NodePort Cluster, from a pod", "pod", "%s@%d" % (a.node, CLUSTER_PORT), a.node),
        Case("NodePort Local, from outside", "outside", "%s@%d" % (a.node, LOCAL_PORT), a.peer),
        Case("host port, from outside", "outside", "%s@%d" % (a.node, HOST_PORT), a.peer),
    ]
    if family == "ipv4":  # ::1 never leaves the node
        cases.append(Case("host port, from 127.0.0.1", "node", "127.0.0.1@%d" % HOST_PORT, a.gateway))
    return cases


@pytest.fixture
def served(topology: Topology) -> t.Iterator[Topology]:
    """A node whose pod listens."""
    topology.node.run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
    with serving(topology.pod, PORT, [s.pod for s in SERVICES.values()]):
        yield topology


@pytest.mark.parametrize("theirs", THEIRS)
def test_services_are_answered(served: Topology, theirs: str) -> None:
    """Each with each of ours, by new connections in IPv4 and in IPv6."""
    load, after = THEIRS[theirs]
    if theirs in IPVS:
        _need_ipvs()
    cases = [case for family in ADDRESSES for case in _cases(family, theirs in MASQUERADE_ALL)]
    for backend, exemption in EXEMPTIONS:
        _clear(served.node)
        variant = VARIANTS.get(backend, VARIANTS["iptables_nft"])
        for late in (False, True):
            if late == after:
                for s in SERVICES.values():
                    load(served.node, variant, s)
            if not late:
                apply(
                    served.node,
                    backend=backend,
                    exemption=exemption,
                    enable_ipv6=True,
                    non_masquerade_cidrs=EXEMPT_RANGES,
                    source_cidrs=PODS,
                    **(WITH_IPVS if exemption == "enforce" and theirs in IPVS else {}),
                )
        assert _wrong(served, cases) == {}, (backend, exemption)
        if theirs in IPVS:
            assert _twin(served, cases) == {case: case.source for case in cases if case.client == "pod"}


def _wrong(topology: Topology, cases: t.Sequence[Case]) -> t.Dict[Case, str]:
    """What endpoints saw that is not what they must see."""
    found = {}
    for client in ("pod", "node", "outside"):
        mine = [case for case in cases if case.client == client]
        ns: Namespace = getattr(topology, client)
        seen = ask(ns, "tcp", PORT, *(case.destination for case in mine))
        for case in mine:
            if seen[case.destination] != case.source:
                found[case] = seen[case.destination]
    return found


def _twin(topology: Topology, cases: t.Sequence[Case]) -> t.Dict[Case, t.Optional[str]]:
    """What verify's copy of the node says of the connections of the pod."""
    mine = [case for case in cases if case.client == "pod"]
    return dict(zip(mine, inside(topology.node, _sources, list(map(_question, mine)))))


def _question(case: Case) -> Question:
    destination, _at, port = case.destination.partition("@")
    pod = ADDRESSES["ipv6" if ":" in destination else "ipv4"].pod
    return Question(destination, pod, port=int(port or PORT))


def _sources(questions: t.Sequence[Question]) -> t.List[t.Optional[str]]:
    with build() as made:
        return [answer.source for answer in made.ask(questions)]


def _need_ipvs() -> None:
    loaded = subprocess.run(["modprobe", "ip_vs"], capture_output=True, text=True, check=False)
    if loaded.returncode != 0:
        assert "IP_MASQ_VM" not in os.environ, loaded.stderr  # there it is not to be skipped
        pytest.skip("this kernel has no IPVS: make test-vm")
    if not shutil.which("ipvsadm", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        pytest.fail("not installed: ipvsadm: run `make setup`", pytrace=False)


@pytest.mark.parametrize("masquerade_all", (False, True), ids=("", "masquerade-all"))
def test_enforce_with_ipvs_keeps_what_leaves_the_node(served: Topology, masquerade_all: bool) -> None:
    """Beside rules as flannel's, before ours. kube-proxy's ``masqueradeAll`` decides about its Services alone."""
    _need_ipvs()
    node = served.node
    for family, s in SERVICES.items():
        multicast = {"ipv4": "224.0.0.0/4", "ipv6": "ff00::/8"}[family]
        flannel = ["-s %s -d %s -j RETURN" % (s.pods, s.pods), "-s %s ! -d %s -j MASQUERADE" % (s.pods, multicast)]
        VARIANTS["iptables_nft"].load(node, family, *("-A POSTROUTING " + rule for rule in flannel))
        load_ipvs(node, s)
        shape = _kube_proxy_masquerade_all if masquerade_all else kube_proxy_ipvs
        load_iptables(node, VARIANTS["iptables_nft"], s, INSERTED, shape)
    options = {"exemption": "enforce", "enable_ipv6": True, "non_masquerade_cidrs": EXEMPT_RANGES, "source_cidrs": PODS}
    assert "warnings" not in apply(node, **options, **WITH_IPVS)
    for family, s in SERVICES.items():
        a = ADDRESSES[family]
        through = a.node if masquerade_all else a.pod
        seen = served.ask(*a.exempt, *a.outside, s.virtual_remote, s.virtual)
        assert seen == {
            **dict.fromkeys(a.exempt, a.pod),
            **dict.fromkeys(a.outside, a.node),
            s.virtual_remote: through,
            s.virtual: a.gateway,
        }
    found = info(node, **options, **WITH_IPVS, verify=True)
    assert found["conflicts"] == [], found["summary"]


@pytest.mark.parametrize("exempting", ("accept", "enforce"))
def test_a_pod_that_reaches_itself_through_ipvs(served: Topology, family: str, exempting: str) -> None:
    """``enforce`` on all interfaces keeps its address, and the answer never comes."""
    _need_ipvs()
    s = SERVICES[family]
    load_ipvs(served.node, s)
    load_iptables(served.node, VARIANTS["iptables_nft"], s, INSERTED, kube_proxy_ipvs)
    exempt = {"non_masquerade_cidrs": EXEMPT_RANGES, "source_cidrs": PODS, "enable_ipv6": True}
    apply(served.node, backend="nftables", exemption=exempting, **exempt)
    seen = served.ask(s.virtual)[s.virtual]
    assert "error: timed out" in seen if exempting == "enforce" else seen == ADDRESSES[family].gateway


@pytest.mark.parametrize(
    ("backend", "exemption", "shape"),
    [
        ("iptables_nft", "accept", _kube_proxy_136),
        ("iptables_legacy", "return", _kube_proxy_135),
        ("nftables", "enforce", _kube_proxy_136),
    ],
)
def test_kube_proxy_moves_from_ipvs_to_nftables(
    served: Topology, backend: str, exemption: str, shape: t.Callable[[Services], str]
) -> None:
    """Nothing of ours changes, before and after every source is right, and nothing is untested."""
    _need_ipvs()
    node = served.node
    cases = [case for family in ADDRESSES for case in _cases(family) if "host port" not in case.name]
    variant = VARIANTS.get(backend, VARIANTS["iptables_nft"])
    options = {"non_masquerade_cidrs": EXEMPT_RANGES, "source_cidrs": PODS, "enable_ipv6": True}
    options.update({"backend": backend, "exemption": exemption}, **(WITH_IPVS if exemption == "enforce" else {}))
    for s in SERVICES.values():
        load_ipvs(node, s)
        load_iptables(node, variant, s, INSERTED, kube_proxy_ipvs)
    apply(node, **options)
    _all_right(served, cases, options)
    node.run("ipvsadm", "-C")
    for s in SERVICES.values():
        _unload_ipvs(node, variant, s)
    assert apply(node, **options)["changed"] is False
    node.run("nft", "-f", "-", stdin="".join(map(shape, SERVICES.values())))
    assert apply(node, **options)["changed"] is False
    _all_right(served, cases, options)
    options.pop("except_interfaces", None)
    apply(node, **options)
    _all_right(served, cases, options)


def _all_right(served: Topology, cases: t.Sequence[Case], options: t.Mapping[str, t.Any]) -> None:
    assert _wrong(served, cases) == {}
    found = info(served.node, **options, verify=True)
    assert (found["conflicts"], found["untested"]) == ([], []), found["summary"]


def _unload_ipvs(node: Namespace, variant: Variant, s: Services) -> None:
    """Do what kube-proxy does about its mode IPVS when it starts in another one."""
    lines = kube_proxy_ipvs(s, INSERTED)
    chains = [line.split()[0][1:] for line in lines if line.startswith(":")]
    deleted = [line.replace("-I POSTROUTING 1", "-A POSTROUTING") for line in lines if not line.startswith(":")]
    deleted = ["-D" + line[2:] for line in deleted if line.split()[1] not in chains]
    removed = [*(":%s - [0:0]" % chain for chain in chains), *deleted, *("-X " + chain for chain in chains)]
    node.run(variant.tool(s.family, "-restore"), "--noflush", stdin="\n".join(["*nat", *removed, "COMMIT", ""]))
    for address in (s.virtual, s.virtual_remote):
        node.run("ip", "address", "delete", "%s/%d" % (address, 128 if ":" in address else 32), "dev", "lo")
    for line in ipvs_sets(s).splitlines():
        if line.startswith("create"):
            node.run("ipset", "destroy", line.split()[1])


def test_enforce_warns_where_ipvs_has_services(ns: Namespace) -> None:
    _need_ipvs()
    options = {
        "backend": "nftables",
        "exemption": "enforce",
        "enable_ipv6": True,
        "non_masquerade_cidrs": EXEMPT_RANGES,
        "source_cidrs": PODS,
    }
    assert "warnings" not in apply(ns, **options)
    load_ipvs(ns, SERVICES["ipv4"])
    (warning,) = apply(ns, **options)["warnings"]
    assert "IPVS" in warning and "except_interfaces" in warning
    assert "warnings" not in apply(ns, **options, **WITH_IPVS)
    assert "warnings" not in apply(ns, **dict(options, exemption="return"))


def _clear(node: Namespace) -> None:
    node.run("nft", "flush", "ruleset")
    if node.read("/proc/net/ip_vs"):
        node.run("ipvsadm", "-C")
    for family in ADDRESSES:
        legacy = VARIANTS["iptables_legacy"]
        if legacy.present(node, family):
            node.run(legacy.tool(family), "-w", "-t", "nat", "-F")
            node.run(legacy.tool(family), "-w", "-t", "nat", "-X")
    node.run("ipset", "destroy")
