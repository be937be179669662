# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-playbook as somebody would who has no settings of Ansible."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

from .import_collection import location


def ansible_playbook(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, whatever its exit status is.

    :param folder: the current directory and the home of the run.
    :param settings: variables of its environment, in which no other ANSIBLE_ ones are.
    """
    return _run([str(_program()), *arguments], folder, folder, settings)


def typed(command: str, folder: Path, home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as if it was typed in a shell that finds the programs of Ansible.

    :param folder: the current directory.
    :param home: the home of the run.
    """
    path = "%s:%s" % (_program().parent, os.environ["PATH"])
    return _run(["bash", "-euc", command], folder, home, {"PATH": path, **settings})


def _program() -> Path:
    """Return the program that IP_MASQ_ANSIBLE_PLAYBOOK names, else that of the Python that runs the tests."""
    named = os.environ.get("IP_MASQ_ANSIBLE_PLAYBOOK")
    return Path(named) if named else Path(sys.executable).with_name("ansible-playbook")


def _run(
    argv: t.Sequence[str], folder: Path, home: Path, settings: t.Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    env.update(HOME=str(home), LC_ALL="C.UTF-8", ANSIBLE_COLLECTIONS_PATH=str(location().parents[2]))
    env.update(ANSIBLE_PIPELINING="1")  # for speed alone
    env.update(settings)
    done = subprocess.run(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    # As text of Python a carriage return would be a line's end.
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())
