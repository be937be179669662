# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the agent on a node: modules, launcher, configuration, units. ``removal`` removes it.

Every step compares first, so a second run changes nothing, and check mode is the same code without the writes.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import stat
import typing as t

from .._engine.reconcile import Result
from .._engine.rule_flushers import FIREWALLS
from .._errors import ConfigError, NodeError
from .._system import files, packages, selinux_labels, systemd
from .._system.process import Runner
from .._version import VERSION
from . import module_directory, program_modules, snapshot
from .paths import MARK, PACKAGED, Paths
from .sync import describe
from .unit_control import Step, run_steps, start_units, step_lines
from .units import ENABLED_UNITS, FIREWALL_HOOKS, SERVICE, SERVICES, STARTED_UNITS, unit_files

#: A directory of this name is dedicated to the agent.
NAME = "ip-masq-agent"

#: What a diff has for a directory as it should be.
_FOLDER = "directory, mode 0755\n"

#: Where users, or a boot, may change what the agent needs.
_OF_USERS = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
_BECAUSE_OF_USERS = "where users keep their files, or which is emptied; use another directory, such as one in /opt"
_BECAUSE_REMOVED = "which a removal deletes completely; use another directory"

#: Where the unit names the directory of the program.
_EXEC_START = re.compile(r"^ExecStart=(/\S+)/ip-masq-agent-resync$", re.MULTILINE)

_PACKAGED = (
    "files of the package %s are replaced, and its next upgrade replaces them again; install the package of version %s "
    "instead"
)


class FileChange(t.NamedTuple):
    """A file that was changed, or would be. None means no such file."""

    path: str
    before: t.Optional[str]
    after: t.Optional[str]

    @property
    def line(self) -> str:
        """The change for people."""
        return "file %s: %s" % ("removed" if self.after is None else "written", self.path)


class InstallResult(t.NamedTuple):
    """What an installation or removal did, or would do."""

    files: t.Tuple[FileChange, ...]
    #: what was done with units and directories, a line each
    services: t.Tuple[str, ...]
    result: t.Optional[Result] = None
    #: warnings
    notes: t.Tuple[str, ...] = ()

    @property
    def lines(self) -> t.Tuple[str, ...]:
        """All changes, a line each."""
        written = tuple(change.line for change in self.files)
        return written + self.services + (tuple(describe(self.result)) if self.result else ())


def find_installed(paths: Paths) -> t.List[Paths]:
    """Return the paths of the installed agents: those that units start, and the one in ``bin_dir``."""
    started = [bin_dir for unit_dir in paths.unit_dirs() for bin_dir in _started(unit_dir)]
    found = []
    for bin_dir in dict.fromkeys([*started, paths.bin_dir]):
        found.append(program_modules.places(files.read(paths._replace(bin_dir=bin_dir).program) or b""))
    return [there for there in dict.fromkeys(found) if there]


def _started(unit_dir: str) -> t.List[str]:
    """Return the directory of the program that the unit file in a directory starts, if there is one."""
    text = files.read(os.path.join(unit_dir, SERVICE)) or b""
    return _EXEC_START.findall(text.decode("utf-8", "replace"))


def adopt_package(paths: Paths) -> Paths:
    """Return the paths of the packaged agent, if there is one and ``bin_dir`` does not choose another place."""
    packaged = paths._replace(units=PACKAGED.units)
    bin_dirs = _started(paths.packaged_unit_dir) if is_ours(os.path.join(paths.packaged_unit_dir, SERVICE)) else []
    if bin_dirs and paths.bin_dir in (Paths().bin_dir, bin_dirs[0]):
        return packaged._replace(bin_dir=bin_dirs[0])
    return paths


def check_paths(paths: Paths) -> None:
    """Refuse paths that the agent's service cannot use, and a config_dir that other programs use.

    :raises ConfigError: nothing was touched.
    """
    unusable = {paths.root + path: _BECAUSE_OF_USERS for path in _OF_USERS}
    unusable.update({paths.state_dir: _BECAUSE_REMOVED, paths.run_dir: _BECAUSE_REMOVED})
    for name, path in (*paths.chosen().items(), ("modules beside bin_dir", paths.lib_dir)):
        real = os.path.realpath(path or "/")
        for folder, reason in unusable.items():
            if any(_is_within(one, other) for one in (path, real) for other in (folder, os.path.realpath(folder))):
                link = "" if _is_within(path, folder) else ", a symbolic link to %s," % real
                raise ConfigError("%s: %s%s is within %s, %s" % (name, path, link, folder, reason))
    _check_dedicated(paths)


