# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of the program's modules: written in one step, compiled, superseded, removed."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import module_directory, program_modules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from support.import_collection import PRELUDE
from support.private_node import private_paths

#: Digests of other releases.
OLD, OLDER, OLDEST = ("%064x" % number for number in (1, 2, 3))


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A node of our own."""
    return private_paths(tmp_path)


def tree(root: str) -> t.Dict[str, int]:
    """All below a directory, with its mode."""
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode) for path in Path(root).rglob("*")}


def release(paths: Paths, digest: str) -> Path:
    """Make a directory of modules of another release."""
    folder = Path(paths.lib_dir, digest)
    module = folder / "ip_masq_agent" / "_version.py"
    module.parent.mkdir(parents=True)
    module.write_text('# Copyright (c) 2026, the kubenode.ip_masq maintainers\nVERSION = "0.0.9"\n')
    (module.parent / "__init__.py").touch()
    return folder


def launched(paths: Paths, digest: str, age: float) -> bytes:
    """Have a launcher of another release there for so many seconds."""
    raw = program_modules.launcher(paths).replace(program_modules.digest().encode(), digest.encode())
    os.makedirs(paths.bin_dir, exist_ok=True)
    Path(paths.program).write_bytes(raw)
    os.utime(paths.program, (time.time() - age,) * 2)
    return raw


class TestPut:
    """module_directory.put"""

    def test_code_is_used_whatever_the_times_of_files_are(self, paths: Paths) -> None:
        module_directory.put(run, paths)
        folder = program_modules.modules_dir(paths)
        for path in Path(folder).rglob("*.py"):
            os.utime(path, (1, 1))
        code = "import sys; sys.path.insert(0, %r); import ip_masq_agent._tasks.cli" % folder
        done = subprocess.run([sys.executable, "-IBvc", code], capture_output=True, text=True, check=True)
        loaded = [line.strip("'") for line in done.stderr.splitlines() if "code object from" in line and folder in line]
        assert len(loaded) > 20 and [line for line in loaded if not line.endswith(".pyc")] == []

    @pytest.mark.parametrize("command", ["recover", "status"])
    def test_only_to_recover_takes_no_compiled_code(self, paths: Paths, command: str) -> None:
        module_directory.put(run, paths)
        program = [sys.executable, "-ISBv", "-c", program_modules.launcher(paths).decode("utf-8"), command, "--help"]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        compiled = re.findall(r"code object from '?%s.*\.pyc" % paths.lib_dir, done.stderr)
        assert "usage: " in done.stdout and bool(compiled) == (command == "status")

    def test_code_of_a_changed_module_is_not_used(self, paths: Paths) -> None:
        module_directory.put(run, paths)
        version = Path(program_modules.modules_dir(paths), "ip_masq_agent/_version.py")
        about = version.stat()
        version.write_text(version.read_text().replace("VERSION = ", "version = "))
        os.utime(version, ns=(about.st_atime_ns, about.st_mtime_ns))
        code = "import sys; sys.path.insert(0, %r); from ip_masq_agent._version import version" % str(
            version.parents[1]
        )
        assert subprocess.run([sys.executable, "-IBc", code], check=False).returncode == 0

    @pytest.mark.parametrize("moment", [1, 5, 100])
    def test_killed_at_any_point_it_leaves_no_directory_of_that_name(self, paths: Paths, moment: int) -> None:
        code = (
            PRELUDE + "import os, signal\n"
            "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import module_directory, paths\n"
            "fsync, left = os.fsync, [%d]\n"
            "def counted(descriptor):\n"
            "    left[0] -= 1\n"
            "    if not left[0]:\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    fsync(descriptor)\n"
            "os.fsync = counted\n"
            "module_directory.put(None, paths.Paths(**%r))\n" % (moment, dict(paths._asdict()))
        )
        done = subprocess.run([sys.executable, "-c", code], check=False)
        assert done.returncode == -signal.SIGKILL
        assert not module_directory.is_there(paths) and len(module_directory.found(paths.lib_dir)) == 1
        module_directory.put(None, paths)
        assert module_directory.is_there(paths)

    def test_what_is_in_its_place_is_replaced_and_not_followed(self, paths: Paths, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        os.makedirs(paths.lib_dir)
        os.symlink(elsewhere, program_modules.modules_dir(paths))
        assert not module_directory.is_there(paths)
        assert program_modules.modules_dir(paths) in module_directory.wrong_folders(paths)
        module_directory.put(None, paths)
        assert module_directory.is_there(paths) and os.listdir(elsewhere) == []

    def test_one_that_another_run_has_put_there_stays(self, paths: Paths) -> None:
        module_directory.put(None, paths)
        inode = os.stat(program_modules.modules_dir(paths)).st_ino
        module_directory.put(None, paths)
        assert os.stat(program_modules.modules_dir(paths)).st_ino == inode
        assert os.listdir(paths.lib_dir) == [program_modules.digest()]


class TestCompileAgain:
    """module_directory.compile_again and is_compiled"""

    def test_another_interpreter_is_not_judged(self, paths: Paths) -> None:
        module_directory.put(None, paths)
        assert module_directory.is_compiled(paths._replace(python="/bin/sh"))

    def test_a_read_only_file_system_is_left_alone(self, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
        module_directory.put(None, paths)
        before = tree(paths.lib_dir)
        monkeypatch.setattr(module_directory.files, "is_read_only", lambda _path: True)
        assert module_directory.compile_again(run, paths) is None
        assert tree(paths.lib_dir) == before


class TestSuperseded:
    """module_directory.superseded"""

    DAY = 86400.0

    def test_the_one_that_a_running_program_may_load_from_stays(self, paths: Paths) -> None:
        folders = [str(release(paths, digest)) for digest in (OLD, OLDER, OLDEST)]
        raw = launched(paths, OLD, age=self.DAY)
        assert module_directory.superseded(paths, raw) == folders[1:]

    def test_what_was_not_finished_goes(self, paths: Paths) -> None:
        draft = release(paths, "%s.%016x.new" % (program_modules.digest(), 1))
        assert module_directory.superseded(paths, launched(paths, OLD, age=self.DAY)) == [str(draft)]


class TestRemove:
    """module_directory.remove"""

    def test_what_others_have_there_stays(self, paths: Paths, tmp_path: Path) -> None:
        module_directory.put(run, paths)
        folder = Path(program_modules.modules_dir(paths))
        secret = tmp_path / "secret.py"
        secret.write_text("# the kubenode.ip_masq maintainers\n")
        (tmp_path / "their").mkdir()
        (tmp_path / "their" / "module.py").write_text("# the kubenode.ip_masq maintainers\n")
        others = [
            folder / "ip_masq_agent" / "notes.txt",
            folder / "ip_masq_agent" / "theirs.py",
            folder / "ip_masq_agent" / "link.py",
            folder / "ip_masq_agent" / "__pycache__" / "data",
            folder / "ip_masq_agent" / "_agent" / "linked",
        ]
        others[0].write_text("mine")
        others[1].write_text("print('mine')\n")
        others[2].symlink_to(secret)
        others[3].write_text("mine")
        others[4].symlink_to(tmp_path / "their")
        module_directory.remove(str(folder))
        left = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
        assert sorted(left) == sorted(others)
        assert secret.exists() and (tmp_path / "their" / "module.py").exists()
        assert module_directory.contents(str(folder)).ours == ()
