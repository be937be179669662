# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what the kernel told of a node to what it is told in the twin."""

from __future__ import annotations

import ipaddress
import struct
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import (
    ipvs_services,
    kernel_modules,
    netlink,
    nf_tables,
    xtables,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import (
    deciding_rule,
    equal_priorities,
    ipvs,
    links,
    routing,
    sysctls,
    trace,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.routing import Routing
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin.values import DROPPED, Answer, Question
from support import nft_messages as nft

if t.TYPE_CHECKING:
    from pathlib import Path

# links


def _link(index: int, name: str, flags: int = 1) -> links.Link:
    return links.Link(index, name, "veth", flags, 1500, b"", 0, 0, False, True)


def test_links_keep_their_numbers_unless_others_have_them() -> None:
    node = [_link(1, "lo", 8), _link(2, "eth0"), _link(3, "tunl0"), _link(9, "cali0")]
    assert links.numbers(node, [_link(1, "lo", 8)]) == {1: 1, 2: 2, 3: 3, 9: 9}
    # Every new namespace has these where their modules are loaded.
    present = [_link(1, "lo", 8), _link(2, "tunl0"), _link(3, "sit0")]
    found = links.numbers(node, present)
    assert found[1] == 1 and found[9] == 9 and len(set(found.values())) == 4
    assert not {found[2], found[3]} & {1, 2, 3, 9}


# routes


def _route(network: str, *attributes: bytes, kind: int = 1, flags: int = 0, table: int = 254) -> bytes:
    value = ipaddress.ip_network(network)
    head = struct.pack("=BBBBBBBBI", 2, value.prefixlen, 0, 0, table, 3, 0, kind, flags)
    return head + netlink.attribute(1, value.network_address.packed) + b"".join(attributes)


def test_link_of_an_address_whose_route_is_replaced() -> None:
    own = struct.pack("=BBBBI", 2, 24, 0, 0, 5) + netlink.attribute(1, bytes((10, 244, 1, 1)))
    prohibited = _route("10.244.1.0/24", kind=8)
    assert routing.link_of(Routing((own,), (), (prohibited,)), "10.244.1.7") == 5
    elsewhere = _route("10.244.1.0/24", netlink.word(4, 3))
    assert routing.link_of(Routing((own,), (), (elsewhere,)), "10.244.1.7") == 3


def test_route_as_it_can_be_asked_for() -> None:
    metrics = netlink.attribute(8, b"12345678")
    told = _route("10.0.0.0/8", netlink.word(4, 2), metrics, netlink.attribute(12, bytes(32)), flags=0x4 | 0x10)
    asked = routing._route(told, {2: 7})
    assert asked == _route("10.0.0.0/8", netlink.word(4, 7), metrics, flags=0x4)
    hop = struct.pack("=HBBi", 16, 0x10 | 0x4, 2, 3) + netlink.attribute(5, b"\1\1\1\1")
    shared = routing._route(_route("10.0.0.0/8", netlink.attribute(9, hop)), {3: 9})
    assert shared == _route("10.0.0.0/8", netlink.attribute(9, struct.pack("=HBBi", 16, 4, 2, 9) + hop[8:]))
    by_object = _route("10.0.0.0/8", netlink.word(30, 5), netlink.attribute(9, hop))
    assert routing._route(by_object, {3: 9}) == shared


def test_what_routes_say() -> None:
    hop = struct.pack("=HBBi", 8, 0, 0, 3)
    known = Routing((), (), (_route("10.0.0.0/8", netlink.attribute(9, hop + hop), netlink.word(15, 1000)),))
    (found,) = routing.routes(known)
    assert (str(found.destination), [path.link for path in found.paths], found.table) == ("10.0.0.0/8", [3, 3], 1000)


# settings


def test_settings_of_links_come_after_the_links() -> None:
    assert sysctls.is_general("ipv4/conf/all/rp_filter") and sysctls.is_general("ipv4/fwmark_reflect")
    assert not sysctls.is_general("ipv4/conf/eth0/rp_filter")
    assert not sysctls.is_general("ipv6/conf/eth0.100/forwarding")


# programs that are asked


def test_kernel_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ip_set").mkdir()
    (tmp_path / "modules").write_text("")
    (tmp_path / "builtin").write_text("kernel/net/netfilter/nf_tables.ko\n")
    monkeypatch.setattr(kernel_modules, "_LOADED", str(tmp_path) + "/%s")
    monkeypatch.setattr(kernel_modules, "_LIST", str(tmp_path / "modules"))
    monkeypatch.setattr(kernel_modules, "_BUILT_IN", str(tmp_path / "builtin") + "%.0s")
    assert kernel_modules.loaded("ip_set") and kernel_modules.loaded("nf_tables")
    assert not kernel_modules.loaded("xfrm_user")
    (tmp_path / "modules").unlink()  # a kernel without modules has all that it has
    assert kernel_modules.loaded("xfrm_user")


_IP_VS = """IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0000201:192B      Masq    1      0          0
UDP  0A60000A:0035 rr
"""


def test_services_of_ipvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipvs_services, "_LIST", str(tmp_path / "ip_vs"))
    calls: t.List[t.Sequence[str]] = []

    def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        calls.append(argv)
        return Outcome(0, "-A -t 10.96.0.1:443 -s rr\n", "")

    assert ipvs.read(run) == ("", [])
    (tmp_path / "ip_vs").write_text("\n".join(_IP_VS.splitlines()[:3]) + "\n")
    assert ipvs.read(run) == ("", [])
    (tmp_path / "ip_vs").write_text(_IP_VS)
    monkeypatch.setattr(ipvs, "which", lambda name: None)
    assert ipvs.read(run) == ("", ["2 services of IPVS: ipvsadm is not on this node"])
    monkeypatch.setattr(ipvs, "which", lambda name: "/sbin/" + name)
    assert ipvs.read(run) == ("-A -t 10.96.0.1:443 -s rr\n", [])
    assert calls == [["/sbin/ipvsadm", "--save", "--numeric"]]
    assert ipvs.write(run, "") == [] and ipvs.write(run, "-A -t 10.96.0.1:443 -s rr\n") == []
    assert calls[1:] == [["/sbin/ipvsadm", "--restore"]]


# chains of the same priority


def _translating(name: str, priority: int, family: int = nft.IP, **options: t.Any) -> nf_tables.NftTable:
    base = {"c": ("nat", nft.POSTROUTING, priority)}
    return nft.table(family, name, base, [("c", [nft.expression("masq")])], **options)


def _tied(*tables: nf_tables.NftTable, old: t.Sequence[xtables.XtTable] = ()) -> t.Tuple[t.List[str], bool]:
    found = equal_priorities.find(tables, old)
    return [table.name for table in found.tables], found.legacy


def test_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, early = _translating("one", 100), _translating("other", 100), _translating("early", 90)
    assert _tied(one, early) == ([], False)
    assert _tied(one, early, other) == (["one", "other"], False)
    assert _tied(one, _translating("inet", 100, nft.INET)) == (["one", "inet"], False)
    assert _tied(one, _translating("six", 100, nft.IP6)) == ([], False)
    assert _tied(one, _translating("off", 100, dormant=True)) == ([], False)
    assert _tied(one, nft.table(nft.IP, "empty", {"c": ("nat", nft.POSTROUTING, 100)})) == ([], False)
    filters = [nft.table(nft.IP, name, {"c": ("filter", 2, 0)}, [("c", [nft.jump("x")])]) for name in "ab"]
    assert _tied(*filters) == ([], False)
    legacy = xtables.XtTable(IPV4, "nat", 0, (), 0, b"")
    for used, found in (([], ([], False)), (["POSTROUTING"], (["one"], True)), (["PREROUTING"], ([], False))):
        monkeypatch.setattr(xtables, "used_chains", lambda _table, used=used: used)
        assert _tied(one, early, old=[legacy]) == found


# rules that decide


@pytest.mark.parametrize(
    ("policy", "lost"), [("DROP", "policy of the chain FORWARD in table ip filter"), ("ACCEPT", "")]
)
def test_where_a_packet_is_lost(monkeypatch: pytest.MonkeyPatch, policy: str, lost: str) -> None:
    rules = deciding_rule.Rules(lambda *_asked, **_how: Outcome(1, "", ""), (), ())
    monkeypatch.setattr(rules, "_legacy_chain", lambda _step: ((), policy))
    answer = Answer(Question("203.0.113.7"), DROPPED)
    found = rules.explained(answer, [trace.Step(True, 2, "filter", "FORWARD", trace.POLICY, 2)]).where
    assert found.startswith(lost) and bool(found) == bool(lost)