def _check_dedicated(paths: Paths) -> None:
    # What counts is the directory itself: anything can have a link of our name.
    folder = os.path.realpath(paths.config_dir)
    if os.path.basename(folder) == NAME or paths.config_dir in [there.config_dir for there in find_installed(paths)]:
        return
    others = sorted(set(os.listdir(folder)) - {"config", "config.d"}) if os.path.isdir(folder) else []
    if others or os.path.dirname(folder) == "/":
        link = "" if folder == paths.config_dir else ", a symbolic link to %s," % folder
        contains = " (it contains %s)" % ", ".join(map(ascii, others[:3])) if others else ""
        raise ConfigError(
            "config_dir: %s%s is not dedicated to the agent%s; use a directory that does not exist yet, or one named %s"
            % (paths.config_dir, link, contains, NAME)
        )


def _is_within(path: str, folder: str) -> bool:
    return (path + "/").startswith(folder + "/")


class Installation:
    """The agent on this node: what is to be written and removed, before anything is touched, and then what was done.

    :param run: starts programs, and the agent's interpreter, which compiles the modules.
    :param config_text: text of the config file; None keeps the one on the node.
    :param check: do nothing, and report what would be done.
    """

    def __init__(self, run: Runner, paths: Paths, config_text: t.Optional[str], check: bool) -> None:
        self.run, self.paths, self.check = run, paths, check
        before = find_installed(paths)
        installed = files.read(paths.program) or b""
        wanted = node_files(paths, config_text)
        modules_dir = program_modules.modules_dir(paths)
        self._new_modules = not module_directory.is_there(paths)
        if self._new_modules:
            wanted = {path: about for path, about in wanted.items() if not _is_within(path, modules_dir)}
        changes = [change for path, (content, mode) in wanted.items() for change in plan_change(path, content, mode)]
        #: content and mode by path, of the files that change
        self._wanted = {change.path: wanted[change.path] for change in changes}
        #: directories of modules that are not as they are to be
        self._wrong = module_directory.wrong_folders(paths)
        changes += [FileChange(path, "no directory, or another mode\n", _FOLDER) for path in self._wrong]
        if self._new_modules:
            changes.append(FileChange(modules_dir, None, "directory of modules, version %s\n" % VERSION))
        self._directories = [path for path in (paths.config_dir, paths.drop_ins) if not os.path.isdir(path)]
        # node_exporter would still collect old metrics, and an old program would restore an old policy.
        old = existing(path for old in before for path in (old.metrics_file, old.resync, old.program))
        old = [path for path in old if path not in (paths.metrics_file, paths.resync, paths.program)]
        # Of two units of one name systemd reads one. A link is not ours, it may mask a unit.
        folders = [folder for folder in paths.unit_dirs() if folder != paths.unit_dir]
        others = [os.path.join(folder, name) for folder in folders for name in unit_files(paths)]
        old += [path for path in existing(others) if is_ours(path) and not os.path.islink(path)]
        retired = newer_files(paths)
        old += module_directory.superseded(paths, installed)
        for lib_dir in dict.fromkeys(place.lib_dir for place in before if place.lib_dir != paths.lib_dir):
            old += module_directory.found(lib_dir)
        self._obsolete, kept = removable(old + [path for path in retired if path not in old])
        self.files: t.List[FileChange] = [*changes, *map(file_removal, self._obsolete)]
        #: what is done with units and directories, a line each
        self.services = ["directory created: " + path for path in self._directories]
        #: warnings
        self.notes = [
            "config_dir was %s; its files are kept and no longer read" % old.config_dir
            for old in before
            if old.config_dir != paths.config_dir
        ]
        self.notes += kept

    def result(self, rules: t.Optional[Result] = None) -> InstallResult:
        """Return what was done, or would be.

        :param rules: what was done with rules.
        """
        return InstallResult(tuple(self.files), tuple(self.services), rules, tuple(self.notes))

    def write_files(self) -> None:
        """Write the program, the configuration and the units, if the file systems allow it.

        :raises NodeError: a file system is read-only, and nothing was touched; or a file cannot be written.
        """
        self._refuse_read_only()
        if not self.check:
            self._write()
        replaced = [one.path for one in self.files if one.before is not None and one.path != self.paths.config]
        # The files of a directory have one owner.
        for path in {os.path.dirname(path): path for path in replaced}.values():
            package = packages.find_owner(self.run, path)
            if package is not None:
                self.notes.append(_PACKAGED % (package.name, VERSION))
                break

    def _write(self) -> None:
        """Write the launcher after the modules, and remove after that what it named before."""
        run, paths = self.run, self.paths
        new_places = selinux_labels.missing((*self._directories, paths.lib_dir, *map(os.path.dirname, self._wanted)))
        for path in self._directories:
            files.make_directory(path, 0o755)
        for path in self._wrong:
            module_directory.make_folder(path)
        note = module_directory.put(run, paths) if self._new_modules else None
        for path, (content, mode) in self._wanted.items():
            files.write(path, content, mode, folder=0o755)
        if not self._new_modules and (paths.program in self._wanted or not module_directory.is_compiled(paths)):
            note = module_directory.compile_again(run, paths)
        for path in self._obsolete:
            remove_path(path)
        if self.files:
            snapshot.discard(paths)
        self.notes += filter(None, (note, selinux_labels.restore(run, new_places)))

    def _refuse_read_only(self) -> None:
        """Refuse a read-only file system before the first file is written. An image may have all files already."""
        for path in [change.path for change in self.files if files.is_read_only(change.path)]:
            raise NodeError(
                "cannot write %s: its file system is read-only; files and rules left unchanged. Use an image with "
                "version %s of the agent and the same paths, make it writable, or, for programs, set bin_dir to a "
                "directory that can be written" % (path, VERSION)
            )

    def update_units(self, enabled: bool) -> None:
        """Enable the units, load their files and start them, or disable and stop them.

        :raises NodeError: systemd refused a step; but the rules do not need the watch for edits, so that is a note.
        """
        written = [change.path for change in self.files if os.path.dirname(change.path) in self.paths.unit_dirs()]
        changed = set(map(os.path.basename, written))
        firewalls = [unit + ".service" for unit in FIREWALLS]
        removed = [change.path for change in self.files if change.after is None]
        retired = units_of(self.paths, removed)
        properties = ("UnitFileState", "ActiveState", "NeedDaemonReload")
        ours = (*SERVICES, *ENABLED_UNITS)
        units = systemd.show_units(self.run, properties, [*ours, *firewalls, *retired])
        # A run that was interrupted may have changed files that systemd has not read since.
        unread = [unit for unit in ours if units[unit].first("NeedDaemonReload") == "yes"]
        changed.update(unread)
        are_enabled = {unit for unit, about in units.items() if about.first("UnitFileState") == "enabled"}
        active = {unit for unit, about in units.items() if about.first("ActiveState") == "active"}
        verb = "enable" if enabled else "disable"
        differ = [unit for unit in ENABLED_UNITS if (unit in are_enabled) != enabled]
        if (changed or differ) and not self.check:
            # Of a unit whose file changed, systemd answers what it read before: then none is left out.
            # The links of units that have moved lead to where they were.
            moved = [
                path
                for path in written
                if not os.path.exists(path) and os.path.basename(path) in unit_files(self.paths)
            ]
            run_steps(self.run, [("re" + verb if enabled and moved else verb, ENABLED_UNITS if changed else differ)])
            systemd.daemon_reload(self.run)
        to_stop = [unit for unit in retired if unit in active]
        starts: t.List[Step] = []
        if enabled:
            hooks = [hook for hook, firewall in zip(FIREWALL_HOOKS, firewalls) if firewall in active]
            to_start = [unit for unit in (*STARTED_UNITS, *hooks) if unit not in active]
            to_restart = [unit for unit in STARTED_UNITS if unit in changed and unit not in to_start]
            starts = [("start", to_start), ("restart", to_restart)]
        else:
            to_stop = [unit for unit in ENABLED_UNITS if unit in active] + to_stop
        notes: t.List[str] = []
        if not self.check:
            run_steps(self.run, [("stop", to_stop)])
            starts, notes = start_units(self.run, starts)
            # On an adopted node a package or an image has installed everything, and removes it.
            if self.files:
                _list_files(self.paths)
        reloaded: t.List[Step] = [] if self.files else [("daemon-reload", unread)]
        self.services += step_lines([(verb, differ), *reloaded, ("stop", to_stop), *starts])
        self.notes += notes


