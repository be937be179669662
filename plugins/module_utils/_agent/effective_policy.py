# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy that is in effect on a node: that of its files, or the last valid one; or another, to compare it with."""

from __future__ import annotations

import contextlib
import time
import typing as t

from .._engine.auto_ports import with_auto_ports
from .._engine.fixed_addresses import require_addresses
from .._errors import ConfigError, NodeError
from .._policy.config_file import Source
from .._policy.drop_ins import merge, name_culprit, read_directory
from .._policy.policy import Config, build, file_key
from .._policy.values import show
from .._system.families import has_ipv6
from .._system.limited import limited
from . import repeated_repairs
from .paths import Paths
from .state_files import Memory, read_memory

if t.TYPE_CHECKING:
    from .._verify.inspection import ComparedPolicy

#: Seconds to read the configuration. YAML takes one for 100,000 characters.
_PATIENCE = 15.0

#: Seconds for which a file that was emptied is ignored; an editor that truncates a file may be about to write it.
EMPTIED_FOR = 30
_EMPTIED = (
    "%s is empty: the last valid configuration stays active until the file has been empty for %d seconds. To use "
    "the defaults at once, write {}"
)


class EffectivePolicy(t.NamedTuple):
    """The policy in effect, and where it comes from."""

    config: t.Optional[Config]
    values: t.Dict[str, t.Any]
    sources: t.Tuple[str, ...]
    notes: t.Tuple[str, ...]
    #: why the files on the node are not used; then the last valid policy is, if there was one
    problem: t.Optional[str]
    #: the files as they were read; None if they are not used
    files: t.Optional[t.Tuple[Source, ...]] = None

    @property
    def is_default(self) -> bool:
        """Whether there are no files, and so the defaults are in effect."""
        return self.files == ()


def find_policy(paths: Paths, remembered: Memory) -> EffectivePolicy:
    """Return the policy of the files in config_dir, or the last valid one if they are invalid.

    The last valid one also if a file was emptied just now: an editor may be about to write it.
    """
    try:
        policy, empty = _read(paths)
        _require_fit(policy, remembered)
    except ConfigError as exc:
        return _last_valid(remembered)._replace(problem=str(exc))
    if remembered.values is not None and policy.values != remembered.values:
        emptied = [source.path for source in policy.files or () if source.path in empty and _is_new(source)]
        if emptied:
            return _last_valid(remembered)._replace(notes=tuple(_EMPTIED % (path, EMPTIED_FOR) for path in emptied))
    return policy


def find_policy_within(paths: Paths, remembered: Memory) -> EffectivePolicy:
    """Find the policy as ``find_policy``, in a process with a time limit: whatever a file, its file system or PyYAML
    does, the last valid policy stays in effect.
    """

    def find() -> t.Any:
        found = find_policy(paths, remembered)
        return found.config is not None, found[1:-1], found.files and [tuple(one) for one in found.files]

    try:
        is_there, (values, *about), read = limited(find, _PATIENCE, "read the configuration")
    except NodeError as exc:
        return _last_valid(remembered)._replace(problem=str(exc))
    files = read and tuple(Source(*one) for one in read)
    return EffectivePolicy._make((_build(values) if is_there else None, values, *about, files))


def require_policy(paths: Paths, remembered: Memory) -> t.Tuple[EffectivePolicy, Config]:
    """Find the policy as ``find_policy``, and demand one.

    :raises ConfigError: the files are invalid, and there was no valid policy before.
    """
    policy = find_policy(paths, remembered)
    if policy.config is None:
        raise ConfigError("%s; no previous valid configuration to fall back to" % policy.problem)
    return policy, policy.config


def read_policy(paths: Paths, remembered: Memory, main: t.Optional[str] = None) -> t.Tuple[EffectivePolicy, Config]:
    """Read the policy of the files in config_dir.

    :param main: text that is going to be the config file, and is used in its place.
    :raises ConfigError: they are invalid.
    """
    policy = _read(paths, main)[0]
    # Where it is of one text alone, nobody wrote a file yet.
    _require_fit(policy, remembered, main is None or len(policy.files or ()) > 1)
    return policy, t.cast(Config, policy.config)


