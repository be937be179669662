# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The largest share of source ports that a destination uses, for the metrics: measured now and then, kept between."""

from __future__ import annotations

import contextlib
import typing as t

from .._engine import source_ports
from .._engine.ruleset import Ruleset
from .._errors import NodeError
from .._system import files
from .paths import Paths

#: CPU time that one measurement may take. Connections that were not read are not counted.
_SECONDS = 10.0


def measure(paths: Paths, every: int, rulesets: t.Mapping[str, t.Iterable[Ruleset]]) -> float:
    """Return the share, measured at the first of so many resyncs; the others return the last measurement.

    :param rulesets: the active rules, by family.
    :raises NodeError: the kernel does not tell, or the share cannot be kept.
    """
    runs, share = _read(paths)
    if share is None or runs >= every:
        found = source_ports.read(rulesets, 1, {}, _SECONDS).fullest
        runs, share = 0, found[0].share if found else 0.0
    files.make_directory(paths.run_dir, 0o700)
    files.write(paths.port_share, b"%d %.4f\n" % (runs + 1, share))
    return share


def _read(paths: Paths) -> t.Tuple[int, t.Optional[float]]:
    """Return how many resyncs have used the last share, and the share; None without one, or if the file is damaged."""
    with contextlib.suppress(NodeError, ValueError):
        runs, share = (files.read(paths.port_share) or b"").decode("ascii").split()
        if 0.0 <= float(share) <= 1.0:
            return int(runs), float(share)
    return 0, None
