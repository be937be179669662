# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nft and iptables-legacy of Debian releases that are supported, to run on this machine.

Each is copied once, with the libraries that it needs, out of the node image of its release (``tools/node-image``, which
builds the image if podman does not have it).
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
import typing as t
from pathlib import Path

from .import_collection import ROOT
from .namespaces import Namespace

RELEASES = ("bullseye", "bookworm", "trixie")

_CACHE = ROOT / ".cache"
#: Packs a program, other files, the libraries and the dynamic loader; symbolic links are resolved in the image.
_PACK = "tar -chf - /usr/sbin/%s %s $(ldd /usr/sbin/%s | grep -o '/[^ ]*')"
#: With the loader, libraries of another release are found without a chroot: nft 0.9.8 needs /dev/stdin.
_WRAPPER = """#!/bin/sh
XTABLES_LIBDIR="%(lib)s"
export XTABLES_LIBDIR
exec "%(lib)s/%(loader)s" --library-path "%(lib)s" "%(lib)s/%(name)s" "$@"
"""
#: The names under which programs are called that act by their name.
_LEGACY = [command + suffix for command in ("iptables-legacy", "ip6tables-legacy") for suffix in ("", "-restore")]


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
    path = _programs(release, "nft", ["nft"])
    return Nft(release, _output(str(path / "nft"), "--version").split()[1].lstrip("v"), path)


def iptables_legacy_of(release: str) -> Path:
    """Return a directory with nothing but the iptables-legacy of one release, to put before PATH."""
    return _programs(release, "xtables-legacy-multi", _LEGACY, "/usr/lib/*/xtables/*.so")


def _programs(release: str, program: str, names: t.Sequence[str], more: str = "") -> Path:
    image = _output(str(ROOT / "tools" / "node-image"), release)
    cache = _CACHE / program
    folder = cache / image.rpartition(":")[2]
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w", encoding="ascii") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _copy(image, folder, program, names, more)
    return folder / "bin"


def _copy(image: str, folder: Path, program: str, names: t.Sequence[str], more: str) -> None:
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        mounted = _output("podman", "image", "mount", image)
        try:
            command = ["chroot", mounted, "sh", "-c", _PACK % (program, more, program)]
            pack = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        finally:
            _output("podman", "image", "unmount", image)
        for part in ("bin", "lib"):
            (fresh / part).mkdir()
        unpack = ["tar", "-xf", "-", "-C", str(fresh / "lib"), "--transform", "s|.*/||"]
        subprocess.run(unpack, input=pack.stdout, check=True)
        (loader,) = (fresh / "lib").glob("ld-linux*")
        for name in names:
            if name != program:
                (fresh / "lib" / name).symlink_to(program)
            wrapper = fresh / "bin" / name
            wrapper.write_text(_WRAPPER % {"lib": folder / "lib", "loader": loader.name, "name": name})
            wrapper.chmod(0o755)
        fresh.chmod(0o755)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _output(*argv: str) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
