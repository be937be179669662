# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log covers: since when, and from when to when nothing was logged."""

from __future__ import annotations

import contextlib
import json
import os
import time
import typing as t

from .._system import files
from .moments import Moment, as_moment, show_moment
from .search import MOST_FOUND, Found

#: The file with the interruptions. Its modification time is until when the log was written.
_NAME = "runs.json"
#: Interruptions that are kept, and bytes that are read.
_MOST_GAPS, _LARGEST = 1000, 1 << 20
#: Seconds by which the clock is set back at least.
_STEP = 1
#: Those that an answer names, the last ones.
_SHOWN_GAPS = 5

#: From when to when nothing was logged; without a first moment: never before. If it begins after its end, the clock was
#: set back.
_Gap = t.Tuple[t.Optional[float], float]


def _gaps(folder: str) -> t.Optional[t.Tuple[t.List[_Gap], float]]:
    """Return from when to when nothing was logged, and until when it was; None if that is not known."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        listed, written = files.read_json(os.path.join(folder, _NAME), _LARGEST)
        return [(None if a is None else as_moment(a), as_moment(b)) for a, b in listed], written
    return None


def note_start(folder: str) -> None:
    """Note that nothing was logged until now.

    :raises NodeError: it cannot be written.
    """
    _add(folder, *(_gaps(folder) or ([], None)))


def _add(folder: str, listed: t.Sequence[_Gap], until: t.Optional[float]) -> None:
    content = json.dumps([*listed, (until, time.time())][-_MOST_GAPS:])
    files.write(os.path.join(folder, _NAME), content.encode("utf-8"))


def note_run(folder: str) -> None:
    """Note that the log is being written, and whether the clock was set back.

    :raises NodeError: it cannot be written.
    """
    known = _gaps(folder)
    if known and known[1] > time.time() + _STEP:
        _add(folder, *known)
    else:
        files.touch(os.path.join(folder, _NAME))


def came_twice(folder: str, at: Moment) -> bool:
    """Return whether the clock is known to have been set back from behind a moment to before it."""
    gaps = (_gaps(folder) or ([], 0.0))[0]
    return any(before is not None and after < at.end and at.start <= before for before, after in gaps)


def describe(folder: str, found: Found, at: Moment) -> t.Iterator[str]:
    """Return what the log covers, and what it does not know.

    :param folder: of the log.
    :param found: what it has about the moment.
    """
    runs = _gaps(folder)
    if found.first is None or found.last is None:
        yield "the log has no connection that ended"
    else:
        last = found.last if runs is None else max(found.last, runs[1])
        yield "the log has connections that ended from %s to %s" % (show_moment(found.first), show_moment(last))
        if at.end <= found.first or at.start > last:
            yield "of %s it knows only connections that were still open then" % show_moment(at.start)
    if runs is None:
        yield "when it was interrupted is not known"
    else:
        for before, after in runs[0][-_SHOWN_GAPS:]:
            if before is not None and before > after:
                yield "the clock was set back from %s to %s" % (show_moment(before), show_moment(after))
            elif before is None:
                yield "it misses those that began before %s" % show_moment(after)
            else:
                yield "it misses those that began or ended from %s to %s" % (show_moment(before), show_moment(after))
    if not found.is_complete:
        yield "there are more than %d, or not all of the log was read" % MOST_FOUND
    if found.damaged or found.damaged_files:
        yield "not readable: %d lines, %d files" % (found.damaged, found.damaged_files)
