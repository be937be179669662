# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An end for calculations whose length depends on the rules and routes of a node.

Seconds are those of CPU time, also of the copy's process, so that a busy node gets as far as an idle one. To wait
counts a tenth.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import typing as t

from ..._twin.namespaces import Worker

_WAITING = 0.1


def now() -> float:
    """Return seconds since some moment."""
    return max(time.process_time() + Worker.seconds, time.monotonic() * _WAITING - _BEGAN)


_BEGAN = time.monotonic() * _WAITING - time.process_time()


class TimeOverError(Exception):
    """A calculation took longer than it may."""


@contextlib.contextmanager
def limited(seconds: t.Optional[float], grace: float = 0.0) -> t.Iterator[None]:
    """Interrupt what is done within, wherever it is, once so many seconds and a grace are over; None: never.

    What it was working on is to be thrown away. Signals reach the main thread alone: in others there is no limit.

    :raises TimeOverError: they are over.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: t.Any) -> None:
        raise TimeOverError("the time was over")

    before = signal.signal(signal.SIGPROF, end)
    try:
        signal.setitimer(signal.ITIMER_PROF, max(seconds + grace, 1e-3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.signal(signal.SIGPROF, before)
