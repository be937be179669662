# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a timer does for the log of connections: rotate it, bound it, and note which pods have which addresses.

The directory never has more than the limit when this has run, and the file that is being written no more than half of
it (LimitFSIZE of the service): until the next run the log may take half as much again. A file that is being compressed
is there twice.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import signal
import time
import typing as t

from .._errors import NodeError
from .._system import files, pod_names, systemd
from .._system.process import Runner
from . import coverage, pod_history
from .log_files import LATEST, LogFile, locked, parts

#: A file is rotated at this part of the limit, and at so many bytes at most.
_PARTS, _LARGEST = 16, 64 << 20


def keep(run: Runner, service: str, folder: str, limit: int, starting: bool) -> None:
    """Do it once.

    :param service: writes the log.
    :param limit: what the log may take, in bytes.
    :param starting: whether the log is about to be written again.
    :raises NodeError: something cannot be written.
    """
    files.make_directory(folder, 0o700)
    # 0 if there is none.
    process = 0 if starting else int(systemd.show_units(run, ("MainPID",), [service])[service].first("MainPID") or 0)
    with locked(folder, to_write=True, wait=False) as is_alone:
        if is_alone:
            _rotate(folder, limit, process, starting)
    if starting:
        coverage.note_start(folder)
    elif process:
        coverage.note_run(folder)
    pod_history.update(folder, pod_names.read(), time.time())


def _rotate(folder: str, limit: int, process: int, starting: bool) -> None:
    try:
        known = parts(folder)
        # No program writes any more to what was rotated a minute ago.
        for part in known:
            if not part.is_current and not part.is_compressed:
                _compress(part)
        # Without a process it may be about to open the file, which it would then go on writing.
        for part in known if process or starting else ():
            if part.is_current and part.size and part.size >= min(limit // _PARTS, _LARGEST):
                os.rename(part.path, _free_name(folder, part, known))
                if process:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGHUP)
        _remove_oldest(folder, limit)
    except OSError as exc:
        raise NodeError("cannot rotate %s: %s" % (exc.filename or folder, exc.strerror or exc)) from None


def _free_name(folder: str, part: LogFile, known: t.Iterable[LogFile]) -> str:
    """Return a name behind those of earlier files, also if the clock was set back."""
    latest = max((int(one.ended) for one in known if not one.is_current), default=0)
    ended = part.ended if part.ended >= latest else min(latest + 1, LATEST)
    number = 0
    while True:
        name = "connections-%012d%s.log" % (ended, "-%d" % number if number else "")
        path = os.path.join(folder, name)
        if not os.path.lexists(path) and not os.path.lexists(path + ".gz"):
            return path
        number += 1


def _compress(part: LogFile) -> None:
    draft, done = os.path.join(os.path.dirname(part.path), "draft.gz"), part.path + ".gz"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with files.open_regular(part.path, follow=False) as source, gzip.GzipFile(
            filename="", mode="wb", fileobj=out, compresslevel=6, mtime=0
        ) as packed:
            shutil.copyfileobj(source, packed, 1 << 20)
        out.flush()
        os.fsync(out.fileno())
    os.rename(draft, done)
    os.unlink(part.path)


def _remove_oldest(folder: str, limit: int) -> None:
    known = parts(folder)
    total = sum(part.size for part in known)
    for part in known:
        if total <= limit or part.is_current:
            break
        os.unlink(part.path)
        total -= part.size
