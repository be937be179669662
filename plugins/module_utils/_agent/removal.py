# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove the agent from a node: units, rules, files.

Only what the agent wrote or read is removed. Check mode is the same code without the writes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import typing as t

from .._engine import saved_rules
from .._engine.reconcile import Result, reconcile
from .._errors import ConfigError, NodeError
from .._policy.drop_ins import config_paths
from .._policy.policy import DEFAULTS, build
from .._system import files, other_agents_running, packages, systemd
from .._system.backend_names import VARIANTS
from .._system.node import Node
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
    removable,
    remove_path,
    units_of,
)
from .paths import Paths
from .state_files import read_memory
from .unit_control import stop_units
from .units import ENABLED_UNITS, FIREWALL_HOOKS, FIREWALL_TEMPLATE, SERVICE, SERVICES, interval_drop_in, unit_files

_KEPT = "%s kept: it contains files that the agent neither wrote nor read: %s"


class Removal:
    """The agent on a node, as it is to be removed.

    :param paths: used if no agent is installed; otherwise the paths of the installed one are.
    :param check: only report what would be done.
    :param keep_files: keep the configuration, and what was installed: a package that is being removed owns it.
    :param config: by the keys of the config file; names the chain where the node does not. It may be invalid.
    """

    def __init__(
        self,
        node: Node,
        paths: Paths,
        check: bool = False,
        keep_files: bool = False,
        config: t.Optional[t.Mapping[str, t.Any]] = None,
    ) -> None:
        self._node, self._paths, self._check, self._config = node, paths, check, config
        found = find_installed(paths)
        self._is_installed = bool(found)
        self._places = found or [paths]
        #: those whose files go
        self._gone = [] if keep_files else self._places

    def carry_out(self) -> InstallResult:
        """Remove everything: the timer first, then the rules in all variants and families, then the files.

        :raises NodeError: a package owns the files, and nothing was touched; or a step failed: run again to remove what
            is left.
        """
        paths, places, run = self._paths, self._places, self._node.run
        written = [interval_drop_in(paths)]
        if self._gone:
            self._refuse_packaged()
            written += [os.path.join(folder, name) for folder in paths.unit_dirs() for name in unit_files(paths)]
            written += newer_files(paths)
            # The program last: the next run reads the paths from it.
            written += [path for place in places for path in (place.resync, place.program)]
        foreign = [path for path in existing(written) if not is_ours(path)]
        gone = [place.metrics_file for place in [paths, *places] if place.metrics_file]
        gone += [path for place in self._gone for path in _config_files(place)]
        gone = self._modules() + existing(gone + [path for path in written if path not in foreign])
        # A package does not have these.
        gone += [path for place in places for path in log_service.installed(place)]
        gone, kept = removable(list(dict.fromkeys(gone)))

        has_systemd = systemd.is_running()
        services = log_service.stop(run, paths, self._check) if has_systemd else []
        services += self._stop_units(foreign) if has_systemd else []
        result = self._remove_rules()
        if result.errors:
            raise NodeError("; ".join(result.errors))
        changes = tuple(file_removal(path) for path in gone)
        folders, notes = self._emptied(gone)
        trees = [paths.state_dir, paths.run_dir] + ([paths.log_dir] if self._gone else [])
        trees = [path for path in trees if os.path.isdir(path)]
        services += ["directory removed: " + path for path in trees + folders]
        notes += kept + ["%s kept: it is not a file of this collection" % path for path in foreign]
        notes += saved_rules.notes(self._find_chains())
        if not self._check:
            for path in gone:
                remove_path(path)
            for path in trees + folders:
                files.remove(path, os.unlink if os.path.islink(path) else shutil.rmtree if path in trees else os.rmdir)
            if has_systemd and (changes or services):
                systemd.daemon_reload(run)
                systemd.reset_failed(run, *SERVICES)
        return InstallResult(changes, tuple(services), result, tuple(notes))

    def _refuse_packaged(self) -> None:
        programs = [place.program for place in self._places]
        for path in existing([*programs, *(os.path.join(folder, SERVICE) for folder in self._paths.unit_dirs())]):
            package = packages.find_owner(self._node.run, path)
            if package:
                raise NodeError(
                    "%s belongs to the package %s, which owns the agent's files; remove the package, rules included, "
                    "with '%s', and run this again to remove the configuration" % (path, package.name, package.removal)
                )

    def _stop_units(self, foreign: t.Sequence[str]) -> t.List[str]:
        names = [
            unit
            for unit in dict.fromkeys(ENABLED_UNITS + SERVICES + tuple(units_of(self._paths, newer_files(self._paths))))
            if self._file_in_force(FIREWALL_TEMPLATE if unit in FIREWALL_HOOKS else unit) not in foreign
        ]
        return stop_units(self._node.run, names, SERVICES, self._check)

    def _file_in_force(self, name: str) -> str:
        """Return the path of the unit file that systemd reads, if there is one."""
        return next(iter(existing(os.path.join(folder, name) for folder in self._paths.unit_dirs())), "")

    def find_rules(self) -> t.Dict[str, t.Any]:
        """Return the rules that it would remove, as ip_masq_agent_info does. Nothing is written, and no lock is taken.

        A running agent of another maker has a chain of the same name: while it runs, the chain is taken for its own.

        :raises NodeError: nothing can be read.
        """
        result = self._remove_rules(effects=False)
        actions, chains = result.action_data(), self._find_chains()
        if any(other_agents_running.running()):
            actions, chains = [one for one in actions if one["backend"] not in VARIANTS], []
        problems = ["a removal would fail: %s" % error for error in result.errors]
        return {"rules_left": actions, "notes": list(saved_rules.notes(chains)), "problems": problems}

    def _find_chains(self) -> t.List[str]:
        """Return every name that the configuration or the memory has for the chain; else those that are likely."""
        remembered = read_memory(self._paths)
        policies = [find_policy(place, remembered) for place in self._places]
        configs = [policy.config for policy in policies]
        if remembered.values is not None:
            configs.append(build(remembered.values))
        elif self._config and all(policy.is_default for policy in policies):
            with contextlib.suppress(ConfigError):
                configs.append(build({"masq_chain": self._config.get("masqChain")}))
        names = [config.masq_chain for config in configs if config is not None] or [DEFAULTS["masq_chain"]]
        return list(dict.fromkeys(names))

    def _remove_rules(self, effects: bool = True) -> Result:
        """Remove the rules under these names, and those that a jump of ours leads to.

        :param effects: as for ``reconcile``.
        """
        chains = self._find_chains()
        return reconcile(
            self._node,
            build({"non_masquerade_cidrs": [], "masq_chain": chains[0]}),
            present=False,
            check=self._check,
            former=chains[1:],
            lock_path=self._paths.run_lock,
            effects=effects,
        )

    def _modules(self) -> t.List[str]:
        """Return the directories with modules of ours."""
        lib_dirs = dict.fromkeys(place.lib_dir for place in self._gone)
        folders = [folder for lib_dir in lib_dirs for folder in module_directory.found(lib_dir)]
        return [folder for folder in folders if module_directory.contents(folder).ours]

    def _emptied(self, removed: t.Iterable[str]) -> t.Tuple[t.List[str], t.List[str]]:
        """Return directories that are empty without some files, in the order of removal, and notes about others."""
        gone = set(removed)
        folders = [(os.path.dirname(interval_drop_in(self._paths)), True)]
        for place in self._gone:
            alone = self._is_installed or os.path.basename(place.config_dir) == NAME
            if not os.path.islink(place.config_dir):
                # Of what a link leads to, nothing goes.
                folders += [(place.drop_ins, alone), (place.config_dir, alone)]
            folders.append((place.lib_dir, True))
        notes = []
        for folder, alone in dict(folders).items():
            if os.path.islink(folder) or not os.path.isdir(folder):
                continue
            there = [os.path.join(folder, name) for name in os.listdir(folder)]
            left = [path for path in there if path not in gone]
            # Of a directory of modules what is ours goes.
            left += [path for one in module_directory.found(folder) for path in module_directory.contents(one).others]
            touched = any(os.path.dirname(path) == folder for path in gone)
            if not left and (alone or touched):
                gone.add(folder)
            elif left and touched:
                notes.append(_KEPT % (folder, ", ".join(sorted(os.path.relpath(path, folder) for path in left))))
        return [folder for folder in dict(folders) if folder in gone and folder not in removed], notes


def _config_files(paths: Paths) -> t.List[str]:
    """Return the files that the agent reads; if a symbolic link leads to them, the link."""
    if os.path.islink(paths.config_dir):
        return [paths.config_dir]
    return [paths.config, paths.drop_ins] if os.path.islink(paths.drop_ins) else config_paths(paths.config_dir)
