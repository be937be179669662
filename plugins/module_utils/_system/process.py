# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one place that starts processes.

Everything above takes a ``Runner`` as an argument, so that the module, the node's agent and the tests share every
line that decides what to run. Both production callers use ``run``: ``AnsibleModule.run_command`` has no time limit,
and a probe of another program's binary must not be able to hang a play.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import typing as t

from .._errors import NodeError
from . import files

#: Directories of system tools; appended to the PATH that sudo, ssh or a timer set.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Outcome(t.NamedTuple):
    """What a process returned. ``rc`` is its exit status (negative: the number of the signal that killed it)."""

    rc: int
    stdout: str
    stderr: str

    @property
    def crashed(self) -> bool:
        """Whether an error of the program itself killed it; a shell in between reports 128 plus the signal."""
        return any(self.rc in (-number, 128 + number) for number in (signal.SIGSEGV, signal.SIGABRT))

    @property
    def error_text(self) -> str:
        """What the program wrote to standard error, on one line; its exit status if it wrote nothing."""
        return " ".join(self.stderr.split()) or "exit status %d" % self.rc


#: What programs see of the environment, besides the path: iptables' lock (iptables(8)).
_INHERITED = ("XTABLES_LOCKFILE",)

#: ``runner(argv, stdin=None, timeout=seconds) -> Outcome``
Runner = t.Callable[..., Outcome]


def search_path() -> str:
    """Return the directories, colon-separated, in which programs are looked for."""
    return ":".join(part for part in (os.environ.get("PATH"), SYSTEM_PATH) if part)


def which(name: str) -> t.Optional[str]:
    """Return the path of a program of this name or path; None if there is none."""
    return shutil.which(name, path=search_path())


def failure(run: Runner, argv: t.Sequence[str], timeout: float) -> str:
    """Run a program that nothing depends on, and return why it failed; empty if it did not."""
    try:
        done = run(argv, timeout=timeout)
    except NodeError as exc:
        return str(exc)
    return "" if done.rc == 0 else done.error_text


def run(argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
    """Run one program to its end, without a shell.

    :param argv: program and arguments; nothing in them is interpreted.
    :param stdin: text for its standard input; None means an empty one.
    :param timeout: seconds until it is killed, together with the processes that it started.
    :raises NodeError: the program cannot be started, or exceeded the time limit.
    """
    # Nothing else of the environment of services, which others may set: XTABLES_LIBDIR takes its matches from iptables.
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    env.update(LC_ALL="C", PATH=search_path())
    pipe = subprocess.PIPE
    with files.failing_to("run", argv[0]):
        process = subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True)
    with process:
        try:
            out, err = process.communicate((stdin or "").encode("utf-8", "surrogateescape"), timeout)
        except subprocess.TimeoutExpired:
            # The whole group: the program may be a script that waits for another one.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise NodeError("%s timed out after %g seconds and was killed" % (argv[0], timeout)) from None
    return Outcome(process.returncode, out.decode("utf-8", "surrogateescape"), err.decode("utf-8", "surrogateescape"))
