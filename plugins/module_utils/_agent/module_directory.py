# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of the program's modules on a node: put in place in one rename, compiled, removed.

Each is named by the digest of its modules, so an upgrade writes beside what runs. Symbolic links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import time
import typing as t

from .._errors import NodeError
from .._system import files
from .._system.process import Runner, failure
from . import program_modules
from .paths import Paths

#: A directory of modules, or one that was not finished.
_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{16}\.new)?")

#: In each of our modules.
_AUTHOR = b"the kubenode.ip_masq maintainers"

#: Seconds; no run of the agent takes longer. A verification started by Ansible ends after an hour.
_LONGEST_RUN = 7200.0

#: Seconds to compile all modules, which takes less than one on a server.
_COMPILE_TIMEOUT = 300.0


class Contents(t.NamedTuple):
    """What is in a directory of modules."""

    #: files and directories that are ours, in the order of their removal
    ours: t.Tuple[str, ...]
    #: files of others
    others: t.Tuple[str, ...]


def folders(paths: Paths) -> t.List[str]:
    """Return the directories that hold the modules, mode 0755, in the order in which they are made."""
    folder = program_modules.modules_dir(paths)
    return [paths.lib_dir, folder, *(os.path.join(folder, part) for part in _packages())]


def _packages() -> t.List[str]:
    return sorted({os.path.dirname(path) for path in program_modules.module_files()})


def node_files(paths: Paths) -> t.Dict[str, bytes]:
    """Return the content of each module by its path on the node."""
    folder = program_modules.modules_dir(paths)
    return {os.path.join(folder, path): content for path, content in program_modules.module_files().items()}


def is_there(paths: Paths) -> bool:
    """Return whether there is a directory for these modules."""
    return all(map(files.is_directory, folders(paths)[:2]))


def wrong_folders(paths: Paths) -> t.List[str]:
    """Return the places of directories of the modules where something else is, or one that does not have mode 0755."""
    return [folder for folder in folders(paths) if files.mode(folder) & ~0o7000 not in (0, stat.S_IFDIR | 0o755)]


def make_folder(path: str) -> None:
    """Make a directory, mode 0755, whatever is there.

    :raises NodeError: naming the path and the reason.
    """
    if not files.is_directory(path):
        files.remove(path)
    files.make_directory(path, 0o755)
    with files.failing_to("change the mode of", path):
        os.chmod(path, 0o755)  # noqa: S103 - directories of programs are read by all


def put(run: t.Optional[Runner], paths: Paths) -> t.Optional[str]:
    """Put the modules into a directory of their own, compiled for the agent's interpreter, in one rename.

    :param run: starts that interpreter; None leaves the modules as they are.
    :returns: a warning if they could not be compiled.
    :raises NodeError: the directory cannot be written, and does not exist.
    """
    folder = program_modules.modules_dir(paths)
    draft = "%s.%s.new" % (folder, os.urandom(8).hex())
    make_folder(paths.lib_dir)
    with files.failing_to("write", folder):
        try:
            _write(draft)
            problem = _compile(run, paths, draft) if run else None
            _flush(draft)
            if not files.is_directory(folder):
                files.remove(folder)
                os.rename(draft, folder)
            files.flush_directory(paths.lib_dir)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return problem


def _write(draft: str) -> None:
    """Write the modules. Only root can enter the directory before it is complete, whatever the umask is."""
    os.mkdir(draft, 0o700)
    for package in _packages():
        os.makedirs(os.path.join(draft, package))
    for path, content in program_modules.module_files().items():
        with open(os.path.join(draft, path), "xb") as file:
            file.write(content)


def compile_command(paths: Paths, folder: t.Optional[str] = None) -> t.List[str]:
    """Return the command that compiles the modules.

    Python compares the code with the checksum of the source: times of files do not matter.

    :param folder: where the modules are before they are in their place.
    """
    final = os.path.join(program_modules.modules_dir(paths), program_modules.PACKAGE)
    argv = [paths.python, "-I", "-m", "compileall", "-q", "-f", "--invalidation-mode", "checked-hash"]
    return [*argv, "-d", final, os.path.join(folder, program_modules.PACKAGE) if folder else final]


