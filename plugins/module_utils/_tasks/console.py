# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Output of the command line: plain lines for people, lines with a priority for the journal."""

from __future__ import annotations

import contextlib
import os
import sys
import typing as t

from .._errors import NodeError
from .._system.printable import shown

#: Priorities of sd-daemon(3).
ERROR, WARNING, NOTICE = 3, 4, 5

_UNWRITTEN = "cannot write the output: %s"


def log(priority: int, *lines: str) -> None:
    """Write messages: to the journal with their priority, to a person without.

    For the journal each line is a message, and a number in front of it its priority; so control characters are escaped.
    """
    stream = sys.stderr if priority <= WARNING else sys.stdout
    title = "<%d>" % priority if "JOURNAL_STREAM" in os.environ else "ip-masq-agent: " if stream is sys.stderr else ""
    for line in lines:
        stream.write(title + shown(line) + "\n")
        stream.flush()


def print_lines(lines: t.Iterable[str]) -> None:
    """Write the lines of a report.

    :raises BrokenPipeError: its reader has gone.
    :raises NodeError: it cannot be written.
    """
    for line in lines:
        try:
            sys.stdout.write(shown(line) + "\n")
        except BrokenPipeError:
            raise
        except OSError as exc:
            raise NodeError(_UNWRITTEN % (exc.strerror or exc)) from None


def progress(text: str) -> t.Callable[[int, int], None]:
    """Show a person how far long work is, in one line that is gone at its end. Show nothing to programs.

    :param text: with ``%d`` for what is done, and for all of it.
    """

    def show(done: int, everything: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K" + (text % (done, everything) if done < everything else ""))
            sys.stderr.flush()

    return show


def prepare() -> None:
    """Escape characters that the locale cannot express: they must not abort a sync. What is closed is discarded."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        getattr(sys, name).reconfigure(errors="backslashreplace")


def leave(status: int) -> t.NoReturn:
    """End the program at once. Python would take itself down piece by piece, which takes 10 of 90 ms of a sync.

    Output whose reader has gone is dropped.
    """
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except OSError as exc:
            if status == 0:
                status = 1
                with contextlib.suppress(OSError):  # both may be the same full disk
                    log(ERROR, _UNWRITTEN % (exc.strerror or exc))
    os._exit(status)
