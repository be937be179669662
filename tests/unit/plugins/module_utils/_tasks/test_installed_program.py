# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module makes of each way in which the installed program can end. The program is a script here."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import installed_program
from support.private_node import private_paths

#: what the program does, how it ends, whether traffic matches the policy, what is said
ENDINGS: t.Dict[str, t.Tuple[str, t.Optional[int], t.Optional[bool], str]] = {
    "matches": ("""echo '{"verified": true, "summary": "31 kinds of packets"}'""", 0, True, "31 kinds of packets"),
    "differs": ("""echo '{"verified": false, "summary": "not all"}'; exit 5""", 5, False, "not all"),
    "no_copy": ("""echo '{"verified": null, "summary": "not verified"}'; exit 1""", 1, None, "not verified"),
    "broken": ("echo it broke >&2; exit 1", 1, None, "not verified: exit status 1: it broke"),
    "killed": ("kill -KILL $$", -9, None, "not verified: exit status -9: "),
    "half": ("""echo '{"verified": tr'; exit 78""", 78, None, "not verified: exit status 78: "),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_ending_of_a_verification_is_a_result(tmp_path: Path, name: str) -> None:
    ending, status, verified, summary = ENDINGS[name]
    paths = private_paths(tmp_path)
    program = Path(paths.program)
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text('#!/bin/sh\n[ "$*" = "--lock-timeout 7 verify --if-changed --json" ] || exit 2\n%s\n' % ending)
    program.chmod(0o755)
    found = installed_program.verify(run, paths, 7)
    assert (found["exit_status"], found["verified"], found["summary"]) == (status, verified, summary)


def test_a_program_that_cannot_be_started_is_a_result(tmp_path: Path) -> None:
    paths = private_paths(tmp_path)
    found = installed_program.verify(run, paths, 5)
    summary = "not verified: cannot run %s: No such file or directory" % paths.program
    assert found == {"exit_status": None, "verified": None, "summary": summary}
