# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the distribution: which one a file belongs to (dpkg-query(1), rpm(8)), and how one gets on a node."""

from __future__ import annotations

import contextlib
import os
import typing as t

from .._errors import NodeError
from . import files
from .process import Runner, which

#: The directory of the database, how to query the owner of a file, and how to remove a package, with tools that are
#: always there. rpm on Debian has no database there, and creates one in the home directory with a query.
_MANAGERS = (
    ("/var/lib/dpkg", ("dpkg-query", "--search"), "dpkg --remove"),
    ("/var/lib/rpm", ("rpm", "--query", "--queryformat=%{NAME}\n", "--file"), "rpm --erase"),
)


#: There is such a file where ostree booted an image: Fedora CoreOS, RHEL for Edge, bootc.
_OSTREE_BOOTED = "/run/ostree-booted"

#: On a file system that an image fills, and that is mounted read-only: SLE Micro, Flatcar.
_OF_IMAGE = "/usr/lib/os-release"

#: What adds packages to the next image of a node, and removes them from it.
_LAYERING = (
    ("rpm-ostree", "rpm-ostree install %s", "rpm-ostree uninstall %s"),
    ("transactional-update", "transactional-update pkg install %s", "transactional-update pkg remove %s"),
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
                    layering = _layering() if is_image() else None
                    return Package(name, layering[2] % name if layering else "%s %s" % (remove, name))
    return None


def is_image() -> bool:
    """Return whether the running system is an image, into which nothing can be installed while it runs."""
    return os.path.exists(_OSTREE_BOOTED) or files.is_read_only(_OF_IMAGE)


def by_image(package: str) -> str:
    """Return how a package gets on a node whose running system is an image; empty on other nodes.

    Not for the agent's service: it sees all file systems read-only.
    """
    if not is_image():
        return ""
    layering = _layering()
    how = "run '%s' on the node and reboot it, or " % (layering[1] % package) if layering else ""
    return "The node runs an image that packages cannot be installed into: %suse an image that has %s" % (how, package)


def _layering() -> t.Optional[t.Tuple[str, str, str]]:
    return next((tool for tool in _LAYERING if which(tool[0])), None)
