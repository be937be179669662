# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Config files: the reference agent's keys and semantics, and a clear word where it says nothing."""

from __future__ import annotations

import builtins
import os
import socket
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils import config_file
from ansible_collections.kubenode.ip_masq.plugins.module_utils.config import Config, build, file_key
from ansible_collections.kubenode.ip_masq.plugins.module_utils.errors import ConfigError

RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
MIXED = ["172.16.0.0/12", "fc00::/7"]


def policy(text: str) -> Config:
    return build(config_file.parse(text, "cfg").values, label=file_key)


class Expected(t.NamedTuple):
    cidrs: t.Sequence[str] = RFC1918
    masq_link_local: bool = False
    seconds: int = 60


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", Expected()),
        ("\n# only a remark\n", Expected()),
        ("---\n", Expected()),
        ("{}", Expected()),
        ("null", Expected()),
        ("---\n...\n", Expected()),
        (
            "nonMasqueradeCIDRs:\n  - 172.16.0.0/12\n  - 10.0.0.0/8\nmasqLinkLocal: true\nresyncInterval: 5s\n",
            Expected(["172.16.0.0/12", "10.0.0.0/8"], True, 5),
        ),
        ("nonMasqueradeCIDRs: [192.168.0.0/16]", Expected(["192.168.0.0/16"])),
        ("nonMasqueradeCIDRs:\n", Expected([])),
        ("nonMasqueradeCIDRs: []\n", Expected([])),
        ("nonMasqueradeCIDRs: null\n", Expected([])),
        ("masqLinkLocal: true\n", Expected(masq_link_local=True)),
        ("masqLinkLocal:\n", Expected()),
        ("resyncInterval: 5m\n", Expected(seconds=300)),
        ("cidrLimit: 3\n", Expected()),
        ("RESYNCINTERVAL: 5m\nMasqLinklocal: true\n", Expected(masq_link_local=True, seconds=300)),
        (
            '{"nonMasqueradeCIDRs": ["172.16.0.0/12", "10.0.0.0/8"], "masqLinkLocal": true, "resyncInterval": "5s"}',
            Expected(["172.16.0.0/12", "10.0.0.0/8"], True, 5),
        ),
        ('{"nonMasqueradeCIDRs": ["192.168.0.0/16"]}', Expected(["192.168.0.0/16"])),
        ('{"nonMasqueradeCIDRs": null}', Expected([])),
        ('{"masqLinkLocal": true}', Expected(masq_link_local=True)),
        ('{"resyncInterval": "5m"}', Expected(seconds=300)),
        ('{"resyncInterval": "\\u0035\\u006d"}', Expected(seconds=300)),
        ("{resyncInterval: 5m} # flow YAML", Expected(seconds=300)),
    ],
)
def test_what_a_file_says_and_defaults_for_the_rest(text: str, expected: Expected) -> None:
    config = policy(text)
    assert [str(network) for network in config.non_masquerade_cidrs] == list(expected.cidrs)
    assert config.masq_link_local is expected.masq_link_local
    assert config.resync_interval == expected.seconds * 10**9
    assert config_file.parse(text, "cfg").notes == ()


@pytest.mark.parametrize(
    "text",
    [
        "enableIPv6: true\nmasqLinkLocalIPv6: true\nnonMasqueradeCIDRs: [172.16.0.0/12, 'fc00::/7']\n",
        "nonMasqueradeCIDRs:\n- 172.16.0.0/12\n- fc00::/7\nenableIPv6: true\nmasqLinkLocalIPv6: true\n",
        '{"enableIPv6": true, "masqLinkLocalIPv6": true, "nonMasqueradeCIDRs": ["172.16.0.0/12", "fc00::/7"]}',
    ],
)
def test_ipv6_mixed_in_with_ipv6_on(text: str) -> None:
    config = policy(text)
    assert [str(network) for network in config.non_masquerade_cidrs] == MIXED
    assert config.masq_link_local_ipv6 and not config.masq_link_local


