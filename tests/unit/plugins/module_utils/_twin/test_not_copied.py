# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cannot be copied and no kernel of the tests has."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._twin import not_copied
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions.verification import HARMLESS
from support.node_states import state


def test_tables_of_ebtables_legacy_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(not_copied, "_MODULE", str(tmp_path / "%s"))
    assert not [one for one in not_copied.read((), ()) if one.code == "ebtables"]
    (tmp_path / "ebtable_nat").mkdir()
    (found,) = [one for one in not_copied.read((), ()) if one.code == "ebtables"]
    assert "table nat, kernel module ebtable_nat" in found.text and "ebtables-nft" in found.text
    assert found.code not in HARMLESS


@pytest.mark.parametrize("kind", ["ipvlan", "netkit", "vrf", "vti", "xfrm"])
def test_each_kind_of_link_that_is_not_understood_is_named(kind: str) -> None:
    """A VRF, for one: rules see its packets twice."""
    link = state().links[0]._replace(name="x0", kind=kind, xdp=False)
    (found,) = [one for one in not_copied.read((link,), ()) if one.code == "link"]
    assert "x0" in found.text and kind in found.text and found.code not in HARMLESS
