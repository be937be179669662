# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of the module inside a running Python: the first one, and those that find nothing to do.

Python has imported Ansible's own parts: a play adds the transfer and the start of Python, as for every module.

Same rules loaded: one iptables-restore or ``nft -f`` of the same rules.
"""

from __future__ import annotations

import functools
import resource
import sys
import time
import typing as t

from support.modules import collections

from . import installed, meter, rules
from .figures import Row, Target
from .inside import Inside
from .plan import Plan, in_turns, say

TITLE = "one call of the module, Python and Ansible's own imports not counted"

#: Seconds of wall time.
_FIRST = Target(3.0, below=True)
_FULL_NODE = Target(1.10, of_ratio=True)


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    for backend in plan.backends:
        with Inside() as empty, Inside() as full:
            say("module, %s: loading %d rules of others on one of two nodes" % (backend, plan.others))
            full.call(installed.load_others, backend, plan.others)
            for name, policy, largest in _policies(plan, backend):
                say("module, %s, %s" % (backend, name))
                yield from _of_policy(plan, "%s, %s" % (backend, name), dict(policy, backend=backend), largest,
                                      empty, full)  # fmt: skip


def _policies(plan: Plan, backend: str) -> t.Iterator[t.Tuple[str, t.Dict[str, t.Any], bool]]:
    """Yield names, options, and whether it is one of the largest."""
    largest = max(plan.sizes)
    for size in (0, *plan.sizes):
        yield "%5d CIDRs" % size, rules.policy(size), size == largest
    if backend == rules.NFTABLES:
        # In iptables each source would be a chain of rules.
        yield "%5d CIDRs%s" % (largest, rules.NARROWED), rules.narrowed(largest), True


def _of_policy(
    plan: Plan, name: str, options: t.Dict[str, t.Any], largest: bool, empty: Inside, full: Inside
) -> t.Iterator[Row]:
    backend = options["backend"]
    first = in_turns(
        plan._replace(rounds=plan.slow_rounds, batch=1),
        {"module": lambda _times: empty.call(first_apply, options), "load": lambda _times: _load(empty, backend)},
    )
    yield Row(name + ": first call, wall", first["module"].wall, "same rules loaded", first["load"].wall,
              _FIRST if largest else None)  # fmt: skip
    yield Row(name + ": first call, CPU", first["module"].cpu, "same rules loaded", first["load"].cpu)
    full.call(run, options)
    costs = in_turns(
        plan, {"empty": functools.partial(empty.call, run, options), "full": functools.partial(full.call, run, options)}
    )
    yield Row(name + ": nothing to do, wall", costs["empty"].wall)
    yield Row(name + ": nothing to do, full node: CPU", costs["full"].cpu, "empty node", costs["empty"].cpu,
              _FULL_NODE if backend == rules.NFT else None)  # fmt: skip


def _module(options: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Return what the installed module returns.

    :raises RuntimeError: it failed.
    """
    path = str(collections())
    if path not in sys.path:
        sys.path.insert(0, path)
    from support import module_process

    sys.modules.pop(module_process.MODULES + "ip_masq", None)  # it is run as a program, each time anew
    result = module_process.run(module_process.Run(dict(options)))
    if result.get("failed"):
        raise RuntimeError(str(result.get("crashed") or result.get("msg")))
    return result


def _spent() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run(options: t.Mapping[str, t.Any], times: int = 1) -> meter.Cost:
    """Call the module so often, and return what one call cost on average."""
    cpu, started = _spent(), time.perf_counter()
    for _number in range(times):
        _module(options)
    return meter.Cost((_spent() - cpu) / times, (time.perf_counter() - started) / times)


def first_apply(options: t.Mapping[str, t.Any]) -> meter.Cost:
    """Call the module where there is no rule of ours."""
    _module({"state": "absent"})
    cost = run(options)
    if _module(options)["changed"]:
        raise RuntimeError("a second call of the module changed something")
    return cost


def _load(node: Inside, backend: str) -> meter.Cost:
    """Load the rules that the module made, which any program must spend."""
    command = node.call(installed.load_same, backend)
    return t.cast(meter.Cost, node.call(meter.spend, command))
