# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A kernel, a program or a node that does not do its part."""

from __future__ import annotations

import errno
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import netlink, nf_tables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.netlink import Message
from support.modules import apply, refused, run_module
from support.namespaces import Namespace
from support.programs import Programs
from support.variants import NFTABLES, PODS, Variant, pristine, snapshot

CHAIN = "IP-MASQ-AGENT"
NEW = ["172.16.0.0/12", "10.0.0.0/8"]

#: Loses 172.16.0.0/12 on its way to the kernel, as a kernel without some xt module lost rules.
LOSES_A_RANGE = 'sed -e "/-A .*172[.]16[.]0[.]0/d" | "$real" "$@"'
#: What the programs say where the kernel has no xt_MASQUERADE; and what of it, and of nft_masq, must be passed on.
NO_MODULE = (
    'text=$(cat); case "$text" in *MASQUERADE*) echo "Warning: Extension MASQUERADE revision 0 not supported,'
    " missing kernel module?\niptables-restore v1.8.10 (nf_tables): line 8: RULE_APPEND failed"
    ' (No such file or directory): rule in chain IP-MASQ-AGENT" >&2; exit 4;;'
    ' esac; printf "%s\\n" "$text" | "$real" "$@"'
)
SAID = {"nftables": ["the kernel refused table ip ip_masq_agent: No such file or directory", "nft_masq"]}
SAID_BY_IPTABLES = ["MASQUERADE", "kernel-modules-extra"]
#: What only one family's writes or listings say.
BREAKS = (
    'broken() { echo "can\'t initialize: Input/output error" >&2; exit 3; };'
    ' case "$*" in *--version*|*-V*) exec "$real" "$@";; esac;'
    ' case "$real" in */%stables*) broken;; esac; exec "$real" "$@"'
)
FAMILY_NUMBERS = {"ip": 2, "ip6": 10}


def lose_a_range(changes: t.List[Message]) -> t.List[Message]:
    """The same of nf_tables: the elements with which the range begins and ends are gone when others are there."""
    first, behind = (netlink.nest(1, netlink.attribute(1, bytes([172, end, 0, 0]))) for end in (16, 32))
    if not any(first in change.body for change in changes):
        return changes
    range_ = netlink.nest(1, first) + netlink.nest(1, behind, netlink.network_word(3, 1))
    elements = netlink.text(nf_tables.ELEMENTS_SET, "exempt_ranges"), netlink.nest(nf_tables.ELEMENTS, range_)
    return [*changes, nf_tables.change(nf_tables.DELETE_ELEMENT, 2, "ip_masq_agent", *elements)]


def refuse_masquerading(changes: t.List[Message]) -> t.List[Message]:
    """Do as a kernel without nft_masq."""
    if any(b"masq\0" in change.body for change in changes):
        raise OSError(errno.ENOENT, "")
    return changes


def break_family(programs: Programs, family: str) -> None:
    """Let one family's programs fail, and the kernel about its tables."""

    def read(number: int) -> None:
        if number == FAMILY_NUMBERS[family]:
            raise OSError(errno.EIO, "")

    programs.misbehave(bool, BREAKS % family)
    programs.netlink.read = read


def test_rule_that_the_kernel_lost_is_named_and_the_old_rules_are_back(
    ns: Namespace, variant: Variant, programs: Programs
) -> None:
    variant.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -p tcp -j ACCEPT")
    exemption = "enforce" if variant is NFTABLES else "accept"
    policy = {"backend": variant.backend, "exemption": exemption, "source_cidrs": PODS[:1]}
    apply(ns, non_masquerade_cidrs=["192.168.0.0/16"], **policy)
    variant.load(ns, "ipv4", "-A POSTROUTING -s 10.88.0.0/16 -p udp -j ACCEPT")
    before = _all_rules(ns, variant)
    programs.misbehave_in_writes(LOSES_A_RANGE, lose_a_range)
    message = refused(ns, non_masquerade_cidrs=NEW, path=programs.path, **policy)
    assert "172.16.0.0/12" in message
    assert "10.0.0.0/8" not in message, "names a rule that was not lost"
    assert _all_rules(ns, variant) == before


def _all_rules(ns: Namespace, variant: Variant) -> t.List[t.Any]:
    """Ours and those of others, in order; the tables in any."""
    listed = [variant.host.listing(ns, "ipv4", chain) for chain in (CHAIN, "POSTROUTING")]
    return [*listed, sorted(ns.run("nft", "-s", "list", "ruleset").splitlines())]


