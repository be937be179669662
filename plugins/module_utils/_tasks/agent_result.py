# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Return values of the module ip_masq_agent."""

from __future__ import annotations

import os
import typing as t

from .._agent.install import InstallResult
from .rules_result import rules_diff, rules_return


def as_return(done: InstallResult, present: bool) -> t.Dict[str, t.Any]:
    """Return what an installation or removal did.

    :param present: whether it was an installation.
    """
    rules: t.Dict[str, t.Any] = {}
    diffs: t.List[t.Dict[str, str]] = []
    if done.result is not None:
        rules = rules_return(done.result, present)
        if done.result.changed:
            diffs.append(dict(rules_diff(done.result), before_header="rules", after_header="rules"))
    lines = []
    for change in done.files:
        # The text of the configuration and of changed files; of files that are created or removed only the names.
        if None not in (change.before, change.after) or os.path.basename(change.path) == "config":
            headers = {"before_header": change.path, "after_header": change.path}
            diffs.append(dict(headers, before=change.before or "", after=change.after or ""))
        else:
            lines.append(change.line)
    lines += done.services
    if lines:
        diffs.append({"before": "", "after": "\n".join(lines) + "\n", "after_header": "files and services"})
    return {
        "changed": bool(done.lines),
        "files": [change.path for change in done.files],
        "services": list(done.services),
        "rules": rules,
        "diff": diffs,
    }
