# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of netlink: what is taken apart, changed and put together again is the same."""

from __future__ import annotations

import errno
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.netlink import KernelError, Message, Netlink
from hypothesis import given
from hypothesis import strategies as st

ATTRIBUTES = st.lists(st.tuples(st.integers(1, 20), st.binary(max_size=20)), max_size=8)


def _together(attributes: t.Iterable[t.Tuple[int, bytes]]) -> bytes:
    return b"".join(netlink.attribute(kind, value) for kind, value in attributes)


@given(ATTRIBUTES)
def test_split(attributes: t.List[t.Tuple[int, bytes]]) -> None:
    data = _together(attributes)
    assert len(data) % 4 == 0
    assert list(netlink.split(data)) == attributes
    assert netlink.attributes(data) == dict(attributes)
    assert b"".join(whole for _kind, _value, whole in netlink.pieces(data)) == data


@given(ATTRIBUTES, st.sets(st.integers(1, 20)))
def test_only_and_replace(attributes: t.List[t.Tuple[int, bytes]], kinds: t.Set[int]) -> None:
    data = _together(attributes)
    assert netlink.only(data, kinds) == _together(one for one in attributes if one[0] in kinds)
    assert netlink.replace(data, dict.fromkeys(kinds)) == _together(one for one in attributes if one[0] not in kinds)
    new = dict.fromkeys(kinds, b"new")
    assert netlink.replace(data, new) == _together((kind, new.get(kind, value)) for kind, value in attributes)


def test_flags_are_no_part_of_the_type() -> None:
    data = netlink.nest(3, netlink.text(1, "name"), netlink.network_word(2, 5))
    ((kind, value),) = netlink.split(data)
    assert kind == 3
    assert netlink.name(netlink.attributes(value)[1]) == "name"
    assert netlink.only(data, (3,)) == data


@given(st.binary(max_size=40))
def test_damage_is_no_trap(data: bytes) -> None:
    netlink.attributes(data)
    list(netlink.pieces(data))


_INTERRUPTED = 0x10
_DONE = 3


class _Kernel(Netlink):
    """Answers dumps of one object each; the first ones are interrupted."""

    def __init__(self, interrupted: int) -> None:
        self.left = interrupted

    def send(self, _messages: t.Sequence[Message], _flags: int) -> int:
        self.left -= 1
        return self.left

    def receive(self) -> t.List[t.Tuple[int, int, Message]]:
        flags = _INTERRUPTED if self.left >= 0 else 0
        other = (0, self.left + 1, Message(7, b"other"))
        return [other, (flags, self.left, Message(7, b"one")), (0, self.left, Message(_DONE, bytes(4)))]


def test_a_dump_that_was_interrupted_begins_again() -> None:
    assert _Kernel(2).dump(1, b"", "it") == [Message(7, b"one")]
    with pytest.raises(netlink.NodeError, match="cannot read it: other programs keep changing them"):
        _Kernel(2).dump(1, b"", "it", attempts=2)


def test_the_objects_of_a_dump_as_they_come() -> None:
    assert list(_Kernel(0).each(1, b"", "it")) == [Message(7, b"one")]
    with pytest.raises(KernelError) as told:
        list(_Kernel(1).each(1, b"", "it"))
    assert told.value.code == errno.EINTR
