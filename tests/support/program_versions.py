# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nft and iptables of Debian releases, to run on this machine.

They run from where ``tools/debian-tree`` unpacks their packages, with the libraries of their release.
"""

from __future__ import annotations

import fcntl
import subprocess
import typing as t
from pathlib import Path

from .import_collection import ROOT
from .namespaces import Namespace

#: Those that are supported, and the next one as far as it is made; oldest first.
RELEASES = ("bullseye", "bookworm", "trixie", "sid")

#: With the loader, libraries of another release are found without a chroot: nft 0.9.8 needs /dev/stdin.
_WRAPPER = """#!/bin/sh
XTABLES_LIBDIR="%(lib)s/xtables"
export XTABLES_LIBDIR
exec "%(loader)s" --library-path "%(paths)s" "%(program)s" "$@"
"""


class Nft(t.NamedTuple):
    """One version of nft."""

    release: str
    #: as it reports itself: ``1.0.6``
    version: str
    #: directory with nothing but this ``nft``, to put before PATH
    path: Path

    def call(self, ns: Namespace, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run it in a namespace, whatever its exit status is."""
        argv = ns.argv(str(self.path / "nft"), *arguments)
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)

    def write(self, ns: Namespace, text: str) -> None:
        """Carry out commands in one transaction."""
        done = self.call(ns, "-f", "-", stdin=text)
        assert done.returncode == 0, done.stderr


def nft_of(release: str) -> Nft:
    """Return the nft of one release."""
    path = _programs(release, "nft")
    version = subprocess.run([path / "nft", "--version"], capture_output=True, check=True, text=True).stdout
    return Nft(release, version.split()[1].lstrip("v"), path)


def iptables_of(release: str, variant: str) -> Path:
    """Return a directory with nothing but the iptables of one release, ``nft`` or ``legacy``, to put before PATH."""
    names = ["%s-%s" % (command, variant) for command in ("iptables", "ip6tables")]
    return _programs(release, *(name + suffix for name in names for suffix in ("", "-restore", "-save")))


def _programs(release: str, *names: str) -> Path:
    made = subprocess.run(
        [ROOT / "tools/debian-tree", release, "nftables", "iptables"], stdout=subprocess.PIPE, check=True, text=True
    )
    tree = Path(made.stdout.strip())
    folder = tree.with_name("%s-%s" % (tree.name, names[0]))
    with open(str(folder) + ".lock", "w", encoding="ascii") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _wrap(tree, folder, names)
    return folder


def _wrap(tree: Path, folder: Path, names: t.Sequence[str]) -> None:
    libraries = [path for place in ("lib", "usr/lib") for path in tree.glob(place + "/*-linux-gnu")]
    (loader,) = {path.resolve() for place in libraries for path in place.glob("ld-linux*.so.*")}
    fresh = folder.with_name(folder.name + ".new")
    fresh.mkdir(exist_ok=True)
    for name in names:
        wrapper = fresh / name
        places = {"lib": libraries[-1], "paths": ":".join(map(str, libraries)), "loader": loader}
        wrapper.write_text(_WRAPPER % dict(places, program=tree / "usr/sbin" / name))
        wrapper.chmod(0o755)
    fresh.rename(folder)
