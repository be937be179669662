# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's files put in place as the module does it, without the second that compiling takes. Python 3.8."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import install, program_modules
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome, Runner


def pretend(argv: t.Sequence[str], **_more: t.Any) -> Outcome:
    """Run nothing; in place of compiling, put an empty file where the code of the program's start belongs."""
    if "compileall" in argv:
        folder, name = program_modules.ENTRY.split(".")
        code = Path(argv[-1], folder, "__pycache__", "%s.%s.pyc" % (name, sys.implementation.cache_tag))
        code.parent.mkdir(exist_ok=True)
        code.touch()
    return Outcome(0, "", "")


def put_files(paths: Paths, text: t.Optional[str], check: bool = False) -> install.InstallResult:
    """Write the files.

    :param text: text of the config file; None keeps the one on the node.
    """
    installation = install.Installation(pretend, paths, text, check)
    installation.write_files()
    return installation.result()


def put_all(systemctl: Runner, paths: Paths, check: bool = False, enabled: bool = True) -> install.InstallResult:
    """Write the files, with a policy of defaults, and set the units."""

    def run(argv: t.Sequence[str], **more: t.Any) -> Outcome:
        return (systemctl if argv[0] == "systemctl" else pretend)(argv, **more)

    installation = install.Installation(run, paths, "{}\n", check)
    installation.write_files()
    installation.update_units(enabled)
    return installation.result()
