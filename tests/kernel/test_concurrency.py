# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Others write to the nat table too, or hold its lock."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import xtables_lock
from support.marks import iptables_only
from support.modules import ModuleRun, apply, refused, run_modules
from support.namespaces import Namespace, until
from support.program_versions import iptables_of
from support.programs import Programs
from support.variants import VARIANTS, Variant

CHAIN = "IP-MASQ-AGENT"
LEGACY = VARIANTS["iptables_legacy"]

#: Puts a jump before all others and takes it away again, as kube-proxy and CNI plugins do, until told to stop; prints
#: how often, and what went wrong.
_NEIGHBOUR = """
import subprocess, sys, select
tool = sys.argv[1]
def do(*lines):
    text = "\\n".join(("*nat",) + lines + ("COMMIT", ""))
    done = subprocess.run([tool + "-restore", "-w", "--noflush"], input=text, text=True, capture_output=True)
    if done.returncode:
        errors.append(done.stderr)
rounds, errors = 0, []
do(":KUBE-POSTROUTING - [0:0]", "-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE")
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    do(":KUBE-POSTROUTING - [0:0]", "-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE",
       "-I POSTROUTING -m comment --comment \\"round %d\\" -j KUBE-POSTROUTING" % rounds)
    do("-D POSTROUTING -m comment --comment \\"round %d\\" -j KUBE-POSTROUTING" % rounds)
    rounds += 1
print(rounds, errors)
"""


def test_a_neighbour_that_rewrites_postrouting_all_the_time_costs_no_write(ns: Namespace, variant: Variant) -> None:
    neighbour = ns.popen(sys.executable, "-c", _NEIGHBOUR, variant.tool("ipv4"))
    assert neighbour.stdout is not None
    assert neighbour.stdout.readline() == "ready\n"
    one = {"backend": variant.backend, "lock_timeout": 60}
    other = dict(one, non_masquerade_cidrs=["10.0.0.0/8"])
    gone = dict(one, state="absent")
    results = run_modules(ns, [one, other, gone] * 20 + [one, one])
    rounds, errors = neighbour.communicate()[0].strip().split(" ", 1)
    assert [result["msg"] for result in results if result.get("failed")] == []
    assert [result["changed"] for result in results] == [True] * 61 + [False]
    assert errors == "[]"
    assert int(rounds) > 0
    jump = ["-m addrtype ! --dst-type LOCAL -j " + CHAIN]
    assert variant.jumps(ns, "ipv4") == jump
    assert variant.rules(ns, "ipv4", "POSTROUTING") == (jump if variant.host is variant else [])
    assert len(variant.rules(ns, "ipv4") or []) == 5


@iptables_only
@pytest.mark.parametrize("installed", [True, False])
def test_flushes_between_two_reads_do_not_bring_the_old_policy_back(
    ns: Namespace, variant: Variant, programs: Programs, installed: bool
) -> None:
    """After each of the first two writes another program flushes the table, when half of it has been read again."""
    variant.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -j ACCEPT")
    if installed:
        apply(ns, backend=variant.backend, non_masquerade_cidrs=["192.168.0.0/16"])
    programs.misbehave(
        lambda name: name == variant.tool("ipv4"),
        'flushed=%s/flushed; done=$(wc -l <"$flushed"); case "$*" in *"-S %s")'
        ' [ "$(grep -c -e "-restore" %s)" -le "$done" ] || [ "$done" -ge 2 ] ||'
        ' { echo >>"$flushed"; "$real" -w -t nat -F; };; esac; exec "$real" "$@"'
        % (programs.path, CHAIN, programs.log),
    )
    (programs.path / "flushed").touch()
    done = run_modules(ns, [{"backend": variant.backend}], path=programs.path)[0]
    assert not done.get("failed"), done["msg"]
    assert (programs.path / "flushed").read_text() == "\n\n", "nothing was flushed"
    assert variant.jumps(ns, "ipv4") == ["-m addrtype ! --dst-type LOCAL -j " + CHAIN]
    assert len(variant.rules(ns, "ipv4") or []) == 5
    assert apply(ns, backend=variant.backend)["changed"] is False


