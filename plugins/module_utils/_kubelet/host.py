# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's files, processes and systemd services, read when asked. Nothing here decides or writes."""

from __future__ import annotations

import glob
import os
import re
import typing as t

from .._system import processes, systemd
from .._system.process import Runner
from . import owned_files
from .options import Options

_PROPERTIES = (
    "Id LoadState ActiveState UnitFileState MainPID ExecStart Environment EnvironmentFiles FragmentPath DropInPaths"
).split()
_EXEC_START = r"path=(.*?) ; argv\[\]=(.*?) ; (?:ignore_errors|flags)="
_ENVIRONMENT_FILE = r"(?m)^(/.*?) \(ignore_errors=(?:yes|no)\)$"


class Unit(t.NamedTuple):
    """One loaded service, from ``systemctl show``."""

    #: with ``.service``
    name: str
    active: str
    #: whether it is meant to run on this node
    in_use: bool
    pid: int
    #: the program and its arguments, variables not yet replaced
    path: str
    words: t.Tuple[str, ...]
    #: Environment=, as it is shown
    environment: str
    environment_files: t.Tuple[str, ...]
    #: the unit file and its drop-ins, for messages
    sources: str


class Host:
    """One node, and what is wanted of its kubelets.

    :param run: starts programs.
    :param root: the directory that holds the node's file system.
    :param texts: what files would hold, in place of what they hold.
    """

    def __init__(
        self, run: Runner, options: Options, root: str = "/", texts: t.Optional[t.Mapping[str, str]] = None
    ) -> None:
        self.run = run
        self.options = options
        self.root = root
        self._texts = texts or {}

    def path(self, path: str) -> str:
        """Return where a file of the node is found."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """Read the text of a file; empty if it does not exist.

        :raises ConfigError: it is not a text file.
        :raises NodeError: it cannot be read.
        """
        return self._texts[path] if path in self._texts else owned_files.read_version(self.path(path)).text

    def glob(self, pattern: str) -> t.List[str]:
        """List the files that match, as paths on the node, in the order of their names."""
        found = glob.glob(os.path.join(glob.escape(self.root), pattern.lstrip("/")))
        return sorted("/" + os.path.relpath(path, self.root) for path in found)

    def kubelets(self) -> t.Dict[int, t.List[str]]:
        """Return what the running kubelets were started with, of any service or none; not those of kind's nodes."""
        return {one.pid: one.words for one in processes.running(("kubelet", "hyperkube"), self.path("/proc"))}

    def cri_dockerds(self) -> t.List[t.List[str]]:
        """Return what the running cri-dockerds were started with."""
        return [one.words for one in processes.running(("cri-dockerd",), self.path("/proc"))]

    def units(self, names: t.Sequence[str]) -> t.List[Unit]:
        """Return those of the named services that systemd knows.

        :raises NodeError: there is no systemd to ask.
        """
        shown = systemd.show_units(self.run, _PROPERTIES, names).values()
        return [_as_unit(about) for about in shown if about.first("LoadState") == "loaded"]


def _as_unit(about: systemd.UnitProperties) -> Unit:
    # Of several commands the last one stays; empty for a unit without.
    path, command = ([("", "")] + re.findall(_EXEC_START, "\n".join(about.get("ExecStart", []))))[-1]
    sources = [about.first("FragmentPath"), *about.first("DropInPaths").split()]
    active = about.first("ActiveState")
    return Unit(
        name=about.first("Id"),
        active=active,
        in_use=active != "inactive" or about.first("UnitFileState").startswith("enabled"),
        pid=int(about.first("MainPID") or 0),
        path=path,
        # systemctl joins the arguments with spaces and adds no quotes, so they can only be split at spaces.
        words=tuple(command.split()[1:]),
        environment=about.first("Environment"),
        environment_files=tuple(re.findall(_ENVIRONMENT_FILE, "\n".join(about.get("EnvironmentFiles", [])))),
        sources=" or ".join(filter(None, sources)) or "the unit",
    )
