# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nft of every Debian release that is supported, to run on this machine.

Each is copied once, with the libraries that it needs, out of the node image of its release (C(tools/node-image), which
builds the image if podman does not have it).
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path

from .modules import ROOT
from .namespaces import Namespace

RELEASES = ("bullseye", "bookworm", "trixie")

_CACHE = ROOT / ".cache" / "nft"
#: Packs nft, its libraries and its dynamic loader; symbolic links are resolved in the image.
_PACK = "tar -chf - /usr/sbin/nft $(ldd /usr/sbin/nft | grep -o '/[^ ]*')"
#: With the loader, libraries of another release are found without a chroot: nft 0.9.8 needs /dev/stdin.
_WRAPPER = """#!/bin/sh
exec "%(lib)s/%(loader)s" --library-path "%(lib)s" "%(lib)s/nft" "$@"
"""


class Nft(t.NamedTuple):
    """One version of nft."""

    release: str
    #: as it reports itself: C(1.0.6)
    version: str
    #: directory with nothing but this C(nft), to put before PATH
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
    """The nft of one release."""
    image = _output(str(ROOT / "tools" / "node-image"), release)
    folder = _CACHE / image.rpartition(":")[2]
    _CACHE.mkdir(parents=True, exist_ok=True)
    with open(_CACHE / "lock", "w", encoding="ascii") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _copy(image, folder)
    return Nft(release, _output(str(folder / "bin" / "nft"), "--version").split()[1].lstrip("v"), folder / "bin")


def _copy(image: str, folder: Path) -> None:
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        mounted = _output("podman", "image", "mount", image)
        try:
            pack = subprocess.run(["chroot", mounted, "sh", "-c", _PACK], stdout=subprocess.PIPE, check=True)
        finally:
            _output("podman", "image", "unmount", image)
        for part in ("bin", "lib"):
            (fresh / part).mkdir()
        unpack = ["tar", "-xf", "-", "-C", str(fresh / "lib"), "--transform", "s|.*/||"]
        subprocess.run(unpack, input=pack.stdout, check=True)
        (loader,) = (fresh / "lib").glob("ld-linux*")
        wrapper = fresh / "bin" / "nft"
        wrapper.write_text(_WRAPPER % {"lib": folder / "lib", "loader": loader.name})
        wrapper.chmod(0o755)
        fresh.chmod(0o755)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _output(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
