# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which package owns a file."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import packages
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome, run

PATH = "/usr/local/sbin/ip-masq-agent"


def answer(program: str, outcome: Outcome) -> t.Callable[..., Outcome]:
    """A node with one package manager."""

    def runner(argv: t.Sequence[str], **_more: t.Any) -> Outcome:
        assert argv[-1] == PATH
        if argv[0] != program:
            raise NodeError("cannot run %s: No such file or directory" % argv[0])
        return outcome

    return runner


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both databases are there, on a node that is no image."""
    monkeypatch.setattr(os, "listdir", lambda _path: ["database"])
    monkeypatch.setattr(packages, "is_image", lambda: False)


@pytest.mark.parametrize(
    "program, printed, expected",
    [
        ("dpkg-query", "ip-masq-agent: %s\n" % PATH, ("ip-masq-agent", "dpkg --remove ip-masq-agent")),
        ("dpkg-query", "masq:amd64: %s\n" % PATH, ("masq", "dpkg --remove masq")),
        ("rpm", "ip-masq-agent\n", ("ip-masq-agent", "rpm --erase ip-masq-agent")),
        ("rpm", "", None),
    ],
)
def test_owner_and_how_to_remove_it(program: str, printed: str, expected: t.Optional[t.Tuple[str, str]]) -> None:
    assert packages.find_owner(answer(program, Outcome(0, printed, "")), PATH) == expected


@pytest.mark.parametrize("program", ["dpkg-query", "rpm", "none"])
def test_a_file_of_no_package(program: str) -> None:
    refused = Outcome(1, "file %s is not owned by any package\n" % PATH, "dpkg-query: no path found\n")
    assert packages.find_owner(answer(program, refused), PATH) is None


IMAGES = {
    "rpm-ostree": ("run 'rpm-ostree install nftables' on the node and reboot it, or ", "rpm-ostree uninstall masq"),
    "transactional-update": (
        "run 'transactional-update pkg install nftables' on the node and reboot it, or ",
        "transactional-update pkg remove masq",
    ),
    "none": ("", "rpm --erase masq"),
}


@pytest.mark.parametrize("tool", IMAGES)
def test_a_node_that_runs_an_image(monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setattr(packages, "is_image", lambda: True)
    monkeypatch.setattr(packages, "which", lambda name: "/usr/sbin/" + name if name == tool else None)
    installing, removing = IMAGES[tool]
    assert packages.by_image("nftables") == (
        "The node runs an image that packages cannot be installed into: %suse an image that has nftables" % installing
    )
    assert packages.find_owner(answer("rpm", Outcome(0, "masq\n", "")), PATH) == ("masq", removing)


@pytest.mark.parametrize("booted, read_only, image", [(True, False, True), (False, True, True), (False, False, False)])
def test_what_is_an_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, booted: bool, read_only: bool, image: bool
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(packages, "_OSTREE_BOOTED", str(tmp_path if booted else tmp_path / "none"))
    monkeypatch.setattr(packages, "_OF_IMAGE", "/sys/file" if read_only else str(tmp_path / "file"))
    monkeypatch.setattr(packages.files, "is_read_only", lambda path: path == "/sys/file")
    assert packages.is_image() is image
    assert bool(packages.by_image("nftables")) is image


def _no_directory(path: str) -> t.List[str]:
    raise FileNotFoundError(path)


@pytest.mark.parametrize("listdir", [_no_directory, lambda _path: []])
def test_no_manager_is_asked_without_its_database(
    monkeypatch: pytest.MonkeyPatch, listdir: t.Callable[[str], t.List[str]]
) -> None:
    monkeypatch.setattr(os, "listdir", listdir)
    assert packages.find_owner(answer("rpm", Outcome(0, "name\n", "")), PATH) is None


def test_real_dpkg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if not os.path.isdir("/var/lib/dpkg"):
        pytest.skip("this machine has no dpkg")
    found = packages.find_owner(run, "/usr/bin/dpkg-query")
    assert found == packages.Package("dpkg", "dpkg --remove dpkg")
    assert packages.find_owner(run, "/no/such/file") is None
