# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs of tests: run side by side, counted, ended when the run is interrupted. For tools/test."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import typing as t
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
VENV = ROOT / ".venv"
INSTALLED = CACHE / "collections/ansible_collections/kubenode/ip_masq"
#: Seconds in which an interrupted program may clean up behind itself.
GRACE = 60.0

ENV = dict(
    os.environ,
    PATH=os.pathsep.join((str(VENV / "bin"), os.environ["PATH"], "/usr/sbin", "/sbin")),
    ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
    ANSIBLE_HOME=str(CACHE / "ansible"),
    HYPOTHESIS_STORAGE_DIRECTORY=str(CACHE / "hypothesis"),
    MOLECULE_COMMAND_BORDERS="false",
    PYTHONDONTWRITEBYTECODE="1",
)
#: For pytest alone, which compiles what nobody else does: all tests, and the collection, once for each process.
COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(CACHE / "compiled")}
#: What of the environment is kept where sudo is needed.
KEPT = re.compile(r"(PATH|TERM)$|(ANSIBLE|HYPOTHESIS|IP_MASQ|MOLECULE|PYTHON)")

#: Lines of a log that say what failed: of Ansible, of molecule, of pytest, of Python. A task is named for what fails in
#: it; molecule lists the tasks of a second run that changed something with asterisks.
TELLING = re.compile(
    r"TASK \[|fatal: |failed: |FAILED |CRITICAL |\* \[|ERROR (?!.*(Ansible return code|Executed: Failed|1 failed\)))"
    r"|\s*(NOT SO: |E   |[\w.]*(Error|Exception): |assertion: |msg: (?!All assertions|non-zero|\|)|stderr: [^'|])"
)
#: How many of them are repeated at the end, for each job, and how much of each.
LINES, COLUMNS = 12, 240

Word = t.Union[str, Path]


