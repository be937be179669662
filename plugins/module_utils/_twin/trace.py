# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules that a packet met, as the kernel reports them for packets with the trace flag.

nf_tables reports them over netlink, one by one, for rules of nft and of iptables-nft alike. iptables-legacy sees the
same flag and logs each rule; in a namespace of our own that log comes over netlink too, and only to us.
Message layout: linux/netfilter/nf_tables.h, linux/netfilter/nfnetlink_log.h.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import typing as t

from .._errors import NodeError
from .._system import netlink, nf_tables, nft_expressions
from .._system.netlink import Message, Netlink

_SOL_NETLINK, _ADD_MEMBERSHIP, _NFTRACE_GROUP = 270, 1, 9

_TRACE = 10 << 8 | 17
_TRACE_TABLE, _TRACE_CHAIN, _TRACE_HANDLE, _TRACE_TYPE, _TRACE_VERDICT, _TRACE_ID = 1, 2, 3, 4, 5, 6
_TRACE_NETWORK, _TRACE_TRANSPORT, _TRACE_POLICY = 8, 9, 16
#: NFT_TRACETYPE_POLICY, NFT_TRACETYPE_RETURN; the third is a rule
_TYPE_POLICY, _TYPE_RETURN = 1, 2

#: Verdicts after which a packet goes no further: NF_DROP, NF_STOLEN, NF_QUEUE.
FINAL = (0, 2, 3)
#: NFT_JUMP, NFT_GOTO
CALLS = (-3, -4)

_LOG = 4 << 8
_LOG_PACKET, _LOG_CONFIG = 0, 1
_CONFIG_COMMAND, _CONFIG_MODE, _CONFIG_THRESHOLD = 1, 2, 5
_BIND, _PF_BIND, _COPY_PACKET = 1, 3, 2
_LOG_PAYLOAD, _LOG_PREFIX = 9, 10
#: bytes of each packet: enough to know it by its number
_COPIED = 128

_LEGACY = re.compile(r"TRACE: ([^:]*):([^:]*):(rule|return|policy):([0-9]+)")

TABLE = "kubenode_ip_masq_twin"
#: Earlier than any rule of others: NFT_PRIORITY has 32 bits with a sign.
_FIRST = -(1 << 31)
_OURS = nf_tables.NftTable(1, TABLE, b"")

#: NFT_META_NFTRACE
_NFTRACE = 12

POLICY = "policy"
RULE = "rule"
RETURN = "return"


class Step(t.NamedTuple):
    """One rule that matched, or the end of a chain.

    ``family`` is a number of nfgenmsg. ``number`` is the rule's handle in nf_tables, and its place in the chain, from
    1, in iptables-legacy. ``verdict`` is one of nf_tables; of legacy rules it is not known.
    """

    legacy: bool
    family: int
    table: str
    chain: str
    kind: str
    number: int
    verdict: t.Optional[int] = None


def prepare() -> None:
    """Make the table that puts the trace flag on every packet of this network namespace, which must be one of our own.

    It is asleep until a program listens: for each rule that a packet with the flag matches, iptables-legacy walks
    through its whole table to find the rule's number.

    :raises NodeError: the kernel has no nf_tables, or not with tables for both families.
    """

    family, asleep = _OURS.family, netlink.network_word(nf_tables.TABLE_FLAGS, nf_tables.DORMANT)
    messages = [nf_tables.change(nf_tables.NEW_TABLE, family, TABLE, asleep)]
    traced = netlink.nest(
        nf_tables.RULE_EXPRESSIONS,
        nft_expressions.expression("immediate", dreg=1, data=netlink.attribute(1, b"\1")),
        nft_expressions.expression("meta", key=_NFTRACE, sreg=1),
    )
    for chain, hook in (("prerouting", 0), ("output", 3)):
        messages.append(nf_tables.new_chain(family, TABLE, chain, "filter", hook, _FIRST))
        messages.append(nf_tables.new_rule(family, TABLE, chain, traced))
    nf_tables.transact(messages, "a table that traces packets")


def _switch(on: bool) -> None:
    with contextlib.suppress(netlink.KernelError):  # the table could not be made, which has been reported
        nf_tables.switch(_OURS, on)