class TestLock:
    """The lock that iptables-legacy takes; iptables-nft needs none."""

    @pytest.fixture
    def holder(self, ns: Namespace) -> t.Iterator[t.Any]:
        """A process inside that holds the xtables lock until it is ended."""
        process = ns.popen("flock", "--no-fork", "/run/xtables.lock", "sleep", "infinity")
        until(lambda: _locked(ns), "the lock to be taken")
        yield process
        process.kill()
        process.communicate()

    @pytest.fixture
    def installed(self, ns: Namespace) -> None:
        """The default policy, before anybody holds the lock."""
        apply(ns, backend=LEGACY.backend)

    @pytest.mark.parametrize("timeout", [0, 1])
    def test_held_for_longer_than_lock_timeout_names_the_holder(
        self, ns: Namespace, installed: None, holder: t.Any, timeout: int
    ) -> None:
        options = {"backend": LEGACY.backend, "lock_timeout": timeout, "non_masquerade_cidrs": []}
        message = refused(ns, **options)
        assert "lock" in message
        assert str(holder.pid) in message
        assert "sleep" in message
        assert "lock_timeout" in message
        holder.kill()
        holder.wait()
        assert len(LEGACY.rules(ns, "ipv4") or []) == 5, "the old rules are gone"
        assert apply(ns, **options)["changed"] is True

    def test_released_within_lock_timeout_the_run_succeeds(
        self, ns: Namespace, installed: None, holder: t.Any, programs: Programs
    ) -> None:
        run = ModuleRun(
            ns, [{"backend": LEGACY.backend, "lock_timeout": 120, "non_masquerade_cidrs": []}], path=programs.path
        )
        run.wait_until_ready()
        until(lambda: _at_work(programs) or not run.running(), "the module to look at the nat table")
        assert run.running(), run.results()
        holder.kill()
        (result,) = run.results()
        assert result["changed"] is True
        assert len(LEGACY.rules(ns, "ipv4") or []) == 2

    @pytest.mark.parametrize("release", ["of-this-machine", "bullseye"])
    def test_a_writer_that_holds_it_most_of_the_time_does_not_starve_us(
        self, ns: Namespace, installed: None, release: str
    ) -> None:
        """Free for the last third of each second: iptables 1.8.7 (bullseye), asking once a second, finds it taken."""
        path = None if release == "of-this-machine" else iptables_of(release, "legacy")
        pattern = "while flock -x 9 && sleep 0.7; do flock -u 9; sleep 0.3; done 9>/run/xtables.lock"
        writer = ns.popen("bash", "-c", pattern)
        try:
            until(lambda: _locked(ns), "the lock to be taken")
            policies = [["10.0.0.0/8"], ["11.0.0.0/8"]] * 3
            runs = [{"backend": LEGACY.backend, "non_masquerade_cidrs": cidrs} for cidrs in policies]
            results = run_modules(ns, runs, path=path)
        finally:
            writer.kill()
            writer.communicate()
        assert [result.get("msg") for result in results] == [None] * len(results)
        assert all(result["changed"] for result in results)

    def test_a_file_with_the_same_inode_number_elsewhere_is_another_one(self, ns: Namespace, tmp_path: Path) -> None:
        ours, other = tmp_path / "ours/lock", tmp_path / "other/lock"
        for file in (ours, other):
            file.parent.mkdir()
            ns.run("mount", "-t", "tmpfs", "none", str(file.parent))
            ns.run("touch", str(file))
        assert len({ns.run("stat", "--format=%i", str(file)) for file in (ours, other)}) == 1
        process = ns.popen("flock", "--no-fork", str(other), "sleep", "infinity")
        try:
            until(lambda: str(process.pid) in ns.inside(xtables_lock.find_holder, str(other)), "the lock to be taken")
            assert ns.inside(xtables_lock.find_holder, str(ours)) == ""
        finally:
            process.kill()
            process.communicate()

    def test_nft_does_not_wait_for_it(self, ns: Namespace, holder: t.Any) -> None:
        """And does not ask legacy, where legacy has no table."""
        assert apply(ns, backend="iptables_nft", lock_timeout=1)["changed"] is True


def _at_work(programs: Programs) -> bool:
    return any("legacy" in call[0] and "nat" in call for call in programs.calls())


def _locked(ns: Namespace) -> bool:
    return ns.inside(xtables_lock.holder).startswith("process")
