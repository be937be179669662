# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of iptables-legacy as the kernel tells them, made of words: IPv4. Python 3.8."""

from __future__ import annotations

import struct
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import IPV4

_VERDICTS = {"DROP": -1, "ACCEPT": -2, "RETURN": -5}
_EMPTY = struct.calcsize("@84xIHHIQQ")


class Rule(t.NamedTuple):
    """A rule: its target, or the chain that it leads to, and names of matches."""

    target: str
    matches: t.Tuple[str, ...] = ()


def _extension(name: str, info: bytes = b"") -> bytes:
    return struct.pack("=H29sB", 32 + len(info), name.encode(), 0) + info


def _entry(matches: t.Sequence[str], target: bytes, packets: int) -> bytes:
    matched = b"".join(map(_extension, matches))
    place = _EMPTY + len(matched)
    head = struct.pack("@84xIHHIQQ", 0, place, place + len(target), 0, packets, 60 * packets)
    return head + matched + target


def table(
    name: str, chains: t.Mapping[str, t.Sequence[Rule]], packets: int = 0, policy: str = "ACCEPT"
) -> xtables.XtTable:
    """Return a table. Chains that are not those of a hook come last.

    :param packets: that each rule has seen.
    """
    hooked = [chain for chain in xtables.CHAINS if chain in chains]
    starts: t.Dict[str, int] = {}
    for _attempt in range(2):  # the first time, to see where chains begin
        entries, begins, ends = b"", [0] * 5, [0] * 5
        for chain in [*hooked, *(one for one in chains if one not in hooked)]:
            if chain not in hooked:
                entries += _entry((), _extension("ERROR", chain.encode().ljust(32, b"\0")), 0)
            starts[chain] = len(entries)
            for rule in chains[chain]:
                place = starts.get(rule.target, _VERDICTS.get(rule.target))
                known = rule.target in chains or rule.target in _VERDICTS
                standard = _extension("", struct.pack("=i4x", place or 0))
                entries += _entry(rule.matches, standard if known else _extension(rule.target), packets)
            if chain in hooked:
                hook = xtables.CHAINS.index(chain)
                begins[hook], ends[hook] = starts[chain], len(entries)
            last = policy if chain in hooked else "RETURN"
            entries += _entry((), _extension("", struct.pack("=i4x", _VERDICTS[last])), packets)
        entries += _entry((), _extension("ERROR", b"ERROR".ljust(32, b"\0")), 0)
    hooks = sum(1 << xtables.CHAINS.index(chain) for chain in hooked)
    return xtables.XtTable(IPV4, name, hooks, (*begins, *ends), 0, entries)
