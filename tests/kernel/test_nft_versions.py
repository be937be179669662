# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One kernel, several versions of nft: containers bring their own. Each must read what the others wrote."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

import pytest
from support.full_policy import full_policy
from support.modules import apply, refused, run_module, run_modules
from support.namespaces import Namespace
from support.program_versions import RELEASES, Nft
from support.programs import Programs

Nfts = t.Dict[str, Nft]

#: What kube-proxy, Calico and others run.
LISTINGS = ("list ruleset", "-j list ruleset", "list tables", "list sets", "list chains")
#: A policy that uses everything that a table of ours can hold.
FULL = full_policy(
    backend="nftables",
    exemption="enforce",
    snat=[
        {"address": "192.0.2.7", "source_cidrs": ["10.244.0.0/16", "10.7.0.0/16"]},
        {"address": "192.0.2.8-192.0.2.9", "out_interface": "bond*"},
        {"address": "192.0.2.7-192.0.2.9"},
        {"address": "2001:db8::7", "source_cidrs": ["fd00::/16"], "out_interface": "eth0"},
        {"address": "2001:db8::8-2001:db8::9"},
    ],
)
ADDRESSES_OF_SNAT = [
    *("192.0.2.%d/32" % number for number in (7, 8, 9)),
    *("2001:db8::%d/128" % number for number in (7, 8, 9)),
]
#: A set of another program, in the form that older versions cannot read when a newer one wrote it.
FOREIGN = "table ip other { set s { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 }; }; }\n"


def test_each_version_reads_what_each_other_wrote(nfts: Nfts, show_table: t.Callable[..., None]) -> None:
    """Text, JSON, and the module itself: what one version wrote is in sync for all."""
    rows = []
    for writer in nfts.values():
        with Namespace() as ns:
            for address in ADDRESSES_OF_SNAT:
                ns.run("ip", "address", "add", address, "dev", "lo")
            assert apply(ns, path=writer.path, **FULL)["changed"] is True
            cells = [_read(ns, reader) for reader in nfts.values()]
            texts = {reader.call(ns, "-n", "-s", "list", "ruleset").stdout for reader in nfts.values()}
            rows.append((writer.version, cells))
            assert len(texts) == 1, texts
    show_table("written by nft", ["read by " + nft.version for nft in nfts.values()], rows)
    assert {cell for _version, cells in rows for cell in cells} == {"ok"}


def _read(ns: Namespace, reader: Nft) -> str:
    for listing in LISTINGS:
        done = reader.call(ns, *listing.split())
        if done.returncode != 0:
            return "%s: status %d" % (listing, done.returncode)
        if "-j" in listing:
            json.loads(done.stdout)
    again = run_module(ns, path=reader.path, **FULL)
    return "ok" if again.get("changed") is False and not again.get("failed") else again.get("msg", "changed")


def test_the_older_versions_cannot_read_a_set_that_is_declared_by_type(nfts: Nfts) -> None:
    """Else these tests would prove nothing."""
    with Namespace() as ns:
        nfts["trixie"].write(ns, FOREIGN)
        found = {release: nft.call(ns, "list", "sets").returncode for release, nft in nfts.items()}
    assert found == {"bullseye": -11, "bookworm": -11, "trixie": 0, "sid": 0}


@pytest.mark.parametrize("release", RELEASES)
def test_a_dormant_table_is_repaired(ns: Namespace, nfts: Nfts, release: str) -> None:
    nft = nfts[release]
    apply(ns, path=nft.path, backend="nftables")
    nft.write(ns, "add table ip ip_masq_agent { flags dormant; }\n")
    assert apply(ns, path=nft.path, backend="nftables")["changed"] is True
    assert "dormant" not in nft.call(ns, "list", "table", "ip", "ip_masq_agent").stdout
    assert apply(ns, path=nft.path, backend="nftables")["changed"] is False


#: Lists a table as nft 1.1.3 may while others change rules: chains again, empty, at the first, third, ... time.
TORN = """
real=%s
case "$*" in *"list table"*) ;; *) exec "$real" "$@";; esac
echo >>%s
[ $(($(wc -l <%s) %% 2)) = 1 ] || exec "$real" "$@"
"$real" "$@" | sed '$d'
for chain in postrouting enforce; do
    printf '\\n\\tchain %%s {\\n\\t\\ttype nat hook postrouting priority 100; policy accept;\\n\\t}\\n' $chain
done
echo '}'
"""