def choose_policy(
    paths: Paths, asked: t.Optional[Config] = None, places: t.Optional[t.Mapping[str, t.Any]] = None
) -> ComparedPolicy:
    """Return the policy that is asked for; else that of the agent; else one to find rules by.

    :param places: options for the place of those rules.
    :raises ConfigError: the agent has no valid policy.
    """
    # Imported here: to load it takes 30 ms, beside 70 ms of a sync, and no sync compares.
    from .._verify.inspection import FROM_AGENT, FROM_OPTIONS, FROM_RULES, ComparedPolicy

    remembered = read_memory(paths)
    if asked is not None:
        policy = ComparedPolicy(FROM_OPTIONS, asked)
    else:
        known = find_policy(paths, remembered)
        if known.config is not None and not (known.is_default and remembered.values is None):
            notes = known.notes + tuple(repeated_repairs.notes(remembered.repairs, time.time()))
            policy = ComparedPolicy(FROM_AGENT, known.config, known.problem, notes)
        elif known.problem:
            raise ConfigError(known.problem)
        else:
            policy = ComparedPolicy(FROM_RULES, build(dict(places or {}, enable_ipv6=has_ipv6())))
    failure = remembered.last_error.lines[0] if remembered.failing and remembered.last_error else None
    return policy._replace(used_before=remembered.backend, failure=failure)


def _require_fit(policy: EffectivePolicy, remembered: Memory, by_file: bool = True) -> None:
    """Refuse a policy that was not active before, and needs addresses or ports that the node does not have.

    :param by_file: whether to name the file that has the value.
    :raises ConfigError: it does.
    """
    if policy.config is not None and policy.values != remembered.values:
        try:
            _require(policy.config)
        except ConfigError as exc:
            if not by_file:
                raise
            raise ConfigError(name_culprit(policy.files or (), lambda values: _require(_build(values)), exc)) from None


def _require(config: Config) -> None:
    require_addresses(config)
    if config.exemption != "return":
        # Imported here: to load it takes 30 ms, and most policies need no such look.
        from .._verify.words.concerned import require_pods

        require_pods(config, file_key)
    try:
        with_auto_ports(config, file_key)
    except NodeError as exc:
        raise ConfigError(str(exc)) from None


def _build(values: t.Dict[str, t.Any]) -> Config:
    return build(values, label=file_key)


def are_unchanged(sources: t.Sequence[Source], paths: Paths) -> bool:
    """Return whether the files in config_dir still have these names and contents, whenever they were written."""
    with contextlib.suppress(ConfigError):
        return [source[:2] for source in read_directory(paths.config_dir)] == [source[:2] for source in sources]
    return False


def edited_since(policy: EffectivePolicy, paths: Paths) -> bool:
    """Return whether a valid configuration was edited since it was read."""
    read = policy.files
    with contextlib.suppress(NodeError):
        return read is not None and not limited(lambda: are_unchanged(read, paths), _PATIENCE, "read the configuration")
    return False


def _is_new(source: Source) -> bool:
    # A time in the future is one before the clock was set back.
    return 0 <= time.time() - source.changed < EMPTIED_FOR


def _last_valid(remembered: Memory) -> EffectivePolicy:
    config = None if remembered.values is None else build(remembered.values)
    return EffectivePolicy(config, remembered.values or {}, remembered.sources, (), None)


def _read(paths: Paths, main: t.Optional[str] = None) -> t.Tuple[EffectivePolicy, t.Tuple[str, ...]]:
    """Read the policy, and the paths of files without content."""
    try:
        sources = read_directory(paths.config_dir, main)
        document = merge(sources)
        read = tuple(source.path for source in sources)
        try:
            config = _build(document.values)
        except ConfigError as exc:
            raise ConfigError(name_culprit(sources, _build, exc)) from None
    except ConfigError:
        raise
    except Exception as exc:
        # Whatever a file does to a parser, the last valid policy stays in effect.
        raise ConfigError(
            "%s: cannot be read (%s: %s); please report this" % (paths.config_dir, type(exc).__name__, show(str(exc)))
        ) from exc
    return EffectivePolicy(config, document.values, read, document.notes, None, sources), document.empty
