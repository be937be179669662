# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent remembers between two runs: the last valid policy, and what it did.

Written only if something happened, never by a resync that finds everything in order. In files of their own: the result
of the last verification, and what applied the config file last (a playbook, or a play of the operator's).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import typing as t
import zlib

from .._errors import NodeError
from .._policy.policy import build
from .._system import files
from .._system.limited import limited
from . import states
from .held_locks import HeldLock
from .paths import Paths
from .repeated_repairs import Repeated

#: Seconds for a directory of ours to answer, when something is read or recorded beside the rules.
PATIENCE = 3.0

#: Actions of the last change that are kept for the status.
KEPT_ACTIONS = 20

#: Characters that are kept of the name of what applied a policy.
_LONGEST = 200

#: One that has the types of all fields.
_REPAIR = Repeated("", "", "", 0, 0.0, 0.0, 1, 0.0)


class Event(t.NamedTuple):
    """Something that happened: the time (seconds since the epoch), and a description, a line each."""

    time: float
    lines: t.Tuple[str, ...]


class Memory(t.NamedTuple):
    """See the module. ``values`` is the last valid policy, by option name; None before the first.

    ``previous`` is the valid policy before that one.
    """

    values: t.Optional[t.Dict[str, t.Any]] = None
    previous: t.Optional[t.Dict[str, t.Any]] = None
    sources: t.Tuple[str, ...] = ()
    last_change: t.Optional[Event] = None
    last_error: t.Optional[Event] = None
    #: whether the last run ended with that error
    failing: bool = False
    drift_repaired: int = 0
    config_errors: int = 0
    #: the backend that the last run used
    backend: t.Optional[str] = None
    #: notes of the last run on the configuration and the node, all of them logged
    notes: t.Tuple[str, ...] = ()
    #: what the last run could not record beside the rules
    unrecorded: t.Tuple[str, ...] = ()
    #: what was repaired, and may have to be repaired again
    repairs: t.Tuple[Repeated, ...] = ()
    #: connections removed after changes of the rules, in all runs
    flushed: int = 0
    #: locks that were held while the last runs failed
    held: t.Tuple[HeldLock, ...] = ()


def read_memory(paths: Paths) -> Memory:
    """Read the state file. A damaged one, or one that cannot be read, must not stop repairs, so it counts as none."""
    found: t.List[t.Tuple[float, bytes]] = []
    for path in (paths.state_file, paths.spare_state_file):
        with contextlib.suppress(NodeError):
            found.append(limited(functools.partial(_dated, path), PATIENCE, "read %s" % path))
    for _written, content in sorted(found, reverse=True):
        with contextlib.suppress(Exception):
            return _parse(json.loads(content.decode("utf-8")))
    return Memory()


def _dated(path: str) -> t.Tuple[float, bytes]:
    """Return when a file was written, and its content."""
    return os.stat(path).st_mtime, files.read(path) or b""


def _parse(data: t.Any) -> Memory:
    """Accept only what ``write_memory`` can have written; its users rely on that.

    Each field by itself: one of another release, or damaged, must not take the last valid policy with it.
    """
    if not isinstance(data, dict):
        raise TypeError("state")
    found: t.Dict[str, t.Any] = {}
    for name, default in Memory()._asdict().items():
        parse = _PARSERS.get(name) or (_lines if default == () else _of(type(default)))
        with contextlib.suppress(Exception):
            found[name] = parse(data[name])
    return Memory(**found)


def _values(data: t.Any) -> t.Optional[t.Dict[str, t.Any]]:
    if data is not None:
        build(data)
    return t.cast(t.Optional[t.Dict[str, t.Any]], data)


def _event(data: t.Any) -> t.Optional[Event]:
    if data is None:
        return None
    event = Event(float(data["time"]), _lines(data["lines"]))
    time.localtime(event.time)
    if not event.lines:
        raise ValueError("no lines")
    return event


def _lines(data: t.Iterable[t.Any]) -> t.Tuple[str, ...]:
    return tuple(str(line) for line in data)


def _of(*kinds: type) -> t.Callable[[t.Any], t.Any]:
    """Return what accepts a value of these types alone, of numbers those that count something."""

    def parse(data: t.Any) -> t.Any:
        if type(data) not in kinds or (isinstance(data, int) and data < 0):
            raise TypeError("another type, or no count")
        return data

    return parse


def _repairs(data: t.Iterable[t.Any]) -> t.Tuple[Repeated, ...]:
    repairs = tuple(Repeated(*values) for values in data)
    for repair in repairs:
        if [type(value) for value in repair] != [type(value) for value in _REPAIR]:
            raise TypeError("no repair")
        for seconds in (repair.first, repair.last, repair.logged):
            time.localtime(seconds)
    return repairs


def _held(data: t.Iterable[t.Any]) -> t.Tuple[HeldLock, ...]:
    return tuple(HeldLock(str(lock), str(holder), _of(int)(resyncs)) for lock, holder, resyncs in data)


#: Of the fields that are neither lines nor of the type of their default.
_PARSERS: t.Dict[str, t.Callable[[t.Any], t.Any]] = {
    "values": _values,
    "previous": _values,
    "last_change": _event,
    "last_error": _event,
    "backend": _of(str, type(None)),
    "repairs": _repairs,
    "held": _held,
}


def write_memory(paths: Paths, memory: Memory) -> None:
    """Write the state file.

    :raises NodeError: it cannot be written; if possible, the spare one keeps the content until the next boot.
    """
    spare = paths.spare_state_file
    try:
        _write(paths.state_file, memory)
    except NodeError as exc:
        with contextlib.suppress(NodeError):
            _write(spare, memory._replace(unrecorded=with_last(memory.unrecorded, str(exc))))
        raise
    with contextlib.suppress(NodeError):
        limited(lambda: files.remove(spare), PATIENCE, "remove %s" % spare)


def with_last(lines: t.Iterable[str], line: str) -> t.Tuple[str, ...]:
    """Return lines with another one at their end, and nowhere else."""
    return (*(one for one in lines if one != line), line)


def _write(path: str, memory: Memory) -> None:
    data = memory._asdict()
    for name in ("last_change", "last_error"):
        if data[name] is not None:
            data[name] = data[name]._asdict()
    content = json.dumps(data, indent=1).encode("utf-8")
    limited(lambda: files.write(path, content, folder=0o700), PATIENCE, "write %s" % path)


class Verification(t.NamedTuple):
    """The result of a verification. ``time`` is in seconds since the epoch; ``conflicts`` counts causes, not ranges.

    ``verified`` is None if some or all packets could not be tested; ``untested`` counts the reasons.
    ``fingerprint`` is that of all that the result depends on; empty if the result must not be used again.
    ``leaked``: whether packets without a connection left with an address that the policy hides.
    """

    time: float
    verified: t.Optional[bool]
    questions: int
    conflicts: int
    summary: str
    untested: int = 0
    fingerprint: str = ""
    leaked: bool = False


def write_verification(paths: Paths, result: Verification) -> None:
    """Store the result of a verification, for status and metrics.

    :raises NodeError: it cannot be written.
    """
    files.write(paths.verification_file, json.dumps(result._asdict()).encode("utf-8"), folder=0o700)


def read_verification(paths: Paths) -> t.Optional[Verification]:
    """Read the stored result; None if there is none, or the file is damaged."""
    last = _read_record(paths.verification_file, Verification(0.0, None, 0, 0, ""))
    return last if last is not None and last.verified in (True, False, None) else None


def is_outdated(last: Verification, memory: Memory) -> bool:
    """Return whether the rules have changed since a verification."""
    change = memory.last_change
    return states.is_outdated({"last_verification": last._asdict(), "last_change": change and change._asdict()})


def _read_record(path: str, like: t.Any) -> t.Any:
    """Read a record with values of the types of another one; None if there is none, or it is damaged."""
    with contextlib.suppress(NodeError, ValueError, TypeError, RecursionError, OverflowError, OSError):
        content = limited(lambda: files.read(path), PATIENCE, "read %s" % path) or b""
        values = type(like)(**json.loads(content.decode("utf-8")))
        found = like._make(one if known is None else type(known)(one) for one, known in zip(values, like))
        time.localtime(found.time)
        return found
    return None


class Applied(t.NamedTuple):
    """What applied a policy, and when (seconds since the epoch); ``checksum`` is that of the config file it wrote."""

    by: str
    time: float
    checksum: int


def record_applied(paths: Paths, by: str, text: str) -> t.Tuple[str, ...]:
    """Keep what applied a config file, unless that is known already.

    :param by: for people.
    :param text: of the config file.
    :returns: a warning if it cannot be written. The rules do not depend on it.
    """
    now = Applied(" ".join(by.split())[:_LONGEST], time.time(), zlib.crc32(text.encode("utf-8")))
    before = read_applied(paths)
    if before is not None and before._replace(time=now.time) == now:
        return ()
    try:
        files.write(paths.applied_file, json.dumps(now._asdict()).encode("utf-8"), folder=0o700)
    except NodeError as exc:
        return ("what applied the policy is not recorded: %s" % exc,)
    return ()


def read_applied(paths: Paths) -> t.Optional[Applied]:
    """Return what was recorded, or None if there is nothing or the file is damaged."""
    applied = _read_record(paths.applied_file, Applied("", 0.0, 0))
    return applied if applied and applied.by else None


def applied_data(paths: Paths) -> t.Optional[t.Dict[str, t.Any]]:
    """Return it for ``status --json``: what, when, and whether the config file was edited since."""
    applied = read_applied(paths)
    if applied is None:
        return None
    edited = True
    with contextlib.suppress(NodeError):
        edited = zlib.crc32(files.read(paths.config) or b"") != applied.checksum
    return {"by": applied.by, "time": applied.time, "edited": edited}