def remove_path(path: str) -> None:
    """Remove a file, or a directory of modules.

    :raises NodeError: naming the path and the reason.
    """
    if files.is_directory(path):
        module_directory.remove(path)
    else:
        files.remove(path)


def removable(paths: t.Sequence[str]) -> t.Tuple[t.List[str], t.List[str]]:
    """Return those of some files that are not on a read-only file system, and warnings about the others."""
    kept = [path for path in paths if files.is_read_only(path)]
    notes = ["%s kept: its file system is read-only; nothing starts it any more" % path for path in kept]
    return [path for path in paths if path not in kept], notes


def is_ours(path: str) -> bool:
    """Return whether an installation, ``set_timer`` or ``systemctl enable`` wrote a file."""
    with contextlib.suppress(NodeError):
        return os.path.islink(path) or MARK.encode("ascii") in (files.read(path) or b"")[:1000]
    return False


def newer_files(paths: Paths) -> t.List[str]:
    """Return the files that only another release installs, with the links that enable its units.

    Each release writes down what it installs, so that an older one can remove it.
    """
    # By their names: the programs may have been in another bin_dir.
    known = {os.path.basename(path) for path in installed_paths(paths)}
    with contextlib.suppress(NodeError, ValueError, TypeError, RecursionError):
        written = json.loads((files.read(paths.files_list) or b"[]").decode("utf-8"))
        found = [path for path in existing(map(str, written)) if os.path.basename(path) not in known and is_ours(path)]
        units = [os.path.basename(path) for path in found if os.path.dirname(path) == paths.unit_dir]
        links = glob.glob(os.path.join(glob.escape(paths.unit_dir), "*.wants", NAME + "*"))
        return found + sorted(path for path in links if _template(os.path.basename(path)) in units)
    return []


