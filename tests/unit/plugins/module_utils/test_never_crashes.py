# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nothing that an operator, a file or another program writes comes out of a parser as anything but its own error."""

from __future__ import annotations

import contextlib
import json
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils import config, config_file, iptables_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils.errors import ConfigError
from hypothesis import example, given
from hypothesis import strategies as st

#: Pieces from which grammars are made, so that random text gets past the first character.
PIECES = [
    "10.0.0.0",
    "/8",
    "::",
    "fc00",
    "ffff",
    ".",
    "-",
    "+",
    "0",
    "1",
    "9",
    "s",
    "ms",
    "h",
    "65535",
    ",",
    "%",
    '"',
    "\\",
]
PIECES += [
    "-A",
    "-d",
    "-p",
    "-m",
    "-j",
    "-g",
    "!",
    "comment",
    "--comment",
    "statistic",
    "--mode",
    "random",
    "MASQUERADE",
]
PIECES += [
    "--probability",
    "--to-ports",
    "--random-fully",
    "addrtype",
    "--dst-type",
    "LOCAL",
    "RETURN",
    "inf",
    "nan",
    "1e999",
]
PIECES += [
    " ",
    "\n",
    "\t",
    "\0",
    "{",
    "}",
    "[",
    "]",
    ":",
    "#",
    "&a",
    "*a",
    "!!int",
    "<<",
    "? ",
    "|",
    "---",
    "nonMasqueradeCIDRs",
]

text = st.text() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
spaced = text | st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary()
data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=4), max_leaves=8
)
#: What a file can hold under one of our keys.
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from([key.file_key for key in config.KEYS]) | text, plain, max_size=5)


@pytest.mark.parametrize(
    "parse", [config.parse_cidr, config.parse_duration, config.parse_port_ranges, config.check_chain_name]
)
@given(value=text | data)
@example("9" * 5000)
@example("9" * 5000 + "s")
@example("." * 5000)
@example("\ud800")
def test_values(parse: t.Callable[[t.Any], t.Any], value: t.Any) -> None:
    with contextlib.suppress(ConfigError):
        parse(value)


@given(st.dictionaries(st.sampled_from([key.option for key in config.KEYS]), data, max_size=6))
def test_policies(values: t.Dict[str, t.Any]) -> None:
    with contextlib.suppress(ConfigError):
        config.build(values, label=config.file_key)


@given(spaced | documents.map(json.dumps))
def test_config_files(written: str) -> None:
    with contextlib.suppress(ConfigError):
        config.build(config_file.parse(written, "cfg").values, label=config.file_key)


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@given(line=spaced)
@example("-A C -p tcp -j MASQUERADE --to-ports " + "9" * 5000)
@example("-A C -j MASQUERADE --to-ports 1-2-3")
@example("-A C -m statistic --mode random --probability 1e999 -j MASQUERADE")
@example('-A C -m comment --comment "open -j RETURN')
def test_listed_rules(family: str, line: str) -> None:
    iptables_text.parse_rule(line, family)
    iptables_text.parse_rule("-A C " + line, family)
    assert all(isinstance(word, str) for word in iptables_text.tokenise(line))
    for rule in iptables_text.parse_postrouting([line, "-A POSTROUTING " + line]):
        assert rule.is_jump("C") in (True, False) and rule.shuts_out_the_rest in (True, False)
        assert isinstance(rule.target, str)
