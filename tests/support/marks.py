# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Marks that more than one file of tests uses."""

from __future__ import annotations

import itertools
import typing as t

import pytest

from .variants import BACKENDS, FAMILIES, VARIANTS

#: For a test about what nftables does not have, a chain among others in a table of others; else ``variant`` is each
#: backend.
iptables_only = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))

#: Each backend once, and each family; all other pairs.
_PAIRED = (("iptables_nft", "ipv6"), ("iptables_legacy", "ipv4"), ("nftables", "ipv6"))
_OTHERS = tuple(pair for pair in itertools.product(BACKENDS, FAMILIES) if pair not in _PAIRED)

#: For a test about what no backend does for itself; else ``variant`` and ``family`` meet in all pairs.
paired = pytest.mark.parametrize(("variant", "family"), _PAIRED, indirect=True)


def halved(names: t.Tuple[str, ...], *values: t.Tuple[t.Any, ...]) -> pytest.MarkDecorator:
    """All pairs of ``variant`` and ``family``, shared out among values: each meets every backend and both families."""
    cases = [(*pair, *one) for number, one in enumerate(values) for pair in (_PAIRED, _OTHERS)[number % 2]]
    return pytest.mark.parametrize(("variant", "family", *names), cases, indirect=["variant", "family"])