@pytest.mark.parametrize(
    "text, problem",
    [
        ("nonMasqueradeCIDRs: [10.0.0.0/8", r"cfg does not parse as YAML, line \d"),
        ("resyncInterval: 5m\n\tmasqLinkLocal: true\n", r"cfg does not parse as YAML, line 2"),
        ("a: b: c\n", r"cfg does not parse as YAML, line 1"),
        ("masqLinkLocal: true\n---\nmasqLinkLocal: false\n", r"cfg does not parse as YAML"),
        ("masqLinkLocal: !!python/object:os.system true\n", r"cfg does not parse as YAML, line 1"),
        ("masqLinkLocal: !!bool maybe\n", r"cfg does not parse as YAML"),
        ('{\n "masqLinkLocal": true\n "cidrLimit": 3}', r"cfg does not parse as JSON, line 3"),
        ('{"masqLinkLocal": tru}[', r"cfg does not parse as JSON, line 1"),
        ("- masqLinkLocal\n", "cfg holds a list, not a mapping"),
        ("[]", "cfg holds a list, not a mapping"),
        ("5", "cfg holds a number, not a mapping"),
        ("true", "cfg holds a boolean, not a mapping"),
        ("masqLinkLocal", "cfg holds a text, not a mapping"),
        ("masqLinkLocal: true\nmasqLinkLocal: true\n", "'masqLinkLocal' is given twice"),
        ('{"masqLinkLocal": true, "masqLinkLocal": true}', "'masqLinkLocal' is given twice"),
        ("masqLinkLocal: true\nmasqlinklocal: true\n", "masqLinkLocal is given twice"),
        ("unknown: {a: 1, a: 2}\n", "'a' is given twice"),
        ("nonMasqueradeCIDRs: &a [10.0.0.0/8]\nother: *a\n", r"line 2: aliases \(\*name\) are not supported"),
        ("nonMasqueradeCIDRs: [10.0.0.0/8, null]\n", "nonMasqueradeCIDRs: entry 2 is null"),
        (
            "nonMasqueradeCIDRs: [10.0.0.0/8, ]\nresyncInterval: 60\n",
            "resyncInterval: 60 is not a duration: .* with a unit",
        ),
        ("resyncInterval:\n", "resyncInterval: None is not a duration"),
        ("resyncInterval: 1:30\n", "resyncInterval: .* is not a duration"),
        ("nonMasqueradeCIDRs: 10.0.0.0/8\n", "nonMasqueradeCIDRs: .* is not a list"),
        ("masqLinkLocal: 'true'\n", "masqLinkLocal: 'true' is not a boolean"),
        ("cidrLimit: '64'\n", "cidrLimit: '64' is not a count"),
        ("nonMasqueradeCIDRs: [10.0.0.0/8, 10.0.0.1/8]\n", "nonMasqueradeCIDRs: .*aligned network is 10.0.0.0/8"),
        ("nonMasqueradeCIDRs: ['fc00::/7']\n", "nonMasqueradeCIDRs: .* set enableIPv6 to true"),
        ("nonMasqueradeCIDRs: [10.0.0.0/8, 11.0.0.0/8]\ncidrLimit: 1\n", r"cidrLimit \(1\).* raise cidrLimit"),
        ("[" * 100_000, "cfg "),
        ("{" * 100_000, "cfg "),
        ('{"a":' * 100_000, "cfg "),
        ("a: 1\x00", "cfg does not parse as YAML"),
    ],
)
def test_a_broken_file_is_refused_and_the_message_says_where(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        policy(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize("depth", [10, 100, 500, 700, 900, 950, 980, 990, 3000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}"), ("- ", ""), ("a: {", "}")])
def test_nesting_of_any_depth_is_refused_and_not_a_crash(opening: str, closing: str, depth: int) -> None:
    with pytest.raises(ConfigError):
        policy('{"nonMasqueradeCIDRs": %s1%s}' % (opening * depth, closing * depth))


def test_an_unknown_key_is_remarked_on_with_the_nearest_known_one() -> None:
    document = config_file.parse("nonMasqueradeCidr: [10.0.0.0/8]\nresyncInterval: 5m\n7: x\n", "cfg")
    assert document.values == {"resync_interval": "5m"}
    assert "cfg: the key 'nonMasqueradeCidr' is not known and has no effect" in document.notes[0]
    assert document.notes[0].endswith("nonMasqueradeCIDRs")
    assert "cfg: the key 7 is not known" in document.notes[1]


def test_json_needs_no_yaml_and_yaml_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "yaml", None)
    assert policy('{"resyncInterval": "5m"}').resync_interval == 300 * 10**9
    with pytest.raises(ConfigError, match="JSON, line 1.*install it .python3-yaml., or write JSON"):
        policy("resyncInterval: 5m\n")
    with pytest.raises(ConfigError, match="does not parse as JSON, line 1"):
        policy('{"resyncInterval": 5m}')


def test_no_file_is_all_defaults_and_no_error(tmp_path: Path) -> None:
    assert config_file.load(str(tmp_path / "none")) == config_file.Document({})


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\xef\xbb\xbfresyncInterval: 5m\n")
    assert config_file.load(str(path)) == config_file.Document({"resync_interval": "5m"})


def test_what_is_no_readable_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(str(tmp_path / "pipe"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin").write_bytes(b"masqLinkLocal: true\n# \xe4\n")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(config_file.SIZE_LIMIT + 1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    for name, problem in {
        "pipe": "is not a regular file",
        "folder": "is not a regular file|cannot be read: Is a directory",
        "socket": "cannot be read",
        "loop": "cannot be read",
        "latin": r"is not UTF-8 text \(line 2\)",
        "huge": "is larger than .* is it the right file",
        "latin/below": "cannot be read: Not a directory",
        "nul\0": "is not a path",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            config_file.load(str(tmp_path / name))


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text("{}")

    def refuse(*_arguments: t.Any, **_options: t.Any) -> t.Any:  # root may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(ConfigError, match="config cannot be read: Permission denied"):
        config_file.load(str(path))


def drop_in(folder: Path, **files: str) -> Path:
    (folder / "config.d").mkdir()
    for name, text in files.items():
        path = folder / name if name == "config" else folder / "config.d" / name.replace("_", ".")
        path.write_text(text)
    return folder


def test_drop_ins_unite_lists_in_name_order_without_duplicates(tmp_path: Path) -> None:
    folder = drop_in(
        tmp_path,
        config="nonMasqueradeCIDRs: [10.0.0.0/8, 11.0.0.0/8]\n",
        b_yaml="nonMasqueradeCIDRs: [12.0.0.0/8, 10.0.0.0/8]\n",
        a_json='{"nonMasqueradeCIDRs": ["13.0.0.0/8"]}',
        c_yml="nonMasqueradeCIDRs:\n",
        d_txt="nonMasqueradeCIDRs: [99.0.0.0/8]\n",
    )
    document, read = config_file.load_directory(str(folder))
    assert document.values == {"non_masquerade_cidrs": ["10.0.0.0/8", "11.0.0.0/8", "13.0.0.0/8", "12.0.0.0/8"]}
    assert [os.path.basename(path) for path in read] == ["config", "a.json", "b.yaml", "c.yml"]
    assert document.notes == ()


def test_of_drop_in_scalars_the_last_wins_and_a_conflict_is_remarked_on(tmp_path: Path) -> None:
    folder = drop_in(
        tmp_path,
        config="resyncInterval: 5m\nmasqLinkLocal: true\n",
        a_json='{"resyncInterval": "6m", "masqLinkLocal": true}',
    )
    document, _read = config_file.load_directory(str(folder))
    assert document.values == {"resync_interval": "6m", "masq_link_local": True}
    (note,) = document.notes
    assert "resyncInterval is '6m' here and '5m' in" in note and "the last one read wins" in note


def test_drop_ins_need_no_config_beside_them_and_hidden_files_are_none(tmp_path: Path) -> None:
    folder = drop_in(tmp_path, a_json='{"resyncInterval": "6m"}')
    (folder / "config.d" / ".b.json").write_text("{{{")
    document, read = config_file.load_directory(str(folder))
    assert document.values == {"resync_interval": "6m"} and len(read) == 1
    assert config_file.load_directory(str(tmp_path / "none")) == (config_file.Document({}), ())


def test_one_broken_drop_in_is_an_error_naming_it(tmp_path: Path) -> None:
    folder = drop_in(tmp_path, config="resyncInterval: 5m\n", a_json="{")
    with pytest.raises(ConfigError, match="a.json does not parse as JSON, line 1"):
        config_file.load_directory(str(folder))
