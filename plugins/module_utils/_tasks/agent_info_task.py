# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ip_masq_agent_info does on a node, whether Ansible has sent the code or the installed program has it."""

from __future__ import annotations

import contextlib
import json
import os
import typing as t

from .._agent import install
from .._agent.paths import Paths
from .._agent.units import SERVICE
from .._errors import ConfigError, IpMasqError, NodeError, ProgramMissingError
from .._policy.config_file import config_text, load, parse
from .._policy.policy import DEFAULTS, POLICY_OPTIONS, Option
from .._policy.values import show
from .._system import systemd
from .._system.node import Node
from .._system.printable import first_of
from .._system.process import Runner, run
from . import installed_program
from .node_paths import find_paths
from .task_result import Done, Params


def carry_out(params: Params, check: bool) -> Done:
    """Ask the node.

    :param params: a value for each of ``agent_options.INFO``.
    :param check: makes no difference; nothing is changed.
    """
    try:
        return Done(dict(_found(params), changed=False))
    except IpMasqError as exc:
        return Done({}, failure=str(exc))


def _found(params: Params) -> t.Dict[str, t.Any]:
    """Return the return values.

    :raises ConfigError: bad input.
    """
    paths = find_paths(params)
    text = None if params["config"] is None else config_text(params["config"])
    if not os.path.exists(paths.program):
        return dict(_left(Node(run, params["lock_timeout"]), paths, params["config"]), installed=False)
    found: t.Dict[str, t.Any] = {"installed": True, "problems": [], "pending": [], "service_failure": ""}
    if text is not None:
        found["differences"] = differences(paths, text)
        found["differs"] = list(found["differences"])
    try:
        found["report"] = _reported(run, paths, params["lock_timeout"])
    except NodeError as exc:
        found["problems"].append(str(exc))
    try:
        found["service_failure"] = systemd.last_failure(run, SERVICE)
        found["pending"] = _pending(run, paths, None if found.get("differs") else text, params["enabled"])
    except NodeError as exc:
        found["problems"].append(str(exc))
    return found


def _left(node: Node, paths: Paths, config: t.Optional[t.Mapping[str, t.Any]]) -> t.Dict[str, t.Any]:
    """Return what a node without the agent has of its rules."""
    # Imported here: where the agent is installed, it is not needed.
    from .._agent.removal import Removal

    problems = []
    try:
        return Removal(node, paths, check=True, keep_files=True, config=config).find_rules()
    except ProgramMissingError:  # no backend, so no rules
        pass
    except NodeError as exc:
        problems = ["a removal would fail: %s" % exc]
    return {"rules_left": [], "notes": [], "problems": problems}


def _reported(run: Runner, paths: Paths, lock_timeout: int) -> t.Any:
    """Return what the installed agent reports.

    :raises NodeError: it cannot be started, or cannot report.
    """
    done, report = installed_program.ask(run, paths, ("status",), lock_timeout)
    if report is None:
        raise NodeError("%s status: %s" % (paths.program, done.error_text))
    return report


def differences(paths: Paths, text: str) -> t.Dict[str, t.Dict[str, str]]:
    """Return both values of each key in which the node's config file means something else than ``text``.

    If the file cannot be read, all keys that ``text`` has a value for.
    """
    wanted = dict(DEFAULTS, **parse(text, "config").values)
    found: Params = {}
    with contextlib.suppress(ConfigError):
        found = dict(DEFAULTS, **load(paths.config).values)
    different = [key for key in POLICY_OPTIONS if not key.same(found.get(key.name), wanted.get(key.name))]
    return {key.key: _both(key, found.get(key.name), wanted.get(key.name)) for key in different}


def _both(key: Option, node: t.Any, config: t.Any) -> t.Dict[str, str]:
    """Show two values; of lists without an order the entries that the other one lacks."""
    if key.united and isinstance(node, (list, tuple)) and isinstance(config, (list, tuple)):
        here, there = ({_entry(key, entry): None for entry in entries} for entries in (node, config))
        node, config = ([one for one in here if one not in there], [one for one in there if one not in here])
    return {"node": _shown(node), "config": _shown(config)}


def _entry(key: Option, entry: t.Any) -> str:
    """Return one entry in the notation of the policy, or as it is written if it is invalid."""
    with contextlib.suppress(ConfigError):
        return ", ".join(map(str, key.parse([entry])))
    return show(entry)


def _shown(value: t.Any) -> str:
    """Return a value for people, shortened."""
    if isinstance(value, (list, tuple)):
        return first_of([one if isinstance(one, str) else json.dumps(one) for one in value]) or "none"
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value)


def _pending(run: Runner, paths: Paths, text: t.Optional[str], enabled: bool) -> t.List[str]:
    """Return what an installation would do to files and units, one line each.

    :param text: of the config file; None leaves it alone.
    :raises NodeError: a file cannot be read, or systemd cannot be queried.
    """
    installation = install.Installation(run, paths, text, check=True)
    installation.update_units(enabled)
    return list(installation.result().lines)
