# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples of all modules fit their options."""

from __future__ import annotations

import importlib
import typing as t

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from support.import_collection import location

MODULES = [
    importlib.import_module("ansible_collections.kubenode.ip_masq.plugins.modules." + path.stem)
    for path in sorted((location() / "plugins/modules").glob("*.py"))
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_example_fits_the_options(module: t.Any) -> None:
    for example in yaml.safe_load(module.EXAMPLES):
        options = example["kubenode.ip_masq." + module.__name__.rpartition(".")[2]] or {}
        errors = ArgumentSpecValidator(module.ARGUMENT_SPEC).validate(options).error_messages
        assert errors == [], example["name"]
