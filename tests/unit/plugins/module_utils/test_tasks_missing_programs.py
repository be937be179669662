# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules return where a program is missing: the role installs a package, but not into an image."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ProgramMissingError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import packages
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import agent_task, rules_task

RULES = dict(dict.fromkeys(rules_task.ARGUMENT_SPEC), state="present", lock_timeout=5)


def _missing(*_arguments: t.Any, **_more: t.Any) -> t.Any:
    raise ProgramMissingError("no nft: install the package nftables", "nftables")


@pytest.fixture(autouse=True, params=[False, True], ids=["regular node", "image"])
def is_image(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A node without programs."""
    monkeypatch.setattr(packages, "is_image", lambda: request.param)
    monkeypatch.setattr(packages, "which", lambda _name: None)
    monkeypatch.setattr(agent_task, "_present", _missing)
    monkeypatch.setattr(rules_task, "reconcile", _missing)
    return bool(request.param)


def test_agent(is_image: bool) -> None:
    done = agent_task.carry_out({"state": "present", "lock_timeout": 5}, check=False)
    assert done.returned == ({} if is_image else {"missing_package": "nftables"})
    assert done.failure.startswith("no nft: install the package nftables")
    assert (". The node runs an image that packages cannot be installed into: use an" in done.failure) is is_image


def test_rules(is_image: bool) -> None:
    done = rules_task.carry_out(RULES, check=False)
    assert done.failure.startswith("no nft: install the package nftables")
    assert done.failure.endswith("use an image that has nftables") is is_image
