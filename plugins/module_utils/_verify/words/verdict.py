# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a verification in one line. Reasons why something is not tested are in ``questions.asking``."""

from __future__ import annotations

import time
import typing as t

from ..._engine.ruleset import COUNT, Ruleset
from . import explanations
from .health import LEAKS, Health


def verdict(
    rulesets: t.Mapping[str, Ruleset], findings: t.Sequence[Health], found: t.Mapping[str, t.Any]
) -> t.Tuple[t.Optional[bool], str]:
    """Return whether all traffic matches the policy, None if not all could be tested; and the same in one line.

    :param rulesets: what the policy means, by family; empty where there is none.
    :param found: the result of the verification, as of the module ip_masq_info.
    """
    problems = [one.text for one in findings if one.code == "no_copy"]
    if not rulesets:
        problems = ["there is no policy"]
    if problems:
        return None, "not verified: %s" % problems[0]
    causes = explanations.causes(found["conflicts"], found.get("networks", ()))
    if causes:
        one, text = causes[0]
        return False, "%s%s; remedy: %s" % (text, _more(causes, "conflict"), one["remedy"])
    asked = "%d kinds of packets" % found["questions"]
    leaks = "".join(_leaks_in_short(rulesets, one.remedy) for one in findings if one.code == LEAKS)
    missed = found["untested"]
    if missed:
        tested = "%s match the policy; " % asked if found["questions"] else ""
        return None, "%snot tested: %s%s%s" % (tested, missed[0]["text"], _more(missed, "reason"), leaks)
    everything = " match the policy" + leaks if leaks else ", all match the policy"
    return True, asked + everything + _since(found.get("tested_at"))


def _leaks_in_short(rulesets: t.Mapping[str, Ruleset], remedy: str) -> str:
    counted = any(ruleset.leaks == COUNT for ruleset in rulesets.values())
    words = ", and are counted" if counted else ""
    return "; packets of no connection leave with the pod's address%s: %s" % (words, remedy)


def _since(tested_at: t.Optional[float]) -> str:
    if tested_at is None:
        return ""
    text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(tested_at))
    return " (tested at %s; nothing that they depend on has changed since)" % text


def _more(found: t.Sequence[t.Any], what: str) -> str:
    return " (and %d more %s%s)" % (len(found) - 1, what, "s" if found[2:] else "") if found[1:] else ""
