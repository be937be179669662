# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Netlink: requests to the kernel, and its answers. Message layout: linux/netlink.h.

What a dump returns can be sent again in another namespace almost as it is, so a copy of a node's network state needs no
tool, and nothing is lost that tools cannot express.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
import typing as t

from .._errors import NodeError
from . import files
from .families import BY_NUMBER

ROUTE = 0
XFRM = 6
NETFILTER = 12

REQUEST = 0x1
ACK = 0x4
CREATE = 0x400
EXCLUSIVE = 0x200
APPEND = 0x800
_DUMP = 0x300
_DUMP_INTERRUPTED = 0x10

_ERROR = 2
_DONE = 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
#: NLA_F_NESTED and NLA_F_NET_BYTEORDER do not belong to an attribute's type.
_TYPE = 0x3FFF
NESTED = 0x8000
NETWORK_ORDER = 0x4000

#: bytes; the kernel never puts more into one part of a dump
_CHUNK = 1 << 18
#: bytes of messages that may wait, for callers that send, or hear of, many thousand changes at once
LARGE = 1 << 26
#: seconds that one answer may take; the kernel answers within the call, so this is not waited for
_PATIENCE = 30.0
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
#: Dumps that other programs interrupt with changes are started again, so many times at most.
ATTEMPTS = 5

#: The kernel did not look. Every other error means that the object, or all of its kind, does not exist.
NO_ANSWER = (errno.EPERM, errno.EACCES, errno.ENOMEM, errno.EAGAIN, errno.EINTR)

Attributes = t.Dict[int, bytes]


class Message(t.NamedTuple):
    """One message without its header: its type, and the bytes that follow."""

    kind: int
    body: bytes


