# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nothing that an operator, a file or another program writes comes out of a parser as anything but its own error."""

from __future__ import annotations

import contextlib
import json
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import iptables_syntax
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import config_file
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import policy as config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import values as value_grammar
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES, Family
from hypothesis import example, given
from hypothesis import strategies as st
from support import random_policies

#: Pieces from which grammars are made, so that random text gets past the first character.
PIECES = [" ", "\n", "\t", "\0", "? "]
PIECES += '10.0.0.0 /8 :: fc00 ffff . - + 0 1 9 s ms h 65535 , % " \\ -A -d -p -m -j -g ! comment --comment'.split()
PIECES += "statistic --mode random MASQUERADE --probability --to-ports --random-fully addrtype --dst-type LOCAL".split()
PIECES += "RETURN inf nan 1e999 { } [ ] : # &a *a !!int << | --- nonMasqueradeCIDRs".split()

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
documents = st.dictionaries(st.sampled_from([key.key for key in config.POLICY_OPTIONS]) | text, plain, max_size=5)


@pytest.mark.parametrize(
    "parse",
    [
        value_grammar.parse_cidr,
        value_grammar.parse_duration,
        value_grammar.parse_port_range_list,
        value_grammar.check_chain_name,
    ],
)
@given(value=text | data)
@example("9" * 5000)
@example("9" * 5000 + "s")
@example("." * 5000)
@example("\ud800")
def test_values(parse: t.Callable[[t.Any], t.Any], value: t.Any) -> None:
    with contextlib.suppress(ConfigError):
        parse(value)


@given(st.dictionaries(st.sampled_from([key.name for key in config.POLICY_OPTIONS]), data, max_size=6))
@example({"cidr_limit": 10**5000})
@example({"to_ports": [10**5000]})
@example({"non_masquerade_cidrs": [10**5000, {"\ud800": 10**5000}]})
@example({"masq_chain": [[[10**5000]]]})
def test_policies(values: t.Dict[str, t.Any]) -> None:
    with contextlib.suppress(ConfigError):
        config.build(values, label=config.file_key)


@given(spaced | documents.map(json.dumps))
@example('{"enableIPv6": %s}' % ("9" * 5000))
@example("enableIPv6: 0x" + "f" * 5000)
@example("cidrLimit: 1" + ":1" * 5000)
@example("%YAML 1." + "9" * 5000 + "\n--- {}")
@example('a: "\\Uffffffff"')
@example('"\\ud800": {"\\ud800": 1}')
@example("\ud800: 1")
def test_config_files(written: str) -> None:
    with contextlib.suppress(ConfigError):
        config.build(config_file.parse(written, "cfg").values, label=config.file_key)


cidrs = st.lists((random_policies.networks(4) | random_policies.networks(6)).map(str), max_size=8)
#: Policies that are valid, by file key: they keep the tests above from passing where everything is refused.
valid = st.fixed_dictionaries(
    {"enableIPv6": st.just(True)},
    optional={
        "nonMasqueradeCIDRs": st.none() | cidrs,
        "cidrLimit": st.integers(11, 2**63 - 1),
        "masqLinkLocal": st.booleans(),
        "masqLinkLocalIPv6": st.booleans(),
        "resyncInterval": st.integers(1, 10**6).map("{}s".format),
        "nomasqAllReservedRanges": st.booleans(),
        "masqChain": st.from_regex(r"\AMASQ[A-Za-z0-9_.-]{0,20}\Z"),
        "randomFully": st.booleans(),
        "toPorts": st.just("") | st.lists(random_policies.port_ranges, min_size=1, max_size=3),
        "backend": st.sampled_from(config.BACKENDS[:1] + config.BACKENDS[-1:]),
        "exemption": st.sampled_from(config.EXEMPTIONS),
    },
)


def as_yaml(values: t.Dict[str, t.Any]) -> str:
    """The same as block YAML, in which the JSON of a value is that value."""
    return "".join("%s: %s\n" % (key, json.dumps(value)) for key, value in values.items())


@given(valid, st.sampled_from([json.dumps, as_yaml, str.upper]))
def test_valid_config_files_are_accepted_for_what_they_say(values: t.Dict[str, t.Any], write: t.Any) -> None:
    if write is str.upper:
        values, write = {key.upper(): value for key, value in values.items()}, json.dumps
    document = config_file.parse(write(values), "cfg")
    options = {}
    for key, value in values.items():
        found = config.find_file_key(key)
        assert found is not None
        options[found.name] = [] if value is None else value
    assert (document.values, document.notes) == (options, ())
    built = config.build(document.values, label=config.file_key)
    if "non_masquerade_cidrs" in options:
        assert [str(network) for network in built.non_masquerade_cidrs] == options["non_masquerade_cidrs"]
    assert built.resync_interval == int(options.get("resync_interval", "60s")[:-1]) * 10**9


@pytest.mark.parametrize("family", FAMILIES)
@given(line=spaced)
@example("-A C -p tcp -j MASQUERADE --to-ports " + "9" * 5000)
@example("-A C -j MASQUERADE --to-ports 1-2-3")
@example("-A C -m statistic --mode random --probability 1e999 -j MASQUERADE")
@example('-A C -m comment --comment "open -j RETURN')
def test_listed_rules(family: Family, line: str) -> None:
    iptables_syntax.parse_rule(line, family)
    iptables_syntax.parse_rule("-A C " + line, family)
    assert all(isinstance(word, str) for word in iptables_syntax.tokenise(line))
    for rule in iptables_syntax.parse_postrouting([line, "-A POSTROUTING " + line]):
        assert rule.is_jump(iptables_syntax.nat_jump("C")) in (True, False) and rule.shuts_out_the_rest in (True, False)
        assert isinstance(rule.target, str)
