# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a binary, asked of a program that really runs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.probe import Probe, probe
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome, run
from support import fake_kubelet


@pytest.mark.parametrize("version, known", [("1.23.17", True), ("1.24.0", False), ("1.30.4", False), ("2.0.0", False)])
def test_the_binary_is_asked(tmp_path: Path, version: str, known: bool) -> None:
    fake_kubelet.install(str(tmp_path / "kubelet"), version)
    assert probe(str(tmp_path / "kubelet"), run, 60.0) == Probe(known, "v" + version)


def test_help_counts_more_than_the_version(tmp_path: Path) -> None:
    """A vendor may have taken the flag out earlier, or kept it."""
    fake_kubelet.install(str(tmp_path / "kubelet"), "1.30.4")
    plain = probe(str(tmp_path / "kubelet"), lambda *a, **k: _patched(run(*a, **k)), 60.0)
    assert plain == Probe(True, "v1.30.4")


def _patched(done: Outcome) -> Outcome:
    return done._replace(stdout=done.stdout + "      --non-masquerade-cidr string   kept by the vendor\n")


def test_a_hanging_binary_is_ended_and_asked_once(tmp_path: Path) -> None:
    fake_kubelet.install(str(tmp_path / "kubelet"), "1.23.17", hang=True)
    calls: t.List[t.Sequence[str]] = []

    def counting(argv: t.Sequence[str], **how: t.Any) -> Outcome:
        calls.append(argv)
        return run(argv, **how)

    found = probe(str(tmp_path / "kubelet"), counting, 0.2)
    assert found.supported is None
    assert "timed out after 0.2 seconds" in found.why
    assert len(calls) == 1


def test_a_script_is_never_run(tmp_path: Path) -> None:
    script = tmp_path / "kubelet"
    script.write_text("#!/bin/sh\ntouch %s/ran\n" % tmp_path)
    script.chmod(0o755)
    found = probe(str(script), run, 60.0)
    assert found.supported is None
    assert "is a script or wrapper" in found.why and "set the option binary" in found.why
    assert not (tmp_path / "ran").exists()


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    (tmp_path / "kubelet").write_bytes(b"\x7fELF" + bytes(60))
    (tmp_path / "kubelet").chmod(0o755)
    found = probe(str(tmp_path / "kubelet"), run, 60.0)
    assert found.supported is None and "cannot run" in found.why


def test_help_that_fails_falls_back_to_the_version(tmp_path: Path) -> None:
    fake_kubelet.install(str(tmp_path / "kubelet"), "1.23.17")

    def answers(argv: t.Sequence[str], **how: t.Any) -> Outcome:
        return Outcome(2, "usage", "") if "--help" in argv else run(argv, **how)

    assert probe(str(tmp_path / "kubelet"), answers, 60.0) == Probe(True, "v1.23.17")


def test_the_stand_in_is_as_strict_as_the_real_one(tmp_path: Path) -> None:
    fake_kubelet.install(str(tmp_path / "kubelet"), "1.30.4")
    done = run([str(tmp_path / "kubelet"), "--kubeconfig=x", "--non-masquerade-cidr=0.0.0.0/0"])
    assert done.rc == 1
    assert done.stderr == "Error: failed to parse kubelet flag: unknown flag: --non-masquerade-cidr\n"


@pytest.mark.parametrize("machine", sorted(fake_kubelet.LAUNCHERS))
def test_the_stand_in_starts_on(tmp_path: Path, machine: str) -> None:
    """Machines other than this one are asked where QEMU's user mode is installed."""
    emulators = [] if machine == platform.machine() else ["qemu-%s-static" % machine, "qemu-%s" % machine]
    found = [path for path in map(shutil.which, emulators) if path]
    if emulators and not found:
        pytest.skip("this is no %s, and neither %s is installed" % (machine, " nor ".join(emulators)))
    script, program = tmp_path / "a script.py", tmp_path / "kubelet"
    script.write_text("import json, os, sys; print(json.dumps([sys.argv, os.environ['HERE']]))")
    program.write_bytes(fake_kubelet.launcher(sys.executable, str(script), machine))
    program.chmod(0o755)
    assert probe(str(program), lambda *_a, **_k: Outcome(0, "", ""), 1.0).why.endswith("--version has no version")
    home = {"PYTHONHOME": os.environ["PYTHONHOME"]}
    for words in ([], ["--help"], ["a b", "", "c"]):
        done = subprocess.run(
            found[:1] + [str(program), *words], env={"HERE": "yes", **home}, stdout=subprocess.PIPE, check=True
        )
        assert json.loads(done.stdout) == [[str(script), *words], "yes"]
    program.write_bytes(fake_kubelet.launcher("/nowhere", str(script), machine))
    assert subprocess.run(found[:1] + [str(program)], check=False).returncode == 127
