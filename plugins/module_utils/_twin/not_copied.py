# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What decides about packets on a node, and cannot be copied: programs in the kernel, IPsec, kinds of links.

Cilium, for one, translates addresses in eBPF programs, which no rule and no route shows.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import typing as t

from .._errors import NodeError
from .._system import files, libc, netlink, nf_tables
from .._system.kernel_modules import loaded
from .._system.netlink import Netlink
from .links import Link
from .values import Unseen

_GET_QDISC, _GET_FILTER = 38, 46
_TCM = struct.Struct("=BxxxiIII")
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_NAME = 7
#: clsact (and ingress, which is its first half): where filters on packets that come in and that leave hang
_CLSACT_PARENTS = {0xFFFFFFF2: "that come in", 0xFFFFFFF3: "that leave"}
_ANY_INGRESS = ("clsact", "ingress")

_GET_XFRM_POLICY = 0x15

#: bpf(2) by machine
_SYSCALLS = {"x86_64": 321, "aarch64": 280, "armv7l": 386, "ppc64le": 361, "s390x": 351, "riscv64": 280}
_PROG_QUERY = 16
#: enum bpf_attach_type
_TCX = {46: "that come in", 47: "that leave"}
_CGROUP = {1: "packets that programs send", 8: "bind", 10: "connect", 11: "connect", 14: "sendmsg", 15: "sendmsg"}
_MOUNTS = "/proc/self/mounts"
_MODULE = "/sys/module/%s"
#: the tables of ebtables-legacy, which are modules; ebtables-nft has tables of nf_tables
_EBTABLES = ("ebtable_broute", "ebtable_filter", "ebtable_nat")

#: Kinds of links that a cable can replace: none decides about routes or addresses by itself, and a tunnel sends what
#: netfilter has seen as it is. Empty: hardware. Any other kind is named.
_LIKE_A_CABLE = frozenset(
    (
        "", "veth", "bridge", "bond", "team", "vlan", "dummy", "ifb", "macvlan", "macvtap", "tun", "vxlan", "geneve",
        "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "wireguard", "ipoib", "openvswitch", "hsr",
    )
)  # fmt: skip


def read(found: t.Sequence[Link], tables: t.Sequence[nf_tables.NftTable]) -> t.List[Unseen]:
    """Read all of it in the network namespace of this process.

    :param found: its links.
    :param tables: its tables of nf_tables.
    """
    unseen = [
        Unseen("ebpf", "link %s: an XDP program sees packets before any rule" % link.name) for link in found if link.xdp
    ]
    unseen += [
        Unseen("link", "link %s: the copy has a plain link in place of one of kind %s" % (link.name, link.kind))
        for link in found
        if link.kind not in _LIKE_A_CABLE
    ]
    for more in (_filters(found), _tcx(found), _cgroup(), _ipsec()):
        try:
            unseen += more
        except (NodeError, OSError) as exc:
            unseen.append(Unseen("unreadable", "it is not known whether there is more: %s" % exc))
    unseen += _ebtables()
    unseen += [
        Unseen("offload", "table %s: packets of established connections bypass the rules (flowtable)" % table.title)
        for table in tables
        if table.flowtables
    ]
    return unseen


def _ebtables() -> t.Iterator[Unseen]:
    """List tables of ebtables-legacy. Asking whether one has rules would make it, so it is named if it may."""
    for name in _EBTABLES:
        if os.path.exists(_MODULE % name):
            text = (
                "rules of ebtables-legacy (table %s, kernel module %s): move them to ebtables-nft, or unload the module"
            )
            yield Unseen("ebtables", text % (name.partition("_")[2], name))


def _filters(found: t.Sequence[Link]) -> t.Iterator[Unseen]:
    """Return filters of tc."""
    names = {link.index: link.name for link in found}
    with Netlink(netlink.ROUTE) as kernel:
        hooked = set()
        for message in kernel.dump(_GET_QDISC, _TCM.pack(0, 0, 0, 0, 0), "queueing disciplines"):
            kind = netlink.name(netlink.attributes(message.body[_TCM.size :]).get(_TCA_KIND, b""))
            if kind in _ANY_INGRESS:
                hooked.add(_TCM.unpack_from(message.body)[1])
        for index in sorted(hooked):
            for parent, direction in _CLSACT_PARENTS.items():
                filters = _filter_names(kernel, index, parent)
                if filters:
                    yield Unseen(
                        "ebpf" if any("bpf" in name for name in filters) else "tc",
                        "link %s: filters of tc see packets %s: %s"
                        % (names.get(index, index), direction, ", ".join(sorted(filters))),
                    )


def _filter_names(kernel: Netlink, index: int, parent: int) -> t.Set[str]:
    found: t.Set[str] = set()
    try:
        messages = kernel.dump(_GET_FILTER, _TCM.pack(0, index, 0, parent, 0), "filters of tc")
    except netlink.KernelError as exc:
        if exc.code == errno.EINVAL:  # an ingress discipline has no other half
            return found
        raise
    for message in messages:
        known = netlink.attributes(message.body[_TCM.size :])
        kind = netlink.name(known.get(_TCA_KIND, b""))
        program = netlink.attributes(known.get(_TCA_OPTIONS, b"")).get(_TCA_BPF_NAME) if kind == "bpf" else None
        found.add("%s %s" % (kind, netlink.name(program)) if program else kind)
    return found


def _tcx(found: t.Sequence[Link]) -> t.Iterator[Unseen]:
    """List eBPF programs at links since Linux 6.6, which tc does not list."""
    for link in found:
        for attached, direction in _TCX.items():
            if _programs(link.index, attached):
                yield Unseen("ebpf", "link %s: eBPF programs (tcx) see packets %s" % (link.name, direction))


def _cgroup() -> t.Iterator[Unseen]:
    """List eBPF programs at the sockets of all processes."""
    roots = [words[1] for words in map(str.split, files.lines(_MOUNTS)) if words[2] == "cgroup2"]
    if not roots:
        return
    root = os.open(roots[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = sorted({what for attached, what in _CGROUP.items() if _programs(root, attached)})
    finally:
        os.close(root)
    if found:
        yield Unseen("ebpf", "eBPF programs at the root control group see what all sockets do: %s" % ", ".join(found))


def _programs(target: int, attached: int) -> int:
    """Count the eBPF programs at a place; 0 if the kernel knows no such place."""
    number = _SYSCALLS.get(os.uname().machine)
    if number is None:
        raise NodeError("eBPF programs cannot be listed on %s" % os.uname().machine)
    attributes = ctypes.create_string_buffer(struct.pack("=IIIIQI", target, attached, 0, 0, 0, 0), 64)
    try:
        libc.call("syscall", number, _PROG_QUERY, attributes, len(attributes))
    except OSError as exc:
        if exc.errno in (errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EBADF, errno.EOPNOTSUPP):
            return 0
        raise NodeError("eBPF programs cannot be listed: %s" % exc.strerror) from None
    return int(struct.unpack_from("=I", attributes, 24)[0])


def _ipsec() -> t.Iterator[Unseen]:
    if loaded("xfrm_user"):
        with Netlink(netlink.XFRM) as kernel:
            policies = kernel.dump(_GET_XFRM_POLICY, b"\0" * 64, "policies of IPsec")
        if policies:
            yield Unseen("ipsec", "IPsec policies (%d) send packets another way than their route" % len(policies))
