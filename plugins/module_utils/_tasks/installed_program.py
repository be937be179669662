# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the program that is installed on this node, as an operator would."""

from __future__ import annotations

import contextlib
import json
import typing as t

from .._agent.paths import Paths
from .._errors import NodeError
from .._system.process import Outcome, Runner

#: Seconds for a verification, which has time limits of its own.
_VERIFICATION_TIMEOUT = 3600.0


def ask(
    run: Runner, paths: Paths, command: t.Sequence[str], lock_timeout: int, timeout: float = 60.0
) -> t.Tuple[Outcome, t.Optional[t.Dict[str, t.Any]]]:
    """Run a command of the program that has ``--json``.

    :param command: its name, and options.
    :param lock_timeout: seconds.
    :param timeout: seconds.
    :returns: how it ended, and what it printed; None if that is not JSON.
    :raises NodeError: it cannot be started, or took too long.
    """
    done = run([paths.program, "--lock-timeout", str(lock_timeout), *command, "--json"], timeout=timeout)
    data = None
    with contextlib.suppress(ValueError):
        data = json.loads(done.stdout)
    return done, data if isinstance(data, dict) else None


def verify(run: Runner, paths: Paths, lock_timeout: int) -> t.Dict[str, t.Any]:
    """Have it verify the node, unless nothing has changed since it last did.

    It does so in a process of its own, whose code is compiled.

    :param lock_timeout: seconds.
    :returns: what it printed, if anything, with ``exit_status``, ``verified`` and ``summary`` in any case.
    """
    try:
        done, data = ask(run, paths, ("verify", "--if-changed"), lock_timeout, _VERIFICATION_TIMEOUT)
    except NodeError as exc:
        return {"exit_status": None, "verified": None, "summary": "not verified: %s" % exc}
    if data is None:
        data = {"verified": None, "summary": "not verified: exit status %d: %s" % (done.rc, done.stderr.strip())}
    return dict(data, exit_status=done.rc)