def is_compiled(paths: Paths) -> bool:
    """Return whether there is code for this Python, if it is the agent's interpreter.

    After an upgrade of Python, and in what an image or a tarball has, there is none.
    """
    tag = sys.implementation.cache_tag
    if tag is None or os.path.realpath(sys.executable or "") != os.path.realpath(paths.python):
        return True
    folder, name = program_modules.ENTRY.split(".")
    code = os.path.join(program_modules.PACKAGE, folder, "__pycache__", "%s.%s.pyc" % (name, tag))
    return os.path.exists(os.path.join(program_modules.modules_dir(paths), code))


def compile_again(run: Runner, paths: Paths) -> t.Optional[str]:
    """Have the agent's interpreter compile modules that are in their place, if the file system allows it.

    Code that a crash damages is not used: the launcher then takes the source.

    :returns: a warning if that fails.
    """
    return None if files.is_read_only(program_modules.modules_dir(paths)) else _compile(run, paths)


def _compile(run: Runner, paths: Paths, draft: t.Optional[str] = None) -> t.Optional[str]:
    """Have the agent's interpreter compile the modules. Without that, each start does.

    :returns: a warning if that fails.
    """
    problem = failure(run, compile_command(paths, draft), _COMPILE_TIMEOUT)
    return "the agent's modules are not compiled, which each start does instead: %s" % problem if problem else None


def _flush(folder: str) -> None:
    """Give all that is in a directory of ours its mode, the directory last, and flush it to the disk.

    First all is written, then flushed: then the file system writes its journal once.
    """
    modes: t.Dict[str, int] = {}
    for parent, _folders, names in os.walk(folder, topdown=False):
        modes.update((os.path.join(parent, name), 0o644) for name in names)
        modes[parent] = 0o755
    for path, mode in modes.items():
        os.chmod(path, mode)
    for path in modes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def found(lib_dir: str) -> t.List[str]:
    """Return the directories of modules of all releases, finished or not."""
    with contextlib.suppress(OSError):
        if files.is_directory(lib_dir):
            paths = [os.path.join(lib_dir, name) for name in sorted(os.listdir(lib_dir)) if _NAME.fullmatch(name)]
            return [path for path in paths if files.is_directory(path)]
    return []


def superseded(paths: Paths, installed: bytes) -> t.List[str]:
    """Return the directories that an upgrade removes: those that no running program can load a module from.

    A program loads modules as it needs them. So the directory that it was started with stays until the upgrade after
    the next, and one that was replaced less than two hours ago too.

    :param installed: the launcher that is there.
    """
    named = program_modules.release(installed)
    with contextlib.suppress(OSError):
        if named != program_modules.digest() and time.time() - os.stat(paths.program).st_mtime > _LONGEST_RUN:
            return [
                path for path in found(paths.lib_dir) if os.path.basename(path) not in (named, program_modules.digest())
            ]
    return []


def contents(folder: str) -> Contents:
    """Return what is in a directory of modules of any release, the directory included if nothing else is in it."""
    ours: t.Dict[str, None] = {}
    others: t.List[str] = []
    for parent, folders_there, files_there in os.walk(folder, topdown=False):
        paths = [os.path.join(parent, name) for name in sorted(folders_there + files_there)]
        leaves = [path for path in paths if not files.is_directory(path)]
        ours.update((path, None) for path in leaves if _is_ours(path))
        others += [path for path in leaves if path not in ours]
        if all(path in ours for path in paths):
            ours[parent] = None
    return Contents(tuple(ours), tuple(others))


def _is_ours(path: str) -> bool:
    """Return whether a file is a module of ours, or compiled code."""
    if not stat.S_ISREG(files.mode(path)):
        return False
    if os.path.basename(os.path.dirname(path)) == "__pycache__":
        return path.endswith(".pyc")
    with contextlib.suppress(NodeError):
        content = files.read(path) or b""
        return path.endswith(".py") and (
            _AUTHOR in content[:1000] or (not content and os.path.basename(path) == "__init__.py")
        )
    return False


def remove(folder: str) -> None:
    """Remove what is ours in a directory of modules, and the directories that are empty then.

    :raises NodeError: naming the path and the reason.
    """
    for path in contents(folder).ours:
        files.remove(path, os.rmdir if files.is_directory(path) else os.unlink)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(folder))
