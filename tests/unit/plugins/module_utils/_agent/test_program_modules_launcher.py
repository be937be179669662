# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher: what it names, and that it starts the modules of its digest and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import module_directory, program_modules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import MARK, PACKAGED, Paths, choose_paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.private_node import private_paths

MARKED = "# %s\n" % MARK
OLDEST = {"config_dir": "/etc/ip-masq-agent", "bin_dir": "/opt/bin", "metrics_dir": "", "python": "/p", "root": ""}


def installed(root: Path, compiled: bool) -> Paths:
    """Put the program and its modules below a directory."""
    paths = private_paths(root)
    assert module_directory.put(run if compiled else None, paths) is None
    os.makedirs(paths.bin_dir)
    Path(paths.program).write_bytes(program_modules.launcher(paths))
    os.chmod(paths.program, 0o755)
    return paths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """An installed program; its modules are not compiled."""
    return installed(tmp_path_factory.mktemp("node"), False)


def start(program: t.Union[str, Path], *words: str, **how: t.Any) -> subprocess.CompletedProcess[str]:
    """Start it to its end."""
    return subprocess.run([str(program), *words], capture_output=True, text=True, check=False, timeout=60, **how)


def copied(paths: Paths, folder: Path, old: str, new: str) -> Path:
    """A launcher that is changed in one place."""
    text = Path(paths.program).read_text()
    assert text.count(old) == 1
    (folder / "ip-masq-agent").write_text(text.replace(old, new))
    (folder / "ip-masq-agent").chmod(0o755)
    return folder / "ip-masq-agent"


class TestLauncher:
    """program_modules.launcher"""

    def test_it_runs_apart_from_environment_and_directory(self, made: Paths, tmp_path: Path) -> None:
        for trap in ("json.py", "ip_masq_agent.py", "sitecustomize.py"):
            (tmp_path / trap).write_text("raise SystemExit('root imports what lies around')")
        env = dict(os.environ, PYTHONPATH=str(tmp_path), PYTHONSTARTUP=str(tmp_path / "json.py"))
        done = start(made.program, "--version", cwd=str(tmp_path), env=env)
        assert (done.returncode, done.stdout) == (0, "ip-masq-agent %s\n" % VERSION), done.stderr

    @pytest.mark.parametrize("damage", [b"", b"\xe3" + b"\0" * 500, b"\xff" * 100, b"N"], ids=repr)
    def test_damaged_compiled_code_stops_no_run(self, tmp_path: Path, damage: bytes) -> None:
        """Python takes what has a valid head, which is all that a power failure may have left."""
        paths = installed(tmp_path, True)
        compiled = list(Path(paths.lib_dir).rglob("*.pyc"))
        for path in compiled:
            path.write_bytes(path.read_bytes()[:16] + damage)
        done = start(paths.program, "--version")
        assert (done.returncode, done.stdout) == (0, "ip-masq-agent %s\n" % VERSION), done.stderr
        assert compiled

    def test_it_makes_the_same_program(self, made: Paths, tmp_path: Path) -> None:
        """The installed program compares itself with what it would install."""
        again = copied(
            made,
            tmp_path,
            "entry(WHERE)",
            "from ip_masq_agent._agent import paths, program_modules\n"
            "assert program_modules.are_intact()\n"
            "sys.stdout.write(program_modules.launcher(paths.Paths(**WHERE)).decode())",
        )
        done = start(again)
        assert done.stdout == program_modules.launcher(made).decode(), done.stderr

    def test_a_start_loads_nothing_that_few_runs_need(self, made: Paths, tmp_path: Path) -> None:
        """Each takes milliseconds of every start: OpenSSL three of seventy."""
        names = {"hashlib", "pathlib", "ip_masq_agent._system.conntrack", "ip_masq_agent._verify"}
        loaded = "sys.stdout.write(repr(sorted(%r.intersection(sys.modules))))" % names
        started = copied(made, tmp_path, "entry(WHERE)", loaded)
        done = subprocess.run([sys.executable, "-ISB", str(started)], capture_output=True, text=True, check=False)
        assert done.stdout == "[]", done.stderr

    def test_an_error_names_the_file_and_the_line_that_it_comes_from(self, made: Paths, tmp_path: Path) -> None:
        broken = copied(made, tmp_path, "entry(WHERE)", "entry(None)")
        entry = os.path.join(program_modules.modules_dir(made), "ip_masq_agent/_tasks/program.py")
        lines = Path(entry).read_text().splitlines()
        number = 1 + next(number for number, line in enumerate(lines) if "Paths(**paths)" in line)
        assert 'File "%s", line %d, in entry' % (entry, number) in start(broken, "status").stderr

    def test_changed_modules_do_no_task(self, tmp_path: Path) -> None:
        """They would compare themselves with themselves."""
        paths = installed(tmp_path, True)
        version = Path(program_modules.modules_dir(paths), "ip_masq_agent/_version.py")
        version.write_text(version.read_text() + "# edited\n")
        done = start(paths.program, "task", input="{}")
        assert done.returncode == 1 and done.stdout == "" and "modules of this agent were changed" in done.stderr


class TestPlaces:
    """program_modules.places"""

    def test_it_knows_the_places_that_it_was_made_for(self) -> None:
        paths = choose_paths(
            config_dir="/opt/etc", bin_dir="/opt/bin", python="/opt/python3", metrics_dir="/opt/metrics"
        )
        assert program_modules.places(program_modules.launcher(paths)) == paths
        assert program_modules.places(program_modules.launcher(PACKAGED)) == PACKAGED

    def test_a_program_of_the_release_candidate_is_ours(self) -> None:
        """One file with all its modules, and without the directory of the units."""
        raw = "#!/p -I\n%s\nPACKAGE = 'x'\nWHERE = %r\nSOURCES = {'_version': 'WHERE = {}'}\n" % (MARKED, OLDEST)
        assert program_modules.places(raw.encode()) == Paths(**OLDEST)

    @pytest.mark.parametrize(
        "raw",
        [
            "",
            "#!/bin/sh\n",
            "\x7fELF\x00",
            "WHERE = %r\n" % OLDEST,
            MARKED,
            MARKED + "WHERE = {'a': 1}\n",
            MARKED + "WHERE = {{}}\n",
            MARKED + "WHERE = {1}\n",
            MARKED + "WHERE = {open('/etc/passwd')}\n",
            MARKED + "WHERE = {\n",
        ],
    )
    def test_another_program_is_not_taken_for_ours(self, raw: str) -> None:
        assert program_modules.places(raw.encode()) is None
