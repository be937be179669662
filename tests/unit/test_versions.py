# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table in docs/versions.md is that of docs/versions.json, and says only what was seen."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import typing as t

import pytest
from support.import_collection import ROOT

_SPEC = importlib.util.spec_from_file_location("version_table", ROOT / "tools" / "version_table.py")
assert _SPEC and _SPEC.loader
version_table: t.Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(version_table)


@pytest.fixture
def results() -> t.Dict[str, t.Any]:
    """One ansible-core, of which everything but one Python was run, and one that is not published."""
    made: t.Dict[str, t.Any] = {"collection": "1.0.0", "pythons": {}, "cores": {}, "nodes": {}}
    for minor in ("3.9", "3.10"):
        version_table.add_python(made, minor, minor + ".4")
    core = version_table.add_core(made, "2.20", "2.20.1", "2026-11-22", ["3.10", "3.11"], ["3.9", "3.10", "3.11"])
    core["units"]["3.10"] = {"passed": 643, "failed": 0, "skipped": 2}
    core["rounds"].update({"3.9": "passed", "3.10": "failed: applied again"})
    version_table.add_core(made, "2.21", None, "2026-11-22")
    made["nodes"]["3.9"] = {"unit": {"passed": 0, "failed": 3, "skipped": 0}}
    return made


def test_table_of_the_page_is_that_of_the_file() -> None:
    page = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
    assert version_table.table(version_table.load()) in page, "run: tools/versions --table"


@pytest.mark.parametrize("number, status", [("", 0), ("2", 0), ("0", 1), ("x", 1)])
def test_number_of_jobs_is_that_of_make(number: str, status: int) -> None:
    """``make versions`` passes JOBS on also where it is empty."""
    command = [sys.executable, ROOT / "tools/versions", "--list"]
    done = subprocess.run(command, env={**os.environ, "JOBS": number}, capture_output=True, text=True, check=False)
    assert (done.returncode, "JOBS=%s: not a number" % number in done.stderr) == (status, bool(status))


def test_file_names_no_place_of_a_machine() -> None:
    text = version_table.FILE.read_text(encoding="utf-8")
    assert not re.search(r"[/~\\]", text)
    assert max(map(len, text.splitlines())) <= 120


def test_cells_say_what_was_seen(results: t.Dict[str, t.Any]) -> None:
    assert version_table.table(results).splitlines() == [
        "| ansible-core | Python on the controller: unit tests | node: 3.9.4 | node: 3.10.4 | node: 3.11 |",
        "| --- | --- | --- | --- | --- |",
        "| 2.20.1 | 3.10: 643 passed, 2 skipped; 3.11: not run | passed | failed: applied again | not run |",
        "| 2.21 | not published on 2026-11-22 | not run | not run | not run |",
        "| unit tests of the node side | | 0 passed, 3 failed | not run | not run |",
        "| kernel tests | | not run | not run | not run |",
        "| version of the collection | | 1.0.0 | 1.0.0 | 1.0.0 |",
    ]


def test_results_of_another_version_are_dropped(results: t.Dict[str, t.Any]) -> None:
    version_table.add_python(results, "3.9", "3.9.5")
    core = results["cores"]["2.20"]
    assert core["rounds"] == {"3.10": "failed: applied again"} and core["units"] and results["nodes"] == {}
    again = version_table.add_core(results, "2.20", "2.20.1", "2026-11-23", core["controllers"], core["nodes"])
    assert again["rounds"] and again["date"] == "2026-11-22"
    newer = version_table.add_core(results, "2.20", "2.20.2", "2026-11-23", core["controllers"], core["nodes"])
    assert (newer["rounds"], newer["units"], newer["date"]) == ({}, {}, "2026-11-23")
    version_table.of_collection(results, "1.0.0")
    assert results["cores"]
    version_table.of_collection(results, "1.0.1")
    assert (results["cores"], results["nodes"]) == ({}, {})
