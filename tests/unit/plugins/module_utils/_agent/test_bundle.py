# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's program: what is in it, and that it runs as the modules that Ansible runs."""

from __future__ import annotations

import _imp
import ast
import binascii
import marshal
import os
import stat
import subprocess
import sys
import typing as t
import zipfile
import zlib
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import bundle, paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.import_collection import PRELUDE, location
from support.private_node import private_paths

PLAIN = paths.choose_paths(python=sys.executable)
#: A module that tells the version as the agent does.
ENTRY = """
def entry(where):
    from .._version import VERSION
    print("ip-masq-agent", VERSION)
"""


#: Literals that are not what packs sources: other types, no base64, not zlib, no JSON, endless JSON, a number, a list.
PACKED_OTHERWISE = (
    *(b"1", b"None", b"{[]: 1}", b"''", b"'eJw'", b"'='", b"1" + 400 * b"0" + b"+1j", 5000 * b"-" + b"1"),
    *(
        repr(binascii.b2a_base64(zlib.compress(content), newline=False)).encode()
        for content in (b"", b"{", b"\xff", 200000 * b"[", b"1", b"[]")
    ),
)


class TestProgram:
    """bundle.program"""

    def test_its_modules_are_the_bytes_that_ansible_runs(self) -> None:
        here = location() / "plugins" / "module_utils"
        _where, found = bundle.unpack(bundle.program(PLAIN))
        assert {
            "_entry.program",
            "_agent.cli",
            "_kubelet.manage",
            "_policy.policy",
            "_engine.reconcile",
            "_system.process",
        } <= set(found)
        for name, content in found.items():
            assert content == (here / (name.replace(".", "/") + ".py")).read_bytes(), name

    def test_all_that_it_imports_is_in_it(self) -> None:
        _where, found = bundle.unpack(bundle.program(PLAIN))
        for name, content in found.items():
            for module in bundle.imported(name, content):
                assert module in found, "%s imports %s" % (name, module)

    def test_it_can_be_made_from_itself(self, tmp_path: Path) -> None:
        """The installed program compares itself with what it would install."""
        program = tmp_path / "ip-masq-agent"
        again = (
            b"from ip_masq_agent._agent import bundle, paths\n"
            b"sys.stdout.buffer.write(bundle.program(paths.Paths(**WHERE)))\n"
        )
        program.write_bytes(bundle.program(PLAIN).replace(b"entry(WHERE)\n", again))
        done = subprocess.run([sys.executable, "-I", str(program)], capture_output=True, check=False)
        assert done.stdout == bundle.program(PLAIN), done.stderr.decode()

    def test_programs_of_one_release_have_a_line_in_common(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = paths.choose_paths(bin_dir="/opt/bin", python="/opt/python3", metrics_dir="/opt/metrics")
        lines = [set(bundle.program(where).decode().splitlines()) for where in (PLAIN, other)]
        assert bundle.release_line() in lines[0] & lines[1]
        changed = dict(bundle.sources(), _version=b'VERSION = "0.0.0"\n')
        monkeypatch.setattr(bundle, "sources", lambda: changed)
        assert bundle.release.__wrapped__() != bundle.release()

    def test_it_can_be_made_from_an_archive(self, tmp_path: Path) -> None:
        """As Ansible sends the modules to a node. An old Python imports from it in another way."""
        parts = ("ansible_collections", "kubenode", "ip_masq", "plugins", "module_utils")
        archive = tmp_path / "payload.zip"
        with zipfile.ZipFile(archive, "w") as payload:
            for number in range(1, len(parts)):
                payload.writestr("/".join(parts[:number]) + "/__init__.py", "")
            here = location() / "plugins" / "module_utils"
            payload.writestr("/".join(parts) + "/__init__.py", "")
            for path in sorted(here.rglob("*.py")):
                payload.write(path, "/".join((*parts, path.relative_to(here).as_posix())))
        code = (
            "from %s._agent import bundle, paths; import sys; sys.stdout.write(str(len(bundle.program(paths.Paths()))))"
        )
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.path.insert(0, %r); %s" % (str(archive), code % ".".join(parts))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert int(done.stdout or 0) > 1000, done.stderr

    def test_imports_are_those_of_the_syntax_tree(self) -> None:
        for name, content in bundle.sources().items():
            written = [
                "." * node.level + (node.module or "")
                for node in ast.walk(ast.parse(content))
                if isinstance(node, ast.ImportFrom) and node.level
            ]
            found = [dots + stem for dots, stem, _names in bundle._IMPORT.findall(content.decode("utf-8"))]
            assert sorted(found) == sorted(written), name

    def test_making_it_runs_no_module(self) -> None:
        code = (
            PRELUDE + "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import bundle, paths\n"
            "before = set(sys.modules); bundle.program(paths.Paths())\n"
            "print([name for name in set(sys.modules) - before if not hasattr(sys.modules[name], '__path__')])\n"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"[]\n"

    def test_relative_imports_of_every_kind_are_found(self) -> None:
        source = (
            b"from . import sync, metrics\n"
            b"from .paths import Paths\n"
            b"from .._system import files\n"
            b"from .._errors import NodeError\n"
            b"from .._policy import (\n"
            b"    policy,\n"
            b"    values as those,\n"
            b")\n"
            b"from .memory import Memory  # (ours)\n"
            b"from . import units  # and no more, ever\n"
            b"def late():\n"
            b"    try:\n"
            b"        from .console import say\n"
            b"    except ImportError:\n"
            b"        from .explain import explain\n"
        )
        assert sorted(bundle.imported("_agent.cli", source)) == [
            "_agent.console",
            "_agent.explain",
            "_agent.memory",
            "_agent.metrics",
            "_agent.paths",
            "_agent.sync",
            "_agent.units",
            "_errors",
            "_policy.policy",
            "_policy.values",
            "_system.files",
        ]

    def test_same_sources_make_the_same_bytes(self) -> None:
        assert bundle.program(PLAIN) == bundle.program(PLAIN)

    def test_same_sources_make_the_same_bytes_in_another_process(self, tmp_path: Path) -> None:
        script = (
            PRELUDE + "from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import bundle, paths\n"
            "sys.stdout.buffer.write(bundle.program(paths.choose_paths(python=sys.executable)))\n"
        )
        for seed in ("1", "2"):
            done = subprocess.run(
                [sys.executable, "-c", script],
                stdout=subprocess.PIPE,
                check=True,
                cwd=str(tmp_path),
                env=dict(os.environ, PYTHONHASHSEED=seed, TZ="Pacific/Chatham"),
            )
            assert done.stdout == bundle.program(PLAIN)

    def test_its_code_is_compiled_once_and_kept_until_the_boot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With two modules, because compiling all of them a dozen times takes long."""
        monkeypatch.setattr(bundle, "_texts", lambda: {"_entry.program": ENTRY, "_version": "VERSION = %r" % VERSION})
        monkeypatch.setattr(bundle, "_compressed", bundle._compressed.__wrapped__)
        monkeypatch.setattr(bundle, "release", lambda: "this release")
        where = private_paths(tmp_path)
        program = tmp_path / "ip-masq-agent"
        program.write_bytes(bundle.program(where))
        program.chmod(0o755)
        kept = Path(where.compiled)

        def version() -> str:
            # A watchdog: a pipe that is opened is waited for without end.
            argv = ["timeout", "--signal=KILL", "60", str(program), "--version"]
            done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
            return done.stdout.decode().split()[1]

        assert version() == VERSION, "without the directory"
        assert not kept.parent.exists()
        kept.parent.mkdir(parents=True)
        assert version() == VERSION
        good = kept.read_bytes()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and [*kept.parent.iterdir()] == [kept]
        assert version() == VERSION and kept.read_bytes() == good

        def changed(key: t.Optional[t.Tuple[str, str]] = None) -> bytes:
            """The same with another version in it."""
            made_by, code = marshal.loads(good[8:])
            code["_version"] = marshal.dumps(compile("VERSION = 'kept'", "version", "exec"))
            content = marshal.dumps((key or made_by, code))
            return _imp.source_hash(0, content) + content

        kept.write_bytes(changed())
        assert version() == "kept", "it was compiled again"
        release, python = marshal.loads(good[8:])[0]
        for other in ((release, "another Python"), ("another release", python)):
            kept.write_bytes(changed(other))
            assert version() == VERSION
            assert marshal.loads(kept.read_bytes()[8:])[0] == (release, python)
        for damaged in (b"", b"x", good[:-1], good + b"x", good[:8], changed()[:8] + good[8:], bytes(1000)):
            kept.write_bytes(damaged)
            assert version() == VERSION
            assert marshal.loads(kept.read_bytes()[8:])[0] == (release, python)
        for place in (lambda: os.mkfifo(kept), lambda: kept.symlink_to("/dev/zero"), lambda: kept.symlink_to("none")):
            kept.unlink()
            place()
            assert version() == VERSION and kept.is_file() and not kept.is_symlink()
        kept.unlink()
        os.mkfifo(kept)
        writer = os.open(kept, os.O_RDWR)
        assert version() == VERSION and kept.is_file()
        os.close(writer)
        kept.unlink()
        kept.mkdir()
        assert version() == VERSION and [*kept.parent.iterdir()] == [kept]

    def test_it_runs_apart_from_environment_and_directory(self, tmp_path: Path) -> None:
        program = tmp_path / "ip-masq-agent"
        program.write_bytes(bundle.program(PLAIN))
        program.chmod(0o755)
        for trap in ("json.py", "ip_masq_agent.py", "sitecustomize.py"):
            (tmp_path / trap).write_text("raise SystemExit('root imports what lies around')")
        done = subprocess.run(
            [str(program), "--version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            cwd=str(tmp_path),
            env=dict(os.environ, PYTHONPATH=str(tmp_path), PYTHONSTARTUP=str(tmp_path / "json.py")),
        )
        assert (done.returncode, done.stdout.decode()) == (0, "ip-masq-agent %s\n" % VERSION), done.stderr

    def test_it_knows_the_places_that_it_was_made_for(self) -> None:
        where = paths.choose_paths(
            config_dir="/opt/etc", bin_dir="/opt/bin", python="/opt/python3", metrics_dir="/opt/metrics"
        )
        program = bundle.program(where)
        assert program.startswith(b"#!/opt/python3 -I\n")
        assert bundle.unpack(program)[0] == where

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"#!/bin/sh\n",
            b"\x7fELF\x00",
            b"WHERE = {}",
            b"WHERE = {'a': 1}\nSOURCES = {}",
            b"WHERE = {}\nSOURCES = 1",
            b"WHERE = {{}}\nSOURCES = {}",
            b"WHERE = {}\nSOURCES = open('/etc/passwd')",
            b"WHERE = {}\nPACKED = 'eJyrrgUAAXUA+Q=='",
            *(b"WHERE = {}\nSOURCES = {}\nPACKED = " + packed for packed in PACKED_OTHERWISE),
        ],
    )
    def test_another_program_is_not_taken_for_ours(self, raw: bytes) -> None:
        with pytest.raises(ValueError):
            bundle.unpack(raw)

    def test_the_paths_of_a_damaged_program_are_found(self) -> None:
        content = bundle.program(PLAIN)
        middle = len(content) // 2
        damaged = content[:middle] + b"!" + content[middle + 2 :]
        with pytest.raises(ValueError):
            bundle.unpack(damaged)
        assert bundle.places(damaged) == PLAIN
        for other in (
            b"",
            b"\x7fELF\x00",
            b"WHERE = {}",
            b"WHERE = {'a': 1}\nSOURCES = {}",
            b"WHERE = 1\nSOURCES = {}",
        ):
            with pytest.raises(ValueError):
                bundle.places(other)

    def test_the_release_candidate_finds_its_paths(self) -> None:
        """It reads two values, and takes the second for a dictionary of texts: it removes files where they are."""
        found = {
            statement.targets[0].id: ast.literal_eval(statement.value)
            for statement in ast.parse(bundle.program(PLAIN)).body
            if isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id in ("WHERE", "SOURCES")
        }
        known = {name: value for name, value in PLAIN._asdict().items() if name != "units"}
        assert found == {"WHERE": known, "SOURCES": {}}

    def test_programs_of_the_release_candidate_are_ours(self) -> None:
        """They have their sources as they are."""
        raw = ("#!/usr/bin/python3 -I\nWHERE = %r\nSOURCES = {'_version': 'A = 1\\n'}\n" % PLAIN._asdict()).encode()
        assert bundle.unpack(raw) == (PLAIN, {"_version": b"A = 1\n"})

    def test_the_same_modules_are_not_compressed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another library of zlib is no reason to write the program."""
        compress = zlib.compress
        here = bundle.program(PLAIN)
        monkeypatch.setattr(zlib, "compress", lambda data, _level: compress(data, zlib.Z_BEST_COMPRESSION))
        monkeypatch.setattr(bundle, "_compressed", bundle._compressed.__wrapped__)
        elsewhere = bundle.program(PLAIN)
        monkeypatch.undo()
        assert elsewhere != here and bundle.unpack(elsewhere) == bundle.unpack(here)
        assert bundle.program(PLAIN, elsewhere) == elsewhere
        moved = PLAIN._replace(bin_dir="/opt/bin")
        assert bundle.unpack(bundle.program(moved, elsewhere)) == (moved, bundle.unpack(here)[1])
        assert len(bundle.program(moved, elsewhere)) < len(bundle.program(moved)), "the compressed text is not kept"

    @pytest.mark.parametrize(
        "installed",
        [b"", b"\x7fELF\x00", b"#!/bin/sh\n", b"SOURCES = {}", *(b"PACKED = " + packed for packed in PACKED_OTHERWISE)],
    )
    def test_another_file_in_its_place_is_replaced(self, installed: bytes) -> None:
        assert bundle.program(PLAIN, installed) == bundle.program(PLAIN)

    def test_other_modules_are_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = bundle.program(PLAIN)
        texts = dict(bundle._texts(), _version="VERSION = '0.0.0'\n")
        monkeypatch.setattr(bundle, "_texts", lambda: texts)
        monkeypatch.setattr(bundle, "_compressed", bundle._compressed.__wrapped__)
        other = bundle.program(PLAIN)
        monkeypatch.undo()
        assert bundle.unpack(other)[1]["_version"] == b"VERSION = '0.0.0'\n"
        assert bundle.program(PLAIN, other) == here

    def test_a_run_ends_with_what_it_began_with(self, tmp_path: Path) -> None:
        # Replaced by an upgrade while it starts: here by the first thing that it does itself.
        program = tmp_path / "ip-masq-agent"
        content = bundle.program(PLAIN)
        replace = b"import os\nos.replace(%r, %r)\n\nimport sys\n" % (str(program) + ".new", str(program))
        program.write_bytes(content.replace(b"import sys\n", replace, 1))
        (tmp_path / "ip-masq-agent.new").write_bytes(b"")
        done = subprocess.run([sys.executable, "-I", str(program), "--version"], stdout=subprocess.PIPE, check=False)
        assert (done.returncode, done.stdout.decode()) == (0, "ip-masq-agent %s\n" % VERSION)
        assert program.read_bytes() == b""

    def test_an_error_names_the_module_and_the_line_that_it_comes_from(self, tmp_path: Path) -> None:
        program = tmp_path / "ip-masq-agent"
        content = bundle.program(PLAIN)
        assert content.count(b"entry(WHERE)\n") == 1
        program.write_bytes(content.replace(b"entry(WHERE)\n", b"entry(None)\n"))
        done = subprocess.run([sys.executable, str(program), "status"], stderr=subprocess.PIPE, check=False)
        lines = bundle.unpack(content)[1]["_entry.program"].decode().splitlines()
        number = 1 + next(number for number, line in enumerate(lines) if "Paths(**where)" in line)
        assert 'File "ip_masq_agent._entry.program", line %d, in entry' % number in done.stderr.decode()
