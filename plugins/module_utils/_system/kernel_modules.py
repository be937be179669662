# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kernel modules are there already. Most questions to the kernel load the module that answers them."""

from __future__ import annotations

import os

from . import files

_LOADED = "/sys/module/%s"
_LIST = "/proc/modules"
_BUILT_IN = "/lib/modules/%s/modules.builtin"


def loaded(name: str) -> bool:
    """Return whether a part of the kernel is at work already, so that asking it loads nothing.

    :param name: of the module, with underscores.
    """
    if os.path.exists(_LOADED % name) or not os.path.exists(_LIST):  # the latter: a kernel without modules
        return True
    return any(line.rstrip().endswith("/%s.ko" % name) for line in files.lines(_BUILT_IN % os.uname().release))
