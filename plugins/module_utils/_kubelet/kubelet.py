# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every distribution's kubelet can be asked: its program, the places of its arguments, where the flag would go.

Nothing here decides or writes. Looking at the node is left to methods; constructors only keep what they are given.
"""

from __future__ import annotations

import typing as t

from .editors import Editor
from .host import Unit

#: ``read(path)`` returns the text of a file on the node, or None.
Reader = t.Callable[[str], t.Optional[str]]


class Place(t.NamedTuple):
    """One place that gives arguments to a kubelet."""

    #: the file or unit, as people name it
    where: str
    words: t.Tuple[str, ...]
    #: how to change it here; None if it is managed elsewhere
    editor: t.Optional[Editor] = None
    #: what the operator changes in that case
    advice: str = ""


class Program(t.NamedTuple):
    """The program to ask whether it supports the flag."""

    #: the binary, with a subcommand if needed; None with ``why_not`` saying why
    command: t.Optional[t.Tuple[str, ...]] = None
    why_not: str = ""
    #: whether its ``--help`` lists the kubelet's flags
    lists_flags: bool = True
    #: the kubelet's version, where a file tells it and no program needs to be asked
    version: str = ""


class Target(t.NamedTuple):
    """Where the flag would be set; without an editor ``advice`` says what the operator does instead."""

    editor: t.Optional[Editor]
    advice: str = ""
    #: first release that reads the place
    since: t.Tuple[int, int] = (0, 0)


class Kubelet(t.Protocol):
    """One kubelet, and how it gets its arguments."""

    unit: Unit

    @property
    def distributions(self) -> t.Tuple[str, ...]:
        """The distributions by which its arguments are kept; two, where one took over the node from the other."""

    def program(self) -> Program:
        """Return the program to ask."""

    def target(self) -> Target:
        """Return where the flag would be set.

        :raises ConfigError: a place cannot be understood with certainty.
        """

    def places(self, read: Reader) -> t.List[Place]:
        """Return every place that gives it arguments; the last one wins.

        :raises ConfigError: a place cannot be understood with certainty.
        """


def all_words(kubelet: Kubelet, read: Reader) -> t.List[str]:
    """Return all arguments of a kubelet, in order.

    :raises ConfigError: a place cannot be understood with certainty.
    """
    return [word for place in kubelet.places(read) for word in place.words]