class Tally(t.NamedTuple):
    """How many checks passed, failed, were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: t.Iterable[int]) -> Tally:  # type: ignore[override]
        return Tally(*(mine + its for mine, its in zip(self, other)))

    def __str__(self) -> str:
        text = "%d passed, %d failed" % (self.passed, self.failed)
        return text + (", %d skipped" % self.skipped if self.skipped else "")


def say(text: str) -> None:
    """Print one line of progress."""
    print(text, flush=True)


class Job:
    """A part of a stage that runs beside other jobs.

    :param work: called with the job; it runs programs, whose output goes to ``log``, and adds to ``tally``.
    """

    def __init__(self, stage: str, title: str, work: t.Callable[[Job], t.Awaitable[None]]) -> None:
        self.stage = stage
        self.title = title
        self.tally = Tally()
        self.failures: t.List[str] = []
        self.started = self.ended = time.monotonic()
        self._work = work
        self.log = CACHE / "log" / (_file_name(title) + ".log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("=== %s\n" % title, encoding="utf-8")
        self._shown = 0

    async def perform(self) -> None:
        """Do all of it."""
        self.started = time.monotonic()
        say("... " + self.title)
        try:
            await self._work(self)
        except Exception:
            self.say(traceback.format_exc())
            self.add("the job itself", Tally(failed=1))
        finally:
            self.ended = time.monotonic()

    def __str__(self) -> str:
        return "%s: %d s, %s" % (self.title, self.ended - self.started, self.tally)

    def show(self) -> None:
        """Print what was not printed yet of the output."""
        with self.log.open("rb") as log:
            log.seek(self._shown)
            shutil.copyfileobj(log, sys.stdout.buffer)
            self._shown = log.tell()
        sys.stdout.buffer.flush()

    def say(self, text: str) -> None:
        """Log one line, in order with what the programs print."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(text + "\n")

    def output(self) -> str:
        """Return what was printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def reasons(self) -> t.List[str]:
        """Return what the log says of failures, cut to a screen: often only the end of a long run is kept."""
        plain = re.sub("\x1b\\[[0-9;]*m", "", self.output()).splitlines()
        found = [line[:COLUMNS].rstrip() for line in plain if TELLING.match(line)]
        pairs = zip(found, found[1:] + ["TASK ["])
        return [line for line, after in pairs if not (line.startswith("TASK [") and after.startswith("TASK ["))][:LINES]

    def add(self, title: str, tally: Tally, why: str = "") -> None:
        """Count checks, and say which failed."""
        self.tally += tally
        if tally.failed:
            self.failures.append("%s: FAILED%s" % (title, why and " (%s)" % why))
            self.say("--- " + self.failures[-1])

    async def run(self, *argv: Word, cwd: Path = ROOT, root: bool = False, **env: str) -> int:
        """Run a program to its end, in a session of its own; end it when the run is interrupted.

        :returns: its exit status.
        """
        its = dict(ENV, **env)
        if root and os.geteuid() != 0:
            argv = ("sudo", "--non-interactive", "env", *("%s=%s" % i for i in its.items() if KEPT.match(i[0])), *argv)
        with self.log.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *map(str, argv),
                cwd=cwd, env=its, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            return await child.wait()
        except asyncio.CancelledError:
            await _end(child)
            raise

    async def check(self, title: str, *argv: Word, **how: t.Any) -> None:
        """Count one check that is one program: it passes when its exit status is 0."""
        self.say("--- " + title)
        status = await self.run(*argv, **how)
        self.add(title, Tally(passed=int(status == 0), failed=int(status != 0)), "exit status %d" % status)

    async def pytest(self, title: str, python: Word, *arguments: Word, root: bool = False, **env: str) -> Path:
        """Run pytest; its own count is ours.

        :returns: its report in the form of JUnit; without one, it crashed.
        """
        name = _file_name(title)
        report = CACHE / "results" / (name + ".xml")
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        self.say("--- " + title)
        own = ("-o", "cache_dir=.cache/pytest/" + name, "--junitxml=%s" % report)
        status = await self.run(python, "-m", "pytest", "-q", *own, *arguments, root=root, cwd=ROOT, **COMPILED, **env)
        tally = read_report(report, status)
        self.add(title, tally, "pytest's exit status %d" % status)
        return report


def read_report(report: Path, status: int) -> Tally:
    """Return what a report of pytest says, in the form of JUnit; a failure if there is none, or nothing ran.

    :param status: pytest's exit status, which can be a failure where the report has none.
    """
    tally = Tally()
    if report.exists():
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            tally += Tally(max(total - failed - skipped, 0), failed, skipped)
    if not tally.failed and (status or not tally.passed + tally.skipped):
        tally += Tally(failed=1)
    return tally


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", title.lower())


async def _end(child: asyncio.subprocess.Process) -> None:
    """Interrupt a program, so that it cleans up. Kill what does not end in time, and what it left behind."""
    _signal(child.pid, signal.SIGINT)
    await asyncio.wait([asyncio.create_task(child.wait())], timeout=GRACE)
    _signal(child.pid, signal.SIGKILL)
    await child.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
    except PermissionError:  # started with sudo
        kill = ["sudo", "--non-interactive", "kill", "-%d" % number, "--", "-%d" % group]
        subprocess.run(kill, stderr=subprocess.DEVNULL, check=False)


def jobs_at_once(default: int) -> int:
    """Return how many jobs to run at a time: JOBS of the environment, which make leaves empty if it is not set."""
    given = os.environ.get("JOBS", "")
    if given and not (given.isdigit() and int(given)):
        sys.exit("JOBS=%s: not a number of jobs: write a whole number from 1 up" % given)
    return int(given) if given else default


async def perform(jobs: t.Sequence[Job], at_once: int) -> None:
    """Do all jobs, and print their output.

    :raises asyncio.CancelledError: interrupted; nothing is left running.
    """
    here = asyncio.current_task()
    assert here is not None

    def stop(number: int) -> None:
        if not here.cancelling():  # type: ignore[attr-defined] # Python 3.11
            here.cancel(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    turns = asyncio.Semaphore(at_once)
    count = itertools.count(1)

    async def one(job: Job) -> None:
        async with turns:
            await job.perform()
        job.show()
        say("=== %d of %d ended: %s" % (next(count), len(jobs), job))

    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined] # Python 3.11
        tasks = [group.create_task(one(job)) for job in jobs]
        while min(at_once, len(jobs)) == 1 and not all(task.done() for task in tasks):
            for job in jobs:
                job.show()
            await asyncio.sleep(0.2)


def summary(jobs: t.Sequence[Job]) -> Tally:
    """Print a line for each stage, what failed, and the sum of all."""
    stages = list(dict.fromkeys(job.stage for job in jobs))
    for stage in stages if len(stages) > 1 else ():
        its = [job for job in jobs if job.stage == stage]
        seconds = max(job.ended for job in its) - min(job.started for job in its)
        say("%-10s %5d s   %s" % (stage, seconds, sum((job.tally for job in its), Tally())))
    for job in jobs:
        for failure in job.failures:
            say("--- %s: see %s" % (failure, job.log.relative_to(ROOT)))
        for line in job.reasons() if job.failures else ():
            say("    " + line)
    total = sum((job.tally for job in jobs), Tally())
    say(str(total))
    return total
