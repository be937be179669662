# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for the firewall programs, found first in PATH: they keep a log, and can be told to misbehave.

So can what a module hears of nf_tables over netlink, for which no program is started.
"""

from __future__ import annotations

import contextlib
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

#: In the log, the program that writes over netlink.
NETLINK = "netlink"


class Netlink:
    """What a module says to nf_tables: writes are in the log; they can be changed, and all of it be refused."""

    def __init__(self, log: Path) -> None:
        self._log = log
        #: gets the changes of a transaction, and returns what is written; an OSError is what the kernel refuses
        self.write: t.Callable[[t.List[t.Any]], t.Sequence[t.Any]] = lambda changes: changes
        #: gets the number of a family whose table is read
        self.read: t.Callable[[int], None] = lambda _family: None

    def attach(self, nf_tables: t.Any) -> None:
        """Come between the product and the kernel, in this process."""
        transact, read_one = nf_tables.transact, nf_tables.read_one

        def write(changes: t.Sequence[t.Any], what: str) -> None:
            with _refused(nf_tables, what):
                changed = self.write(list(changes))
            with self._log.open("a", encoding="ascii") as log:
                log.write(NETLINK + " -f -\n")
            transact(changed, what)

        def read(family: int, *words: t.Any) -> t.Any:
            with _refused(nf_tables, "a question"):
                self.read(family)
            return read_one(family, *words)

        nf_tables.transact, nf_tables.read_one = write, read


@contextlib.contextmanager
def _refused(nf_tables: t.Any, what: str) -> t.Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise nf_tables.netlink.KernelError(exc.errno, what) from None


#: By directory, what comes between nf_tables and a module that has the directory in PATH.
ATTACHED: t.Dict[Path, Netlink] = {}


class Programs:
    """A directory with one stand-in per firewall program of this machine: it writes its name and arguments to
    ``log``, then becomes the real program. ``misbehave`` changes what some of them do."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "programs"
        self.path.mkdir()
        #: a line for each start of a program: its name and arguments
        self.log = directory / "programs.log"
        self.log.touch()
        self.netlink = ATTACHED[self.path] = Netlink(self.log)
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

    def misbehave_in_writes(self, body: str, netlink: t.Callable[[t.List[t.Any]], t.Sequence[t.Any]]) -> None:
        """Replace, as ``misbehave``, every program that writes a transaction; whatever only reads does its job.

        :param netlink: the same of what is written without a program, see ``Netlink.write``.
        """
        self.misbehave(is_restore, body)
        self.netlink.write = netlink

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
        return not {"list", "--version", "-V"} & set(call)
    return call[0] == NETLINK or is_restore(call[0]) or bool(options & set(call))
