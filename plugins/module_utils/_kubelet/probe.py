# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a kubelet's own binary whether it knows the flag. A version number is only the second best answer."""

from __future__ import annotations

import os
import re
import typing as t

from ..errors import NodeError
from ..runner import Runner
from .editors import FLAG

#: The first release without the flag (kubernetes/kubernetes#107096).
REMOVED_IN = (1, 24)

_ELF = b"\x7fELF"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.\d+")
_PRINTED = re.compile(r"^(?:Kubernetes|(?:k3s|rke2) version) (v\d+\.\d+\.\d+\S*)", re.MULTILINE)
_HELP_LINE = re.compile(r"^\s+(?:-\w, )?--([a-z][a-z0-9_-]*)", re.MULTILINE)


class Probe(t.NamedTuple):
    """What the binary said. ``known`` is none where it gave no usable answer; ``why`` then says so."""

    known: t.Optional[bool]
    version: t.Optional[str] = None
    why: str = ""


def is_program(path: str) -> bool:
    """Whether this is a program in machine code.

    A script is never run to ask it for help: it may pass its arguments on or not, and start a second kubelet.
    """
    try:
        with open(path, "rb") as handle:
            return handle.read(len(_ELF)) == _ELF
    except OSError:
        return False


def known_by_version(version: str) -> t.Optional[bool]:
    """Whether this release of Kubernetes has the flag; none where the text is no version."""
    found = _VERSION.match(version)
    return None if not found else (int(found.group(1)), int(found.group(2))) < REMOVED_IN


def parse_version(output: str) -> t.Optional[str]:
    """The version in what C(kubelet --version), C(k3s --version) or C(rke2 --version) prints."""
    found = _PRINTED.search(output)
    return None if not found else found.group(1)


def probe(command: t.Sequence[str], run: Runner, timeout: float, asks_help: bool = True, label: str = "") -> Probe:
    """Ask a binary.

    :param command: the binary, and a subcommand if it needs one to act as the kubelet.
    :param timeout: seconds that each question may take.
    :param asks_help: whether C(--help) lists the kubelet's flags; k3s keeps its kubelet inside another program.
    :param label: the path to name in messages.
    """
    label = label or command[0]
    if not os.path.exists(command[0]):
        return Probe(None, None, "the program %s does not exist" % label)
    if not is_program(command[0]):
        return Probe(
            None,
            None,
            "%s is a script or wrapper, and running it might start a second kubelet; name the real binary in the "
            "option binary to have it asked" % label,
        )
    trouble = ""
    version = None
    try:
        version = parse_version(run([command[0], "--version"], timeout=timeout).stdout)
    except NodeError as exc:
        # What hangs once is not asked twice.
        return Probe(None, None, str(exc))
    if asks_help:
        try:
            done = run(list(command) + ["--help"], timeout=timeout)
        except NodeError as exc:
            return Probe(None, version, str(exc))
        flags = {name.replace("_", "-") for name in _HELP_LINE.findall(done.stdout + "\n" + done.stderr)}
        # Every kubelet has this flag. Without it, what was printed is not a kubelet's list of flags.
        if done.rc == 0 and "kubeconfig" in flags:
            return Probe(FLAG in flags, version)
        trouble = "%s --help (exit status %d) did not list a kubelet's flags" % (label, done.rc)
    known = known_by_version(version) if version else None
    if known is None:
        trouble = "%s%s --version named no version" % (trouble and trouble + ", and ", label)
    return Probe(known, version, trouble if known is None else "")