def test_rule_that_the_kernel_lost_at_first_install_leaves_nothing(
    ns: Namespace, variant: Variant, programs: Programs
) -> None:
    programs.misbehave_in_writes(LOSES_A_RANGE, lose_a_range)
    message = refused(ns, backend=variant.backend, non_masquerade_cidrs=NEW, path=programs.path)
    assert "172.16.0.0/12" in message
    assert variant.rules(ns, "ipv4") is None
    assert variant.jumps(ns, "ipv4") == []
    assert not NFTABLES.present(ns, "ipv4")


@pytest.mark.parametrize("installed", [False, True])
def test_a_missing_kernel_module_is_reported_with_the_remedy(
    ns: Namespace, variant: Variant, programs: Programs, installed: bool
) -> None:
    if installed:
        apply(ns, backend=variant.backend, non_masquerade_cidrs=["192.168.0.0/16"])
    all_before = snapshot(ns)
    before = [variant.listing(ns, "ipv4", chain) for chain in (CHAIN, "POSTROUTING")]
    programs.misbehave_in_writes(NO_MODULE, refuse_masquerading)
    # Another way to masquerade, so that each backend has to write it.
    message = refused(ns, backend=variant.backend, random_fully=False, path=programs.path)
    assert [words for words in SAID.get(variant.backend, SAID_BY_IPTABLES) if words not in message] == []
    assert [variant.listing(ns, "ipv4", chain) for chain in (CHAIN, "POSTROUTING")] in (before, [before[0], []])
    if variant is NFTABLES:  # a table of iptables-legacy may have been made
        assert snapshot(ns) == all_before
        assert pristine(all_before) != installed


@pytest.mark.parametrize("broken, whole", [("ip6", "ipv4"), ("ip", "ipv6")], ids=["IPv6 broken", "IPv4 broken"])
def test_a_broken_family_neither_stops_the_other_nor_is_hidden_by_it(
    ns: Namespace, variant: Variant, programs: Programs, broken: str, whole: str
) -> None:
    break_family(programs, broken)
    result = run_module(ns, backend=variant.backend, enable_ipv6=True, path=programs.path)
    assert result["failed"] is True
    assert "Input/output error" in result["msg"]
    assert {"ip6": "ipv6", "ip": "ipv4"}[broken] in result["msg"].lower()
    assert result["changed"] is True, "a change was made and must be told"
    if variant is NFTABLES:
        assert (variant.rules(ns, whole) or [""])[-1] == "-j MASQUERADE --random-fully"
        assert "masquerade fully-random" in " ".join(result["families"][whole]["rules"])
    else:
        assert result["families"][whole]["rules"] == variant.listing(ns, whole, CHAIN)
    assert len(variant.jumps(ns, whole)) == 1


def test_removal_goes_on_past_a_broken_family(ns: Namespace, variant: Variant, programs: Programs) -> None:
    apply(ns, backend=variant.backend, enable_ipv6=True)
    break_family(programs, "ip6")
    result = run_module(ns, backend=variant.backend, state="absent", path=programs.path)
    assert result["failed"] is True
    assert "Input/output error" in result["msg"]
    assert variant.rules(ns, "ipv4") is None
    assert variant.jumps(ns, "ipv4") == []


@pytest.mark.parametrize("hidden", [["ip*tables*"], ["ip*tables*", "nft"]], ids=" ".join)
def test_without_iptables_the_rules_go_to_nftables(ns: Namespace, hidden: t.List[str]) -> None:
    done = apply(ns, wrapper=_hiding(*hidden))
    assert done["backend"]["name"] == "nftables"
    assert len(NFTABLES.jumps(ns, "ipv4")) == 1
    assert apply(ns, wrapper=_hiding(*hidden))["changed"] is False


def _hiding(*programs: str) -> t.List[str]:
    """A command line that runs what follows it where these programs cannot be run."""
    patterns = " ".join("/usr/sbin/%s /sbin/%s" % (name, name) for name in programs)
    hide = 'for f in %s; do mount --bind /dev/null "$f"; done 2>/dev/null; exec "$@"' % patterns
    return ["unshare", "--mount", "sh", "-c", hide, "sh"]


def test_without_root_the_run_is_refused_and_nothing_is_touched(ns: Namespace, variant: Variant) -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    # May read all files, so that the checkout may lie anywhere; nothing else.
    only = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    message = refused(ns, backend=variant.backend, wrapper=nobody + only)
    assert "root" in message
    assert "become" in message
    assert pristine(snapshot(ns))
