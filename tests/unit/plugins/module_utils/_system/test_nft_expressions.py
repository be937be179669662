# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of attributes are those of the kernel's headers, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nft_expressions as expressions

HEADERS = [Path("/usr/include/linux/netfilter") / name for name in ("nf_tables.h", "nf_tables_compat.h")]


@pytest.mark.parametrize("name", sorted(expressions.ATTRIBUTES))
def test_attributes_have_the_numbers_of_the_headers(name: str) -> None:
    if not HEADERS[0].exists():
        pytest.skip("the kernel's headers are not installed (linux-libc-dev)")
    text = "".join(header.read_text("utf-8") for header in HEADERS).replace("NFTA_NG_", "NFTA_NUMGEN_")
    listed = [one.lower() for one in re.findall(r"^\s*NFTA_%s_(\w+)," % name.upper(), text, re.MULTILINE)]
    known = expressions.ATTRIBUTES[name]
    assert [one for one in listed if one != "unspec"][: len(known)] == list(known)


def test_what_is_written_is_read() -> None:
    written = expressions.expression("cmp", sreg=1, op=0, data=netlink.attribute(1, b"\x06"))
    ((name, data),) = expressions.of_rule(written)
    assert name == "cmp" and list(data) == ["sreg", "op", "data"] and data["sreg"] == b"\0\0\0\1"


def test_what_has_no_name_is_left_out() -> None:
    assert expressions.named("numgen", {1: b"a", 2: b"b", 99: b"c"}) == {"dreg": b"a", "modulus": b"b"}
    assert expressions.named("mystery", {1: b"a"}) == {}
