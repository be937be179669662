# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for the firewall programs, found first in PATH: they keep a log, and can be told to misbehave."""

from __future__ import annotations

import os
import stat
import typing as t
from pathlib import Path

_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
_NAMES = tuple(
    program + suffix + action
    for program in ("iptables", "ip6tables")
    for suffix in ("", "-nft", "-legacy")
    for action in ("", "-save", "-restore")
) + ("nft",)


class Programs:
    """A directory with one stand-in per firewall program of this machine: it writes its name and arguments to
    ``log``, then becomes the real program. ``misbehave`` changes what some of them do."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "programs"
        self.path.mkdir()
        #: a line for each start of a program: its name and arguments
        self.log = directory / "programs.log"
        self.log.touch()
        self._real = {name: real for name in _NAMES for real in _find(name)}
        for name in self._real:
            self._write(name, 'exec "$real" "$@"')

    def _write(self, name: str, body: str) -> None:
        target = self.path / name
        target.write_text(
            "#!/bin/sh\nreal=%s\nprintf '%%s\\n' \"%s $*\" >> %s\n%s\n" % (self._real[name], name, self.log, body)
        )
        target.chmod(target.stat().st_mode | stat.S_IXUSR)

    def misbehave(self, chosen: t.Callable[[str], bool], body: str) -> None:
        """Let every program whose name is ``chosen`` run ``body``, a shell script that knows the real one as $real."""
        for name in filter(chosen, self._real):
            self._write(name, body)

    def misbehave_in_writes(self, body: str, checks: bool = False) -> None:
        """Replace, as ``misbehave``, every program that writes a transaction; whatever only reads does its job.

        :param checks: also if the program is only to check what it would write.
        """
        self.misbehave(is_restore, body)
        wrong = '"-f -" | "-c -f -"' if checks else '"-f -"'
        self.misbehave(
            lambda name: name == "nft", 'case "$*" in %s) ;; *) exec "$real" "$@";; esac; %s' % (wrong, body)
        )

    def writes(self) -> t.List[str]:
        """Return the names of the programs that were told to write so far, in order."""
        return [call[0] for call in self.calls() if is_write(call)]

    def calls(self) -> t.List[t.List[str]]:
        """Return the command lines so far, each split into words."""
        return [line.split() for line in self.log.read_text().splitlines()]


def _find(name: str) -> t.List[str]:
    """Return where the real program is: one path, or none."""
    return [os.path.join(d, name) for d in _DIRECTORIES if os.access(os.path.join(d, name), os.X_OK)][:1]


def is_restore(name: str) -> bool:
    """Return whether a program is one of the iptables-restore family."""
    return name.endswith("-restore")


def is_write(call: t.Sequence[str]) -> bool:
    """Return whether a command line changes rules."""
    options = {"-A", "-I", "-D", "-R", "-N", "-X", "-F", "-P", "-E", "-Z"}
    if call[0] == "nft":
        return ("-f" in call and "-c" not in call) or not {"list", "--version", "-V"} & set(call)
    return is_restore(call[0]) or bool(options & set(call))
