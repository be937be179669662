# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which package of the distribution a file belongs to: dpkg-query(1), rpm(8)."""

from __future__ import annotations

import contextlib
import os
import typing as t

from .._errors import NodeError
from .process import Runner

#: The directory of the database, how to ask for the owner of a file, and how to remove a package, with tools that are
#: always there. rpm on Debian has no database there, and creates one in the home directory when it is asked.
_MANAGERS = (
    ("/var/lib/dpkg", ("dpkg-query", "--search"), "dpkg --remove"),
    ("/var/lib/rpm", ("rpm", "--query", "--queryformat=%{NAME}\n", "--file"), "rpm --erase"),
)


class Package(t.NamedTuple):
    """A package of the distribution."""

    name: str
    #: the command that removes it
    removal: str


def find_owner(run: Runner, path: str) -> t.Optional[Package]:
    """Find the package that a file belongs to; None if no package manager knows the file."""
    for database, query, remove in _MANAGERS:
        with contextlib.suppress(NodeError, FileNotFoundError):
            if os.listdir(database):
                found = run([*query, path])
                # dpkg-query: "NAME: PATH", or "NAME:ARCHITECTURE: PATH"
                name = found.stdout.strip().split("\n")[-1].split(":")[0]
                if found.rc == 0 and name:
                    return Package(name, "%s %s" % (remove, name))
    return None
