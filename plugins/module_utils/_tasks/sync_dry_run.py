# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``ip-masq-agent sync --dry-run``: what a sync would do, and what that changes for packets."""

from __future__ import annotations

import json
import typing as t

from .._agent.effective_policy import require_policy
from .._agent.paths import Paths
from .._agent.state_files import read_memory
from .._agent.sync import describe, dry_run
from .._system.node import Node
from .rules_result import rules_return

#: Of the return values of the module ip_masq.
_RETURNED = ("actions", "effects", "effects_omitted", "effects_summary")


def planned_lines(node: Node, paths: Paths, as_json: bool) -> t.Tuple[t.List[str], t.Tuple[str, ...]]:
    """Return what a sync would do and change for packets, and errors.

    :raises ConfigError: there is no valid configuration. NodeError: the rules cannot be read.
    """
    remembered = read_memory(paths)
    policy, config = require_policy(paths, remembered)
    result = dry_run(node, paths, config, remembered, effects=True)
    errors = result.errors
    if policy.problem:
        errors += ("%s; the last valid configuration stays active" % policy.problem,)
    notes = policy.notes + result.notes + result.effect_notes
    returned = rules_return(result, present=True)
    if as_json:
        data = {**{key: returned[key] for key in _RETURNED}, "errors": list(errors), "notes": list(notes)}
        return json.dumps(data, indent=2).split("\n"), errors
    lines = [*returned["effects_summary"], *("would do: " + line for line in describe(result))]
    if not result.changed and not errors:
        lines = ["nothing to do: the active rules match the configuration"]
    return lines + ["note: " + note for note in notes], errors
