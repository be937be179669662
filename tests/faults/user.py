# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user of the node without any privilege can own, link, mount, lock, watch and name."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import os
import signal
import time
import typing as t

from . import fuse
from .node import EXTRA_RANGE, INTERVAL, Node, last_tick, until
from .paths import METRICS
from .plants import put_back, remove
from .programs import locked, process
from .scenario import PERIOD, Scenario

#: The user that has the directory of node_exporter, as Debian makes it.
USER, USER_ID = "prometheus", 990
_PARENT, _NAME = os.path.split(METRICS)
_FILE = METRICS + "/ip_masq_agent.prom"
#: Where nothing of the metrics may appear.
_CONFIG_D = "/etc/ip-masq-agent/config.d"


@contextlib.contextmanager
def _own(path: str, work: t.Callable[[], object]) -> t.Iterator[None]:
    """Have the user replace what is at a path of its own."""
    with process(functools.partial(_replace, path, work), USER_ID):
        yield
    if os.path.lexists(path + ".kept"):
        put_back(path + ".kept", path)
    else:
        remove(path)


def _replace(path: str, work: t.Callable[[], object]) -> object:
    if os.path.lexists(path):
        os.rename(path, path + ".kept")
    return work()


def _planted(path: str, work: t.Callable[[], object], _node: Node) -> t.ContextManager[None]:
    return _own(path, work)


def _nothing_in(folder: str, node: Node) -> str:
    """Let some ticks pass, no more than there are to be, and see that nothing is written elsewhere."""
    started, starts = time.monotonic(), {last_tick().start}

    def passed() -> bool:
        starts.add(last_tick().start)
        return len(starts) > 4

    if not until(passed, 5 * PERIOD + 35):
        return "NO TICKS"
    if time.monotonic() - started < 3 * INTERVAL:
        return "MORE TICKS THAN THERE ARE TO BE"
    written = glob.glob(folder + "/*.prom*") + glob.glob(folder + "/.*prom*")
    for path in written:
        os.unlink(path)
    return "ROOT WRITES INTO %s: %s" % (folder, written) if written else ""


@contextlib.contextmanager
def _mounted(answer: int, everyone: bool, _node: Node) -> t.Iterator[None]:
    """As fusermount(1) does it for a user; ``everyone``: where fuse.conf has user_allow_other."""
    served = fuse.Fuse(METRICS, answer, USER_ID, everyone)
    try:
        yield
    finally:
        served.close()


def _lease() -> object:
    descriptor = os.open(_FILE, os.O_RDWR | os.O_CREAT)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return descriptor


@contextlib.contextmanager
def _leased(_node: Node) -> t.Iterator[None]:
    os.chown(_FILE, USER_ID, USER_ID)
    with process(_lease, USER_ID):
        yield


def _readable() -> t.List[str]:
    """Return the files and directories of the agent that everybody may open."""
    roots = (
        "/etc/ip-masq-agent",
        "/var/lib/ip-masq-agent",
        "/run/ip-masq-agent",
        METRICS,
        "/usr/local/lib/ip-masq-agent",
    )
    paths = [path for root in roots for path in (root, *glob.glob(root + "/**", recursive=True))]
    paths += glob.glob("/etc/systemd/system/ip-masq-agent*") + glob.glob("/usr/local/sbin/ip-masq-agent*")
    return [*paths, "/run/xtables.lock", "/run/systemd/system", "/run/systemd/system/ip-masq-agent.timer.d"]


def _lock_all(paths: t.Sequence[str]) -> object:
    kept = []
    for path in paths:
        with contextlib.suppress(OSError):
            kept.append(locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)())
    return kept


def _watch_all(paths: t.Sequence[str]) -> object:
    descriptor = fuse.LIBC.inotify_init1(0)
    for path in paths:
        fuse.LIBC.inotify_add_watch(descriptor, path.encode(), 0xFFF)
    return descriptor


@contextlib.contextmanager
def _on_all(work: t.Callable[[t.Sequence[str]], object], _node: Node) -> t.Iterator[None]:
    with process(functools.partial(work, _readable()), USER_ID):
        yield


def _exchange() -> None:
    fuse.exchange(METRICS, METRICS + ".link")


@contextlib.contextmanager
def _swapped(_node: Node) -> t.Iterator[None]:
    link = functools.partial(os.symlink, _CONFIG_D, METRICS + ".link")
    try:
        with process(link, USER_ID, forever=_exchange):
            yield
    finally:
        if os.path.islink(METRICS):
            _exchange()
        os.unlink(METRICS + ".link")


def _occupy() -> None:
    """Make directories of names that a file of the agent may have."""
    for number in range(3000):
        os.mkdir("%s/ip_masq_agent.prom.%d" % (METRICS, number))
    for name in (".ip_masq_agent.prom", "ip_masq_agent.prom.tmp", "ip_masq_agent.prom.new", "x" * 255):
        os.mkdir("%s/%s" % (METRICS, name))


