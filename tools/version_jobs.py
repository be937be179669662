# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The jobs of tools/versions, and the short one of tools/test."""

from __future__ import annotations

import datetime
import functools
import os
import re
import typing as t
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import sanity_of_core
import version_table
from pythons import (
    CONTROLLERS,
    Core,
    NotPublished,
    Version,
    controllers,
    core_environment,
    core_of_venv,
    dotted,
    exact,
    failed_environment,
    node_environment,
    node_pythons,
    node_with_modules_of,
)
from runner import ROOT, Job, Tally

#: Unit tests of what runs on the controller, and of the modules.
_OF_CONTROLLER = [
    *(path.relative_to(ROOT) for path in sorted(ROOT.glob("tests/unit/plugins/[a-z]*")) if path.name != "module_utils"),
    Path("tests/unit/roles"),
]
#: What holds for all examples is tried with all of them by the stages unit and kernel.
_PROFILE = {"HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "again")}


class Wanted(t.NamedTuple):
    """What of all there is to run."""

    parts: t.Collection[str]
    cores: t.Collection[str]
    pythons: t.Collection[Version]
    #: only what docs/versions.json has no result of
    missing: bool


def jobs(wanted: Wanted) -> t.List[Job]:
    """Return the jobs, the most telling first."""
    known = _results()
    made = []
    for series in wanted.cores:
        rounds = known["cores"].get(series, {}).get("rounds", {})
        nodes = [version for version in wanted.pythons if not (wanted.missing and dotted(version) in rounds)]
        if "rounds" in wanted.parts and nodes:
            work = functools.partial(_rounds, series, nodes)
            made.append(Job("rounds", "round with ansible-core %s" % series, work))
    for series in wanted.cores:
        units = known["cores"].get(series, {}).get("units", {})
        for version in controllers(series):
            if (
                "units" in wanted.parts
                and version in wanted.pythons
                and not (wanted.missing and dotted(version) in units)
            ):
                title = "unit tests with ansible-core %s, Python %s" % (series, dotted(version))
                made.append(Job("units", title, functools.partial(_units, series, version)))
    if "sanity" in wanted.parts:
        for series in wanted.cores:
            made.append(Job("sanity", "sanity with ansible-core %s" % series, functools.partial(_sanity, series)))
    for part, key, title, test in (
        ("nodes", "unit", "unit tests of the node side", _node),
        ("kernel", "kernel", "kernel tests", _kernel),
    ):
        for version in _ends_first(wanted.pythons):
            if part in wanted.parts and not (wanted.missing and key in known["nodes"].get(dotted(version), {})):
                made.append(Job(part, "%s, Python %s" % (title, dotted(version)), functools.partial(test, version)))
    return made


def _ends_first(versions: t.Collection[Version]) -> t.List[Version]:
    ordered = sorted(versions)
    return ordered[:1] + ordered[:0:-1]


def _collection_version() -> str:
    found = re.search(r"(?m)^version: *(\S+)", (ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    assert found
    return found.group(1)


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def _results(*versions: Version) -> version_table.Results:
    """Return results so far, to which those with these Pythons are to be added."""
    results = version_table.load()
    version_table.of_collection(results, _collection_version())
    for version in versions:
        version_table.add_python(results, dotted(version), exact(node_pythons()[version]))
    return results


async def _core(job: Job, series: str, version: t.Optional[Version] = None, release: str = "") -> t.Optional[Core]:
    """Find that ansible-core on its newest Python here, or on that one. None if there is none; the job says why."""
    if not controllers(series):
        job.say("--- ansible-core %s: not run: no Python here that it supports on the controller" % series)
        return None
    try:
        core = await core_environment(job, series, version or max(controllers(series)), release)
    except NotPublished:
        job.say("--- ansible-core %s: not published" % series)
        results = _results()
        version_table.add_core(results, series, None, _today())
        version_table.save(results)
        return None
    if core is None:
        failed_environment(job, "ansible-core " + series)
        return None
    job.say("--- ansible-core %s" % core.release)
    known = tuple(map(dotted, CONTROLLERS[series]))
    if (core.controllers[0], core.controllers[-1]) != known:
        job.add(
            "Python %s to %s in tools/pythons.py; %s supports %s" % (*known, core.release, core.controllers),
            Tally(failed=1),
        )
    return core


def _add_core(results: version_table.Results, series: str, core: Core) -> t.Dict[str, t.Any]:
    return version_table.add_core(results, series, core.release, _today(), core.controllers, core.nodes)


def _counts(tally: Tally) -> t.Dict[str, int]:
    return dict(tally._asdict())


async def _pytest(
    job: Job, python: Path, *arguments: t.Union[str, Path], **how: t.Any
) -> t.Tuple[Path, t.Dict[str, int]]:
    before = job.tally
    report = await job.pytest(job.title, python, *arguments, **how)
    return report, _counts(Tally(*(after - was for after, was in zip(job.tally, before))))


async def _units(series: str, version: Version, job: Job) -> None:
    core = await _core(job, series, version)
    if core is None:
        return
    path = os.pathsep.join((str(core.folder / "bin"), os.environ["PATH"]))
    _report, counts = await _pytest(job, core.python, *_OF_CONTROLLER, PATH=path, **_PROFILE)
    results = _results(version)
    _add_core(results, series, core)["units"][dotted(version)] = counts
    version_table.save(results)


async def _sanity(series: str, job: Job) -> None:
    core = await _core(job, series)
    if core is not None:
        await sanity_of_core.test(core.folder, job)


async def _rounds(series: str, nodes: t.Sequence[Version], job: Job) -> None:
    core = await _core(job, series)
    if core is None:
        return
    found = await _round(job, core, nodes)
    results = _results(*nodes)
    _add_core(results, series, core)["rounds"].update(found)
    version_table.save(results)


async def _round(job: Job, core: Core, nodes: t.Sequence[Version]) -> t.Dict[str, str]:
    """Return what was seen on nodes with these Pythons."""
    interpreters = {exact(node_pythons()[version]): node_pythons()[version] for version in nodes}
    named = os.pathsep.join(map(str, interpreters.values()))
    path = os.pathsep.join((str(core.folder / "bin"), os.environ["PATH"]))
    report, _tally = await _pytest(job, core.python, "tests/rounds", root=True, PATH=path, IP_MASQ_NODE_PYTHONS=named)
    return (
        {dotted(version): _seen(report, exact(node_pythons()[version])) for version in nodes} if report.exists() else {}
    )


def _seen(report: Path, python: str) -> str:
    """Return a cell of the table."""
    steps: t.Dict[str, bool] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = re.fullmatch(r"(\w+)\[(?:(.+)-)?%s\]" % re.escape(python), case.get("name", ""))
        if name:
            passed = case.find("failure") is None and case.find("error") is None
            steps[name.group(2) or _CELLS[name.group(1)]] = passed
    failed = [step for step, passed in steps.items() if not passed]
    if failed:
        return "failed: " + ", ".join(failed)
    return "passed" if set(steps) - set(_CELLS.values()) else next(iter(steps), "not run")


#: The cell for a node that no module runs on, by the test that shows so.
_CELLS = {
    "test_python_that_is_too_old_is_refused": "refused",
    "test_python_that_is_too_new_leaves_the_node_alone": "too new",
}


async def _node(version: Version, job: Job) -> None:
    inside = await node_environment(job, dotted(version), node_pythons()[version])
    if inside is None:
        failed_environment(job, "Python " + dotted(version))
        return
    _report, counts = await _pytest(job, inside, "tests/unit/plugins/module_utils", **_PROFILE)
    _add_node(version, "unit", counts)


async def _kernel(version: Version, job: Job) -> None:
    series = _newest_core_for(version)
    core = await _core(job, series) if series else None
    if core is None:
        return
    if version in controllers(series):
        core = await _core(job, series, version)
        inside = core and core.python
    else:
        inside = await node_with_modules_of(job, dotted(version), node_pythons()[version], core)
    if core is None or inside is None:
        failed_environment(job, "Python " + dotted(version))
        return
    path = os.pathsep.join((str(inside.parent), os.environ["PATH"]))
    side_by_side = ("-n", "auto", "--dist", "worksteal")
    _report, counts = await _pytest(job, inside, *side_by_side, "tests/kernel", root=True, PATH=path, **_PROFILE)
    _add_node(version, "kernel", dict(counts, core=core.release, date=_today()))


def _newest_core_for(version: Version) -> str:
    """Return the newest series whose modules run on that Python, as far as was seen, and that runs here."""
    cores = version_table.load()["cores"]
    fits = [
        series
        for series in CONTROLLERS
        if dotted(version) in cores.get(series, {}).get("nodes", ()) and controllers(series)
    ]
    return fits[-1] if fits else ""


def _add_node(version: Version, key: str, counts: t.Dict[str, t.Any]) -> None:
    results = _results(version)
    results["nodes"].setdefault(dotted(version), {})[key] = counts
    version_table.save(results)


async def short_round(job: Job) -> None:
    """Run the oldest ansible-core with the oldest Python on the node, and the newest that runs here with the newest."""
    oldest, newest = min(node_pythons()), max(node_pythons())
    await _round(job, core_of_venv(), [oldest])
    cores = version_table.load()["cores"]
    others = [series for series in CONTROLLERS if cores.get(series, {}).get("release") and controllers(series)]
    core = await _core(job, others[-1], release=cores[others[-1]]["release"]) if others else None
    if core is not None:
        await _round(job, core, sorted({oldest, newest}))
