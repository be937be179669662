# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One kernel, several versions of iptables: kube-proxy and others bring their own. Each must read what others wrote."""

from __future__ import annotations

import subprocess
import typing as t
from pathlib import Path

import pytest
from support.full_policy import full_policy
from support.modules import apply, run_module
from support.namespaces import Namespace
from support.program_versions import RELEASES, iptables_of
from support.variants import FAMILIES, VARIANTS

#: A policy that uses everything that rules of iptables can hold.
FULL = full_policy(many=40)
ADDRESSES_OF_SNAT = ["192.0.2.%d/32" % number for number in (7, 8, 9)] + ["2001:db8::7/128"]


#: It prints marks and single ports of newer ones as no condition at all, which the module sees.
MISREADS = ("iptables_nft", "bullseye")


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=str)
def test_each_version_reads_what_each_other_wrote(variant: t.Any, show_table: t.Callable[..., None]) -> None:
    """What the module wrote with one version is in sync with every other, and all of it is removed with it."""
    paths = {release: iptables_of(release, variant.backend.rpartition("_")[2]) for release in RELEASES}
    versions = {}
    for release, path in paths.items():
        answer = subprocess.run([path / variant.tool("ipv4"), "--version"], capture_output=True, check=True, text=True)
        versions[release] = answer.stdout.split()[1].lstrip("v")
    rows, wrong = [], []
    for number, writer in enumerate(RELEASES):
        with Namespace() as ns:
            for address in ADDRESSES_OF_SNAT:
                ns.run("ip", "address", "add", address, "dev", "lo")
            options = dict(FULL, backend=variant.backend)
            assert apply(ns, path=paths[writer], **options)["changed"] is True
            cells = [_read(ns, paths[reader], variant, options) for reader in RELEASES]
            rows.append(("%s %s" % (variant.tool("ipv4"), versions[writer]), cells))
            misread = {reader for reader in RELEASES if (variant.backend, reader) == MISREADS and reader != writer}
            wrong += [
                (writer, reader, cell)
                for reader, cell in zip(RELEASES, cells)
                if cell != ("rewritten" if reader in misread else "ok")
            ]
            # Removed by another version than the one that wrote.
            apply(ns, path=paths[RELEASES[number - 1]], state="absent", backend=variant.backend)
            for family in FAMILIES:
                assert "IP-MASQ" not in variant.saved(ns, family)
    show_table("written by", ["read by " + version for version in versions.values()], rows)
    assert not wrong
    assert len(set(versions.values())) == len(RELEASES)


def _read(ns: Namespace, path: Path, variant: t.Any, options: t.Mapping[str, t.Any]) -> str:
    """Return what the module makes of rules with the iptables of a path. Those of kube-proxy must be able to save."""
    for family in FAMILIES:
        command = ns.argv(str(path / variant.tool(family, "-save")))
        saved = subprocess.run(command, capture_output=True, check=False, text=True)
        if saved.returncode or "incompatible" in saved.stdout + saved.stderr:
            return "cannot save: " + (saved.stderr or saved.stdout)
    done = run_module(ns, path=path, check=True, **options)
    if "unreadable chain rewritten" in [action["action"] for action in done.get("actions", ())]:
        return "rewritten"
    return "ok" if done.get("changed") is False else done.get("msg") or "changed"
