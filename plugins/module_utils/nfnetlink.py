# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two questions that the kernel answers by itself, read-only and a hundred times faster than a program could.

Message layout: linux/netlink.h, linux/netfilter/nfnetlink.h, nf_tables.h and nf_tables_compat.h. Asking may make the
kernel load the module that would answer, as any use of it does; it changes no rule, table or setting.
"""

from __future__ import annotations

import errno
import socket
import struct
import typing as t

from .ruleset import IPV4, IPV6

_NETLINK_NETFILTER = 12
_REQUEST = 1
_ERROR = 2
#: subsystem << 8 | message: NFT_MSG_GETTABLE, NFNL_MSG_COMPAT_GET
_GET_TABLE = 10 << 8 | 1
_GET_EXTENSION = 11 << 8 | 0
_FAMILIES = {IPV4: socket.AF_INET, IPV6: socket.AF_INET6}

MATCH = 0
TARGET = 1

#: seconds; the kernel answers within the call, so this is never waited for
_PATIENCE = 5.0


def has_nft_table(family: str, name: str) -> t.Optional[bool]:
    """Whether nf_tables holds a table of this family and name in our network namespace; none where it will not say."""
    return _ask(_GET_TABLE, family, [(1, name.encode("ascii") + b"\0")])


def has_extension(family: str, kind: int, name: str, revision: int) -> t.Optional[bool]:
    """Whether iptables-nft rules can use an xtables extension on this kernel; none where the kernel will not say.

    This is the very question that iptables-nft asks before it uses one. C(iptables-restore --test) is no help: it never
    gets as far as the kernel.

    :param kind: MATCH or TARGET.
    """
    attributes = [(1, name.encode("ascii") + b"\0"), (2, struct.pack("!I", revision)), (3, struct.pack("!I", kind))]
    return _ask(_GET_EXTENSION, family, attributes)


def _ask(message: int, family: str, attributes: t.Sequence[t.Tuple[int, bytes]]) -> t.Optional[bool]:
    body = struct.pack("!BBH", _FAMILIES[family], 0, 0)
    for kind, value in attributes:
        body += struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
            kernel.settimeout(_PATIENCE)
            kernel.bind((0, 0))
            kernel.send(struct.pack("=IHHII", 16 + len(body), message, _REQUEST, 1, 0) + body)
            answer = kernel.recv(65536)
    except OSError:
        return None
    if struct.unpack_from("=H", answer, 4)[0] != _ERROR:
        return True
    code = -struct.unpack_from("=i", answer, 16)[0]
    # Every other error says that the thing, or all of its kind, is not there.
    return None if code in (errno.EPERM, errno.EACCES, errno.ENOMEM, errno.EAGAIN, errno.EINTR) else False
