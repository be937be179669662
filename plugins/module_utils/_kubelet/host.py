# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's files, processes and systemd services, as they are when asked. Nothing here decides or writes."""

from __future__ import annotations

import glob
import os
import re
import typing as t

from .._errors import NodeError
from .._system.process import Runner
from . import owned_files
from .words import chars_of, split_words

_PROPERTIES = (
    "Id LoadState ActiveState UnitFileState MainPID ExecStart Environment EnvironmentFiles FragmentPath DropInPaths"
).split()
_EXEC_START = re.compile(r"path=(?P<path>.*?) ; argv\[\]=(?P<argv>.*?) ; (?:ignore_errors|flags)=")
_ENVIRONMENT_FILE = re.compile(r"(?P<path>/.*?) \(ignore_errors=(?:yes|no)\)\Z")
_SUFFIX = ".service"


class Unit(t.NamedTuple):
    """One loaded service, from C(systemctl show)."""

    #: without C(.service)
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
        """Where a file of the node is found."""
        return os.path.join(self.root, path.lstrip("/"))

    def file_version(self, path: str) -> owned_files.FileVersion:
        """See :func:`.owned_files.read`."""
        return owned_files.read(self.path(path))

    def read(self, path: str) -> t.Optional[str]:
        """The text of a file; none if there is none.

        :raises ConfigError: it is not a text file.
        :raises NodeError: it cannot be read.
        """
        return self.file_version(path).text

    def glob(self, pattern: str) -> t.List[str]:
        """The files that match, as paths on the node, in the order of their names."""
        found = glob.glob(os.path.join(glob.escape(self.root), pattern.lstrip("/")))
        return sorted("/" + os.path.relpath(path, self.root) for path in found)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self.path(path))

    def command_line(self, pid: int) -> t.List[str]:
        """What a process was started with; empty if it is gone."""
        try:
            with open(self.path("/proc/%d/cmdline" % pid), "rb") as handle:
                return handle.read().decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
        except OSError:
            return []

    def processes(self, name: str) -> t.List[int]:
        """The processes of that name."""
        found = []
        for path in glob.glob(os.path.join(glob.escape(self.root), "proc/[0-9]*/comm")):
            try:
                with open(path, encoding="utf-8", errors="replace") as handle:
                    if handle.read().rstrip("\n") == name:
                        found.append(int(path.split(os.sep)[-2]))
            except OSError:
                continue  # it ended meanwhile
        return sorted(found)

    def units(self, names: t.Sequence[str]) -> t.List[Unit]:
        """Those of the named services that systemd knows.

        :raises NodeError: there is no systemd to ask.
        """
        done = self.run(["systemctl", "show", "--property=" + ",".join(_PROPERTIES), "--"] + list(names))
        if done.rc != 0:
            raise NodeError("systemctl show: %s" % (" ".join(done.stderr.split()) or "exit status %d" % done.rc))
        found = [_parse_unit(block) for block in done.stdout.split("\n\n")]
        return [unit for unit in found if unit is not None]


def unit_name(name: str) -> str:
    """The name of a service without C(.service), with which it may be given."""
    return name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) else name


def _parse_unit(block: str) -> t.Optional[Unit]:
    values: t.Dict[str, t.List[str]] = {}
    for line in block.splitlines():
        name, _equals, value = line.partition("=")
        if value:
            values.setdefault(name, []).append(value)

    def one(name: str) -> str:
        return values.get(name, [""])[0]

    if one("LoadState") != "loaded":
        return None
    started = [found for found in map(_EXEC_START.search, values.get("ExecStart", [])) if found]
    matched = [_ENVIRONMENT_FILE.match(value) for value in values.get("EnvironmentFiles", [])]
    return Unit(
        name=unit_name(one("Id")),
        active=one("ActiveState"),
        enabled=one("UnitFileState"),
        pid=int(one("MainPID")) if one("MainPID").isdigit() else 0,
        path=started[-1].group("path") if started else "",
        # systemctl joins the arguments with blanks and adds no quotes, so words are all there is to go by.
        argv=tuple(started[-1].group("argv").split()) if started else (),
        environment=tuple(_parse_shown_environment(one("Environment"))),
        environment_files=tuple(found.group("path") for found in matched if found),
        sources=tuple(path for path in [one("FragmentPath")] + one("DropInPaths").split() if path),
    )


def _parse_shown_environment(shown: str) -> t.Iterator[t.Tuple[str, str]]:
    for word in split_words(chars_of(shown), "Environment= of the unit"):
        name, equals, value = word.text.partition("=")
        if equals:
            yield name, value
