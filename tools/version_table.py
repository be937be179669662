# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tools/versions found, in docs/versions.json, and the table of it in docs/versions.md.

The file holds what the newest run of each part saw. A result is dropped when it is about another version than the
newest run: of the collection, of an ansible-core, of a Python.

collection  version of the collection
pythons     minor version of Python -> exact version
cores       series -> release (null: none published), date of that look-up, controllers and nodes (the Pythons that it
            supports), units (Python of the controller -> counts), rounds (Python of the node -> result)
nodes       Python -> unit and kernel, each counts; kernel has the ansible-core whose module_utils were used, and its
            date, because it takes so long that the columns are seldom of one day
"""

from __future__ import annotations

import json
import os
import re
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs/versions.json"
PAGE = ROOT / "docs/versions.md"
#: The table begins with this.
_HEAD = "| ansible-core |"

Results = t.Dict[str, t.Any]


def load() -> Results:
    """Return what was found before."""
    if not FILE.exists():
        return {"collection": "", "pythons": {}, "cores": {}, "nodes": {}}
    return t.cast(Results, json.loads(FILE.read_text(encoding="utf-8")))


def save(results: Results) -> None:
    """Write the file, and the table in docs/versions.md."""
    _write(FILE, json.dumps(results, indent=1, sort_keys=True) + "\n")
    text = PAGE.read_text(encoding="utf-8")
    _write(PAGE, re.sub(r"(?m)^%s.*\n(\|.*\n)*" % re.escape(_HEAD), lambda _old: table(results), text, count=1))


def _write(path: Path, text: str) -> None:
    new = path.with_name(".%s.new" % path.name)
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def of_collection(results: Results, version: str) -> None:
    """Drop what is about another version of the collection."""
    if results["collection"] != version:
        results.update(collection=version, cores={}, nodes={})


def add_python(results: Results, minor: str, exact: str) -> None:
    """Note the Python of a result to come; drop those of other releases of it."""
    if results["pythons"].get(minor) != exact:
        results["pythons"][minor] = exact
        results["nodes"].pop(minor, None)
        for core in results["cores"].values():
            core.get("units", {}).pop(minor, None)
            core.get("rounds", {}).pop(minor, None)


def add_core(
    results: Results,
    series: str,
    release: t.Optional[str],
    date: str,
    controllers: t.Sequence[str] = (),
    nodes: t.Sequence[str] = (),
) -> t.Dict[str, t.Any]:
    """Note the release of an ansible-core; drop what was found with another.

    :param release: None if none is published.
    :returns: its results.
    """
    core = results["cores"].get(series, {})
    if core.get("release") != release or release is None:
        core = {"release": release, "date": date, "units": {}, "rounds": {}}
    core.update(controllers=list(controllers), nodes=list(nodes))
    results["cores"][series] = core
    return t.cast(t.Dict[str, t.Any], core)


def table(results: Results) -> str:
    """Return the table in Markdown."""
    cores = sorted(results["cores"].items(), key=lambda item: _order(item[0]))
    columns = sorted(
        {python for _series, core in cores for python in core["nodes"]} | set(results["nodes"]), key=_order
    )
    lines = [
        [
            "ansible-core",
            "Python on the controller: unit tests",
            *("node: " + results["pythons"].get(python, python) for python in columns),
        ]
    ]
    lines.append(["---"] * len(lines[0]))
    lines += [_row(series, core, columns) for series, core in cores]
    for key, title in (("unit", "unit tests of the node side"), ("kernel", "kernel tests")):
        found = [results["nodes"].get(python, {}).get(key) for python in columns]
        lines.append([title, "", *("not run" if counts is None else _counts(counts) for counts in found)])
    lines.append(["version of the collection", "", *[results["collection"]] * len(columns)])
    return "".join("| %s |\n" % " | ".join(line).replace("|  |", "| |") for line in lines)


def _row(series: str, core: t.Dict[str, t.Any], columns: t.Sequence[str]) -> t.List[str]:
    if core["release"] is None:
        return [series, "not published on %s" % core["date"], *["not run"] * len(columns)]
    units = core["units"]
    on = ["%s: %s" % (one, _counts(units[one]) if one in units else "not run") for one in core["controllers"]]
    return [core["release"], "; ".join(on), *(core["rounds"].get(python, "not run") for python in columns)]


def _counts(counts: t.Mapping[str, t.Any]) -> str:
    words = ("passed", "failed", "skipped")
    text = ", ".join("%d %s" % (counts[word], word) for word in words if counts.get(word) or word == "passed")
    return text + (" (%s)" % counts["date"] if "date" in counts else "")


def _order(version: str) -> t.List[int]:
    return [int(part) for part in version.split(".")]
