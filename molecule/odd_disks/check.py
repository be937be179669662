# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is odd about a disk or a directory does not keep the service, in its sandbox, from repairing rules.

``check.py disks``: /tmp, /var/lib and /run, each odd in many ways. ``check.py unwatched``: the unit that watches for
edits cannot start; ``check.py watched``: it can again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import typing as t

from checks import SERVICE, check, check_rules, done, equal, eventually, exempt, flush, packets, run, sh, shown, write

STATE = "/var/lib/ip-masq-agent"
RUN = "/run/ip-masq-agent"
LOCK = "/run/xtables.lock"
PATH = "ip-masq-agent.path"
DROP_IN = "/etc/ip-masq-agent/config.d/10-site.json"
CANNOT_START = "/run/systemd/system/ip-masq-agent.path.d/odd.conf"


def heals(what: str, by: t.Tuple[str, ...] = ("start", SERVICE)) -> None:
    """A flush is repaired by a run of the unit."""
    flush()
    run("systemctl", *by)
    equal("%s: the service ran" % what, shown(SERVICE, "Result"), {"Result": "success"})
    check_rules(what)


# Ways to be odd: each is undone when its block ends


@contextlib.contextmanager
def mounted(path: str, how: str, inside: t.Callable[[], object] = bool) -> t.Iterator[None]:
    """Another file system is mounted there.

    :param how: it is: full, without inodes, or read-only.
    :param inside: what to do there before it is used up or read-only.
    """
    # Small, since it is in memory.
    mode = "1777" if path.endswith("tmp") else "0755"
    sh("mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=64,mode=%s" % mode, "odd", path)
    try:
        inside()
        if how == "full":
            with contextlib.suppress(OSError), open(os.path.join(path, "filler"), "wb", buffering=0) as filler:
                for _block in range(64):
                    filler.write(b"x" * 4096)
        elif how == "without inodes":
            with contextlib.suppress(OSError):
                for number in range(64):
                    os.mkdir(os.path.join(path, "filler-%d" % number))
        else:
            sh("mount", "-o", "remount,ro", path)
        yield
    finally:
        sh("umount", "--lazy", path)


@contextlib.contextmanager
def full(path: str) -> t.Iterator[None]:
    """The file system that is mounted there, which is in memory, has no room left."""
    about = os.statvfs(path)
    limit, used = about.f_blocks * about.f_frsize, (about.f_blocks - about.f_bfree) * about.f_frsize
    filler = os.path.join(path, "filler")
    sh("mount", "-o", "remount,size=%d" % (used + 65536), path)
    try:
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as handle:
            for _block in range(64):
                handle.write(b"x" * 4096)
        equal("%s has no room left" % path, os.statvfs(path).f_bfree, 0)
        yield
    finally:
        sh("mount", "-o", "remount,size=%d" % limit, path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(filler)


@contextlib.contextmanager
def replaced(path: str, by: t.Callable[[str], object] = bool) -> t.Iterator[None]:
    """Something else is there, or nothing."""
    aside = path + ".aside"
    shutil.move(path, aside)  # a directory of an image can only be copied
    try:
        by(path)
        yield
    finally:
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        shutil.move(aside, path)


def file(path: str) -> None:
    """A file in the place of a directory."""
    with open(path, "w", encoding="ascii"):
        pass


def dangling(path: str) -> None:
    """A symbolic link to nothing."""
    os.symlink("/nowhere/at/all", path)


def loop(path: str) -> None:
    """A symbolic link to itself."""
    os.symlink(path, path)


def elsewhere(path: str) -> None:
    """A symbolic link to a directory on another disk."""
    os.makedirs("/srv/elsewhere", exist_ok=True)
    os.symlink("/srv/elsewhere", path)


def of_others(path: str) -> None:
    """A directory that everybody may write, of another user."""
    os.mkdir(path)
    os.chmod(path, 0o777)
    shutil.chown(path, "nobody")


def wrong_mode() -> None:
    """The state directory, as nobody made it."""
    os.mkdir(STATE, 0o755)
    with open(STATE + "/state.json", "w", encoding="ascii") as state:
        state.write("{}")


def disks() -> None:
    """All that is odd, one after the other."""
    run("umount", "--lazy", "/tmp")  # what is mounted cannot be replaced
    for how in ("full", "without inodes", "read-only"):
        for path in ("/tmp", "/var/tmp"):
            with mounted(path, how):
                heals("%s is %s" % (path, how))
    with replaced("/tmp"):
        heals("/tmp is missing")
    for what in (file, dangling):
        with replaced("/tmp", what):
            heals("/tmp is replaced: %s" % what.__doc__)
    for how in ("full", "without inodes", "read-only"):
        for beside, inside in (("without the state directory", bool), ("with one of another mode", wrong_mode)):
            with mounted("/var/lib", how, inside):
                heals("/var/lib is %s, %s" % (how, beside))
    for path in (STATE, RUN):
        for what in (file, dangling, elsewhere, of_others):
            with replaced(path, what):
                heals("%s is replaced: %s" % (path, what.__doc__))
    for path in (STATE, RUN):
        with replaced(path):
            heals("%s is missing" % path)
            check("%s is there again" % path, os.path.isdir(path))
            equal("its mode", oct(os.stat(path).st_mode & 0o7777), "0o700")
    with mounted(STATE, "read-only"):
        heals("%s is read-only" % STATE)
    with mounted(RUN, "without inodes"):
        heals("%s is without inodes" % RUN)
    with full("/run"):
        heals("/run is full")
    heals("as before")
    packets("after all that")


def lock_file() -> None:
    """The lock file of iptables-legacy is deleted again and again while the service runs; the next run has one."""
    for again in range(12):
        sh("systemctl", "--no-block", "start", SERVICE)
        for _time in range(4):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(LOCK)
            time.sleep(0.02)
        # It ends with the run under way, or that which waits. A run whose file goes after its check of it may fail.
        run("systemctl", "start", SERVICE)
        heals("the lock file was deleted, time %d" % (again + 1))
        check("it is there again", os.path.exists(LOCK))


# The watch for edits


def unwatched() -> None:
    """The watch cannot start, as where root has no inotify instance left, of which this host's nodes share theirs."""
    dangling_watch = "/run/loop"
    loop(dangling_watch)
    os.makedirs(os.path.dirname(CANNOT_START), exist_ok=True)
    with open(CANNOT_START, "w", encoding="ascii") as drop_in:
        drop_in.write("[Path]\nPathChanged=%s/file\n" % dangling_watch)
    sh("systemctl", "daemon-reload")
    check("the watch for edits cannot start", run("systemctl", "restart", PATH).returncode)
    equal("for want of resources", shown(PATH, "Result"), {"Result": "resources"})
    heals("without the watch for edits")


def watched() -> None:
    """It can start again: the agent starts it, and an edit acts at once."""
    shutil.rmtree(os.path.dirname(CANNOT_START))
    sh("systemctl", "daemon-reload")
    eventually("the watch is started", lambda: shown(PATH, "ActiveState")["ActiveState"] == "active", 20)
    write(DROP_IN, '{"nonMasqueradeCIDRs": ["198.18.0.0/15"]}')
    eventually("an edit acts", lambda: "198.18.0.0/15" in exempt(), seen=exempt)
    os.unlink(DROP_IN)
    eventually("its removal too", lambda: "198.18.0.0/15" not in exempt(), seen=exempt)


if __name__ == "__main__":
    for part in {"disks": (disks, lock_file), "unwatched": (unwatched,), "watched": (watched,)}[sys.argv[1]]:
        t.cast(t.Callable[[], None], part)()
    done()
