# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A task for a node that has this release: its installed program does it, and no module is sent.

A module of the agent consists of about a hundred files, which Ansible packs and Python compiles on the node each time.
The installed program holds the same files, compiled. It is asked where Ansible's pipelining is on, and only if it names
the checksum of the files of this collection. In all other cases, and whenever it gives no answer, the module itself is
run.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import typing as t

from ansible import constants
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ..module_utils._agent import program_modules
from ..module_utils._agent.paths import PACKAGED, Paths, choose_paths
from ..module_utils._errors import ConfigError
from ..module_utils._tasks.agent_options import Spec
from ._shown_result import ShownResult

#: Read once, in the process that those of all hosts are forked from.
_RELEASE_LINE = program_modules.release_line()

#: More than a result has; Ansible works through it recursively.
_LEVELS = 50


class HandedTask(ShownResult):
    """An action plugin for a module whose tasks the installed program does."""

    #: the module
    module: str
    spec: Spec
    #: what a task returns, beside its message and its warnings
    returned: t.Tuple[str, ...]

    def _done(self, wrap_async: int, task_vars: t.Optional[t.Dict[str, t.Any]]) -> t.Dict[str, t.Any]:
        """Have the installed program do the task, or run the module."""
        done = self._ask_installed_program(wrap_async, task_vars)
        return super()._done(wrap_async, task_vars) if done is None else done

    def _ask_installed_program(
        self, wrap_async: int, task_vars: t.Optional[t.Dict[str, t.Any]]
    ) -> t.Optional[t.Dict[str, t.Any]]:
        """Have the program do the task.

        :returns: the result of the task; None if it was not or could not be asked.
        """
        params = checked(self._task.args, self.spec)
        if params is None or any(self._task.environment or ()) or not self._is_pipelining_enabled("new", wrap_async):
            return None
        try:
            request = json.dumps({"module": self.module, "params": params, "check": self._task.check_mode})
            asked = command(params)
        except (TypeError, ConfigError):
            return None
        told = self._low_level_execute_command(asked, in_data=request.encode("utf-8"))
        done = answer(told["stdout"], self.returned)
        if done is None:
            self._display.vvv("The module is sent: no answer from an agent of this release (%(rc)d): %(stderr)s" % told)
        else:
            self._display.vvv("The installed agent has done the task; no module is sent.")
            if _invocation_is_wanted(task_vars):
                done["invocation"] = {"module_args": params}
        return done


def checked(args: t.Mapping[str, t.Any], spec: Spec) -> t.Optional[t.Dict[str, t.Any]]:
    """Return the options as the module would see them.

    :returns: None if the module has to be run: to refuse them, to remove the agent, or to expand a path on the node.
    """
    validated = ArgumentSpecValidator(spec).validate(dict(args))
    params = validated.validated_parameters
    paths = [args.get(name) for name, about in spec.items() if about["type"] == "path"]
    if (
        validated.error_messages
        or params.get("state") == "absent"
        or any("~" in path or "$" in path for path in paths if path)
    ):
        return None
    return t.cast(t.Dict[str, t.Any], params)


def command(params: t.Mapping[str, t.Any]) -> str:
    """Return a command line for a POSIX shell: start the program, if it names the checksum of our files.

    If ``bin_dir`` is at its default, the program may also be where packages have it.

    :raises ConfigError: its path is invalid.
    """
    paths = choose_paths(bin_dir=params["bin_dir"])
    places = [paths, PACKAGED] if paths.bin_dir == Paths().bin_dir else [paths]
    # -f: to read a FIFO would wait for a writer.
    return "for program in %s; do test -f $program && grep -Fqxe %s -- $program && exec $program task; done; exit 1" % (
        " ".join(shlex.quote(place.program) for place in places),
        shlex.quote(_RELEASE_LINE),
    )


def _invocation_is_wanted(task_vars: t.Optional[t.Dict[str, t.Any]]) -> bool:
    """Return whether to return the options: ansible-core before 2.21 has every module do so, and no setting for it."""
    with contextlib.suppress(AnsibleError):
        return bool(constants.config.get_config_value("INJECT_INVOCATION", variables=task_vars))
    return True


def answer(stdout: str, names: t.Collection[str]) -> t.Optional[t.Dict[str, t.Any]]:
    """Parse the result of a task from what the program printed.

    :param names: of the values that a task returns.
    :returns: None if the program printed something else, of whatever shape.
    """
    for line in stdout.splitlines():
        try:
            done = json.loads(line)
            returned, warnings, failure = done["returned"], done["warnings"], done["failure"]
        except (KeyError, RecursionError, TypeError, ValueError):
            continue  # what a shell or sudo prints before
        if not _is_result(returned, warnings, failure):
            continue
        # A node decides about these values and no others: Ansible acts on some, as on add_host.
        result = {name: returned[name] for name in names if name in returned}
        if warnings:
            result["warnings"] = warnings
        return dict(result, failed=True, msg=failure) if failure else result
    return None


def _is_result(returned: t.Any, warnings: t.Any, failure: t.Any) -> bool:
    """Return whether what was read as JSON has the shape of a result. Ansible relies on these types in any result."""
    return (
        isinstance(returned, dict)
        and isinstance(returned.get("changed", False if failure else None), bool)
        and isinstance(returned.get("diff", []), list)
        and all(isinstance(one, dict) for one in returned.get("diff", []))
        and isinstance(warnings, list)
        and all(isinstance(one, str) for one in warnings)
        and isinstance(failure, str)
        and not _is_deeper(returned, _LEVELS)
    )


def _is_deeper(value: t.Any, levels: int) -> bool:
    """Return whether dictionaries and lists are nested deeper than this."""
    level = [value]
    for _level in range(levels):
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in level if isinstance(one, (dict, list))]
    return bool(level)