def _list_files(paths: Paths) -> None:
    """Write down what is installed. A failure only matters to an older release."""
    content = json.dumps(installed_paths(paths)).encode("utf-8")
    with contextlib.suppress(NodeError):
        if files.read(paths.files_list) != content:
            files.write(paths.files_list, content, folder=0o700)


def installed_paths(paths: Paths) -> t.List[str]:
    """Return the programs and units that this release installs."""
    return [paths.program, paths.resync, *(os.path.join(paths.unit_dir, name) for name in sorted(unit_files(paths)))]


def units_of(paths: Paths, installed: t.Iterable[str]) -> t.List[str]:
    """Return the units among some files and links that can be stopped; of templates the enabled instances."""
    units = [os.path.basename(path) for path in installed if _is_within(path, paths.unit_dir)]
    return [unit for unit in dict.fromkeys(units) if "@." not in unit]


def _template(unit: str) -> str:
    """Return the file of a unit: of an instance, its template."""
    name, _at, instance = unit.partition("@")
    return "%s@%s" % (name, instance[instance.rindex(".") :]) if "." in instance else unit


def node_directories(paths: Paths) -> t.Tuple[str, ...]:
    """Return all directories that are the agent's alone, mode 0755, in the order in which they are made."""
    return (paths.config_dir, paths.drop_ins, *module_directory.folders(paths))


def node_files(paths: Paths, config_text: t.Optional[str] = None) -> t.Dict[str, t.Tuple[bytes, int]]:
    """Return what the agent consists of: content and mode by path. Packages (tools/dist) are made of the same files.

    :param config_text: text of the config file; None leaves it out.
    """
    wanted = {}
    if config_text is not None:
        wanted[paths.config] = (config_text.encode("utf-8"), 0o644)
    wanted[paths.program] = (program_modules.launcher(paths), 0o755)
    wanted[paths.resync] = (snapshot.resync_script(paths).encode("utf-8"), 0o755)
    for name, text in unit_files(paths).items():
        wanted[os.path.join(paths.unit_dir, name)] = (text.encode("utf-8"), 0o644)
    for path, content in module_directory.node_files(paths).items():
        wanted[path] = (content, 0o644)
    return wanted


def plan_change(path: str, content: bytes, mode: int) -> t.Iterator[FileChange]:
    """Return the change of a file, if it is not as it should be."""
    before = files.read(path)
    if before != content or os.stat(path).st_mode & 0o7777 != mode:
        yield FileChange(path, _diff_text(before), _diff_text(content))


def existing(paths: t.Iterable[str]) -> t.List[str]:
    """Return those of some files that exist, each once. A directory of that name does not count."""
    return [path for path in dict.fromkeys(paths) if files.mode(path) and not files.is_directory(path)]


def file_removal(path: str) -> FileChange:
    """Return the removal of a file, or of a directory of modules.

    Only the text of a config file is shown: other users may have written files in metrics_dir, or what a link leads to.
    """
    is_shown = os.path.basename(path) == "config" and stat.S_ISREG(files.mode(path))
    return FileChange(path, _diff_text(files.read(path)) if is_shown else "not shown\n", None)


def _diff_text(content: t.Optional[bytes]) -> t.Optional[str]:
    """Return a file for a diff: its text, or a description if it is not text."""
    if content is None:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        return content.decode("utf-8")
    return "%d bytes, sha256 %s\n" % (len(content), hashlib.sha256(content).hexdigest())
