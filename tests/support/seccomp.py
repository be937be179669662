# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a program without executable memory of its own, as MemoryDenyWriteExecute= of systemd.exec(5) has it.

``python seccomp.py COMMAND...``: the same filter as systemd's, for the calls that a Python makes: memory that can be
both written and executed is refused, and so is to make memory executable later.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

#: The numbers of mmap and mprotect, by machine.
_CALLS = {"x86_64": (9, 10), "aarch64": (222, 226)}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
#: linux/bpf_common.h: load a word, jump if equal, jump if a bit is set, mask, return
_LOAD, _EQUAL, _ANY, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
#: Where struct seccomp_data has the number of the call, and the low half of its third argument.
_NUMBER, _THIRD = 0, 32
_WRITE_EXECUTE, _EXECUTE = 6, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # EPERM


def refuse_executable_memory() -> None:
    """Install the filter in this process; programs that it starts inherit it.

    :raises OSError: the kernel refuses.
    """
    mmap, mprotect = _CALLS[os.uname().machine]
    code = [
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 3, mmap),
        (_LOAD, 0, 0, _THIRD),
        (_AND, 0, 0, _WRITE_EXECUTE),
        (_EQUAL, 4, 3, _WRITE_EXECUTE),
        (_EQUAL, 0, 2, mprotect),
        (_LOAD, 0, 0, _THIRD),
        (_ANY, 1, 0, _EXECUTE),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    raw = b"".join(struct.pack("HBBI", *line) for line in code)
    lines = ctypes.create_string_buffer(raw, len(raw))
    program = struct.pack("H6xQ", len(code), ctypes.addressof(lines))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl%r: %s" % (arguments[:2], os.strerror(ctypes.get_errno())))


if __name__ == "__main__":
    refuse_executable_memory()
    os.execvp(sys.argv[1], sys.argv[1:])
