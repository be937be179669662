# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The return values about rules that the modules share."""

from __future__ import annotations

import typing as t

from .._engine.reconcile import Result


def rules_return(result: Result, present: bool) -> t.Dict[str, t.Any]:
    """Return what a run found and did to the rules, as documented in RETURN of the module ip_masq."""
    return {
        "backend": {"name": result.backend, "version": result.version},
        "families": {
            change.family: {
                "rules": list(change.plan.view.rules + change.plan.view.leaks),
                "jump": change.plan.view.jump,
            }
            for change in result.changes
            if present and change.backend == result.backend and change.plan.view.rules
        },
        "actions": result.action_data(),
        "flushed": {done.family: done.removed for done in result.flushed},
        **_effects(result),
    }


def _effects(result: Result) -> t.Dict[str, t.Any]:
    """Return what changes for packets, as values and in words."""
    if not result.compared:
        return {"effects": [], "effects_omitted": 0, "effects_summary": []}
    # Imported here: to load it takes 14 of 270 ms of the module ip_masq, and most runs change nothing.
    from .._engine.effects import LIMIT, as_returns, lines

    found = [effect for each in result.compared for effect in each.effects]
    return {
        "effects": as_returns(found[:LIMIT]),
        "effects_omitted": max(len(found) - LIMIT, 0),
        "effects_summary": [*lines(result.compared), *result.undone],
    }


def rules_diff(result: Result) -> t.Dict[str, str]:
    """Return the rules before and after, as their tool lists them, under a comment that names family and backend.

    What that means for packets comes last, on the side of after.
    """

    sections = [("# %s, %s" % one[:2], one.plan.before, one.plan.after) for one in result.changes]
    for done in result.flushed:
        title = "# %s, open connections whose verdict changes" % done.family
        sections.append((title, (str(done.removed),), ("0",)))
    effects = _effects(result)["effects_summary"]
    before = [line for title, lines, _after in sections for line in (title, *lines)]
    after = [line for title, _before, lines in sections for line in (title, *lines)]
    after += ["# what changes for packets", *effects] if effects else []
    return {"before": "".join(line + "\n" for line in before), "after": "".join(line + "\n" for line in after)}