class KernelError(NodeError):
    """The kernel refused a request."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__("the kernel refused %s: %s" % (what, os.strerror(code)))
        self.code = code


@contextlib.contextmanager
def ignoring(*codes: int) -> t.Iterator[None]:
    """Go on where the kernel refuses a request with one of these errors; without any, where it looked."""
    try:
        yield
    except KernelError as exc:
        if exc.code in NO_ANSWER if not codes else exc.code not in codes:
            raise


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def nest(kind: int, *attributes: bytes) -> bytes:
    """Return attributes within an attribute."""
    return attribute(kind | NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """Return an attribute that holds a name."""
    return attribute(kind, value.encode("utf-8", "surrogateescape") + b"\0")


def word(kind: int, value: int) -> bytes:
    """Return an attribute of 32 bits in the byte order of the machine, as rtnetlink wants them."""
    return attribute(kind, struct.pack("=I", value))


def network_word(kind: int, value: int) -> bytes:
    """Return an attribute of 32 bits in network byte order, as nfnetlink wants them."""
    return attribute(kind, struct.pack("!I", value))


def pieces(data: bytes) -> t.Iterator[t.Tuple[int, bytes, bytes]]:
    """Return the type and value of each attribute, in order, and all its bytes."""
    begin, end = 0, len(data)
    while begin + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < 4:
            return
        following = begin + ((length + 3) & ~3)
        yield kind & _TYPE, data[begin + 4 : begin + length], data[begin:following]
        begin = following


def split(data: bytes) -> t.Iterator[t.Tuple[int, bytes]]:
    """Return the type and value of each attribute, in order."""
    return ((kind, value) for kind, value, _bytes in pieces(data))


def attributes(data: bytes) -> Attributes:
    """Return the last value of each type of attribute."""
    found = {}
    position, end = 0, len(data)
    while position + 4 <= end:  # as pieces(), without its cost: this is what most of the time goes into
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < 4:
            break
        found[kind & _TYPE] = data[position + 4 : position + length]
        position += (length + 3) & ~3
    return found


def value(data: bytes, wanted: int) -> bytes:
    """Return the first value of one type of attribute; empty if there is none."""
    position, end = 0, len(data)
    while position + 4 <= end:  # as attributes(), of which one is wanted
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < 4:
            break
        if kind & _TYPE == wanted:
            return data[position + 4 : position + length]
        position += (length + 3) & ~3
    return b""


def only(data: bytes, kept: t.Container[int]) -> bytes:
    """Return the attributes of these types, byte for byte."""
    parts = []
    position, end = 0, len(data)
    while position + 4 <= end:  # as in attributes(): done for each of tens of thousands of rules
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < 4:
            break
        following = position + ((length + 3) & ~3)
        if kind & _TYPE in kept:
            parts.append(data[position:following])
        position = following
    return b"".join(parts)


def replace(data: bytes, changes: t.Mapping[int, t.Optional[bytes]], flags: int = 0) -> bytes:
    """Return all attributes, byte for byte, but for those of the types in ``changes``: with a new value, or left out.

    :param flags: of those that get a new value.
    """
    parts = []
    for kind, _value, whole in pieces(data):
        new = changes.get(kind)
        if kind not in changes:
            parts.append(whole)
        elif new is not None:
            parts.append(attribute(kind | flags, new))
    return b"".join(parts)


def family_head(family: int) -> bytes:
    """Return what each message of nfnetlink begins with (struct nfgenmsg).

    :param family: 0: all.
    """
    return struct.pack("!BBH", family, 0, 0)


def number(value: t.Optional[bytes]) -> int:
    """Return a number from an attribute in network byte order; 0 without one."""
    return int.from_bytes(value or b"", "big")


def native(value: t.Optional[bytes]) -> int:
    """Return a number from an attribute in the byte order of the machine; 0 without one."""
    return int.from_bytes(value or b"", sys.byteorder)


def name(value: bytes) -> str:
    """Return a name from an attribute."""
    return value.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


class Netlink:
    """A conversation with the kernel about the namespace in which it was opened. Use it in ``with``."""

    def __init__(self, protocol: int, buffer: int = 0) -> None:
        """Open a socket.

        :param buffer: bytes of messages that may wait in either direction; 0: what the system gives.
        :raises NodeError: this kernel does not offer the protocol, or not to us.
        """
        with files.failing_to("open", "a netlink socket"):
            self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
            self.socket.bind((0, 0))
        self.socket.settimeout(_PATIENCE)
        if buffer:
            self._enlarge(buffer)
        self._sequence = 0
        #: for what is received: a new one each time costs more than all else, because its memory is new too
        self._buffer = memoryview(bytearray(_CHUNK))

    def _enlarge(self, size: int) -> None:
        for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, force, size)
            except OSError:  # without CAP_NET_ADMIN
                self.socket.setsockopt(socket.SOL_SOCKET, plain, size)

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.socket.close()

    def dump(self, kind: int, body: bytes, what: str, attempts: int = ATTEMPTS) -> t.List[Message]:
        """Dump all objects of one kind.

        :param what: the object of the request, for the error message.
        :param attempts: how often a dump is started, if other programs interrupt it with changes.
        :raises KernelError: the kernel refused.
        :raises NodeError: it kept changing, or did not answer.
        """
        for _attempt in range(attempts):
            with ignoring(errno.EINTR):
                return list(self.each(kind, body, what))
        raise NodeError("cannot read %s: other programs keep changing them" % what)

    def each(self, kind: int, body: bytes, what: str) -> t.Iterator[Message]:
        """Dump all objects of one kind, and return them as they come.

        :raises KernelError: the kernel refused; with EINTR, other programs made changes: some of them may be missing.
        """
        sequence = self.send([Message(kind, body)], REQUEST | _DUMP)
        whole = True
        while True:
            for flags, number, message in self.receive():
                if number != sequence:
                    continue
                whole = whole and not flags & _DUMP_INTERRUPTED
                if message.kind in (_DONE, _ERROR):
                    _check(message.body, what)
                if message.kind == _DONE:
                    if not whole:
                        raise KernelError(errno.EINTR, what)
                    return
                if message.kind != _ERROR:
                    yield message

    def dump_families(
        self, kind: int, size: int, what: str, families: t.Iterable[int] = BY_NUMBER
    ) -> t.Tuple[bytes, ...]:
        """Dump all objects of a kind of rtnetlink, and return the bodies of the messages.

        :param size: of their header, which begins with the family.
        :raises NodeError: as ``dump``.
        """
        found: t.List[bytes] = []
        for family in families:
            with ignoring(errno.EAFNOSUPPORT, errno.EOPNOTSUPP):  # without IPv6, or without routing rules
                request = struct.pack("B", family).ljust(size, b"\0")
                found += (message.body for message in self.dump(kind, request, what))
        return tuple(found)

    def ask(self, kind: int, body: bytes, what: str) -> Message:
        """Get one object; raise KernelError if there is none, or the kernel refuses."""
        return self.ask_all(kind, body, 1, what)[0]

    def ask_all(self, kind: int, body: bytes, count: int, what: str) -> t.List[Message]:
        """Get so many objects with one request that names each.

        :raises KernelError: one is not there, or the kernel refused.
        """
        sequence = self.send([Message(kind, body)], REQUEST)
        found: t.List[Message] = []
        while len(found) < count:
            for _flags, number, message in self.receive():
                if number == sequence:
                    if message.kind == _ERROR:
                        _check(message.body, what)
                    found.append(message)
        return found

    def change(self, messages: t.Sequence[Message], flags: int = CREATE) -> t.List[int]:
        """Carry out changes, one after the other, also where an earlier one fails.

        :returns: for each message 0, or the error number with which the kernel refused it.
        """
        codes: t.List[int] = []
        for start in range(0, len(messages), 256):
            part = messages[start : start + 256]
            first = self.send(part, REQUEST | ACK | flags) - len(part) + 1
            answers: t.Dict[int, int] = {}
            while len(answers) < len(part):
                for _flags, number, message in self.receive():
                    if message.kind == _ERROR and first <= number < first + len(part):
                        answers[number] = -struct.unpack_from("=i", message.body)[0]
            codes += [answers[first + index] for index in range(len(part))]
        return codes

    def send(self, messages: t.Sequence[Message], flags: int) -> int:
        """Send messages in one piece, and return the sequence number of the last."""
        parts = []
        for kind, body in messages:
            self._sequence += 1
            parts.append(_HEADER.pack(16 + len(body), kind, flags, self._sequence, 0))
            parts.append(body + b"\0" * (-len(body) % 4))
        self.socket.send(b"".join(parts))
        return self._sequence

    def receive(self) -> t.List[t.Tuple[int, int, Message]]:
        """Receive flags, sequence number and content of the messages that came next.

        :raises NodeError: none came in time.
        """
        try:
            data = bytes(self._buffer[: self.socket.recv_into(self._buffer)])
        except socket.timeout:
            raise NodeError("the kernel did not answer over netlink in time") from None
        except OSError as exc:
            if exc.errno == errno.ENOBUFS:
                raise NodeError("the kernel had more data for netlink than fits into its buffer") from None
            raise
        found = []
        position, end = 0, len(data)
        while position + 16 <= end:
            length, kind, flags, sequence, _port = _HEADER.unpack_from(data, position)
            if length < 16:
                break
            found.append((flags, sequence, Message(kind, data[position + 16 : position + length])))
            position += (length + 3) & ~3
        return found


def _check(body: bytes, what: str) -> None:
    code = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
    if code:
        raise KernelError(code, what)
