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
    for name, kind in t.get_type_hints(Memory).items():
        with contextlib.suppress(Exception):
            value = _value(kind, data[name])
            if isinstance(value, dict):
                build(value)
            found[name] = value
    return Memory(**found)


def _value(kind: t.Any, data: t.Any) -> t.Any:
    """Return what JSON has of a field of this type.

    :raises Exception: it is of another type, or a number that is no count and no time that can be shown.
    """
    inside = t.get_args(kind)
    if type(None) in inside:  # an Optional
        return None if data is None else _value(inside[0], data)
    if t.get_origin(kind) is tuple:
        return tuple(_value(inside[0], one) for one in data)
    if hasattr(kind, "_fields"):
        return _record(kind, data if isinstance(data, dict) else dict(zip(kind._fields, data)))
    found = float(data) if kind is float else data
    is_of_kind = isinstance(found, t.get_origin(kind) or kind) and isinstance(found, bool) == (kind is bool)
    if not is_of_kind or (kind is int and found < 0):
        raise TypeError("another type, or no count")
    if kind is float:
        time.localtime(found)
    return found


def _record(kind: t.Any, data: t.Mapping[str, t.Any]) -> t.Any:
    """Return a record. Fields that it does not know are of a later release; it may lack those that have a default."""
    known = {name: _value(hint, data[name]) for name, hint in t.get_type_hints(kind).items() if name in data}
    if not known.get("lines", True):
        raise ValueError("no lines")
    return kind(**known)


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
    content = json.dumps(memory._asdict(), indent=1).encode("utf-8")
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
    return t.cast(t.Optional[Verification], _read_record(paths.verification_file, Verification))


def is_outdated(last: Verification, memory: Memory) -> bool:
    """Return whether the rules have changed since a verification."""
    change = memory.last_change
    return states.is_outdated({"last_verification": last._asdict(), "last_change": change and change._asdict()})


def _read_record(path: str, kind: t.Any) -> t.Any:
    """Read a record; None if there is none, or it is damaged."""
    with contextlib.suppress(Exception):
        content = limited(lambda: files.read(path), PATIENCE, "read %s" % path) or b""
        return _record(kind, json.loads(content.decode("utf-8")))
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
    applied = _read_record(paths.applied_file, Applied)
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
