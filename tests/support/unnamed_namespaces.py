# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions in a process of their own, or in a namespace: what they make without a name is gone with the process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
import typing as t

from .namespaces import Namespace, call

_FORK = multiprocessing.get_context("fork")
_CLONE_NEWNS = 0x00020000
_MS_REC_PRIVATE = 0x44000
_PR_SET_PDEATHSIG = 1

T = t.TypeVar("T")


def carry_out(work: t.Callable[..., T], *arguments: t.Any) -> T:
    """Call a function in a process of its own, with a /run of its own, and return what it returns.

    :raises AssertionError: it raised an exception; the message has the traceback.
    """
    return _in_process(_private_run, work, arguments)


def inside(ns: Namespace, work: t.Callable[..., T], *arguments: t.Any) -> T:
    """Call a function in a process in a namespace, and return what it returns.

    :raises AssertionError: it raised an exception; the message has the traceback.
    """
    return _in_process(ns.enter, work, arguments)


def _in_process(prepare: t.Callable[[], None], work: t.Callable[..., T], arguments: t.Tuple[t.Any, ...]) -> T:
    ours, theirs = _FORK.Pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
            ours.close()
            prepare()
            outcome: t.Tuple[bool, t.Any] = (True, work(*arguments))
        except BaseException:
            outcome = (False, traceback.format_exc())
        with contextlib.suppress(OSError):
            theirs.send(outcome)
        os._exit(0)
    theirs.close()
    try:
        done, value = ours.recv()
    except EOFError:
        done, value = False, "the process ended without a word"
    finally:
        ours.close()
        os.waitpid(pid, 0)
    assert done, value
    return t.cast(T, value)


def _private_run() -> None:
    call("unshare", _CLONE_NEWNS)
    call("mount", b"none", b"/", None, _MS_REC_PRIVATE, None)
    call("mount", b"none", b"/run", b"tmpfs", 0, None)
