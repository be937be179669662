# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module ip_masq does on a node: rules, in one run."""

from __future__ import annotations

import typing as t

from .._engine import saved_rules
from .._engine.reconcile import reconcile
from .._errors import ConfigError, IpMasqError, ProgramMissingError
from .._policy.config_file import load
from .._policy.policy import DEFAULTS, POLICY_OPTIONS, Config, build, file_key, split_lists
from .._policy.values import naming
from .._system import defaults_and_limits, packages, process
from .._system.node import Node
from .._verify.words import concerned
from .._verify.words.other_tables import find_other_chains
from .rules_result import rules_diff, rules_return
from .task_result import Done, Params, named

#: What a config file decides; the other policy options are flags of the reference agent and go with a file.
FILE_POLICY = tuple(option.name for option in POLICY_OPTIONS if option.of_module and option.in_reference_file)
FLAGS = tuple(option.name for option in POLICY_OPTIONS if option.of_module and not option.in_reference_file)

ARGUMENT_SPEC: t.Dict[str, t.Dict[str, t.Any]] = dict(
    {option.name: option.argument for option in POLICY_OPTIONS if option.of_module},
    state={"type": "str", "choices": ["present", "absent"], "default": "present"},
    lock_timeout={"type": "int", "default": defaults_and_limits.LOCK_TIMEOUT},
    config_file={"type": "path"},
)


def read_config(params: Params) -> Config:
    """Return the policy that the options ask for, with notes on it.

    :raises ConfigError: bad input, with the option or key, the value and the remedy.
    """
    given = split_lists({name: params[name] for name in FILE_POLICY + FLAGS if params[name] is not None})
    if not params["config_file"]:
        return build(given)
    document = load(params["config_file"])
    values = dict(document.values)
    values.update((name, given[name]) for name in FLAGS if name in given and given[name] != DEFAULTS[name])
    with naming(params["config_file"]):
        config = build(values, label=file_key)
    return config._replace(notes=document.notes + config.notes)


def carry_out(params: Params, check: bool) -> Done:
    """Have the rules that the options ask for.

    :param params: a value for each option of ``ARGUMENT_SPEC``.
    :param check: only report what would be done.
    """
    present = params["state"] == "present"
    lock_timeout, longest = params["lock_timeout"], defaults_and_limits.LONGEST_LOCK_TIMEOUT
    try:
        if not 0 <= lock_timeout <= longest:
            raise ConfigError("lock_timeout: %d is outside 0-%d seconds" % (lock_timeout, longest))
        config = read_config(params)
        if present:
            concerned.require_pods(config, file_key if params["config_file"] else str)
        node = Node(process.run, lock_timeout)
        result = reconcile(node, config, present, check, new=True, effects=True)
    except ProgramMissingError as exc:
        return Done({}, failure=". ".join(filter(None, (str(exc), packages.by_image(exc.package)))))
    except IpMasqError as exc:
        return Done({}, failure=str(exc))
    about = concerned.notes(config) if present else saved_rules.notes([config.masq_chain])
    remarks = concerned.remarks(result.remarks, config)
    warnings = tuple(map(named, (*result.notes, *result.effect_notes, *about, *remarks)))
    returned = dict(rules_return(result, present), changed=result.changed, diff=rules_diff(result))
    returned["other_nat"] = find_other_chains(config) if present else []
    return Done(returned, warnings, "; ".join(result.errors))
