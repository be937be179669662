# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The config file and its drop-ins together: which are read, in which order, and what becomes of their keys."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.config_file import Document
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.drop_ins import (
    config_paths,
    merge,
    read_directory,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CIDRS = "non_masquerade_cidrs"
INTERVAL = "resync_interval"


def write(directory: Path, files: t.Mapping[str, str]) -> None:
    """Write the config file (``config``) and drop-ins by name."""
    (directory / "config.d").mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / ("config" if name == "config" else "config.d/" + name)).write_text(text)


def load_directory(directory: str, main: t.Optional[str] = None) -> t.Tuple[Document, t.Tuple[str, ...]]:
    """What the files of a directory say, and their paths."""
    sources = read_directory(directory, main)
    return merge(sources), tuple(source.path for source in sources)


def names(paths: t.Iterable[str]) -> t.List[str]:
    """The last part of each path."""
    return [os.path.basename(path) for path in paths]


#: what it is about -> files, values, remarks (each a piece of one)
MERGES: t.Dict[str, t.Tuple[t.Dict[str, str], t.Dict[str, t.Any], t.List[str]]] = {
    "lists are united in order without duplicates": (
        {
            "config": '{"nonMasqueradeCIDRs": ["10.0.0.0/8", "172.16.0.0/12"]}',
            "a.json": '{"nonMasqueradeCIDRs": ["192.168.0.0/16", "10.0.0.0/8"]}',
            "b.json": '{"nonMasqueradeCIDRs": ["192.168.0.0/16", "100.64.0.0/10"]}',
        },
        {CIDRS: ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]},
        [],
    ),
    "an empty list alone is empty and no default": (
        {"a.json": '{"nonMasqueradeCIDRs": []}'},
        {CIDRS: []},
        ["a.json: nonMasqueradeCIDRs replaces the default list (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16)"],
    ),
    "a drop-in replaces a default list that config does not name": (
        {
            "config": "{}",
            "a.json": '{"masqLinkLocal": true}',
            "b.json": '{"nonMasqueradeCIDRs": ["198.18.0.0/15"]}',
            "c.json": '{"nonMasqueradeCIDRs": ["100.64.0.0/10"]}',
        },
        {CIDRS: ["198.18.0.0/15", "100.64.0.0/10"], "masq_link_local": True},
        ["b.json: nonMasqueradeCIDRs replaces the default list (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16), because"],
    ),
    "a drop-in replaces the list of reserved ranges": (
        {"config": '{"nomasqAllReservedRanges": true}', "a.json": '{"nonMasqueradeCIDRs": ["198.18.0.0/15"]}'},
        {CIDRS: ["198.18.0.0/15"], "nomasq_all_reserved_ranges": True},
        ["192.168.0.0/16, 100.64.0.0/10, 192.0.0.0/24"],
    ),
    "of scalars the last in name order wins": (
        {
            "config": '{"resyncInterval": "1m"}',
            "b.json": '{"resyncInterval": "3m"}',
            "a.json": '{"resyncInterval": "2m"}',
        },
        {INTERVAL: "3m"},
        [
            "b.json: resyncInterval is '3m' here and '2m' in {dir}/config.d/a.json; the last one read wins",
        ],
    ),
    "of ports the last in name order win": (
        {"config": '{"toPorts": ["1024-2047"]}', "a.json": '{"toPorts": ["4096-8191"]}'},
        {"to_ports": ["4096-8191"]},
        [],
    ),
    "equal scalars are no conflict": (
        {"config": '{"resyncInterval": "1m"}', "a.json": '{"resyncInterval": "1m"}'},
        {INTERVAL: "1m"},
        [],
    ),
    "keys in any case are one key": (
        {"a.json": '{"RESYNCINTERVAL": "1m"}', "b.json": '{"resyncinterval": "2m"}'},
        {INTERVAL: "2m"},
        ["resyncInterval is '2m' here"],
    ),
    "a scalar that is null says nothing": (
        {"config": '{"masqLinkLocal": true}', "a.json": '{"masqLinkLocal": null}'},
        {"masq_link_local": True},
        [],
    ),
    "unknown keys are remarked on with their file": (
        {"config": "{}", "a.json": '{"masqLinkLocl": true, "cidrLimit": 3}'},
        {"cidr_limit": 3},
        ["config.d/a.json: the key 'masqLinkLocl' is not known"],
    ),
    "empty files say nothing": ({"config": "", "a.json": "# nothing\n"}, {}, []),
}


