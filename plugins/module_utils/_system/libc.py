# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions of the C library that Python, or PyPy, has no name for."""

from __future__ import annotations

import ctypes
import os
import typing as t


def call(name: str, *arguments: t.Any) -> None:
    """Call a function that returns a negative number if it fails.

    :raises OSError: it failed.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