@pytest.mark.parametrize("release", RELEASES)
def test_chains_that_are_listed_twice_are_read_again(
    ns: Namespace, nfts: Nfts, programs: Programs, tmp_path: Path, release: str
) -> None:
    log = tmp_path / "listings"
    log.touch()
    options = {"backend": "nftables", "exemption": "enforce"}
    programs.misbehave(lambda name: name == "nft", TORN % (nfts[release].path / "nft", log, log))
    assert apply(ns, path=programs.path, **options)["changed"] is True
    before = nfts[release].call(ns, "list", "table", "ip", "ip_masq_agent").stdout
    log.write_text("")
    for _again in range(3):
        done = apply(ns, path=programs.path, diff=True, **options)
        assert (done["changed"], done["actions"]) == (False, [])
    assert len(log.read_text()) == 6, "it was not listed in pieces"
    assert nfts[release].call(ns, "list", "table", "ip", "ip_masq_agent").stdout == before


#: Writes all the time, as kube-proxy does where many Services change, until told to stop; prints how often.
_NEIGHBOUR = """
import select, subprocess, sys
def write(number):
    chains = ["svc-%d-%d" % (number, each) for each in range(20)]
    text = "".join("add chain ip kube-proxy %s\\nadd rule ip kube-proxy %s accept\\n" % (one, one) for one in chains)
    subprocess.run([sys.argv[1], "-f", "-"], input="add table ip kube-proxy\\n" + text, text=True, check=True)
    text = "".join("delete chain ip kube-proxy %s\\n" % one for one in chains)
    subprocess.run([sys.argv[1], "-f", "-"], input=text, text=True, check=True)
write(0)
print("ready", flush=True)
rounds = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    rounds += 1
    write(rounds)
print(rounds)
"""


@pytest.mark.parametrize("release", RELEASES)
def test_a_table_beside_a_busy_writer_is_in_sync_each_time(ns: Namespace, nfts: Nfts, release: str) -> None:
    path = nfts[release].path
    options = {"backend": "nftables", "exemption": "enforce", "enable_ipv6": True}
    apply(ns, path=path, **options)
    before = nfts["trixie"].call(ns, "-a", "list", "table", "ip", "ip_masq_agent").stdout
    neighbour = ns.popen(sys.executable, "-c", _NEIGHBOUR, str(nfts["trixie"].path / "nft"))
    assert neighbour.stdout is not None and neighbour.stdout.readline() == "ready\n"
    results = run_modules(ns, [options] * 60, path=path)
    rounds = neighbour.communicate("stop\n")[0]
    assert [result for result in results if result.get("failed") or result["changed"]] == []
    assert int(rounds) > 0
    assert nfts["trixie"].call(ns, "-a", "list", "table", "ip", "ip_masq_agent").stdout == before


OLDER = ("bullseye", "bookworm")


def _assert_crash_is_explained(message: str, nft: Nft) -> None:
    for part in ("nftables v%s crashed" % nft.version, "cannot be determined", "Upgrade nftables", "iptables_nft"):
        assert part in message


@pytest.mark.parametrize("release", OLDER)
def test_a_table_that_makes_nft_crash_is_not_taken_for_an_absent_one(ns: Namespace, nfts: Nfts, release: str) -> None:
    nft, newer = nfts[release], nfts["trixie"]
    apply(ns, path=nft.path, backend="nftables")
    newer.write(ns, FOREIGN)
    before = newer.call(ns, "-s", "list", "ruleset").stdout
    for options in ({"non_masquerade_cidrs": ["10.0.0.0/8"]}, {"exemption": "enforce"}, {"state": "absent"}):
        message = refused(ns, path=nft.path, **{"backend": "nftables", **options})
        _assert_crash_is_explained(message, nft)
        assert newer.call(ns, "-s", "list", "ruleset").stdout == before


@pytest.mark.parametrize("release", OLDER)
def test_where_nft_crashes_nothing_is_begun_and_iptables_works(ns: Namespace, nfts: Nfts, release: str) -> None:
    nft, newer = nfts[release], nfts["trixie"]
    newer.write(ns, FOREIGN)
    _assert_crash_is_explained(refused(ns, path=nft.path, backend="nftables"), nft)
    assert newer.call(ns, "list", "tables").stdout.split("\n") == ["table ip other", ""]
    assert apply(ns, path=nft.path, backend="iptables_nft")["changed"] is True
    # There is no table of ours, which the kernel says without nft.
    assert apply(ns, path=nft.path, state="absent")["changed"] is True


@pytest.mark.parametrize("release", OLDER)
def test_after_a_change_to_iptables_a_table_that_cannot_be_removed_is_reported(
    ns: Namespace, nfts: Nfts, release: str
) -> None:
    nft = nfts[release]
    apply(ns, path=nft.path, backend="nftables")
    nfts["trixie"].write(ns, FOREIGN)
    done = apply(ns, path=nft.path, backend="iptables_nft")
    (warning,) = done["warnings"]
    _assert_crash_is_explained(warning, nft)
