# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policy that a node is compared with: that of the options, or of the agent, or of the active rules."""

from __future__ import annotations

import time
import typing as t

from .._errors import ConfigError
from .._policy.config_file import load
from .._policy.policy import build, file_key
from .._system.families import has_ipv6
from .._verify.inspection import FROM_AGENT, FROM_OPTIONS, FROM_RULES, ComparedPolicy
from . import effective_policy, repeated_repairs
from .memory import Memory, read_memory
from .paths import Paths

#: Options that say where the rules are, and nothing of what they should be.
_PLACES = {"masq_chain", "backend"}


def choose_policy(given: t.Mapping[str, t.Any], config_file: t.Optional[str], paths: Paths) -> ComparedPolicy:
    """Return the first of these policies that there is.

    :param given: policy options by name; those that are absent were not given.
    :param config_file: has the policy, in place of the options that it decides.
    :param paths: the agent on the node.
    :raises ConfigError: bad input.
    """
    remembered = read_memory(paths)
    known = _of_agent(paths, remembered)
    if config_file:
        document = load(config_file)
        try:
            config = build(dict(document.values, **given), file_key)
        except ConfigError as exc:
            raise ConfigError("%s: %s" % (config_file, exc)) from None
        policy = ComparedPolicy(FROM_OPTIONS, config, None, document.notes)
    elif set(given) - _PLACES:
        policy = ComparedPolicy(FROM_OPTIONS, build(given))
    elif isinstance(known, ComparedPolicy):
        policy = known
    elif known:
        raise ConfigError(known)
    else:
        policy = ComparedPolicy(FROM_RULES, build(dict(given, enable_ipv6=has_ipv6())))
    failure = remembered.last_error.lines[0] if remembered.failing and remembered.last_error else None
    return policy._replace(used_before=remembered.backend, failure=failure)


def _of_agent(paths: Paths, remembered: Memory) -> t.Union[ComparedPolicy, str, None]:
    """Return the policy of the agent, or why it cannot be read; None if there is no agent."""
    effective = effective_policy.find_policy(paths, remembered)
    if effective.config is not None and (effective.sources or remembered.values is not None):
        notes = effective.notes + tuple(repeated_repairs.notes(remembered.repairs, time.time()))
        return ComparedPolicy(FROM_AGENT, effective.config, effective.problem, notes)
    return effective.problem