def _occupy_more() -> None:
    """Make a directory of each file that appears."""
    for name in os.listdir(METRICS):
        with contextlib.suppress(OSError):
            os.unlink(METRICS + "/" + name)
            os.mkdir(METRICS + "/" + name)


@contextlib.contextmanager
def _occupied(_node: Node) -> t.Iterator[None]:
    kept = set(os.listdir(METRICS))
    try:
        with process(_occupy, USER_ID, forever=_occupy_more):
            yield
    finally:
        for name in set(os.listdir(METRICS)) - kept:
            remove(METRICS + "/" + name)
        if os.path.isdir(_FILE):
            os.rmdir(_FILE)


@contextlib.contextmanager
def _names(_node: Node) -> t.Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in ("ip-masq-agent", "kubelet", "firewalld", "systemd", "iptables"):
            stack.enter_context(process(lambda: None, USER_ID, name))
        yield


@contextlib.contextmanager
def _in_tmp(_node: Node) -> t.Iterator[None]:
    names = [
        "%s/%s" % (folder, name)
        for folder in ("/tmp", "/var/tmp", "/dev/shm")
        for name in ("ip-masq-agent", "ip_masq_agent")
    ]

    def work() -> None:
        for name in names:
            os.mkfifo(name)

    with process(work, USER_ID):
        yield
    for name in names:
        remove(name)


_LINKS = {
    "a loop": _NAME,
    "a name of 300 characters": "x" * 300,
    "a path below a file": "/proc/version/x",
    "nothing": "/nonexistent",
    "files that it cannot read": "/root",
    "a process": "/proc/self/fd",
    "a directory of everybody": "/dev/shm",
    "the root": "/",
}
_ELSEWHERE = (_CONFIG_D, "/etc/ip-masq-agent", "/etc/systemd/system", "/var/lib/ip-masq-agent", "/run/ip-masq-agent")
_FILE_WORKS: t.Dict[str, t.Callable[[], object]] = {
    "a FIFO": functools.partial(os.mkfifo, _FILE),
    "a directory": functools.partial(os.mkdir, _FILE),
    "a link to itself": functools.partial(os.symlink, _FILE, _FILE),
    "a link to the policy": functools.partial(os.symlink, "/etc/ip-masq-agent/config", _FILE),
    "a link to a device": functools.partial(os.symlink, "/dev/full", _FILE),
    "a hole of a terabyte": lambda: os.truncate(os.open(_FILE, os.O_CREAT | os.O_RDWR), 1 << 40),
}
_DIRECTORY_WORKS: t.Dict[str, t.Callable[[], object]] = {
    "gone": lambda: None,
    "a FIFO": functools.partial(os.mkfifo, METRICS),
    "a file": lambda: os.open(METRICS, os.O_CREAT),
    "a directory of mode 0": functools.partial(os.mkdir, METRICS, 0),
}


def scenarios() -> t.Iterator[Scenario]:
    """What the user has, in all ways."""
    for what, target in {**_LINKS, **{path: path for path in _ELSEWHERE}}.items():
        link = functools.partial(os.symlink, target, METRICS)
        linked = Scenario(
            "user", "the metrics directory is a link to %s" % what, functools.partial(_planted, METRICS, link)
        )
        yield linked._replace(check=functools.partial(_nothing_in, target)) if target in _ELSEWHERE else linked
    for what, work in _DIRECTORY_WORKS.items():
        yield Scenario("user", "the metrics directory is %s" % what, functools.partial(_planted, METRICS, work))
    for what, work in _FILE_WORKS.items():
        yield Scenario(
            "user", "the metrics file is %s" % what, functools.partial(_planted, _FILE, work), check=_policy_kept
        )
    for what, answer in {"answers EACCES": errno.EACCES, "is gone": fuse.GONE, "never answers": fuse.NEVER}.items():
        for everyone in (False, True):
            name = "a FUSE of its own %s, for %s" % (what, "everybody" if everyone else "itself")
            yield Scenario("user", name, functools.partial(_mounted, answer, everyone))
    swapped = functools.partial(_nothing_in, _CONFIG_D)
    yield Scenario("user", "directory and link are exchanged all the time", _swapped, check=swapped)
    yield Scenario("user", "it has a lease of the metrics file", _leased)
    yield Scenario("user", "it locks all that it can open", functools.partial(_on_all, _lock_all))
    yield Scenario("user", "it watches all that it can see", functools.partial(_on_all, _watch_all))
    yield Scenario("user", "it occupies names in the metrics directory", _occupied)
    yield Scenario("user", "processes with names of others", _names)
    yield Scenario("user", "names in directories of everybody", _in_tmp)


def _policy_kept(_node: Node) -> str:
    with open("/etc/ip-masq-agent/config", encoding="utf-8") as config:
        return "" if EXTRA_RANGE in config.read() else "ROOT WRITES INTO THE POLICY"
