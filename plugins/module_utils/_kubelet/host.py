# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's files, processes and systemd services, read when asked. Nothing here decides or writes."""

from __future__ import annotations

import glob
import os
import re
import typing as t

from .._system import systemd
from .._system.process import Runner
from . import owned_files
from .arguments import chars_of, split_words

_PROPERTIES = (
    "Id LoadState ActiveState UnitFileState MainPID ExecStart Environment EnvironmentFiles FragmentPath DropInPaths"
).split()
_EXEC_START = re.compile(r"path=(?P<path>.*?) ; argv\[\]=(?P<argv>.*?) ; (?:ignore_errors|flags)=")
_ENVIRONMENT_FILE = re.compile(r"(?P<path>/.*?) \(ignore_errors=(?:yes|no)\)\Z")
_SUFFIX = ".service"

#: network_namespaces(7)
_OWN_NETWORK = "/proc/self/ns/net"


class Unit(t.NamedTuple):
    """One loaded service, from ``systemctl show``."""

    #: without ``.service``
    name: str
    active: str
    enabled: str
    pid: int
    #: the program and its arguments, variables not yet replaced
    path: str
    argv: t.Tuple[str, ...]
    environment: t.Tuple[t.Tuple[str, str], ...]
    environment_files: t.Tuple[str, ...]
    #: the unit file and its drop-ins
    sources: t.Tuple[str, ...]

    @property
    def in_use(self) -> bool:
        """Whether it is meant to run on this node."""
        return self.active != "inactive" or self.enabled.startswith("enabled")

    @property
    def source_names(self) -> str:
        """The unit file and its drop-ins, for messages."""
        return " or ".join(self.sources) or "the unit"


class Host:
    """One node.

    :param run: starts programs.
    :param root: the directory that holds the node's file system.
    """

    def __init__(self, run: Runner, root: str = "/") -> None:
        self.run = run
        self.root = root

    def path(self, path: str) -> str:
        """Return where a file of the node is found."""
        return os.path.join(self.root, path.lstrip("/"))

    def file_version(self, path: str) -> owned_files.FileVersion:
        """See ``owned_files.read_version``."""
        return owned_files.read_version(self.path(path))

    def read(self, path: str) -> t.Optional[str]:
        """Read the text of a file; None if it does not exist.

        :raises ConfigError: it is not a text file.
        :raises NodeError: it cannot be read.
        """
        return self.file_version(path).text

    def glob(self, pattern: str) -> t.List[str]:
        """List the files that match, as paths on the node, in the order of their names."""
        found = glob.glob(os.path.join(glob.escape(self.root), pattern.lstrip("/")))
        return sorted("/" + os.path.relpath(path, self.root) for path in found)

    def exists(self, path: str) -> bool:
        """Return whether there is such a file."""
        return os.path.exists(self.path(path))

    def command_line(self, pid: int) -> t.List[str]:
        """Return what a process was started with; empty if it is gone."""
        try:
            with open(self.path("/proc/%d/cmdline" % pid), "rb") as handle:
                return handle.read().decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
        except OSError:
            return []

    def processes(self, name: str) -> t.List[int]:
        """List the processes of that name whose network is the node's; not those of kind's nodes."""
        found = []
        for path in glob.glob(os.path.join(glob.escape(self.root), "proc/[0-9]*/comm")):
            try:
                with open(path, encoding="utf-8", errors="replace") as handle:
                    if handle.read().rstrip("\n") == name:
                        found.append(int(path.split(os.sep)[-2]))
            except OSError:
                continue  # it has exited
        return sorted(pid for pid in found if not self._is_elsewhere(pid))

    def _is_elsewhere(self, pid: int) -> bool:
        """Return whether the rules that a process writes are not those of this node; no, where that cannot be told."""
        try:
            return not os.path.samefile(self.path("/proc/%d/ns/net" % pid), _OWN_NETWORK)
        except OSError:
            return False

    def units(self, names: t.Sequence[str]) -> t.List[Unit]:
        """Return those of the named services that systemd knows.

        :raises NodeError: there is no systemd to ask.
        """
        shown = systemd.show_units(self.run, _PROPERTIES, names).values()
        return [_as_unit(about) for about in shown if about.first("LoadState") == "loaded"]


def unit_name(name: str) -> str:
    """Return the name of a service without ``.service``, with which it may be given."""
    return name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) else name


def _as_unit(about: systemd.UnitProperties) -> Unit:
    started = [found for found in map(_EXEC_START.search, about.get("ExecStart", [])) if found]
    matched = [_ENVIRONMENT_FILE.match(value) for value in about.get("EnvironmentFiles", [])]
    pid = about.first("MainPID")
    return Unit(
        name=unit_name(about.first("Id")),
        active=about.first("ActiveState"),
        enabled=about.first("UnitFileState"),
        pid=int(pid) if pid.isdigit() else 0,
        path=started[-1].group("path") if started else "",
        # systemctl joins the arguments with spaces and adds no quotes, so they can only be split at spaces.
        argv=tuple(started[-1].group("argv").split()) if started else (),
        environment=tuple(_parse_shown_environment(about.first("Environment"))),
        environment_files=tuple(found.group("path") for found in matched if found),
        sources=tuple(path for path in [about.first("FragmentPath")] + about.first("DropInPaths").split() if path),
    )


def _parse_shown_environment(shown: str) -> t.Iterator[t.Tuple[str, str]]:
    for word in split_words(chars_of(shown), "Environment= of the unit"):
        name, equals, value = word.text.partition("=")
        if equals:
            yield name, value
