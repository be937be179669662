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


#: name -> text of the file, active exempt ranges. All that a file can say: tests/unit, test_config_file.py.
GOOD: t.Dict[str, t.Tuple[str, t.List[str]]] = {
    "all keys, YAML": (
        (
            "nonMasqueradeCIDRs:\n  - 172.16.0.0/12\n  - 10.0.0.0/8\ncidrLimit: 2\nmasqLinkLocal: true\n"
            "masqLinkLocalIPv6: true\nresyncInterval: 5s\n"
        ),
        ["172.16.0.0/12", "10.0.0.0/8"],
    ),
    "all keys, JSON": (
        (
            '{"nonMasqueradeCIDRs": ["172.16.0.0/12", "10.0.0.0/8"], "cidrLimit": 2, "masqLinkLocal": true,'
            ' "masqLinkLocalIPv6": true, "resyncInterval": "5s"}'
        ),
        ["172.16.0.0/12", "10.0.0.0/8"],
    ),
    "only ranges": ("nonMasqueradeCIDRs: [172.20.0.0/14]\n", [LINK_LOCAL, "172.20.0.0/14"]),
    "null list": ("nonMasqueradeCIDRs:\n", [LINK_LOCAL]),
    "empty file": ("", [LINK_LOCAL, *RFC1918]),
    "keys in any case": ("NONMASQUERADECIDRS: [10.1.0.0/16]\nmasqlinklocal: true\n", ["10.1.0.0/16"]),
}


@pytest.mark.parametrize("case", GOOD)
def test_file_becomes_these_exemptions(ns: Namespace, tmp_path: Path, case: str) -> None:
    text, ranges = GOOD[case]
    path = tmp_path / "config"
    path.write_text(text)
    apply(ns, config_file=str(path))
    assert exempt(ns) == ranges
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


@pytest.mark.parametrize(
    "text, unknown, nearest",
    [
        ("nonMasqueradeCIDR: [10.1.0.0/16]\ncidrLimit: 64\n", "nonMasqueradeCIDR", "nonMasqueradeCIDRs"),
        ('{"masqLinkLocl": true, "cidrLimit": 64}', "masqLinkLocl", "masqLinkLocal"),
        ("resync_interval: 5m\ncidrLimit: 64\n", "resync_interval", "resyncInterval"),
    ],
)
def test_unknown_key_is_warned_about_with_the_nearest_known_one(
    ns: Namespace, tmp_path: Path, text: str, unknown: str, nearest: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    done = apply(ns, config_file=str(path))
    warned = [str(warning) for warning in done["warnings"] if unknown in str(warning)]
    assert len(warned) == 1
    assert nearest in warned[0].replace(unknown + "'", "").replace(unknown + '"', "")
    assert str(path) in warned[0]
    assert exempt(ns) == [LINK_LOCAL, *RFC1918]


#: name -> text of the file, what the message must hold besides the file's name
BAD: t.Dict[str, t.Tuple[t.Union[str, bytes], t.List[str]]] = {
    "bad YAML": ("nonMasqueradeCIDRs:\n  - 10.0.0.0/8\n - 10.1.0.0/16\n", ["line 3"]),
    "bad JSON": ('{\n"masqLinkLocal": true,\n"cidrLimit" 2}', ["line 3"]),
    "duplicate key": ("masqLinkLocal: true\nmasqLinkLocal: false\n", ["masqLinkLocal"]),
    "word": ("hello\n", ["mapping"]),
    "not UTF-8": (b"masqLinkLocal: \xff\xfe\n", ["UTF-8"]),
    "bad range": ("nonMasqueradeCIDRs: [10.0.0.1/8]\n", ["10.0.0.1/8", "10.0.0.0/8", "nonMasqueradeCIDRs"]),
    "number for a boolean": ("masqLinkLocal: 1\n", ["masqLinkLocal", "1"]),
    "interval zero": ("resyncInterval: 0s\n", ["resyncInterval", "0s"]),
    "object tag": ("masqLinkLocal: !!python/object/apply:os.system ['true']\n", ["line 1"]),
    "ConfigMap": (
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  config: |\n    nonMasqueradeCIDRs: [10.5.0.0/16]\n",
        ["is a ConfigMap and not a policy: write only the text of data.config"],
    ),
    "no known key": ("nonMasqueradeCIDR: [10.1.0.0/16]\n", ["no key of it is known", "nonMasqueradeCIDRs"]),
    "deep nesting": ("[" * 100_000, ["mapping"]),
    "huge": ("# " + "x" * 20_000_000 + "\n", ["bytes"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_file_is_refused_and_nothing_is_touched(ns: Namespace, tmp_path: Path, case: str) -> None:
    text, needles = BAD[case]
    path = tmp_path / "config"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(ns, config_file=str(path))
    assert str(path) in message
    if case != "deep nesting":
        missing = [needle for needle in needles if needle not in message]
        assert missing == [], message
    assert len(message) < 2000
    assert pristine(snapshot(ns))


def test_directory_is_refused(ns: Namespace, tmp_path: Path) -> None:
    assert str(tmp_path) in refused(ns, config_file=str(tmp_path))
    assert pristine(snapshot(ns))


def test_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "config"
    os.mkfifo(path)
    assert str(path) in refused(ns, config_file=str(path))
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
