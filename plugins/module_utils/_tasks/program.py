# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry point of the installed program."""

from __future__ import annotations

import sys
import typing as t

from .._agent.paths import Paths
from . import cli, console


def entry(paths: t.Mapping[str, str]) -> t.NoReturn:
    """Run a command.

    :param paths: those that the program was installed with.
    :raises SystemExit: the command line is invalid, or requests help.
    """
    console.prepare()
    console.leave(cli.main(sys.argv[1:], Paths(**paths)))
