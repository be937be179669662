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
def test_each_version_reads_what_each_other_wrote(variant: t.Any) -> None:
    """What the module wrote with one version is in sync with every other, and all of it is removed with it."""
    paths = {release: iptables_of(release, variant.backend.rpartition("_")[2]) for release in RELEASES}
    versions = {subprocess.check_output([path / variant.tool("ipv4"), "--version"]) for path in paths.values()}
    assert len(versions) == len(RELEASES)
    wrong = []
    for number, writer in enumerate(RELEASES):
        with Namespace() as ns:
            for address in ADDRESSES_OF_SNAT:
                ns.run("ip", "address", "add", address, "dev", "lo")
            options = dict(FULL, backend=variant.backend)
            assert apply(ns, path=paths[writer], **options)["changed"] is True
            for reader in RELEASES:
                found = _read(ns, paths[reader], variant, options)
                misread = (variant.backend, reader) == MISREADS and reader != writer
                if found != ("rewritten" if misread else "ok"):
                    wrong.append((writer, reader, found))
            # Removed by another version than the one that wrote.
            apply(ns, path=paths[RELEASES[number - 1]], state="absent", backend=variant.backend)
            for family in FAMILIES:
                assert "IP-MASQ" not in variant.saved(ns, family)
    assert not wrong


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
