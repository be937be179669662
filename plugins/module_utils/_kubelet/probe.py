# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a kubelet's own binary whether it supports the flag. A version number is only the second best answer."""

from __future__ import annotations

import re
import typing as t

from .._errors import NodeError
from .._system.process import Outcome, Runner
from .arguments import FLAG

#: The first release without the flag (kubernetes/kubernetes#107096).
REMOVED_IN = (1, 24)

_ELF = b"\x7fELF"
_RELEASE = re.compile(r"v(\d+)\.(\d+)\.\d+\S*")
_PRINTED = re.compile(r"^(?:Kubernetes|k3s version|rke2 version) (v\d+\.\d+\.\d+\S*)", re.MULTILINE)
_HELP_LINE = re.compile(r"^\s+(?:-\w, )?--([a-z][a-z0-9_-]*)", re.MULTILINE)


class Probe(t.NamedTuple):
    """What the binary said. ``supported`` is None if it gave no usable answer; ``why`` then says so."""

    supported: t.Optional[bool]
    version: str = ""
    why: str = ""


def probe(path: str, run: Runner, timeout: float, lists_flags: bool = True) -> Probe:
    """Return whether a kubelet supports the flag.

    :param path: its binary, or the program that it is inside of.
    :param timeout: seconds that each question to it may take.
    :param lists_flags: whether its ``--help`` has the kubelet's flags.
    """
    try:
        # A script is never run to ask it: it may pass its arguments on or not, and start a second kubelet.
        with open(path, "rb") as handle:
            if handle.read(len(_ELF)) != _ELF:
                why = "%s is a script or wrapper, which is not run; set the option binary to the path of the kubelet"
                return Probe(None, why=why % path)
        printed = _PRINTED.search(run([path, "--version"], timeout=timeout).stdout)
        helped = run([path, "--help"], timeout=timeout) if lists_flags else Outcome(1, "", "")
    except (OSError, NodeError) as exc:
        return Probe(None, why=str(exc))
    version = printed.group(1) if printed else ""
    flags = {name.replace("_", "-") for name in _HELP_LINE.findall(helped.stdout + "\n" + helped.stderr)}
    # Every kubelet has this flag. Without it, what was printed is not a kubelet's list of flags.
    if helped.rc == 0 and "kubeconfig" in flags:
        return Probe(FLAG in flags, version)
    return by_version(version, path + " --version")


def by_version(version: str, source: str) -> Probe:
    """Return whether a release of Kubernetes supports the flag.

    :param source: where the version is from, for the message.
    """
    found = _RELEASE.match(version)
    if found is None:
        return Probe(None, why="%s has no version" % source)
    return Probe((int(found[1]), int(found[2])) < REMOVED_IN, version)
