# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Times of an abuse mail."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.moments import (
    Moment,
    parse_moment,
    show_moment,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError


@pytest.mark.parametrize(
    ("text", "start", "length"),
    [
        ("2026-11-23T03:12", 1795403520, 60),
        ("2026-11-23T03:12:07", 1795403527, 1),
        ("2026-11-23 03:12:07z", 1795403527, 1),
        ("2026-11-23T04:12:07+01:00", 1795403527, 1),
        ("2026-11-22T21:42:07-0530", 1795403527, 1),
    ],
)
def test_time(text: str, start: int, length: int) -> None:
    assert parse_moment(text) == Moment(start, start + length)
    assert show_moment(start) == "2026-11-23T03:12:%02dZ" % (7 if length == 1 else 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-23",
        "2026-02-30T03:12",
        "2026-11-23T03:12+24:00",
        "0001-01-01T00:00+23:00",
        "2026-11-23T03:12\n",
        "\u0662026-11-23T03:12",
    ],
)
def test_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time: write "):
        parse_moment(text)
