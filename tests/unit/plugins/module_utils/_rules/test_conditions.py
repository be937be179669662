# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of conditions has what readers evaluate, by the names of the kernel's headers and the manual pages."""

from __future__ import annotations

import gzip
import re
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._rules import conditions, nft_rules, xt_rules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nf_tables, nft_expressions
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.routing import routing_lookups

HEADERS = Path("/usr/include")
MANUALS = Path("/usr/share/man/man8")


def _header(name: str) -> str:
    path = HEADERS / name
    if not path.exists():
        pytest.skip("the kernel's headers are not installed (linux-libc-dev)")
    return path.read_text(encoding="utf-8")


def _constants(header: str, prefix: str) -> t.List[str]:
    """The names with a prefix in an enumeration, in order."""
    return [name.lower() for name in re.findall(r"^\s*%s(\w+)," % prefix, _header(header), re.MULTILINE)]


def _names(area: str) -> t.Set[str]:
    return {name for row in conditions.AREAS[area].rows for name in row.names}


@pytest.mark.parametrize(
    ("known", "header", "prefix", "newer"),
    [
        (nft_expressions.META_KEYS, "linux/netfilter/nf_tables.h", "NFT_META_", {"iftype": "iiftype"}),
        (nft_expressions.CT_KEYS, "linux/netfilter/nf_tables.h", "NFT_CT_", {}),
        (routing_lookups._OF_RULES, "linux/fib_rules.h", "FRA_", {}),
        (routing_lookups._OF_ROUTES, "linux/rtnetlink.h", "RTA_", {}),
    ],
    ids=["meta", "ct", "rule", "route"],
)
def test_keys_have_the_numbers_of_the_headers(
    known: t.Sequence[str], header: str, prefix: str, newer: t.Dict[str, str]
) -> None:
    listed = [newer.get(name, name) for name in _constants(header, prefix)][: len(known)]
    assert listed == list(known[: len(listed)]) and len(listed) > 15


def test_numbers_of_routing_have_the_names_of_the_headers() -> None:
    for prefix, names in (("_FRA_", routing_lookups._OF_RULES), ("_RTA_", routing_lookups._OF_ROUTES)):
        for number, name in enumerate(names):
            assert getattr(routing_lookups, prefix + name.upper(), number) == number


@pytest.mark.parametrize(
    ("area", "known"),
    [
        (conditions.META, nft_expressions.META_KEYS),
        (conditions.META_SET, nft_expressions.META_KEYS),
        (conditions.CT, nft_expressions.CT_KEYS),
        (conditions.CT_SET, nft_expressions.CT_KEYS),
        (conditions.OBJECT, nf_tables.OBJECTS),
        (conditions.RULE, routing_lookups._OF_RULES),
        (conditions.ROUTE, routing_lookups._OF_ROUTES),
    ],
)
def test_what_is_listed_is_what_readers_know(area: str, known: t.Sequence[str]) -> None:
    assert _names(area) <= set(known)


def test_what_readers_evaluate_is_listed() -> None:
    assert set(nft_rules._HANDLERS) <= _names(conditions.EXPRESSION)
    # A socket is not evaluated; it may have a mark for the packet.
    assert set(xt_rules._MATCHES) - {"socket"} <= _names(conditions.MATCH)
    assert {*xt_rules._TARGETS, *xt_rules.VERDICTS} <= _names(conditions.TARGET)


def _manual(name: str) -> str:
    for path in (MANUALS / (name + ".8.gz"), MANUALS / (name + ".8")):
        if path.exists():
            raw = path.read_bytes()
            return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")
    pytest.skip("the manual page %s(8) is not installed" % name)


def test_what_the_manual_page_of_iptables_lists() -> None:
    matches, _heading, targets = _manual("iptables-extensions").partition(".SH TARGET EXTENSIONS")
    built_in = {"ACCEPT", "DROP", "RETURN", "udplite"}
    for area, part in ((conditions.MATCH, matches), (conditions.TARGET, targets)):
        listed = set(re.findall(r"^\.SS \"?([\w]+)", part, re.MULTILINE))
        assert _names(area) - built_in <= listed


def test_what_the_manual_page_of_ipset_lists() -> None:
    listed = set(re.findall(r"^\.SS \"?((?:hash|bitmap|list):[\w,]+)", _manual("ipset"), re.MULTILINE))
    assert _names(conditions.IPSET) <= listed


def test_every_row_says_why() -> None:
    for area in conditions.AREAS.values():
        for row in area.rows:
            assert row.result in (conditions.DIVIDED, conditions.IRRELEVANT)
            assert row.text or row.result == conditions.DIVIDED, row
            assert not row.text.endswith("."), row


def test_what_is_not_listed_is_unknown() -> None:
    assert not conditions.is_known(conditions.EXPRESSION, "nonsense")
    assert not conditions.is_irrelevant(conditions.EXPRESSION, "nonsense")
    assert conditions.because(conditions.MATCH, "nonsense") == "the match nonsense"
