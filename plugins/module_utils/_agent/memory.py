# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent remembers between two runs: the last good policy, and what it did.

Written only when something happened, never by a resync that finds everything in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import typing as t

from .._engine import restraint
from .._engine.backend import Repair
from .._errors import ConfigError, NodeError
from .._policy.config_file import Source, merge, read_directory
from .._policy.policy import Config, build, file_key
from .._policy.values import show
from .._system import files
from .paths import RUN_DIR, STATE_DIR

STATE_FILE = os.path.join(STATE_DIR, "state.json")
#: In the place of it where it cannot be written, until it can or the node boots.
SPARE_FILE = os.path.join(RUN_DIR, "state.json")

#: seconds for which an empty file in the place of one that said something is not believed
EMPTIED_FOR = 30
_EMPTIED = (
    "%s is empty: the last good configuration stays in force until the file has been empty for %d seconds. To use the "
    "defaults at once, write {}"
)

#: Actions of the last change that are kept for the status.
KEPT_ACTIONS = 20


class Event(t.NamedTuple):
    """Something that happened: seconds since the epoch, and what it was, a line each."""

    time: float
    lines: t.Tuple[str, ...]


class State(t.NamedTuple):
    """See the module. ``values`` is the last policy that was valid, by option name; none before the first."""

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
    #: notes on the configuration and the node that the last run had, all of them logged
    notes: t.Tuple[str, ...] = ()
    #: what the last run could not record beside the rules
    unrecorded: t.Tuple[str, ...] = ()
    #: repairs that changed nothing for packets, and what was said of those that are not made any more
    harmless: t.Tuple[restraint.Done, ...] = ()
    restrained: t.Tuple[str, ...] = ()

    def withheld(self) -> t.FrozenSet[Repair]:
        """The repairs that are not made any more."""
        return restraint.withheld(self.harmless, time.time())


def load() -> State:
    """Read the state; a damaged file is no reason to stop healing, so it counts as none."""
    for path in sorted((STATE_FILE, SPARE_FILE), key=_written, reverse=True):
        with contextlib.suppress(Exception):
            return _parse(json.loads((files.read(path) or b"").decode("utf-8")))
    return State()


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _parse(data: t.Dict[str, t.Any]) -> State:
    """What is read must be as :func:`save` wrote it: all that follows counts on that."""
    for name in ("last_change", "last_error"):
        if data.get(name) is not None:
            event = Event(float(data[name]["time"]), tuple(str(line) for line in data[name]["lines"]))
            time.localtime(event.time)
            if not event.lines:
                raise ValueError(name)
            data[name] = event
    for name in ("sources", "notes", "unrecorded", "restrained"):
        data[name] = tuple(str(line) for line in data.get(name, ()))
    data["harmless"] = tuple(_parse_harmless(*one) for one in data.get("harmless", ()))
    state = State(**data)
    if not isinstance(state.failing, bool):
        raise TypeError("failing")
    if state.backend is not None and not isinstance(state.backend, str):
        raise TypeError("backend")
    for count in (state.drift_repaired, state.config_errors):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise TypeError("a count")
    if state.values is not None:
        build(state.values)
    return state


def _parse_harmless(seconds: t.Any, repair: t.Sequence[t.Any]) -> restraint.Done:
    return restraint.Done(float(seconds), Repair(*(str(word) for word in repair)))


def save(state: State) -> None:
    """Write the state.

    :raises NodeError: it cannot be written to its place; if possible it is kept until the next boot.
    """
    try:
        _write(STATE_FILE, state)
    except NodeError as exc:
        with contextlib.suppress(NodeError):
            _write(SPARE_FILE, state._replace(unrecorded=state.unrecorded + (str(exc),)))
        raise
    with contextlib.suppress(NodeError):
        files.remove(SPARE_FILE)


def _write(path: str, state: State) -> None:
    data = state._asdict()
    for name in ("last_change", "last_error"):
        if data[name] is not None:
            data[name] = data[name]._asdict()
    files.make_directory(os.path.dirname(path), 0o700)
    files.write(path, json.dumps(data, indent=1).encode("utf-8"))


class Policy(t.NamedTuple):
    """The policy in force on a node, and how it came to be in force."""

    config: t.Optional[Config]
    values: t.Dict[str, t.Any]
    sources: t.Tuple[str, ...]
    notes: t.Tuple[str, ...]
    #: why the files on the node are not in force; then the last good policy is, if there was one
    problem: t.Optional[str]
    #: the files as they were read; none where they are not in force
    files: t.Optional[t.Tuple[Source, ...]] = None


def policy_in_force(config_dir: str, state: State) -> Policy:
    """The policy that the files of a directory give, or the last good one where they are broken (promise 6).

    The last good one, too, where a file was emptied just now: an editor may be about to write it.
    """
    try:
        policy, empty = _read_policy(config_dir)
    except ConfigError as exc:
        return _last_good(state)._replace(problem=str(exc))
    if state.values is not None and policy.values != state.values:
        emptied = [source.path for source in policy.files or () if source.path in empty and _is_new(source)]
        if emptied:
            return _last_good(state)._replace(notes=tuple(_EMPTIED % (path, EMPTIED_FOR) for path in emptied))
    return policy


def _is_new(source: Source) -> bool:
    # A time that is to come is one before the clock was set back.
    return 0 <= time.time() - source.changed < EMPTIED_FOR


def _last_good(state: State) -> Policy:
    config = None if state.values is None else build(state.values)
    return Policy(config, state.values or {}, state.sources, (), None)


def are_as_read(sources: t.Sequence[Source], config_dir: str) -> bool:
    """Whether the files of a directory still are what they were, whenever they were written."""
    try:
        return [source[:2] for source in read_directory(config_dir)] == [source[:2] for source in sources]
    except ConfigError:
        return False


def policy_of(config_dir: str, main: t.Optional[str] = None) -> Policy:
    """The policy that the files of a directory give.

    :param main: text that is going to be the config file, and is taken in its place.
    :raises ConfigError: they are broken.
    """
    return _read_policy(config_dir, main)[0]


def _read_policy(config_dir: str, main: t.Optional[str] = None) -> t.Tuple[Policy, t.Tuple[str, ...]]:
    """The policy, and which files say nothing."""
    try:
        sources = read_directory(config_dir, main)
        document = merge(sources)
        paths = tuple(source.path for source in sources)
        try:
            config = build(document.values, label=file_key)
        except ConfigError as exc:
            raise ConfigError("%s: %s" % (", ".join(paths), exc)) from None
    except ConfigError:
        raise
    except Exception as exc:
        # Whatever a file does to a parser, the policy before it stays in force (promise 6).
        raise ConfigError(
            "%s: cannot be read (%s: %s); please report this" % (config_dir, type(exc).__name__, show(str(exc)))
        ) from exc
    return Policy(config, document.values, paths, document.notes, None, sources), document.empty
