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
import io
import os
import shutil
import signal
import time

from .._errors import NodeError
from .._system import files, pod_names, systemd
from .._system.process import Runner
from . import coverage, pod_history
from .log_files import LogFile, locked, parts

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
    with locked(folder, to_write=True) as is_alone:
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
                # A name behind those of earlier files, also if the clock was set back.
                latest = max((int(one.ended) for one in known if not one.is_current), default=-1)
                name = "connections-%012d.log" % max(int(part.ended), latest + 1)
                os.rename(part.path, os.path.join(folder, name))
                if process:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGHUP)
        _remove_oldest(folder, limit)
    except OSError as exc:
        raise NodeError("cannot rotate %s: %s" % (exc.filename or folder, exc.strerror or exc)) from None


def _compress(part: LogFile) -> None:
    packed = io.BytesIO()  # about a tenth of what is in the file
    with files.open_regular(part.path, follow=False) as source, gzip.open(packed, "wb", compresslevel=6) as out:
        shutil.copyfileobj(source, out, 1 << 20)
    files.write(part.path + ".gz", packed.getvalue())
    os.unlink(part.path)


def _remove_oldest(folder: str, limit: int) -> None:
    known = parts(folder)
    total = sum(part.size for part in known)
    for part in known:
        if total <= limit or part.is_current:
            break
        os.unlink(part.path)
        total -= part.size