@pytest.mark.parametrize("case", MERGES)
def test_files_come_together(tmp_path: Path, case: str) -> None:
    files, values, remarks = MERGES[case]
    write(tmp_path, files)
    document, read = load_directory(str(tmp_path))
    assert document.values == values
    assert len(document.notes) == len(remarks), document.notes
    for note, remark in zip(document.notes, remarks):
        assert remark.format(dir=tmp_path) in note
    assert sorted(names(read)) == sorted(files)


def test_config_is_first_and_drop_ins_follow_in_name_order(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys(["config", "z.json", "10-b.yaml", "9-a.yml", "A.json"], "{}"))
    assert names(config_paths(str(tmp_path))) == ["config", "10-b.yaml", "9-a.yml", "A.json", "z.json"]


def test_what_is_no_drop_in_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys([".a.json", "a.json~", "a.json.bak", "README", "a.jsonx", "a"], "not for us"))
    document, read = load_directory(str(tmp_path))
    assert (document.values, document.notes, read) == ({}, (), ())


def test_a_directory_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert load_directory(str(tmp_path / "none")) == (Document({}), ())


def test_text_that_is_going_to_be_the_config_is_taken_for_it(tmp_path: Path) -> None:
    write(tmp_path, {"config": "broken {", "a.json": '{"masqLinkLocal": true}'})
    document, read = load_directory(str(tmp_path), '{"resyncInterval": "2m"}')
    assert document.values == {INTERVAL: "2m", "masq_link_local": True}
    assert names(read) == ["config", "a.json"]


@pytest.mark.parametrize("broken", ["config", "a.json", "b.json"])
def test_whichever_file_is_broken_is_named(tmp_path: Path, broken: str) -> None:
    write(tmp_path, {**dict.fromkeys(["config", "a.json", "b.json"], "{}"), broken: '{"a": 1, "a": 2}'})
    with pytest.raises(ConfigError) as error:
        load_directory(str(tmp_path))
    assert str(error.value).startswith(str(tmp_path / ("config" if broken == "config" else "config.d/" + broken)))


def test_a_drop_in_that_is_a_directory_or_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "config.d" / "a.json").mkdir()
    with pytest.raises(ConfigError, match="a.json "):
        load_directory(str(tmp_path))
    (tmp_path / "config.d" / "a.json").rmdir()
    os.mkfifo(str(tmp_path / "config.d" / "a.json"))
    with pytest.raises(ConfigError, match="a.json is not a regular file"):
        load_directory(str(tmp_path))


def test_a_dangling_link_is_an_empty_drop_in(tmp_path: Path) -> None:
    write(tmp_path, {})
    (tmp_path / "config.d" / "a.json").symlink_to("none")
    assert load_directory(str(tmp_path))[0].values == {}


documents = st.fixed_dictionaries(
    {},
    optional={
        "nonMasqueradeCIDRs": st.lists(st.sampled_from(["10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8"]), max_size=3),
        "resyncInterval": st.sampled_from(["1m", "2m"]),
        "masqLinkLocal": st.booleans(),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(documents, st.dictionaries(st.sampled_from(["a.json", "b.yaml", "c.yml"]), documents))
def test_any_files_lose_no_range_and_order_decides_only_scalars(tmp_path: Path, main: t.Any, drop_ins: t.Any) -> None:
    for path in tmp_path.glob("config.d/*"):
        path.unlink()
    write(tmp_path, {name: json.dumps(values) for name, values in dict(drop_ins, config=main).items()})
    merged = load_directory(str(tmp_path))[0].values
    in_order = [main] + [drop_ins[name] for name in sorted(drop_ins)]
    lists = [values["nonMasqueradeCIDRs"] for values in in_order if "nonMasqueradeCIDRs" in values]
    assert (CIDRS in merged) == bool(lists)
    if len(lists) > 1:
        assert set(merged[CIDRS]) == {cidr for one in lists for cidr in one}
    for key, option in (("resyncInterval", INTERVAL), ("masqLinkLocal", "masq_link_local")):
        said = [values[key] for values in in_order if key in values]
        assert merged.get(option) == (said[-1] if said else None)


def test_large_lists_are_united_in_no_time_worth_mentioning(tmp_path: Path) -> None:
    """Entry by entry against the list so far these would take minutes."""
    cidrs = ["10.%d.%d.%d/32" % (number >> 16, number >> 8 & 255, number & 255) for number in range(60_000)]
    write(tmp_path, {"config": json.dumps({"nonMasqueradeCIDRs": cidrs[:40_000]})})
    write(tmp_path, {"a.json": json.dumps({"nonMasqueradeCIDRs": cidrs[20_000:]})})
    assert load_directory(str(tmp_path))[0].values == {CIDRS: cidrs}
