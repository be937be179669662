# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all tests share: where the collection comes from, and how hard hypothesis looks."""

from __future__ import annotations

import os

import hypothesis
import pytest
from support.import_collection import make_importable

COLLECTION = make_importable()
pytest.register_assert_rewrite("support.machine", "support.nat", "support.random_policies")

# The same examples on every run and every machine; no time limit, because machines differ.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
# On a Python that differs from one which tried all of them: HYPOTHESIS_PROFILE=again
hypothesis.settings.register_profile("again", hypothesis.settings.get_profile("repeatable"), max_examples=25)
# New examples on every run: HYPOTHESIS_PROFILE=explore
hypothesis.settings.register_profile(
    "explore", hypothesis.settings.get_profile("repeatable"), derandomize=False, max_examples=3000, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_report_header() -> str:
    return "collection under test: %s" % COLLECTION
