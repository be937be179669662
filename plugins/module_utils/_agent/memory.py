# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent remembers between two runs: the last valid policy, and what it did.

Written only if something happened, never by a resync that finds everything in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import typing as t

from .._engine import restraint
from .._engine.backend import Repair
from .._errors import NodeError
from .._policy.policy import build
from .._system import files
from .paths import Paths

#: Actions of the last change that are kept for the status.
KEPT_ACTIONS = 20


class Event(t.NamedTuple):
    """Something that happened: the time (seconds since the epoch), and a description, a line each."""

    time: float
    lines: t.Tuple[str, ...]


class Memory(t.NamedTuple):
    """See the module. ``values`` is the last valid policy, by option name; none before the first."""

    values: t.Optional[t.Dict[str, t.Any]] = None
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
    #: repairs without effect on packets, and the warnings about those that are not made any more
    harmless: t.Tuple[restraint.Done, ...] = ()
    restrained: t.Tuple[str, ...] = ()
    #: moves of the jump to its position that another program had made necessary
    moves: t.Tuple[restraint.Done, ...] = ()
    #: connections removed after changes of the rules, in all runs
    flushed: int = 0

    def withheld(self, position: str) -> t.FrozenSet[Repair]:
        """The repairs that are not made any more.

        :param position: of the jump; moves to another one than before are made.
        """
        moves = self.moves if position == self.position else ()
        return restraint.withheld(self.harmless + moves, time.time())

    @property
    def position(self) -> t.Any:
        """Of the jump, in the last valid policy."""
        return (self.values or {}).get("jump_position", "keep")


def read_memory(where: Paths) -> Memory:
    """Read the state file. A damaged one must not stop repairs, so it counts as none."""
    for path in sorted((where.state_file, where.spare_state_file), key=_written, reverse=True):
        with contextlib.suppress(Exception):
            return _parse(json.loads((files.read(path) or b"").decode("utf-8")))
    return Memory()


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _parse(data: t.Dict[str, t.Any]) -> Memory:
    """Accept only what :func:`write_memory` can have written; its users rely on that."""
    for name in ("last_change", "last_error"):
        if data.get(name) is not None:
            event = Event(float(data[name]["time"]), tuple(str(line) for line in data[name]["lines"]))
            time.localtime(event.time)
            if not event.lines:
                raise ValueError(name)
            data[name] = event
    for name in ("sources", "notes", "unrecorded", "restrained"):
        data[name] = tuple(str(line) for line in data.get(name, ()))
    for name in ("harmless", "moves"):
        data[name] = tuple(_parse_done(*one) for one in data.get(name, ()))
    memory = Memory(**data)
    if not isinstance(memory.failing, bool):
        raise TypeError("failing")
    if memory.backend is not None and not isinstance(memory.backend, str):
        raise TypeError("backend")
    for count in (memory.drift_repaired, memory.config_errors, memory.flushed):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise TypeError("a count")
    if memory.values is not None:
        build(memory.values)
    return memory


def _parse_done(seconds: t.Any, repair: t.Sequence[t.Any]) -> restraint.Done:
    return restraint.Done(float(seconds), Repair(*(str(word) for word in repair)))


def write_memory(where: Paths, memory: Memory) -> None:
    """Write the state file.

    :raises NodeError: it cannot be written; if possible, the spare one keeps the content until the next boot.
    """
    try:
        _write(where.state_file, memory)
    except NodeError as exc:
        with contextlib.suppress(NodeError):
            _write(where.spare_state_file, memory._replace(unrecorded=memory.unrecorded + (str(exc),)))
        raise
    with contextlib.suppress(NodeError):
        files.remove(where.spare_state_file)


def _write(path: str, memory: Memory) -> None:
    data = memory._asdict()
    for name in ("last_change", "last_error"):
        if data[name] is not None:
            data[name] = data[name]._asdict()
    files.make_directory(os.path.dirname(path), 0o700)
    files.write(path, json.dumps(data, indent=1).encode("utf-8"))
