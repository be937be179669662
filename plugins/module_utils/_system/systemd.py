# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemd on the node: systemctl(1) and journalctl(1), with one wording of their errors."""

from __future__ import annotations

import contextlib
import os
import re
import typing as t

from .._errors import NodeError
from .process import Runner

#: sd_booted(3)
_BOOTED = "/run/systemd/system"


class UnitProperties(t.Dict[str, t.List[str]]):
    """The properties of a unit that have a value, by name. A property such as EnvironmentFiles has several values."""

    def first(self, name: str) -> str:
        """Return the first value; empty if there is none."""
        return self.get(name, [""])[0]


def is_running() -> bool:
    """Return whether systemd is the init system of this node."""
    return os.path.isdir(_BOOTED)


def release(run: Runner) -> t.Optional[int]:
    """Return the number of the installed release; None if systemctl does not tell it.

    :raises NodeError: there is no systemctl.
    """
    found = re.match(r"systemd ([0-9]+)", run(["systemctl", "--version"]).stdout)
    return int(found.group(1)) if found else None


def systemctl(run: Runner, verb: str, *arguments: str, timeout: float = 120.0) -> str:
    """Run systemctl.

    :param arguments: options and units.
    :param timeout: seconds.
    :returns: its output.
    :raises NodeError: it failed; the message has what it wrote to standard error.
    """
    done = run(["systemctl", verb, *arguments], timeout=timeout)
    if done.rc != 0:
        units = [word for word in arguments if not word.startswith("-")]
        raise NodeError("%s failed: %s" % (" ".join(["systemctl", verb, *units]), done.error_text))
    return done.stdout


def daemon_reload(run: Runner) -> None:
    """Have systemd read all unit files again; raise NodeError if it does not."""
    systemctl(run, "daemon-reload")


def reset_failed(run: Runner, *units: str) -> None:
    """Forget that units failed, and how often they were started. For units that did not fail, systemctl fails."""
    run(["systemctl", "reset-failed", *units])


def show_units(run: Runner, properties: t.Sequence[str], units: t.Sequence[str]) -> t.Dict[str, UnitProperties]:
    """Return some properties of units, by the names that were given. A unit unknown to systemd has few of them.

    :raises NodeError: systemd cannot be queried.
    """
    shown = systemctl(run, "show", "--property=" + ",".join(properties), "--", *units)
    return dict(zip(units, map(_parse_properties, shown.strip().split("\n\n"))))


def _parse_properties(block: str) -> UnitProperties:
    found = UnitProperties()
    for line in block.splitlines():
        name, _equals, value = line.partition("=")
        if value:
            found.setdefault(name, []).append(value)
    return found


def last_failure(run: Runner, service: str) -> str:
    """Return how the last run of a service failed; empty if it did not, or never ran.

    :raises NodeError: systemd cannot be queried.
    """
    about = show_units(run, ("Result", "ExecMainStatus"), [service])[service]
    result = about.first("Result") or "success"
    if result == "success":
        return ""
    return "result %s, exit status %s" % (result, about.first("ExecMainStatus") or "unknown")


def journal(run: Runner, unit: str, since: float) -> t.List[str]:
    """Return the last lines of priority notice and above that the journal has of a unit; none if it cannot be read.

    :param since: seconds since the epoch.
    """
    options = ["--since=@%d" % since, "--priority=notice", "--lines=8", "--output=cat", "--no-pager", "--quiet"]
    with contextlib.suppress(NodeError):
        run(["journalctl", "--sync"])
        return run(["journalctl", "--unit=" + unit, *options]).stdout.splitlines()
    return []