class Trace:
    """Hears of every rule that a packet meets, from when it is made until the end of ``with``."""

    def __init__(self, families: t.Sequence[int]) -> None:
        """Trace the rules of all tables.

        :param families: of the tables of iptables-legacy that there are, as numbers of nfgenmsg.
        """
        self._rules = Netlink(netlink.NETFILTER, buffer=netlink.LARGE)
        self._rules.socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFTRACE_GROUP)
        self._rules.socket.setblocking(False)
        self._log = Netlink(netlink.NETFILTER, buffer=netlink.LARGE)
        if families:
            self._listen(families)
        self._log.socket.setblocking(False)
        _switch(True)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_exc: object) -> None:
        _switch(False)
        self._rules.socket.close()
        self._log.socket.close()

    def _listen(self, families: t.Sequence[int]) -> None:
        wanted = [(family, netlink.attribute(_CONFIG_COMMAND, bytes((_PF_BIND,)))) for family in families]
        about_packets = (
            netlink.attribute(_CONFIG_COMMAND, bytes((_BIND,))),
            netlink.attribute(_CONFIG_MODE, struct.pack("!IBx", _COPIED, _COPY_PACKET)),
            netlink.network_word(_CONFIG_THRESHOLD, 1),
        )
        wanted += [(socket.AF_UNSPEC, attribute) for attribute in about_packets]
        requests = [Message(_LOG | _LOG_CONFIG, netlink.family_head(family) + one) for family, one in wanted]
        for code in filter(None, self._log.change(requests, 0)):
            raise netlink.KernelError(code, "a log of packets")

    def steps(self, mine: t.Callable[[bytes], bool]) -> t.List[Step]:
        """Return what the kernel reported since the last call about one packet.

        :param mine: whether a packet, from its IP header on, is the one; only its first bytes may be there.
        """
        found: t.List[Step] = []
        # More than one: where a bridge passes packets to iptables (bridge-nf-call-iptables), the packet goes on under
        # another identity behind the bridge. Each chain names the packet again.
        wanted: t.Set[t.Optional[bytes]] = set()
        for message in _pending(self._rules):
            if message.kind != _TRACE:
                continue
            known = netlink.attributes(message.body[4:])
            identity = known.get(_TRACE_ID)
            if identity not in wanted and mine(known.get(_TRACE_NETWORK, b"") + known.get(_TRACE_TRANSPORT, b"")):
                wanted.add(identity)
            if identity in wanted and netlink.name(known.get(_TRACE_TABLE, b"")) != TABLE:
                found.append(_step(message.body[0], known))
        for message in _pending(self._log):
            known = netlink.attributes(message.body[4:])
            reported = _LEGACY.search(netlink.name(known.get(_LOG_PREFIX, b"")))
            if message.kind == _LOG | _LOG_PACKET and reported and mine(known.get(_LOG_PAYLOAD, b"")):
                table, chain, kind, number = reported.groups()
                found.append(Step(True, message.body[0], table, chain, kind, int(number)))
        return found


def _step(family: int, known: t.Mapping[int, bytes]) -> Step:
    kind = {_TYPE_POLICY: POLICY, _TYPE_RETURN: RETURN}.get(netlink.number(known.get(_TRACE_TYPE)), RULE)
    if kind == RULE and _TRACE_HANDLE not in known:
        kind = RETURN  # how kernels since 6.4 report the end of a chain
    code = netlink.attributes(known.get(_TRACE_VERDICT, b"")).get(1)
    verdict = struct.unpack("!i", code)[0] if code else None
    if kind == POLICY:
        verdict = netlink.number(known.get(_TRACE_POLICY))
    return Step(
        False,
        family,
        netlink.name(known.get(_TRACE_TABLE, b"")),
        netlink.name(known.get(_TRACE_CHAIN, b"")),
        kind,
        netlink.number(known.get(_TRACE_HANDLE)),
        verdict,
    )


def _pending(kernel: Netlink) -> t.Iterator[Message]:
    while True:
        try:
            received = kernel.receive()
        except BlockingIOError:
            return
        except NodeError:  # the buffer overflowed: what is lost may belong to earlier packets
            continue
        for _flags, _sequence, message in received:
            yield message
