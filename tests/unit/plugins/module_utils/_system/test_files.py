# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files are replaced whole, never followed, never half written."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import files
from support.import_collection import PRELUDE


def entries(folder: Path) -> t.List[str]:
    """All names in a directory, hidden ones too."""
    return sorted(os.listdir(folder))


class TestRead:
    """files.read"""

    def test_a_named_pipe_is_refused_and_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(NodeError, match="cannot read .*/pipe: not a regular file"):
            files.read(str(tmp_path / "pipe"))


class TestWrite:
    """files.write"""

    @pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
    def test_mode_does_not_depend_on_the_umask(self, tmp_path: Path, mode: int, umask: int) -> None:
        old = os.umask(umask)
        try:
            files.write(str(tmp_path / "file"), b"x", mode)
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode

    def test_owner_and_attributes_are_set_where_they_are_given(self, tmp_path: Path) -> None:
        note = "user.note" if os.geteuid() else "trusted.note"
        owner = (1, 2) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        attributes = [(note, b"mine"), ("system.nobody_may_set_this", b"")]
        files.write(str(tmp_path / "file"), b"x", 0o640, owner, attributes)
        about = (tmp_path / "file").stat()
        assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (*owner, 0o640)
        assert os.getxattr(tmp_path / "file", note) == b"mine"

    @pytest.mark.parametrize("dangling", [False, True])
    def test_link_is_replaced_and_not_followed(self, tmp_path: Path, dangling: bool) -> None:
        target = tmp_path / "target"
        if not dangling:
            target.write_bytes(b"precious")
        (tmp_path / "file").symlink_to(target)
        files.write(str(tmp_path / "file"), b"new")
        assert not (tmp_path / "file").is_symlink()
        assert (tmp_path / "file").read_bytes() == b"new"
        assert not target.exists() if dangling else target.read_bytes() == b"precious"

    def test_hard_link_keeps_the_old_content(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"old")
        os.link(tmp_path / "file", tmp_path / "other")
        files.write(str(tmp_path / "file"), b"new")
        assert (tmp_path / "other").read_bytes() == b"old"

    def test_directory_in_the_way_is_an_error_and_stays(self, tmp_path: Path) -> None:
        (tmp_path / "file").mkdir()
        with pytest.raises(NodeError, match="cannot write .*/file: Is a directory"):
            files.write(str(tmp_path / "file"), b"x")
        assert entries(tmp_path) == ["file"]

    def test_directory_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(NodeError, match="cannot write .*/none/file: No such file or directory"):
            files.write(str(tmp_path / "none" / "file"), b"x")

    def test_killed_at_any_moment_the_file_is_whole(self, tmp_path: Path) -> None:
        path = str(tmp_path / "file")
        whole = {bytes([byte]) * 200_000 for byte in b"ab"}
        files.write(path, sorted(whole)[0])
        for reads in range(12):
            with writer(path, sorted(whole)) as process:
                for _read in range(reads * 3):
                    assert files.read(path) in whole
                process.send_signal(signal.SIGKILL)
                process.wait()
            assert files.read(path) in whole


_WRITER = (
    PRELUDE
    + """
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import files
print("ready", flush=True)
while True:
    for byte in sys.argv[2]:
        files.write(sys.argv[1], byte.encode() * int(sys.argv[3]))
"""
)


def writer(path: str, whole: t.Sequence[bytes]) -> subprocess.Popen:
    """A process that writes these contents to a file in turn, for ever."""
    letters, size = "".join(content[:1].decode() for content in whole), len(whole[0])
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, path, letters, str(size)],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


class TestRemove:
    """files.remove"""

    def test_removes_a_link_and_not_what_it_leads_to(self, tmp_path: Path) -> None:
        (tmp_path / "target").touch()
        (tmp_path / "file").symlink_to("target")
        files.remove(str(tmp_path / "file"))
        assert entries(tmp_path) == ["target"]

    def test_what_cannot_be_removed_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        with pytest.raises(NodeError, match="cannot remove .*%s: " % tmp_path.name):
            files.remove(str(tmp_path))


class TestMakeDirectory:
    """files.make_directory"""

    @pytest.mark.parametrize("umask, above", [(0o022, 0o755), (0o077, 0o700)])
    def test_only_modes_above_it_depend_on_the_umask(self, tmp_path: Path, umask: int, above: int) -> None:
        old = os.umask(umask)
        try:
            files.make_directory(str(tmp_path / "a" / "b"), 0o755)
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o755
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == above

    def test_a_link_to_a_directory_will_do(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "a").symlink_to("real")
        files.make_directory(str(tmp_path / "a"), 0o700)
        assert (tmp_path / "a").is_symlink()

    def test_a_file_in_the_way_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        with pytest.raises(NodeError, match="/a exists and is not a directory"):
            files.make_directory(str(tmp_path / "a"), 0o700)

    def test_a_file_above_it_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        with pytest.raises(NodeError, match="cannot create directory .*/a/b"):
            files.make_directory(str(tmp_path / "a" / "b"), 0o700)
