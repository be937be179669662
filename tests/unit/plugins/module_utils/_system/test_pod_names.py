# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of pods from libcni's results: what runtimes write, and what else may be in these directories."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import pod_names
from support.cni_results import LIVE, text, write

GOLDEN = Path(__file__).parent / "cni_results"


def _names(*folders: Path) -> t.Dict[str, str]:
    return {address: pod.name for address, pod in pod_names.read([str(one) for one in folders]).items()}


@pytest.mark.parametrize(
    ("golden", "expected"),
    [
        ("containerd_flannel", {"10.244.1.2": "default/web-7c5ddbdf54-x2x9k"}),
        ("containerd_loopback", {}),
        ("crio_dual_stack", {"10.85.0.7": "kube-system/coredns.v2", "1100:200::7": "kube-system/coredns.v2"}),
        ("kubelet_0_2_0", {"10.1.0.9": "batch/job-1", "2001:db8:1::9": "batch/job-1"}),
        ("multus", {"192.168.77.20": "media/camera"}),
        ("nerdctl", {}),
        ("before_v1", {}),
    ],
)
def test_results_of_runtimes(tmp_path: Path, golden: str, expected: t.Dict[str, str]) -> None:
    (tmp_path / golden).write_text((GOLDEN / (golden + ".json")).read_text().replace("@NETNS@", LIVE))
    assert _names(tmp_path) == expected


def test_all_directories_are_read(tmp_path: Path) -> None:
    write(tmp_path / "one", "default/a", "10.244.1.2")
    write(tmp_path / "two", "default/b", "10.244.1.3")
    write(tmp_path / "two", "default/a", "10.244.1.2")
    found = _names(tmp_path / "missing", tmp_path / "one", tmp_path / "two")
    assert found == {"10.244.1.2": "default/a", "10.244.1.3": "default/b"}


def test_time_of_the_attachment(tmp_path: Path) -> None:
    path = write(tmp_path, "default/a", "10.244.1.2")
    assert pod_names.read([str(tmp_path)])["10.244.1.2"].since == path.stat().st_mtime


def test_address_of_two_pods_has_no_name(tmp_path: Path) -> None:
    write(tmp_path, "default/a", "10.244.1.2", "10.244.1.3")
    write(tmp_path, "default/b", "10.244.1.2")
    assert _names(tmp_path) == {"10.244.1.3": "default/a"}


def _cached(**changes: t.Any) -> str:
    return json.dumps({**json.loads(text("default/a", "10.244.1.9")), **changes})


def _arguments(namespace: t.Any, name: t.Any) -> str:
    return _cached(cniArgs=[["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", name]])


_DAMAGED: t.Dict[str, t.Union[str, bytes]] = {
    "empty": "",
    "cut off": text("default/a", "10.244.1.9")[:-20],
    "not UTF-8": b"\xff\xfe" + text("default/a", "10.244.1.9").encode(),
    "NUL": b"\0" * 4096,
    "a list": "[]",
    "a number": "7",
    "nested": "[" * 60000,
    "large": _cached(config="x" * 200000),
    "another kind": _cached(kind="cniCacheV2"),
    "arguments a text": _cached(cniArgs="K8S_POD_NAME"),
    "arguments of three": _cached(cniArgs=[["K8S_POD_NAMESPACE", "default", "x"]]),
    "two names": _cached(
        cniArgs=[["K8S_POD_NAMESPACE", "default"], ["K8S_POD_NAME", "a"], ["K8S_POD_NAME", "b"]],
    ),
    "a name as a list": _arguments("default", ["a"]),
    "no namespace": _arguments("", "a"),
    "upper case": _arguments("default", "Web"),
    "escape sequence": _arguments("default", "\x1b[31mweb"),
    "line break": _arguments("default", "web\n"),
    "path": _arguments("../etc", "web"),
    "other digits": _arguments("default", "web-٣"),
    "long namespace": _arguments("n" * 64, "web"),
    "long name": _arguments("default", "w" * 254),
    "no result": _cached(result=None),
    "result a list": _cached(result=[]),
    "no address": _cached(result={"ips": [{"gateway": "10.244.1.1"}]}),
    "damaged address": _cached(result={"ips": [{"address": "10.244.1.300/24"}]}),
    "addresses a number": _cached(result={"ips": 7}),
    "address an object": _cached(result={"ips": [{"address": {"a": 1}}]}),
    "NUL in the namespace": _cached(netns="/run/netns/\0"),
}


@pytest.mark.parametrize("damage", sorted(_DAMAGED))
def test_damaged_file_hides_no_other(tmp_path: Path, damage: str) -> None:
    content = _DAMAGED[damage]
    (tmp_path / "0-damaged").write_bytes(content if isinstance(content, bytes) else content.encode())
    write(tmp_path, "default/a", "10.244.1.2")
    (tmp_path / "z-damaged").write_bytes((tmp_path / "0-damaged").read_bytes())
    assert _names(tmp_path) == {"10.244.1.2": "default/a"}


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write(folder, "default/a", "10.244.1.2")
    elsewhere = write(tmp_path / "elsewhere", "default/b", "10.244.1.3")
    (folder / "link").symlink_to(elsewhere)
    (folder / "nowhere").symlink_to(tmp_path / "missing")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    with (folder / "huge").open("wb") as huge:
        huge.truncate(1 << 40)  # has no blocks
    assert _names(folder) == {"10.244.1.2": "default/a"}


def test_link_in_place_of_a_file_that_was_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = write(tmp_path / "elsewhere", "default/b", "10.244.1.3")
    (tmp_path / "link").symlink_to(elsewhere)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        monkeypatch.setattr(pod_names, "_results", lambda _folders, name=name: [(str(tmp_path / name), 0.0)])
        assert _names(tmp_path) == {}


def test_too_many_files_give_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(tmp_path, "default/a%d" % number, "10.244.1.%d" % (number + 2))
    monkeypatch.setattr(pod_names, "MOST_FILES", 3)
    assert len(_names(tmp_path)) == 3
    monkeypatch.setattr(pod_names, "MOST_FILES", 2)
    assert _names(tmp_path) == {}


def test_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    assert _names(tmp_path / "results") == {}


def test_names_of_ranges(tmp_path: Path) -> None:
    pods = {"10.244.1.2": pod_names.Pod("default/a", 0.0), "fd00::2": pod_names.Pod("default/a", 0.0)}
    ranges = ["10.244.1.2/32", "10.244.1.2/31", "10.244.1.3/32", "fd00::2/128", "10.244.1.2"]
    names = pod_names.of_ranges(ranges, pods)
    assert names == {"10.244.1.2/32": "default/a", "fd00::2/128": "default/a", "10.244.1.2": "default/a"}
    assert pod_names.beside(ranges[:3], names) == ["10.244.1.2/32 (default/a)", *ranges[1:3]]
