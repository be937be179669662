# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove the agent from a node: units, rules, files.

Only what the agent wrote or read is removed. Check mode is the same code without the writes.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from .._engine.reconcile import Result, reconcile
from .._errors import NodeError
from .._policy.config_file import config_paths
from .._policy.policy import DEFAULTS, build
from .._system import files, packages, systemd
from .._system.node import Node
from .._system.process import Runner
from . import log_service, module_directory
from .effective_policy import find_policy
from .install import (
    NAME,
    InstallResult,
    existing,
    file_removal,
    find_installed,
    is_ours,
    newer_files,
    newer_units,
    removable,
    remove_path,
)
from .paths import Paths
from .state_files import read_memory
from .unit_control import stop_units
from .units import (
    ENABLED_UNITS,
    FIREWALL_HOOKS,
    FIREWALL_TEMPLATE,
    SERVICE,
    SERVICES,
    interval_drop_in,
    unit_files,
)

_KEPT = "%s kept: it contains files that the agent neither wrote nor read: %s"


def uninstall(node: Node, paths: Paths, check: bool = False, keep_files: bool = False) -> InstallResult:
    """Remove everything: the timer first, then the rules in all variants and families, then the files.

    :param paths: used if no agent is installed; otherwise the paths of the installed one are.
    :param keep_files: keep the configuration, and what was installed: a package that is being removed owns it.
    :raises NodeError: a package owns the files, and nothing was touched; or a step failed: run again to remove what
        is left.
    """
    found = find_installed(paths)
    places = found or [paths]
    written = [interval_drop_in(paths)]
    if not keep_files:
        _refuse_packaged(node.run, paths, places)
        written += [os.path.join(folder, name) for folder in paths.unit_dirs() for name in unit_files(paths)]
        written += newer_files(paths)
        # The program last: the next run reads the paths from it.
        written += [path for place in places for path in (place.resync, place.program)]
    foreign = [path for path in existing(written) if not is_ours(path)]
    gone = [place.metrics_file for place in [paths, *places] if place.metrics_file]
    if not keep_files:
        gone += [path for place in places for path in _config_files(place)]
    modules = _module_directories([] if keep_files else places)
    gone = modules.removed + existing(gone + [path for path in written if path not in foreign])
    # A package does not have these.
    gone += [path for place in places for path in log_service.installed(place)]
    gone, kept = removable(list(dict.fromkeys(gone)))

    has_systemd = systemd.is_running()
    services = log_service.stop(node.run, paths, check) if has_systemd else []
    services += _stop_units(node.run, paths, foreign, check) if has_systemd else []
    result = _remove_rules(node, paths, places, check)
    changes = tuple(file_removal(path) for path in gone)
    folders, notes = _emptied(gone, paths, [] if keep_files else places, bool(found))
    folders += modules.emptied
    notes += modules.notes
    trees = [paths.state_dir, paths.run_dir] + ([] if keep_files else [paths.log_dir])
    trees = [path for path in trees if os.path.isdir(path)]
    services += ["directory removed: " + path for path in trees + folders]
    notes += kept + ["%s kept: it is not a file of this collection" % path for path in foreign]
    if not check:
        for path in gone:
            remove_path(path)
        for path in trees + folders:
            files.remove(path, os.unlink if os.path.islink(path) else shutil.rmtree if path in trees else os.rmdir)
        if has_systemd and (changes or services):
            systemd.daemon_reload(node.run)
            systemd.reset_failed(node.run, *SERVICES)
    return InstallResult(changes, tuple(services), result, tuple(notes))


class _ModuleDirectories(t.NamedTuple):
    """What becomes of the directories of the program's modules."""

    #: those that have modules of ours
    removed: t.List[str]
    #: their parents that are empty afterwards
    emptied: t.List[str]
    notes: t.List[str]


