# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One version, wherever it is told."""

from __future__ import annotations

import re

from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.import_collection import ROOT


def test_agent_and_collection_have_one_version() -> None:
    galaxy = (ROOT / "galaxy.yml").read_text(encoding="utf-8")
    assert re.findall(r"^version: *(\S+)$", galaxy, re.MULTILINE) == [VERSION]
