# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nobody but root decides where root writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import shared_directory


def text_of(path: Path) -> str:
    """The only file of a directory, which has the name ``file``."""
    assert os.listdir(path) == ["file"]
    return (path / "file").read_text()


class TestWrite:
    """shared_directory.write"""

    def test_everybody_may_read_what_is_written_and_it_replaces_what_was_there(self, tmp_path: Path) -> None:
        for content in ("one", "two"):
            shared_directory.write(str(tmp_path), "file", content.encode())
            assert text_of(tmp_path) == content
            assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644

    def test_a_link_or_a_pipe_of_its_name_is_replaced(self, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("of others")
        folder = tmp_path / "folder"
        folder.mkdir()
        for plant in (lambda path: path.symlink_to(victim), os.mkfifo):
            plant(folder / "file")
            shared_directory.write(str(folder), "file", b"ours")
            assert text_of(folder) == "ours" and victim.read_text() == "of others"
            (folder / "file").unlink()

    def test_a_directory_of_its_name_is_an_error_and_leaves_no_draft(self, tmp_path: Path) -> None:
        (tmp_path / "file").mkdir()
        with pytest.raises(NodeError, match="/.*: file: Is a directory$"):
            shared_directory.write(str(tmp_path), "file", b"ours")
        assert os.listdir(tmp_path) == ["file"]

    @pytest.mark.parametrize("part", ["a", "a/b", "a/b/c"])
    def test_no_link_on_the_way_is_followed(self, tmp_path: Path, part: str) -> None:
        folder = tmp_path / "a/b/c"
        folder.mkdir(parents=True)
        (tmp_path / part).rename(tmp_path / "away")
        (tmp_path / part).symlink_to(tmp_path / "away")
        with pytest.raises(NodeError) as error:
            shared_directory.write(str(folder), "file", b"ours")
        changed = "%s is not the directory any more that it was when the agent was installed" % (tmp_path / part)
        assert str(error.value) == "cannot write to %s: %s" % (folder, changed)
        assert list(tmp_path.rglob("*file*")) == []


class TestResolve:
    """shared_directory.resolve"""

    def test_links_of_root_are_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real/inner").mkdir(parents=True)
        (tmp_path / "absolute").symlink_to(tmp_path / "real")
        (tmp_path / "relative").symlink_to("./absolute/../real")
        real = os.path.realpath(tmp_path / "real/inner")
        for name in ("real", "absolute", "relative"):
            assert shared_directory.resolve(str(tmp_path / name / "inner")) == real

    @pytest.mark.parametrize("how", ["owner of the link", "owner of its directory", "directory that others write"])
    def test_a_link_that_another_user_can_set_is_refused(self, tmp_path: Path, how: str) -> None:
        (tmp_path / "real").mkdir()
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "link").symlink_to(tmp_path / "real")
        if how == "owner of the link":
            os.chown(folder / "link", 65534, 65534, follow_symlinks=False)
        elif how == "owner of its directory":
            os.chown(folder, 65534, 65534)
        else:
            folder.chmod(0o1777)
        with pytest.raises(PermissionError, match="/folder/link is a symbolic link that another user than root can"):
            shared_directory.resolve(str(folder / "link"))
        # A directory of another user is what it is for.
        assert shared_directory.resolve(str(folder)) == os.path.realpath(folder)

    def test_a_loop_and_what_is_no_directory_are_errors(self, tmp_path: Path) -> None:
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "file").touch()
        for name, error in (("loop", OSError), ("none", NodeError), ("file", NodeError)):
            with pytest.raises(error):
                shared_directory.resolve(str(tmp_path / name))
