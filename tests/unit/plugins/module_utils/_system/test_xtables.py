# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tables of iptables-legacy hold; tests/kernel/test_rule_readers.py reads those of the kernel."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables
from support.legacy_tables import Rule, table

_TABLE = table(
    "nat",
    {
        "PREROUTING": [],
        "POSTROUTING": [Rule("MINE", ("comment", "time")), Rule("MASQUERADE"), Rule("DROP")],
        "MINE": [Rule("RETURN")],
    },
)


def test_chains_that_one_leads_to() -> None:
    every = xtables.chains(_TABLE)
    assert set(every) == {"PREROUTING", "POSTROUTING", "MINE"}
    assert xtables.chains(_TABLE, ("POSTROUTING",), ("MINE", "OTHER")) == {
        name: every[name] for name in ("POSTROUTING", "MINE")
    }
    assert xtables.chains(_TABLE, ("POSTROUTING",), ()) == {"POSTROUTING": every["POSTROUTING"]}
    assert xtables.chains(_TABLE, ("PREROUTING",), ("MINE",)) == {"PREROUTING": every["PREROUTING"]}
    assert xtables.chains(_TABLE, ("OUTPUT",)) == {}
    assert xtables.jumps(_TABLE, "POSTROUTING") == ["MINE"]


def test_chains_with_rules() -> None:
    assert xtables.used_chains(_TABLE) == ["POSTROUTING"]


def test_names_of_extensions() -> None:
    assert xtables.has(_TABLE, "time") and xtables.has(_TABLE, "MASQUERADE")
    assert not xtables.has(_TABLE, "tim") and not xtables.has(_TABLE, "SET")


def test_damaged_table() -> None:
    with pytest.raises(ValueError, match="without a size"):
        xtables.chains(_TABLE._replace(entries=bytes(len(_TABLE.entries))))
