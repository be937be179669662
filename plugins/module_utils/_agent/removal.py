# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take the agent away from a node: units, rules, files.

Only what the agent wrote or read is removed. Check mode is the same way without the writes.
"""

from __future__ import annotations

import os
import shutil
import typing as t

from .._engine.detect import Node
from .._engine.reconcile import Result, reconcile
from .._errors import NodeError
from .._policy.config_file import config_paths
from .._policy.policy import Config, build
from .._system import files
from .._system.process import Runner
from . import memory as states
from .install import NAME, Installed, existing, going, installed, show, systemctl
from .paths import MARK, RUN_DIR, STATE_DIR, TMPFILES, UNIT_DIR, Paths
from .units import (
    EDIT_SERVICE,
    ENABLED_UNITS,
    FIREWALL_HOOKS,
    FIREWALL_TEMPLATE,
    INTERVAL_SERVICE,
    LEGACY_SERVICE,
    SERVICE,
    interval_drop_in,
    unit_files,
)

#: What can be running or failed apart from what is enabled.
_SERVICES = (SERVICE, EDIT_SERVICE, INTERVAL_SERVICE, LEGACY_SERVICE)


def uninstall(node: Node, where: Paths, check: bool = False) -> Installed:
    """Take everything away: the timer first, then the rules in all variants and families, then the files.

    The places of the agent that is installed count. The given ones do where none is.

    :raises NodeError: a step failed; what is left is found again by the next try.
    """
    found = installed(where)
    places = found or [where]
    written = [os.path.join(UNIT_DIR, name) for name in unit_files(where)] + [interval_drop_in(1)[0], TMPFILES]
    # The program last: the next try learns the places from it.
    written += [path for place in places for path in (place.resync, place.program)]
    foreign = [path for path in existing(written) if not _is_marked(path)]
    paths = [place.metrics_file for place in [where, *places] if place.metrics_file]
    paths += [path for place in places for path in _config_files(place.config_dir)]
    paths = existing(paths + [path for path in written if path not in foreign])

    systemd = os.path.isdir("/run/systemd/system")
    services = _stop_units(node.run, foreign, check) if systemd else []
    result = _remove_rules(node, places, check)
    changes = tuple(going(path) for path in paths)
    folders, notes = _emptied(paths, places, bool(found))
    trees = [path for path in (STATE_DIR, RUN_DIR) if os.path.isdir(path)]
    services += ["directory removed: " + path for path in trees + folders]
    notes += ["%s stays: it is not of this collection" % path for path in foreign]
    if not check:
        for path in paths:
            files.remove(path)
        for path in trees + folders:
            _remove_directory(path, shutil.rmtree if path in trees else os.rmdir)
        if systemd and changes:
            systemctl(node.run, "daemon-reload")
            node.run(["systemctl", "reset-failed", *_SERVICES])
    return Installed(changes, tuple(services), result, tuple(notes))


def _is_marked(path: str) -> bool:
    """Whether a file is one that :func:`~.install.put_files` or :func:`~.install.set_timer` wrote."""
    try:
        return MARK.encode("ascii") in (files.read(path) or b"")[:1000]
    except NodeError:
        return False


def _config_files(config_dir: str) -> t.List[str]:
    """The files that the agent reads; where a symbolic link leads to them, the link."""
    main, drop_ins = (os.path.join(config_dir, name) for name in ("config", "config.d"))
    if os.path.islink(config_dir):
        return [config_dir]
    return [main, drop_ins] if os.path.islink(drop_ins) else config_paths(config_dir)


def _stop_units(run: Runner, foreign: t.Sequence[str], check: bool) -> t.List[str]:
    names = [
        unit
        for unit in dict.fromkeys(ENABLED_UNITS + _SERVICES)
        if os.path.join(UNIT_DIR, FIREWALL_TEMPLATE if unit in FIREWALL_HOOKS else unit) not in foreign
    ]
    units = show(run, names)
    active = [unit for unit, about in units.items() if about["ActiveState"] in ("active", "activating")]
    enabled = [unit for unit, about in units.items() if about["UnitFileState"] == "enabled"]
    done = []
    for verb, concerned in (("stop", active), ("disable", enabled)):
        if concerned:
            done.append("%s: %s" % (verb, ", ".join(concerned)))
            if not check:
                systemctl(run, verb, *concerned)
    return done


def _remove_rules(node: Node, places: t.Sequence[Paths], check: bool) -> Result:
    """Remove the rules by every name of the chain that the configuration, the memory, or a jump of ours tells."""
    state = states.load()
    configs = [states.policy_in_force(place.config_dir, state).config for place in places]
    if state.values is not None:
        configs.append(build(state.values))
    names = [config.masq_chain for config in configs if config is not None] or [Config(()).masq_chain]
    result = reconcile(node, Config((), masq_chain=names[0]), present=False, check=check, former=names[1:])
    if result.errors:
        raise NodeError("; ".join(result.errors))
    return result


def _emptied(
    paths: t.Iterable[str], places: t.Sequence[Paths], are_installed: bool
) -> t.Tuple[t.List[str], t.List[str]]:
    """Directories that hold nothing more without some files, in the order of their removal, and remarks on others."""
    gone = set(paths)
    folders = [(os.path.dirname(interval_drop_in(1)[0]), True)]
    for place in places:
        alone = are_installed or os.path.basename(place.config_dir) == NAME
        folders += [(os.path.join(place.config_dir, "config.d"), alone), (place.config_dir, alone)]
    notes = []
    for folder, alone in dict(folders).items():
        if os.path.islink(folder) or not os.path.isdir(folder):
            continue
        left = sorted(name for name in os.listdir(folder) if os.path.join(folder, name) not in gone)
        touched = any(os.path.dirname(path) == folder for path in gone)
        if not left and (alone or touched):
            gone.add(folder)
        elif left and touched:
            notes.append("%s stays: it holds what the agent neither wrote nor read: %s" % (folder, ", ".join(left)))
    return [folder for folder in dict(folders) if folder in gone and folder not in paths], notes


def _remove_directory(path: str, remove: t.Callable[[str], None]) -> None:
    try:
        # shutil does not follow symbolic links out of a tree that it removes.
        (os.unlink if os.path.islink(path) else remove)(path)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise NodeError("cannot remove %s: %s" % (path, exc.strerror or exc)) from None
