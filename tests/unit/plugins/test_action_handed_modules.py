# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules whose tasks the installed program does: their options and what they return."""

from __future__ import annotations

import importlib
import typing as t

import pytest
import yaml
from support.module_docs import documentation

COLLECTION = "ansible_collections.kubenode.ip_masq.plugins"


@pytest.mark.parametrize(
    "name, beside",
    [("ip_masq_agent", {"changed", "diff"}), ("ip_masq_agent_info", {"changed"})],
)
def test_a_plugin_has_the_options_and_the_values_of_its_module(name: str, beside: t.Set[str]) -> None:
    handed = importlib.import_module("%s.action.%s" % (COLLECTION, name)).ActionModule
    module = importlib.import_module("%s.modules.%s" % (COLLECTION, name))
    assert handed.module == name
    assert set(handed.spec) == set(documentation(module)["options"])
    assert set(handed.returned) == set(yaml.safe_load(module.RETURN)) | beside
