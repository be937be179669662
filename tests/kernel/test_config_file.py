# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy from a file on the node, with the reference agent's keys and semantics."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from support.modules import apply, refused
from support.namespaces import Namespace
from support.variants import VARIANTS, pristine, snapshot

NFT = VARIANTS["iptables_nft"]
LINK_LOCAL = "169.254.0.0/16"
RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


def exempt(ns: Namespace) -> t.List[str]:
    """The active exempt IPv4 ranges, in order."""
    found = NFT.exempt(ns)
    assert NFT.rules(ns, "ipv4") == [*("-d %s -j RETURN" % one for one in found), "-j MASQUERADE --random-fully"]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "nonMasqueradeCIDRs:\n  - 172.16.0.0/12\n  - 10.0.0.0/8\ncidrLimit: 2\nmasqLinkLocal: true\n",
        '{"nonMasqueradeCIDRs": ["172.16.0.0/12", "10.0.0.0/8"], "cidrLimit": 2, "masqLinkLocal": true}',
    ],
    ids=["YAML", "JSON"],
)
def test_file_becomes_these_exemptions(ns: Namespace, tmp_path: Path, text: str) -> None:
    """What else a file may say: tests/unit, test_config_file.py."""
    path = tmp_path / "config"
    path.write_text(text)
    apply(ns, config_file=str(path))
    assert exempt(ns) == ["172.16.0.0/12", "10.0.0.0/8"]
    assert apply(ns, config_file=str(path))["changed"] is False


def test_missing_file_means_all_defaults(ns: Namespace, tmp_path: Path) -> None:
    apply(ns, config_file=str(tmp_path / "none"))
    assert exempt(ns) == [LINK_LOCAL, *RFC1918]


def test_ipv6_ranges_of_a_file_go_to_the_ipv6_chain(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("nonMasqueradeCIDRs: [10.1.0.0/16, 'fc00::/7']\n")
    apply(ns, config_file=str(path), enable_ipv6=True)
    assert exempt(ns) == [LINK_LOCAL, "10.1.0.0/16"]
    rules = NFT.rules(ns, "ipv6")
    assert rules == ["-d fe80::/10 -j RETURN", "-d fc00::/7 -j RETURN", "-j MASQUERADE --random-fully"]


def test_unknown_key_is_warned_about_with_the_nearest_known_one(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("nonMasqueradeCIDR: [10.1.0.0/16]\ncidrLimit: 64\n")
    done = apply(ns, config_file=str(path))
    (warned,) = [warning for warning in done["warnings"] if "'nonMasqueradeCIDR'" in warning]
    assert "nonMasqueradeCIDRs" in warned and str(path) in warned
    assert exempt(ns) == [LINK_LOCAL, *RFC1918]


def test_bad_file_is_refused_and_nothing_is_touched(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("nonMasqueradeCIDRs: [10.0.0.1/8]\n")
    message = refused(ns, config_file=str(path))
    for needle in (str(path), "nonMasqueradeCIDRs", "10.0.0.1/8", "10.0.0.0/8"):
        assert needle in message
    assert pristine(snapshot(ns))


def test_file_that_root_may_not_read_is_refused(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("masqLinkLocal: true\n")
    path.chmod(0)
    os.chown(path, 65534, 65534)
    weak = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    message = refused(ns, config_file=str(path), wrapper=weak)
    assert str(path) in message
    assert "ermission" in message
    assert pristine(snapshot(ns))
