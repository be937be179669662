# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stored result of the last verification, for status and metrics."""

from __future__ import annotations

import contextlib
import json
import time
import typing as t

from .._errors import NodeError
from .._system import files
from .paths import Paths


class Verification(t.NamedTuple):
    """A result. ``time`` is in seconds since the epoch; ``conflicts`` counts causes, not ranges.

    ``verified`` is None if some or all packets could not be tested; ``untested`` counts the reasons.
    ``fingerprint`` is that of all that the result depends on; empty if the result must not be used again.
    ``leaked`` says whether packets without a connection left with an address that the policy hides.
    """

    time: float
    verified: t.Optional[bool]
    questions: int
    conflicts: int
    summary: str
    untested: int = 0
    fingerprint: str = ""
    leaked: bool = False


def write(paths: Paths, result: Verification) -> None:
    """Store a result.

    :raises NodeError: it cannot be written.
    """
    files.make_directory(paths.state_dir, 0o700)
    files.write(paths.verification_file, json.dumps(result._asdict()).encode("utf-8"))


def discard(paths: Paths) -> None:
    """Drop the stored result, because the node is not what it was then. A failure leaves it, with its time."""
    with contextlib.suppress(NodeError):
        files.remove(paths.verification_file)


def read(paths: Paths) -> t.Optional[Verification]:
    """Read the stored result; None if there is none, or the file is damaged."""
    try:
        data = json.loads((files.read(paths.verification_file) or b"").decode("utf-8"))
        last = Verification(**data)
        time.localtime(last.time)
        if last.verified not in (True, False, None):
            return None
        last = last._replace(questions=int(last.questions), conflicts=int(last.conflicts), summary=str(last.summary))
        return last._replace(untested=int(last.untested), fingerprint=str(last.fingerprint), leaked=bool(last.leaked))
    except (NodeError, ValueError, TypeError, OverflowError, OSError):
        return None
