# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of all conditions has what the kernel's headers and the manual pages have."""

from __future__ import annotations

import gzip
import re
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import sysctls
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import conditions, nft_rules, routing_lookups

HEADERS = Path("/usr/include")
MANUALS = Path("/usr/share/man/man8")
#: what stands among the constants and is none of what is listed
NO_ENTRIES: t.Dict[str, t.Set[str]] = {
    "meta": {"iftype"},  # an older name of iiftype
    "hook": {"numhooks"},
    "family": {"numproto"},
    "chain type": set(),
    "fib": {"unspec"},
    "payload": set(),
    "xfrm": set(),
    "chain flag": {"flags"},
}
#: newer than the headers of the oldest supported release
NEWER: t.Dict[str, t.Set[str]] = {
    "meta": {"bri_broute", "bri_iifhwaddr", "iiftype"},
    "payload": {"tun_header"},
    "table flag": {"persist"},
    "rule": {"dscp", "flowlabel", "flowlabel_mask", "sport_mask", "dport_mask", "dscp_mask"},
    "route": {"flowlabel"},
    "hook": {"egress", "ingress"},
    "family": {"decnet"},
}


def _names(text: str, enumeration: str, prefix: str) -> t.Set[str]:
    """The constants with a prefix, of one enumeration or of a whole header."""
    if enumeration:
        found = re.search(r"enum %s\s*\{(.*?)\}" % enumeration, text, re.DOTALL)
        assert found, enumeration
        text = found.group(1)
        pattern = r"^\s*%s(\w+)\s*[,=/]|^\s*%s(\w+)\s*$" % (prefix, prefix)
    else:
        pattern = r"^\s*%s(\w+)\s*[,=/]|^\s*%s(\w+)\s*$|^#define\s+%s(\w+)\s+\d" % (prefix, prefix, prefix)
    names = {"".join(groups).lower() for groups in re.findall(pattern, text, re.MULTILINE)}
    return {name for name in names if not name.endswith("max") and name != "_max"}


_FROM_HEADERS = [
    (name, *re.fullmatch(r"(\S+\.h): (?:enum (\w+) )?(\w+_)", area.source).groups())  # type: ignore[union-attr]
    for name, area in conditions.AREAS.items()
    if re.fullmatch(r"\S+\.h: .*", area.source)
]


@pytest.mark.parametrize(
    ("name", "header", "enumeration", "prefix"), _FROM_HEADERS, ids=[one[0] for one in _FROM_HEADERS]
)
def test_what_the_headers_list(name: str, header: str, enumeration: str, prefix: str) -> None:
    path = HEADERS / header
    if not path.exists():
        pytest.skip("the kernel's headers are not installed (linux-libc-dev)")
    entries = set(conditions.AREAS[name].entries)
    there = _names(path.read_text(encoding="utf-8"), enumeration, prefix) - NO_ENTRIES.get(name, set())
    assert there, (header, prefix)
    assert there - entries == set(), "in the header and not in the table"
    assert entries - there <= NEWER.get(name, set()), "in the table and not in the header"


def test_keys_have_the_numbers_of_the_headers() -> None:
    path = HEADERS / "linux/netfilter/nf_tables.h"
    if not path.exists():
        pytest.skip("the kernel's headers are not installed (linux-libc-dev)")
    text = path.read_text(encoding="utf-8")
    for enumeration, prefix, known in (
        ("nft_meta_keys", "NFT_META_", nft_rules._META),
        ("nft_ct_keys", "NFT_CT_", nft_rules._CT),
    ):
        found = re.search(r"enum %s\s*\{(.*?)\}" % enumeration, text, re.DOTALL)
        assert found
        listed = [name.lower() for name in re.findall(r"^\s*%s(\w+)," % prefix, found.group(1), re.MULTILINE)]
        assert [name.replace("iftype", "iiftype") if name == "iftype" else name for name in listed] == list(
            known[: len(listed)]
        )


@pytest.mark.parametrize(
    ("area", "header", "prefix"), [("rule", "fib_rules.h", "FRA_"), ("route", "rtnetlink.h", "RTA_")]
)
def test_attributes_of_rules_and_routes_have_the_numbers_of_the_headers(area: str, header: str, prefix: str) -> None:
    path = HEADERS / "linux" / header
    if not path.exists():
        pytest.skip("the kernel's headers are not installed (linux-libc-dev)")
    listed = [name.lower() for name in re.findall(r"^\s*%s(\w+)," % prefix, path.read_text("utf-8"), re.MULTILINE)]
    assert listed == list(conditions.AREAS[area].entries)[: len(listed)]
    for number, name in enumerate(conditions.AREAS[area].entries):
        assert getattr(routing_lookups, "_%s%s" % (prefix, name.upper()), number) == number


def _manual(name: str) -> str:
    for path in (MANUALS / (name + ".8.gz"), MANUALS / (name + ".8")):
        if path.exists():
            raw = path.read_bytes()
            return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")
    pytest.skip("the manual page %s(8) is not installed" % name)


def test_what_the_manual_page_of_iptables_lists() -> None:
    text = _manual("iptables-extensions")
    matches, _heading, targets = text.partition(".SH TARGET EXTENSIONS")
    for area, part in (("match", matches), ("target", targets)):
        listed = set(re.findall(r"^\.SS \"?([\w]+)", part, re.MULTILINE))
        assert len(listed) > 30
        assert listed - set(conditions.AREAS[area].entries) == set()


def test_what_the_manual_page_of_ipset_lists() -> None:
    listed = set(re.findall(r"^\.SS \"?((?:hash|bitmap|list):[\w,]+)", _manual("ipset"), re.MULTILINE))
    assert len(listed) > 10
    assert listed <= set(conditions.AREAS["ipset"].entries)


def test_what_the_manual_page_of_links_lists() -> None:
    _before, heading, text = _manual("ip-link").replace("\\-", "-").partition("Link types:")
    assert heading
    listed = set(re.findall(r"^\.BR? \"?(\w+)\"?\n-", text.partition(".in -8")[0], re.MULTILINE))
    assert len(listed) > 20
    assert listed <= set(conditions.AREAS["link"].entries)


def test_settings_of_links_that_are_copied_are_listed() -> None:
    assert set(conditions.AREAS["setting"].entries) == {one for each in sysctls._PER_LINK.values() for one in each}


def test_every_entry_says_why() -> None:
    for area in conditions.AREAS.values():
        for name, made in area.entries.items():
            assert made.kind in (conditions.DIVIDED, conditions.IRRELEVANT, conditions.UNKNOWN)
            assert made.text or made.kind == conditions.DIVIDED, name
            assert not made.text.endswith("."), name


def test_what_is_not_listed_is_unknown() -> None:
    assert conditions.treatment(conditions.EXPRESSION, "nonsense").kind == conditions.UNKNOWN
    assert "nonsense" in conditions.because(conditions.MATCH, "nonsense")
