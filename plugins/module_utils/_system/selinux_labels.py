# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SELinux labels of new directories: restorecon(8).

A new file inherits the label of its directory. In a new directory, such as one in /opt, it is not the label that the
SELinux policy has for programs there, and systemd may not be allowed to start them.
"""

from __future__ import annotations

import os
import typing as t

from .process import Runner, failure, which

#: Mounted where SELinux is enabled: selinux(8).
_ENABLED = "/sys/fs/selinux/enforce"

#: Seconds; for some hundred files.
_TIMEOUT = 60.0


def enabled() -> bool:
    """Return whether the kernel enforces SELinux, or would if it were not permissive."""
    return os.path.exists(_ENABLED)


def missing(paths: t.Iterable[str]) -> t.Tuple[str, ...]:
    """Return the first directory that does not exist on the way to each path; nothing for those that exist."""
    found: t.Dict[str, None] = {}
    for path in paths:
        first, above = "", path
        while not os.path.lexists(above):
            first, above = above, os.path.dirname(above)
        if first:
            found[first] = None
    return tuple(found)


def restore(run: Runner, paths: t.Sequence[str]) -> t.Optional[str]:
    """Give paths, and what is below them, the labels of the SELinux policy, if SELinux is enabled.

    :returns: a warning if that fails.
    """
    if not paths or not enabled():
        return None
    program = which("restorecon")
    problem = failure(run, [program, "-R", *paths], _TIMEOUT) if program else "the node has no restorecon"
    if not problem:
        return None
    inherited = "%s: SELinux labels are those of the directory above: %s" % (", ".join(paths), problem)
    return inherited + "; if the service cannot start, run 'restorecon -R'"
