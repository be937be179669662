# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What applied the policy of the config file last: a playbook, or a play of the operator's."""

from __future__ import annotations

import json
import time
import typing as t
import zlib

from .._errors import NodeError
from .._system import files
from .paths import Paths

#: Characters of a name that are kept.
_LONGEST = 200


class Applied(t.NamedTuple):
    """``time`` is in seconds since the epoch; ``checksum`` is that of the config file that was written."""

    by: str
    time: float
    checksum: int


def record(paths: Paths, by: str, text: str) -> t.Tuple[str, ...]:
    """Keep what applied a config file, unless that is known already.

    :param by: for people.
    :param text: of the config file.
    :returns: a warning if it cannot be written. The rules do not depend on it.
    """
    now = Applied(" ".join(by.split())[:_LONGEST], time.time(), _checksum(text.encode("utf-8")))
    before = read(paths)
    if before is not None and before._replace(time=now.time) == now:
        return ()
    try:
        files.make_directory(paths.state_dir, 0o700)
        files.write(paths.applied_file, json.dumps(now._asdict()).encode("utf-8"))
    except NodeError as exc:
        return ("what applied the policy is not recorded: %s" % exc,)
    return ()


def read(paths: Paths) -> t.Optional[Applied]:
    """Return what was recorded, or None if there is nothing or the file is damaged."""
    try:
        data = json.loads((files.read(paths.applied_file) or b"").decode("utf-8"))
        applied = Applied(str(data["by"]), float(data["time"]), int(data["checksum"]))
        time.localtime(applied.time)
        return applied if applied.by else None
    except (NodeError, ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError):
        return None


def as_data(paths: Paths) -> t.Optional[t.Dict[str, t.Any]]:
    """Return it for ``status --json``: what, when, and whether the config file was edited since."""
    applied = read(paths)
    if applied is None:
        return None
    try:
        edited = _checksum(files.read(paths.config) or b"") != applied.checksum
    except NodeError:
        edited = True
    return {"by": applied.by, "time": applied.time, "edited": edited}


def _checksum(content: bytes) -> int:
    return zlib.crc32(content)
