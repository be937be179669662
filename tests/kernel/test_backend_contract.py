# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every registered backend keeps its contract in the kernel."""

from __future__ import annotations

import multiprocessing
import traceback
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend_choice import BACKENDS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import Family
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run
from support.backend_contract import CONTRACT, Place
from support.namespaces import Namespace
from support.variants import VARIANTS

_FORK = multiprocessing.get_context("fork")


@pytest.mark.parametrize("index", range(len(BACKENDS)), ids=[kind.name for kind in BACKENDS])
@pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
def test_contract(ns: Namespace, index: int, family: str, promise: t.Callable[[Place], None]) -> None:
    kind = BACKENDS[index]
    host = VARIANTS.get(kind.name)

    def everything() -> str:
        if host is not None:
            return host.saved(ns, family)
        return ns.run("nft", "-s", "list", "ruleset")

    def inside(answers: t.Any) -> None:
        try:
            ns.enter()
            promise(Place(kind, Node(run), Family(family), lambda argv: run(argv).stdout, everything))
            answers.send("kept")
        except BaseException:  # noqa: B902
            answers.send(traceback.format_exc())

    here, there = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=inside, args=(there,))
    child.start()
    there.close()
    said = here.recv()
    child.join()
    assert said == "kept", said
