# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Pythons of this machine, and environments below .cache: of nodes, and of every ansible-core.

For tools/test and tools/versions.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import typing as t
from pathlib import Path

from runner import CACHE, ROOT, VENV, Job, Tally

Version = t.Tuple[int, int]

#: Nodes may have every Python from this one up.
OLDEST_NODE_PYTHON = (3, 8)
#: Release series of ansible-core: the oldest and the newest Python that its releases name for the controller.
CONTROLLERS: t.Dict[str, t.Tuple[Version, Version]] = {
    "2.18": ((3, 11), (3, 13)),
    "2.19": ((3, 11), (3, 13)),
    "2.20": ((3, 12), (3, 14)),
    "2.21": ((3, 12), (3, 14)),
    "2.22": ((3, 13), (3, 15)),
}
#: What the tests import beside ansible-core; the versions are those of requirements-dev.txt.
_TESTED_WITH = ("netaddr", "pytest", "pytest-xdist", "hypothesis", "PyYAML")
#: Collections that tests use.
_COLLECTIONS = ("posix", "windows")
#: Prints what an ansible-core says of itself: its version, the Pythons of controllers, the oldest of nodes.
_ASK_CORE = """
import runpy, sys
from ansible.release import __version__
known = runpy.run_path(sys.argv[1] + "/ansible_test/_util/target/common/constants.py")
controllers = known["CONTROLLER_PYTHON_VERSIONS"]
print(__version__, ",".join(controllers), ",".join((*known["REMOTE_ONLY_PYTHON_VERSIONS"], *controllers)))
"""


class NotPublished(Exception):
    """No release of that series, not even a candidate, is in the package index."""


class Core(t.NamedTuple):
    """An environment with an ansible-core."""

    release: str
    folder: Path
    #: the Pythons that it supports on the controller, on nodes
    controllers: t.Tuple[str, ...]
    nodes: t.Tuple[str, ...]

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin/python"


def dotted(version: Version) -> str:
    """Return a version as 3.8."""
    return "%d.%d" % version


@functools.lru_cache(maxsize=None)
def node_pythons() -> t.Dict[Version, Path]:
    """Find every Python from 3.8 up that is here, by version: on PATH, the system's, pyenv's, tools/debian-pythons'."""
    candidates = [Path(found) for minor in range(8, 30) for found in [shutil.which("python3.%d" % minor)] if found]
    candidates += [Path("/usr/bin/python3")]
    pyenv = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    candidates += sorted(Path(pyenv, "versions").glob("3.*/bin/python3"))
    candidates += sorted((CACHE / "debian").glob("*/usr/bin/python3.[0-9][0-9]"))
    ask = "import ensurepip, sys, venv; print(*sys.version_info[:2], sys.executable)"
    found: t.Dict[Version, Path] = {}
    for candidate in candidates:
        try:
            done = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
        except OSError:
            continue
        if done.returncode == 0:
            major, minor, path = done.stdout.split(maxsplit=2)
            if (int(major), int(minor)) >= OLDEST_NODE_PYTHON:
                found.setdefault((int(major), int(minor)), Path(path.strip()))
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=None)
def exact(python: Path) -> str:
    """Return the version of an interpreter, such as 3.8.18."""
    ask = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


def controllers(series: str) -> t.Dict[Version, Path]:
    """Return the Pythons of this machine on which that ansible-core runs."""
    first, last = CONTROLLERS[series]
    return {version: path for version, path in node_pythons().items() if first <= version <= last}


async def node_environment(job: Job, version: str, python: Path) -> t.Optional[Path]:
    """Make a virtual environment of that Python with what requirements-dev-node.txt names, and nothing of Ansible."""
    return await _for_tests_of_nodes(job, CACHE / "node-python" / version, python)


async def _for_tests_of_nodes(job: Job, folder: Path, python: Path, *more: str) -> t.Optional[Path]:
    wanted = "\n".join(((ROOT / "requirements-dev-node.txt").read_text(encoding="utf-8"), str(python), *more))
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        job.say("--- %s: making an environment" % folder.relative_to(ROOT))
        if await job.run(python, "-m", "venv", "--clear", folder) != 0:
            return None
        if await _pip(job, folder, "--requirement", "requirements-dev-node.txt", *more) != 0:
            return None
        stamp.write_text(wanted, encoding="utf-8")
    return folder / "bin/python"


