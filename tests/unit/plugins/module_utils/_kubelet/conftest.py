# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stand-in kubelets need of the Python that they are made of."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def home_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks for its library beside the program that it is called as, a kubelet, or else where it was built for.

    That of ``tools/debian-pythons`` is elsewhere.
    """
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
