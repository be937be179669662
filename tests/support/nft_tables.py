# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our nftables table as text, and as the kernel reports it, without a kernel."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import nftables_changes
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.nftables_syntax import (
    TABLE,
    ListedTable,
    listing,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import nf_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.netlink import Message

_FIELDS = {
    nf_tables.NEW_TABLE: "table",
    nf_tables.NEW_CHAIN: "chains",
    nf_tables.NEW_SET: "sets",
    nf_tables.NEW_ELEMENT: "elements",
    nf_tables.NEW_RULE: "rules",
}


def text_of(table: ListedTable) -> str:
    """Return a table as people see it, without indentation, elements on one line."""
    text = "\n".join(line.strip() for line in listing(table)) + "\n"
    return re.sub(
        r"elements = \{\n(.*?),\n\}",
        lambda found: "elements = { %s }" % found[1].replace(",\n", ", "),
        text,
        flags=re.DOTALL,
    )


def reported(changes: t.Sequence[Message], family: int) -> nf_tables.NftTable:
    """Return what the kernel would report of a table that these changes made."""
    found: t.Dict[str, t.List[bytes]] = {}
    for change in changes:
        found.setdefault(_FIELDS[change.kind & 0xFF], []).append(change.body[4:])
    (table,) = found.pop("table")
    return nf_tables.NftTable(family, TABLE, table, **{field: tuple(bodies) for field, bodies in found.items()})


def read_back(table: ListedTable) -> ListedTable:
    """Return what is read of a table that was written."""
    made = nftables_changes.make_all(table)
    return nftables_changes.listed(reported(made, table.family.number), table.family)
