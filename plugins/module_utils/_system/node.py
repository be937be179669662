# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node: how programs are run on it, which of them it has, and what its kernel answers.

Nothing is created by looking.
"""

from __future__ import annotations

import copy
import os
import re
import time
import typing as t

from .._errors import NodeError
from . import defaults_and_limits
from .families import Family
from .nfnetlink import has_extension
from .process import Outcome, Runner, which

#: Seconds for a program to tell its version.
_PATIENCE = 5.0

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_VERSION = r"v([0-9]+(?:\.[0-9]+)+)(?: \((\w+)\))?"


class Tool(t.NamedTuple):
    """One program: its path, the version it reports, and the word in brackets behind it (of iptables, its variant)."""

    path: str
    version: t.Tuple[int, ...] = ()
    variant: str = ""

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(str(part) for part in self.version)


class Node:
    """A node. Each program is asked for its version once; kernel state is asked whenever it is needed."""

    def __init__(
        self,
        run: Runner,
        lock_timeout: int = defaults_and_limits.LOCK_TIMEOUT,
        has_extension: t.Callable[[Family, int, str, int], t.Optional[bool]] = has_extension,
    ) -> None:
        """Describe a node whose programs are run by ``run``.

        :param lock_timeout: seconds.
        :param has_extension: as ``nfnetlink.has_extension``.
        """
        self.run = run
        self.lock_timeout = lock_timeout
        self.has_extension = has_extension
        #: the version line of each program, or the error of one that did not tell it in time
        self._reported: t.Dict[t.Tuple[str, str], t.Union[str, NodeError]] = {}

    def within(self, seconds: float) -> Node:
        """Return the same node, on which all programs that are run from now on have this time together, and no lock is
        waited for longer than a second.
        """
        deadline = time.monotonic() + seconds

        def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NodeError("%s: not run, because what was run before it took %g seconds" % (argv[0], seconds))
            return self.run(argv, stdin=stdin, timeout=min(timeout, left))

        limited = copy.copy(self)
        limited.run = run
        limited.lock_timeout = min(self.lock_timeout, 1)
        return limited

    def tool(self, name: str) -> t.Optional[Tool]:
        """Find the program of this name; None if the node does not have it.

        :raises NodeError: it does not tell its version in time.
        """
        path = which(name)
        if path is None:
            return None
        # ip6tables is iptables by another name: one file, which is run once.
        program = os.path.realpath(path), os.path.basename(path).replace("ip6tables", "iptables")
        if program not in self._reported:
            try:
                self._reported[program] = self.run([path, "--version"], timeout=_PATIENCE).stdout
            except NodeError as exc:
                self._reported[program] = exc
        told = self._reported[program]
        if isinstance(told, NodeError):
            raise told
        found = re.search(_VERSION, told)
        if found is None:
            return Tool(path)
        return Tool(path, tuple(int(part) for part in found.group(1).split(".")), found.group(2) or "")
