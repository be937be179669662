# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pod had which address when: what the agent saw once a minute while connections are logged."""

from __future__ import annotations

import contextlib
import json
import os
import typing as t

from .._system import files
from .._system.pod_names import Pods
from .moments import as_moment

#: The file in the directory of the log. Its modification time is when the addresses were last looked at.
NAME = "pods.json"

#: Entries that are kept, the latest, and bytes that are read; an entry has about 100.
MOST = 20000
_LARGEST = 8 << 20


class HeldAddress(t.NamedTuple):
    """A pod had an address, at least from one moment to another; seconds since the epoch."""

    address: str
    name: str
    #: the time of libcni's result, which differs between attachments
    attached: float
    since: float
    until: float


def read(folder: str) -> t.List[HeldAddress]:
    """Return what is known. A damaged file counts as empty.

    :param folder: of the log.
    """
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        listed, seen = files.read_json(os.path.join(folder, NAME), _LARGEST)
        # Of those that were there then, the file has no end.
        return [
            HeldAddress(
                str(address),
                str(name),
                as_moment(attached),
                as_moment(since),
                seen if until is None else as_moment(until),
            )
            for address, name, attached, since, until in listed
        ]
    return []


def name_at(known: t.Iterable[HeldAddress], address: str, moment: float) -> t.Optional[str]:
    """Return which pod had an address at a moment; None if that is not certain."""
    names = {one.name for one in known if one.address == address and one.since < moment <= one.until}
    return names.pop() if len(names) == 1 else None


def update(folder: str, pods: Pods, now: float) -> None:
    """Write down which pods have addresses now. Nothing but a time is written while they stay the same.

    :raises NodeError: it cannot be written.
    """
    path = os.path.join(folder, NAME)
    known, about = read(folder), files.status(path)
    seen = about.st_mtime if about else 0.0
    live = {(address, pod.name, pod.since) for address, pod in pods.items()}
    there = {one[:3]: one for one in known if one.until == seen}
    if live == set(there) and known:
        with contextlib.suppress(OSError):
            os.utime(path, (now, now))
            return
    ended = sorted(
        (one for one in known if there.get(one[:3]) != one or one[:3] not in live), key=lambda one: one.until
    )
    # One that was not there the last time, but before, may not have had the address between.
    before = {one[:3] for one in ended}
    new = [
        (*one, there[one].since if one in there else now if one in before else one[2], None)
        for one in sorted(live)[:MOST]
    ]
    content = json.dumps([*ended, *new][-MOST:])
    files.write(path, content.encode("utf-8"))
    files.touch(path, now)
