# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All tables of iptables-legacy in a network namespace.

Only tables that the kernel lists are read: to look at one that is not there makes it.
"""

from __future__ import annotations

import typing as t

from .._errors import NodeError
from .._system import xtables
from .._system.families import FAMILIES
from .._system.iptables_tool import legacy_tables
from .._system.xtables import XtTable


def read(wanted: t.Callable[[str], bool] = lambda _name: True) -> t.Tuple[t.Tuple[XtTable, ...], t.List[str]]:
    """Read all tables of this network namespace, or those whose names are wanted.

    :returns: the tables, and why others could not be read.
    """
    tables, missing = [], []
    for family in FAMILIES:
        for name in filter(wanted, sorted(legacy_tables(family))):
            try:
                tables.append(xtables.read(family, name))
            except NodeError as exc:
                missing.append(str(exc))
    return tuple(tables), missing
