# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bodies of many messages are what was put in."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.nf_tables import Bodies
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5), st.integers(0, 1100))
def test_bodies(some: t.List[bytes], count: int) -> None:
    given_ = [some[number % len(some)] for number in range(count)]
    bodies = Bodies(given_)
    assert [*bodies] == [*bodies] == given_
    assert (len(bodies), bool(bodies)) == (count, bool(count))
    assert b"something else" not in bodies and all(one in bodies for one in given_[-1:])
