# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``ip-masq-agent verify``: whether all traffic matches the policy, whichever program's rules decide."""

from __future__ import annotations

import hashlib
import json
import time
import typing as t

from .._engine.auto_ports import or_any_ports
from .._errors import NodeError
from .._policy.policy import Config
from .._system import files
from .._system.node import Node
from .._verify import inspection
from .._verify.questions import asking
from .._verify.words import explanations, health
from .._version import VERSION
from . import snapshot
from .effective_policy import choose_policy
from .explain import Data, warnings
from .paths import Paths
from .state_files import Verification, is_outdated, read_memory, read_verification, write_verification

#: What ``--json`` prints.
_RESULT = (
    "verified", "summary", "tested_at", "questions", "questions_left_out", "conflicts", "untested", "limits", "health"
)  # fmt: skip


class Output(t.NamedTuple):
    """What the command prints, its result, and why that could not be stored."""

    lines: t.List[str]
    verified: t.Optional[bool]
    not_stored: t.Optional[str]


def verify(
    node: Node,
    paths: Paths,
    wanted: inspection.Request,
    as_json: bool,
    progress: asking.Progress,
    if_changed: bool = False,
) -> Output:
    """Send packets through a copy of the node, and store the result for status and metrics.

    :param progress: called with how far it is.
    :param if_changed: use the stored result if it is complete and nothing that it depends on has changed since.
    :raises ConfigError: there is no valid configuration. NodeError: the node cannot be read.
    """
    earlier = _earlier(paths) if if_changed else None
    # Before the rules are read: a change of them meanwhile makes the result outdated.
    begun = time.time()
    storage = inspection.Storage(_program(paths), earlier)
    found = inspection.inspect(node, lambda: choose_policy(paths), wanted, progress, storage)
    causes = explanations.causes(found["conflicts"], found.get("networks", ()))
    used_again = "tested_at" in found
    tested_at = found.setdefault("tested_at", begun)
    result = Verification(
        tested_at,
        found["verified"],
        found["questions"],
        len(causes),
        found["summary"],
        # Without a copy of the node nothing is tested, and there is no list of it.
        max(len(found["untested"]), int(found["verified"] is None)),
        found.get("fingerprint") or "",
        any(True for _one in _leaks(found)),
    )
    not_stored = None
    try:
        if not used_again:
            write_verification(paths, result)
            if paths.metrics_file:
                # The next resync is a sync, and writes metrics about it.
                snapshot.discard(paths)
    except NodeError as exc:
        not_stored = "result not stored: %s" % exc
    if as_json:
        lines = json.dumps({name: found[name] for name in _RESULT}, indent=2).split("\n")
    else:
        lines = list(_lines(found, causes))
    return Output(lines, result.verified, not_stored)


def verify_proposed(node: Node, config: Config, used_before: t.Optional[str]) -> t.Dict[str, t.Any]:
    """Send packets through a copy of the node that has the rules of a policy in place of the active ones.

    :param used_before: the backend that the agent used, if it is remembered.
    :returns: what ``ip-masq-agent verify --json`` prints, with ``undone``: a line for each conflict.
    """
    # The copy's settings of ports are not those of the node.
    config, _errors = or_any_ports(config)
    policy = inspection.ComparedPolicy(inspection.FROM_OPTIONS, config, used_before=used_before, proposed=True)
    found = inspection.inspect(node, lambda: policy, inspection.request((), verify=True))
    return {
        **{name: found[name] for name in _RESULT if name in found},
        "undone": explanations.undone(found["conflicts"], found["networks"]),
    }


def _earlier(paths: Paths) -> t.Optional[inspection.Earlier]:
    """Return the stored result if it can be used again: everything was tested, and all traffic matches the policy."""
    last = read_verification(paths)
    if last is None or last.verified is not True or last.untested or last.conflicts or not last.fingerprint:
        return None
    if is_outdated(last, read_memory(paths)):
        # Where rules were changed and changed back, the status says so until packets are sent again.
        return None
    return inspection.Earlier(last.fingerprint, last.questions, last.time, last.leaked)


def _program(paths: Paths) -> str:
    """Return what identifies this program."""
    content = files.read(paths.program) or b""
    return "%s %s" % (VERSION, hashlib.sha256(content).hexdigest())


def _lines(found: Data, causes: t.Sequence[t.Tuple[Data, str]]) -> t.Iterator[str]:
    """Return the result for people: one line, then the conflicts and what makes it less certain."""
    if causes:
        yield "%d kinds of packets, %d conflict%s" % (found["questions"], len(causes), "" if len(causes) == 1 else "s")
    else:
        yield found["summary"]
    for one, text in causes:
        yield "%s: %s; remedy: %s" % (one["severity"], text, one["remedy"])
        if one["decided_by"]:
            yield "  %(backend)s, table %(table)s, chain %(chain)s: %(rule)s" % one["decided_by"]
        yield from ("  " + words for words in explanations.only(one, found.get("networks", ())))
    for one in found["untested"]:
        yield "not tested: %s%s" % (one["text"], _where(one["ranges"], found.get("networks", ())))
    told = {one["text"] for one in found["untested"]}
    yield from (line for line in warnings(found) if line not in told)
    if causes:  # else it is in the first line
        yield from ("%(severity)s: %(text)s; remedy: %(remedy)s" % one for one in _leaks(found))


def _leaks(found: Data) -> t.Iterator[t.Dict[str, str]]:
    return (one for one in found["health"] if one["code"] == health.LEAKS)


def _where(ranges: t.Sequence[str], networks: t.Sequence[t.Any]) -> str:
    """Return destinations for people; nothing if they are not known."""
    return " (to %s)" % explanations.in_words(ranges, networks) if ranges else ""