def _module_directories(places: t.Iterable[Paths]) -> _ModuleDirectories:
    done = _ModuleDirectories([], [], [])
    for lib_dir in dict.fromkeys(place.lib_dir for place in places):
        if os.path.islink(lib_dir) or not os.path.isdir(lib_dir):
            continue
        there = {folder: module_directory.contents(folder) for folder in module_directory.found(lib_dir)}
        removed = [folder for folder, contents in there.items() if contents.ours]
        others = [path for contents in there.values() for path in contents.others]
        others += [path for path in (os.path.join(lib_dir, name) for name in os.listdir(lib_dir)) if path not in there]
        done.removed.extend(removed)
        if not others and not files.is_read_only(lib_dir):
            done.emptied.append(lib_dir)
        elif others and removed:
            done.notes.append(_KEPT % (lib_dir, ", ".join(sorted(os.path.relpath(path, lib_dir) for path in others))))
    return done


def _refuse_packaged(run: Runner, paths: Paths, places: t.Sequence[Paths]) -> None:
    programs = [place.program for place in places]
    for path in existing([*programs, *(os.path.join(folder, SERVICE) for folder in paths.unit_dirs())]):
        package = packages.find_owner(run, path)
        if package:
            raise NodeError(
                "%s belongs to the package %s, which owns the agent's files; remove the package, rules included, with "
                "'%s', and run this again to remove the configuration" % (path, package.name, package.removal)
            )


def _config_files(paths: Paths) -> t.List[str]:
    """Return the files that the agent reads; if a symbolic link leads to them, the link."""
    if os.path.islink(paths.config_dir):
        return [paths.config_dir]
    return [paths.config, paths.drop_ins] if os.path.islink(paths.drop_ins) else config_paths(paths.config_dir)


def _stop_units(run: Runner, paths: Paths, foreign: t.Sequence[str], check: bool) -> t.List[str]:
    names = [
        unit
        for unit in dict.fromkeys(ENABLED_UNITS + SERVICES + tuple(newer_units(paths)))
        if _file_in_force(paths, FIREWALL_TEMPLATE if unit in FIREWALL_HOOKS else unit) not in foreign
    ]
    return stop_units(run, names, (SERVICE,), check)


def _file_in_force(paths: Paths, name: str) -> str:
    """Return the path of the unit file that systemd reads, if there is one."""
    return next(iter(existing(os.path.join(folder, name) for folder in paths.unit_dirs())), "")


def _remove_rules(node: Node, paths: Paths, places: t.Sequence[Paths], check: bool) -> Result:
    """Remove the rules under every name that the configuration, the state file or a jump of ours has for the chain."""
    remembered = read_memory(paths)
    configs = [find_policy(place, remembered).config for place in places]
    if remembered.values is not None:
        configs.append(build(remembered.values))
    names = [config.masq_chain for config in configs if config is not None] or [DEFAULTS["masq_chain"]]
    result = reconcile(
        node,
        build({"non_masquerade_cidrs": [], "masq_chain": names[0]}),
        present=False,
        check=check,
        former=names[1:],
        lock_path=paths.run_lock,
        effects=True,
    )
    if result.errors:
        raise NodeError("; ".join(result.errors))
    return result


def _emptied(
    removed: t.Iterable[str], paths: Paths, places: t.Sequence[Paths], are_installed: bool
) -> t.Tuple[t.List[str], t.List[str]]:
    """Return directories that are empty without some files, in the order of their removal, and notes about others."""
    gone = set(removed)
    folders = [(os.path.dirname(interval_drop_in(paths)), True)]
    for place in places:
        alone = are_installed or os.path.basename(place.config_dir) == NAME
        if not os.path.islink(place.config_dir):
            # Of what a link leads to, nothing goes.
            folders += [(place.drop_ins, alone), (place.config_dir, alone)]
    notes = []
    for folder, alone in dict(folders).items():
        if os.path.islink(folder) or not os.path.isdir(folder):
            continue
        left = sorted(name for name in os.listdir(folder) if os.path.join(folder, name) not in gone)
        touched = any(os.path.dirname(path) == folder for path in gone)
        if not left and (alone or touched):
            gone.add(folder)
        elif left and touched:
            notes.append(_KEPT % (folder, ", ".join(left)))
    return [folder for folder in dict(folders) if folder in gone and folder not in removed], notes
