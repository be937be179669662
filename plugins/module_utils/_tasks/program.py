# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry point of the installed program: the agent's command line, and tasks that Ansible hands to it."""

from __future__ import annotations

import json
import sys
import typing as t

from .._agent.paths import Paths
from . import cli, console


def entry(paths: t.Mapping[str, str]) -> t.NoReturn:
    """Run a command.

    :param paths: those that the program was installed with.
    :raises SystemExit: the command line is invalid, or requests help.
    """
    console.prepare()
    console.leave(cli.main(sys.argv[1:], Paths(**paths), _do_task))


def _do_task(request: str) -> str:
    """Do a task of Ansible's.

    :param request: JSON: ``module``, ``params``, checked by the module's specification, and ``check``.
    :returns: JSON on one line: the values of ``task_result.Done``.
    :raises SystemExit: the modules were changed, so they cannot be compared with themselves. Ansible's are.
    """
    # Not at the top: loading these takes 19 ms, a quarter of a sync.
    from .._agent import program_modules

    if not program_modules.are_intact():
        raise SystemExit("the modules of this agent were changed; Ansible sends its own")
    asked = json.loads(request)
    if asked["module"] == "ip_masq_agent_info":
        from .agent_info_task import carry_out
    else:
        from .agent_task import carry_out
    return json.dumps(carry_out(asked["params"], asked["check"])._asdict())
