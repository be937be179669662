# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of a verification, in a file of their own: the program shows them, and loads no verification for that."""

from __future__ import annotations

import typing as t

QUESTIONS, SECONDS = 100000, 60


class Limits(t.NamedTuple):
    """Questions for each family, and seconds; 0: no limit."""

    questions: int = QUESTIONS
    seconds: float = SECONDS


DEFAULT = Limits()