async def _pip(job: Job, folder: Path, *arguments: t.Union[str, Path]) -> int:
    pip = (folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    return await job.run(*pip, *arguments)


async def core_environment(job: Job, series: str, version: Version, release: str = "") -> t.Optional[Core]:
    """Make a virtual environment of that Python with the newest release of that ansible-core, or with that release.

    A series without a release has a candidate installed.

    :returns: None if it cannot be made; the log says why.
    :raises NotPublished: the package index has nothing of that series.
    """
    folder = CACHE / "versions" / ("core-%s-python-%s" % (series, dotted(version)))
    stamp = folder / "installed"
    python, constraints = controllers(series)[version], _constraints()
    rest = "%s\n%s" % (python, constraints.read_text(encoding="utf-8"))
    if release and stamp.exists() and stamp.read_text(encoding="utf-8") == release + rest:
        return _ask_core(folder)
    if not (folder / "bin/python").exists():
        job.say("--- %s: making an environment" % folder.relative_to(ROOT))
        if await job.run(python, "-m", "venv", "--clear", folder) != 0:
            return None
    stamp.unlink(missing_ok=True)
    series_of = "ansible-core==%s.*" % series
    for specifier in ["ansible-core==" + release] if release else [series_of, series_of + ",>=%s.0a1" % series]:
        before = len(job.output())
        if await _pip(job, folder, "--upgrade", "--constraint", constraints, specifier, *_TESTED_WITH) == 0:
            break
        if "No matching distribution found for ansible-core" not in job.output()[before:]:
            return None
    else:
        raise NotPublished(series)
    _link_collections(folder)
    core = _ask_core(folder)
    stamp.write_text(core.release + rest, encoding="utf-8")
    return core


def _ask_core(folder: Path) -> Core:
    asked = [str(folder / "bin/python"), "-c", _ASK_CORE, str(_packages(folder))]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    release, for_controllers, for_nodes = answer.split()
    return Core(release, folder, tuple(for_controllers.split(",")), tuple(for_nodes.split(",")))


def core_of_venv() -> Core:
    """Return the ansible-core that requirements-dev.txt names."""
    return _ask_core(VENV)


def _constraints() -> Path:
    """Return requirements-dev.txt, but for Ansible itself."""
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    path = CACHE / "versions/constraints.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(line for line in lines if re.match(r"(?!ansible(-core)?==)\w", line)), encoding="utf-8")
    return path


def _packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3*/site-packages")
    return found


def _link_collections(folder: Path) -> None:
    for name in _COLLECTIONS:
        there = _packages(VENV) / "ansible_collections/ansible" / name
        here = _packages(folder) / "ansible_collections/ansible" / name
        here.parent.mkdir(parents=True, exist_ok=True)
        if not here.is_symlink():
            here.symlink_to(there)


async def node_with_modules_of(job: Job, version: str, python: Path, core: Core) -> t.Optional[Path]:
    """Make an environment as a module finds it on a node: a Python with the module_utils of an ansible-core.

    Its programs (ansible-playbook and others) are those of the controller.
    """
    folder = CACHE / "versions" / ("node-%s-core-%s" % (version, core.release))
    netaddr = re.findall(r"(?m)^netaddr==.*$", _constraints().read_text(encoding="utf-8"))
    inside = await _for_tests_of_nodes(job, folder, python, *netaddr)
    if inside is None:
        return None
    package = _packages(folder) / "ansible"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    for link, target in (
        (package / "module_utils", _packages(core.folder) / "ansible/module_utils"),
        (package / "release.py", _packages(core.folder) / "ansible/release.py"),
        *((folder / "bin" / path.name, path) for path in (core.folder / "bin").glob("ansible*")),
    ):
        if not link.is_symlink():
            link.symlink_to(target)
    return inside


def failed_environment(job: Job, of_what: str) -> None:
    """Count an environment that cannot be made."""
    job.add("an environment for %s" % of_what, Tally(failed=1))
