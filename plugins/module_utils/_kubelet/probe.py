# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a kubelet's own binary whether it supports the flag. A version number is only the second best answer."""

from __future__ import annotations

import os
import re
import typing as t

from .._errors import NodeError
from .._system.process import Runner
from .flags import FLAG
from .kubelet import Program

#: The first release without the flag (kubernetes/kubernetes#107096).
REMOVED_IN = (1, 24)

_ELF = b"\x7fELF"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.\d+")
_PRINTED = re.compile(r"^(?:Kubernetes|(?:k3s|rke2) version) (v\d+\.\d+\.\d+\S*)", re.MULTILINE)
_HELP_LINE = re.compile(r"^\s+(?:-\w, )?--([a-z][a-z0-9_-]*)", re.MULTILINE)


class Probe(t.NamedTuple):
    """What the binary said. ``supported`` is None if it gave no usable answer; ``why`` then says so."""

    supported: t.Optional[bool]
    version: t.Optional[str] = None
    why: str = ""


def probe(program: Program, run: Runner, timeout: float) -> Probe:
    """Return whether a kubelet supports the flag.

    :param timeout: seconds that each question to the binary may take.
    """
    if program.version:
        return Probe(release_supports(program.version), program.version)
    if program.command is None:
        return Probe(None, None, program.why_not)
    path = program.command[0]
    if not os.path.exists(path):
        return Probe(None, None, "%s does not exist" % path)
    if not is_machine_code(path):
        return Probe(
            None,
            None,
            "%s is a script or wrapper, and running it might start a second kubelet; set the option binary to the path "
            "of the kubelet" % path,
        )
    try:
        version = parse_version(run([path, "--version"], timeout=timeout).stdout)
    except NodeError as exc:
        # What hangs once is not run twice.
        return Probe(None, None, str(exc))
    why = ""
    if program.lists_flags:
        try:
            done = run(list(program.command) + ["--help"], timeout=timeout)
        except NodeError as exc:
            return Probe(None, version, str(exc))
        flags = {name.replace("_", "-") for name in _HELP_LINE.findall(done.stdout + "\n" + done.stderr)}
        # Every kubelet has this flag. Without it, what was printed is not a kubelet's list of flags.
        if done.rc == 0 and "kubeconfig" in flags:
            return Probe(FLAG in flags, version)
        why = "%s --help (exit status %d) does not list a kubelet's flags, and " % (path, done.rc)
    supported = release_supports(version) if version else None
    return Probe(supported, version, "" if supported is not None else "%s%s --version prints no version" % (why, path))


def is_machine_code(path: str) -> bool:
    """Return whether this is a program in machine code.

    A script is never run to ask it for help: it may pass its arguments on or not, and start a second kubelet.
    """
    try:
        with open(path, "rb") as handle:
            return handle.read(len(_ELF)) == _ELF
    except OSError:
        return False


def release_supports(version: str) -> t.Optional[bool]:
    """Return whether this release of Kubernetes has the flag; None if the text is no version."""
    found = _VERSION.match(version)
    return None if not found else (int(found.group(1)), int(found.group(2))) < REMOVED_IN


def parse_version(output: str) -> t.Optional[str]:
    """Parse the version in what ``kubelet --version``, ``k3s --version`` or ``rke2 --version`` prints."""
    found = _PRINTED.search(output)
    return None if not found else found.group(1)
