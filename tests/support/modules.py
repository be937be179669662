# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the installed module inside a namespace."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import types
import typing as t
from pathlib import Path

from . import module_process
from .import_collection import ROOT, location
from .namespaces import Namespace
from .programs import ATTACHED

_NF_TABLES = "ansible_collections.kubenode.ip_masq.plugins.module_utils._system.nf_tables"
_FORK = multiprocessing.get_context("fork")

Result = t.Dict[str, t.Any]


def collections() -> Path:
    """Return the directory that holds ansible_collections/ with the installed artefact.

    :raises RuntimeError: it is not there.
    """
    inside = location()
    if inside == ROOT:
        raise RuntimeError(
            "the collection is not installed: run `make setup`, or name the directory that holds ansible_collections/ "
            "in the environment variable IP_MASQ_COLLECTIONS"
        )
    return inside.parents[2]


class ModuleRun:
    """Runs of the module, one after the other, in one new process that has all slow imports behind it."""

    def __init__(
        self,
        ns: Namespace,
        runs: t.Sequence[t.Mapping[str, t.Any]],
        check: bool = False,
        diff: bool = False,
        path: t.Optional[Path] = None,
        module: str = "ip_masq",
    ) -> None:
        """
        :param runs: the options of each run.
        :param path: a directory to put before PATH.
        :param module: its name.
        """
        self._answers, answers = _FORK.Pipe(duplex=False)
        work = [module_process.Run(dict(options), check, diff, module) for options in runs]
        _imported(module)
        self.process = _FORK.Process(target=_work, args=(ns, work, path, answers), daemon=True)
        self.process.start()
        answers.close()

    @property
    def pid(self) -> int:
        """The process."""
        assert self.process.pid is not None
        return self.process.pid

    def wait_until_ready(self) -> None:
        """Return when the module's own code is about to start."""
        assert self._answers.recv() == "ready"

    def running(self) -> bool:
        """Return whether the module is still at work."""
        return self.process.is_alive()

    def results(self) -> t.List[Result]:
        """Wait for the end, and return what each run returned: fewer than were asked for when it was killed.

        :raises AssertionError: a run ended in a traceback or in something that is not JSON.
        """
        found: t.List[Result] = []
        with contextlib.suppress(EOFError, OSError):  # the second when killed in the middle of an answer
            while True:
                answer = self._answers.recv()
                if answer != "ready":
                    found.append(answer)
        self.process.join()
        for result in found:
            assert "crashed" not in result, result["crashed"]
        return found


@functools.lru_cache(maxsize=None)
def _imported(module: str) -> t.Dict[str, types.ModuleType]:
    """Return what a module imports of the collection, as it is when nobody has used it: each run starts from that."""
    others = _take_modules()
    sys.path.insert(0, str(collections()))
    try:
        importlib.import_module(module_process.MODULES + module)
        taken = _take_modules()
        del taken[module_process.MODULES + module]  # it runs as __main__
        return taken
    finally:
        sys.path.pop(0)
        sys.modules.update(others)


def _take_modules() -> t.Dict[str, types.ModuleType]:
    """Forget what was imported of collections, and return it."""
    names = [name for name in sys.modules if name.split(".")[0] == "ansible_collections"]
    return {name: sys.modules.pop(name) for name in names}


def _work(
    ns: Namespace,
    work: t.Sequence[module_process.Run],
    path: t.Optional[Path],
    answers: multiprocessing.connection.Connection,
) -> None:
    """Enter the namespace, and run the module as if nobody had imported it before: the work of the new process."""
    ns.enter()
    if path is not None:
        os.environ["PATH"] = "%s:%s" % (path, os.environ["PATH"])
    sys.path.insert(0, str(collections()))
    _take_modules()
    sys.modules.update(_imported(work[0].module) if work else {})
    if path in ATTACHED and _NF_TABLES in sys.modules:
        ATTACHED[path].attach(sys.modules[_NF_TABLES])
    answers.send("ready")
    for one in work:
        answers.send(module_process.run(one))


def run_modules(ns: Namespace, runs: t.Sequence[t.Mapping[str, t.Any]], **how: t.Any) -> t.List[Result]:
    """Run the module once per element of ``runs`` (its options), one after the other in one process."""
    found = ModuleRun(ns, runs, **how).results()
    assert len(found) == len(runs), "%d of %d runs returned" % (len(found), len(runs))
    return found


def run_weak(ns: Namespace, wrapper: t.Sequence[str], module: str = "ip_masq", **options: t.Any) -> Result:
    """Run a module once behind a command line that takes something away (privileges, programs) and runs the rest."""
    out = ns.run(
        *wrapper,
        "env",
        "PYTHONPATH=%s" % collections(),
        sys.executable,
        str(Path(module_process.__file__).resolve()),
        module,
        stdin=json.dumps(options),
    )
    result: Result = json.loads(out)
    assert "crashed" not in result, result["crashed"]
    return result


def run_module(
    ns: Namespace,
    check: bool = False,
    diff: bool = False,
    path: t.Optional[Path] = None,
    wrapper: t.Sequence[str] = (),
    **options: t.Any,
) -> Result:
    """Run the module once with ``options`` and return what it returned, failed or not.

    :param path: as for ``ModuleRun``.
    :param wrapper: as for ``run_weak``.
    """
    if wrapper:
        return run_weak(ns, wrapper, **options)
    return run_modules(ns, [options], check=check, diff=diff, path=path)[0]


def apply(ns: Namespace, **options: t.Any) -> Result:
    """Run the module as ``run_module`` does.

    :raises AssertionError: the module failed.
    """
    result = run_module(ns, **options)
    assert not result.get("failed"), result["msg"]
    return result


def info(ns: Namespace, **options: t.Any) -> Result:
    """Run the module ``ip_masq_info`` once with ``options`` and return what it returned, failed or not."""
    return run_modules(ns, [options], module="ip_masq_info")[0]


def refused(ns: Namespace, **options: t.Any) -> str:
    """Run the module as ``run_module`` does and return its error message.

    :raises AssertionError: the module did not fail, or says that it changed something.
    """
    result = run_module(ns, **options)
    assert result.get("failed"), "the module accepted this: %r" % result
    assert not result.get("changed"), result
    return t.cast(str, result["msg"])
