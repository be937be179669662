# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random policies, and random nat tables that hold them more or less, among the rules of other programs."""

from __future__ import annotations

import ipaddress
import itertools
import re
import shlex
import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Managed
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.detect import Tool
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_backend import Iptables
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import render_jump, render_rule
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_tool import IptablesTool
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.ruleset import Masquerade, Ruleset, from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.entries import PolicyRule, Snat
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import LEAKS, Config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.values import (
    LINK_LOCAL,
    AddressRange,
    PortRange,
    Service,
    parse_address_range,
    parse_interfaces,
    parse_mark,
)
from hypothesis import strategies as st

from .nat import BUILTIN_CHAINS, LEFT_OUT, Chains, Nat, target

CHAIN = "IP-MASQ-AGENT"
GOOD_JUMP = ["-m", "addrtype", "!", "--dst-type", "LOCAL", "-j", CHAIN]
#: What comes before the exemptions that end the walk through POSTROUTING, by IP version, in alphabetical order.
_MARKED = "-m mark ! --mark 0x0/0x6000 -j RETURN"
GUARDS = {4: [_MARKED, "-s 127.0.0.0/8 -j RETURN"], 6: [_MARKED, "-s ::1/128 -j RETURN"]}
#: What stands in front of each range that is accepted: connections whose destination was changed go on.
REDIRECTED = ["-m", "conntrack", "--ctstate", "DNAT", "-j", "RETURN"]
#: Targets behind which no packet gets, where nothing limits them.
FINAL = ("ACCEPT", "RETURN", "MASQUERADE", "SNAT")
#: Chains of earlier agents, which may be in the table and jumped to.
PREDECESSORS = ("NON-MASQUERADE-DAEMON", "IP-MASQ")


def networks(version: int) -> st.SearchStrategy:
    """Networks of one family, of any length except everything, with no host bits."""
    kind = ipaddress.IPv4Network if version == 4 else ipaddress.IPv6Network
    bits = 32 if version == 4 else 128
    # A small pool of addresses, so that ranges meet, contain and repeat each other.
    return st.builds(
        lambda base, length: kind(((base << (bits - 8)) >> (bits - length) << (bits - length), length)),
        st.sampled_from([10, 11, 100, 172, 192, 203, 252, 253]),
        st.integers(1, bits),
    )


ports = st.integers(1, 65535)
port_ranges = st.builds(lambda a, b: PortRange(min(a, b), max(a, b)), ports, ports)

ranges = st.lists(networks(4) | networks(6), max_size=8).map(tuple)
interfaces = st.lists(st.sampled_from(["eth0", "eth1", "eth+", "eth1+", "bond0", "bond+"]), max_size=3).map(
    parse_interfaces
)
marks = st.lists(
    st.sampled_from(["0x4000/0x4000", "0x2000/0x6000", "0x0/0xf", "7", "0"]).map(parse_mark), max_size=3
).map(tuple)
services = st.lists(
    st.sampled_from(["tcp", "udp", "icmp"]).map(Service)
    | st.builds(
        Service, st.sampled_from(["tcp", "udp", "sctp"]), st.builds(PortRange, st.just(80), st.integers(80, 82))
    ),
    max_size=2,
    unique=True,
).map(tuple)
addresses = st.sampled_from(["192.0.2.7", "192.0.2.8-192.0.2.9", "2001:db8::7", "2001:db8::8-2001:db8::9"]).map(
    parse_address_range
)


def _of_version(version: int, most: int) -> st.SearchStrategy:
    return st.lists(networks(version), max_size=most).map(tuple)


def _snat(address: AddressRange) -> st.SearchStrategy:
    return st.builds(
        Snat,
        st.just(address),
        st.none() | st.sampled_from(["eth0", "eth1", "eth+", "bond+"]),
        _of_version(address.version, 2),
    )


def _rule(action: str, address: t.Optional[AddressRange]) -> st.SearchStrategy:
    some = st.lists(networks(4) | networks(6), max_size=2).map(tuple)
    ranges = some if address is None else _of_version(address.version, 2)
    return st.builds(PolicyRule, st.just(action), ranges, ranges, interfaces, services, st.just(address))


snats = st.lists(addresses.flatmap(_snat), max_size=2).map(tuple)
rules = st.lists(
    st.sampled_from(["exempt", "masquerade", "skip"]).flatmap(lambda action: _rule(action, None))
    | addresses.flatmap(lambda address: _rule("snat", address)),
    max_size=3,
).map(tuple)
#: Of ip-masq-agent, and what decides how traffic is masqueraded.
plain: t.Dict[str, t.Any] = {
    "non_masquerade_cidrs": ranges,
    "masq_link_local": st.booleans(),
    "masq_link_local_ipv6": st.booleans(),
    "enable_ipv6": st.just(True),
    "random_fully": st.booleans(),
    "to_ports": st.lists(port_ranges, max_size=3).map(tuple),
    "exemption": st.sampled_from(["return", "accept"]),
}
nobody = st.just(())
configs = st.builds(
    Config,
    **plain,
    masquerade_cidrs=nobody,
    source_cidrs=nobody,
    out_interfaces=nobody,
    except_interfaces=nobody,
    skip_marks=nobody,
    snat=nobody,
    rules=nobody,
    leaks=st.just("ignore"),
)
#: With the options that treat part of the traffic otherwise.
narrow_configs = st.builds(
    Config,
    **{**plain, "exemption": st.sampled_from(["return", "accept", "enforce"])},
    masquerade_cidrs=ranges,
    source_cidrs=st.lists(networks(4) | networks(6), max_size=3).map(tuple),
    out_interfaces=interfaces,
    except_interfaces=interfaces,
    skip_marks=marks,
    snat=snats,
    rules=rules,
    jump_position=st.sampled_from(["keep", "first", "last"]),
    flush_conntrack=st.sampled_from(["none", "changed"]),
    leaks=st.sampled_from(LEAKS),
).map(lambda config: config._replace(masquerade_cidrs=_apart(config.masquerade_cidrs, config.non_masquerade_cidrs)))
families = st.sampled_from(["ipv4", "ipv6"])


def _apart(masquerade: t.Sequence[t.Any], exempt: t.Sequence[t.Any]) -> t.Tuple[t.Any, ...]:
    """Ranges without those that the other list has."""
    return tuple(network for network in masquerade if network not in exempt and network not in LINK_LOCAL.values())


class World(t.NamedTuple):
    """A policy and a table that it meets."""

    family: str
    wanted: Ruleset
    chains: Chains


def healthy(wanted: Ruleset) -> t.List[str]:
    """The rules of a chain as we write it."""
    return [render_rule(CHAIN, rule)[len("-A %s " % CHAIN) :] for rule in wanted.rules]


JUMP = render_jump(CHAIN)[len("-A POSTROUTING ") :]
_NOT_LOCAL = "-m addrtype ! --dst-type LOCAL "
_JUMPS = (
    JUMP,
    JUMP,
    _NOT_LOCAL + "-j " + CHAIN,
    _NOT_LOCAL + '-m comment --comment "\\"ip-masq-agent: in quotes\\"" -j ' + CHAIN,
    "-j " + CHAIN,
    "-m addrtype --dst-type LOCAL -j " + CHAIN,
    _NOT_LOCAL + "-g " + CHAIN,
    _NOT_LOCAL + _NOT_LOCAL + "-j " + CHAIN,
    "-p tcp " + _NOT_LOCAL + "-j " + CHAIN,
    '-m comment --comment "do not touch" -j ' + CHAIN,
)
_FOREIGN_CHAINS = ("KUBE-POSTROUTING", "CNI-0123", "OTHER")
_FOREIGN_POSTROUTING = (
    '-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
    "-j OTHER",
    "-g OTHER",
    "-p udp -j OTHER",
    "-j RETURN",
    "-j ACCEPT",
    "-j MASQUERADE",
    "-p tcp -j ACCEPT",
    "-o eth1 -j MASQUERADE",
    "-m mark --mark 0x4000/0x4000 -j RETURN",
    '-m comment --comment "with a \\" and a \\\\ in it" -j OTHER',
    '-m comment --comment "ip-masq-agent: not a jump at all" -j ACCEPT',
)
_FOREIGN_IN_OURS = (
    "-j RETURN",
    "-j ACCEPT",
    "-j MASQUERADE",
    "-p tcp -j MASQUERADE --to-ports 1-65535",
    "-o eth1 -j RETURN",
    "-j OTHER",
    '-p udp -m comment --comment "ip-masq-agent: not ours" -j RETURN',
    "-s 127.0.0.0/8 -j RETURN",
    _MARKED,
)

Draw = t.Callable[[st.SearchStrategy], t.Any]


def _place(draw: Draw, rules: t.List[str]) -> int:
    return t.cast(int, draw(st.integers(0, len(rules))))


def _delete_rule(draw: Draw, chains: Chains) -> None:
    if chains.get(CHAIN):
        chains[CHAIN].pop(draw(st.integers(0, len(chains[CHAIN]) - 1)))


def _move_rule(draw: Draw, chains: Chains) -> None:
    if chains.get(CHAIN):
        rule = chains[CHAIN].pop(draw(st.integers(0, len(chains[CHAIN]) - 1)))
        chains[CHAIN].insert(_place(draw, chains[CHAIN]), rule)


def _double_rule(draw: Draw, chains: Chains) -> None:
    if chains.get(CHAIN):
        chains[CHAIN].insert(_place(draw, chains[CHAIN]), draw(st.sampled_from(chains[CHAIN])))


def _foreign_rule_in_ours(draw: Draw, chains: Chains) -> None:
    if CHAIN in chains:
        chains[CHAIN].insert(_place(draw, chains[CHAIN]), draw(st.sampled_from(_FOREIGN_IN_OURS)))


def _flush(_draw: Draw, chains: Chains) -> None:
    if CHAIN in chains:
        chains[CHAIN].clear()


def _remove_chain(_draw: Draw, chains: Chains) -> None:
    drop_chain(chains)


def _remove_jumps(_draw: Draw, chains: Chains) -> None:
    drop_jumps(chains)


def _add_jump(draw: Draw, chains: Chains) -> None:
    if CHAIN in chains:
        chains["POSTROUTING"].insert(_place(draw, chains["POSTROUTING"]), draw(st.sampled_from(_JUMPS)))


def _spoil_jump(draw: Draw, chains: Chains) -> None:
    if CHAIN in chains:
        drop_jumps(chains)
        _add_jump(draw, chains)


def _foreign_postrouting(draw: Draw, chains: Chains) -> None:
    chains["POSTROUTING"].insert(_place(draw, chains["POSTROUTING"]), draw(st.sampled_from(_FOREIGN_POSTROUTING)))


def _predecessor(draw: Draw, chains: Chains) -> None:
    name = draw(st.sampled_from(PREDECESSORS))
    chains[name] = [_NOT_LOCAL + "-j RETURN", _NOT_LOCAL + "-j MASQUERADE"]
    for _number in range(draw(st.integers(1, 2))):
        jump = _NOT_LOCAL + "-j " + name
        chains["POSTROUTING"].insert(_place(draw, chains["POSTROUTING"]), jump)


_DAMAGES = (
    _delete_rule,
    _move_rule,
    _double_rule,
    _foreign_rule_in_ours,
    _flush,
    _remove_chain,
    _remove_jumps,
    _add_jump,
    _spoil_jump,
    _foreign_postrouting,
    _predecessor,
)


@st.composite
def worlds(draw: Draw, predecessors: bool = True) -> World:
    """A policy, and a table in which it held before up to six accidents.

    :param predecessors: whether earlier agents may have been there.
    """
    family = draw(families)
    wanted = from_config(draw(configs), family)
    chains: Chains = {name: [] for name in BUILTIN_CHAINS}
    for name in _FOREIGN_CHAINS:
        chains[name] = ["-m mark ! --mark 0x4000/0x4000 -j RETURN", "-p tcp -j MASQUERADE"]
    chains["OUTPUT"] = ["-p udp -j RETURN"]
    chains["POSTROUTING"] = draw(st.lists(st.sampled_from(_FOREIGN_POSTROUTING), max_size=3))
    chains[CHAIN] = healthy(wanted)
    chains["POSTROUTING"].insert(_place(draw, chains["POSTROUTING"]), JUMP)
    for damage in draw(st.lists(st.sampled_from(_DAMAGES if predecessors else _DAMAGES[:-1]), max_size=6)):
        damage(draw, chains)
    return World(family, wanted, chains)


class _Iptables(IptablesTool):
    """Iptables in a network namespace, real or simulated, in which there is a nat table and no other."""

    def has_table(self, name: str) -> bool:
        return name == "nat"


def iptables(
    run: t.Any, variant: str, family: str, path: str, version: t.Tuple[int, ...] = (1, 8, 9), lock_timeout: int = 5
) -> IptablesTool:
    """The collection's iptables tool, over a runner."""
    return _Iptables(run, variant, family, Tool(path, version), lock_timeout)


def backend(
    nat: Nat, family: str = "ipv4", lock_timeout: int = 5, adopt: bool = True, position: str = "keep"
) -> Iptables:
    """The backend under test on a simulated table."""
    command = "/usr/sbin/" + ("iptables" if family == "ipv4" else "ip6tables")
    is_nft = nat.variant == "iptables_nft"
    return Iptables(
        iptables(nat.run, nat.variant, family, command, lock_timeout=lock_timeout),
        Managed(CHAIN, position, adopt),
        kernel=nat if is_nft else None,
        mangle=nat.mangle if is_nft else None,
    )


def others(chains: Chains) -> Chains:
    """All that is neither ours nor an earlier agent's."""
    gone = (CHAIN,) + PREDECESSORS
    return {
        name: [rule for rule in rules if target(rule) not in gone] for name, rules in chains.items() if name not in gone
    }


def guards(wanted: Ruleset) -> t.List[str]:
    """What the chain of a policy begins with."""
    networks = (*wanted.exempt, *(guard.source for guard in wanted.guards if guard.source))
    version = next((network.version for network in networks), 4)
    return GUARDS[version] if wanted.verdict == "ACCEPT" else []


def assert_holds(chains: Chains, wanted: Ruleset) -> None:
    """The table does what the policy says, judged without the code under test."""
    rules = [without_comment(rule) for rule in chains[CHAIN]]
    expected = guards(wanted)
    leading = list(itertools.takewhile(expected.__contains__, (" ".join(rule) for rule in rules)))
    # What stands there twice says the same twice.
    assert sorted(set(leading)) == expected
    rules = rules[len(leading) :]
    if wanted.verdict == "ACCEPT":
        accepting = [i for i, rule in enumerate(rules) if rule[-1] == "ACCEPT"]
        assert all(i and rules[i - 1] == rules[i][:-2] + REDIRECTED for i in accepting)
        assert sum(rule[-len(REDIRECTED) :] == REDIRECTED for rule in rules) == len(accepting)
        rules = [rule for rule in rules if rule[-len(REDIRECTED) :] != REDIRECTED]
    count = sum(1 for rule in rules if rule[-2:] in (["-j", "RETURN"], ["-j", "ACCEPT"]))
    exempt = [ipaddress.ip_network(_destination(rule[:-2], wanted)) for rule in rules[:count]]
    assert {rule[-1] for rule in rules[:count]} <= {wanted.verdict}
    assert list(ipaddress.collapse_addresses(exempt)) == list(ipaddress.collapse_addresses(wanted.exempt))
    # No packet meets the rules of two protocols: only within one does their order matter.
    assert sorted(rules[count:], key=_protocol) == sorted(map(_masquerade, wanted.masquerade), key=_protocol)
    assert rules[-1:] == [_masquerade(rule) for rule in wanted.masquerade[-1:]]
    jumps = [i for i, rule in enumerate(chains["POSTROUTING"]) if target(rule) == CHAIN]
    # What the first one lets through, those that directly follow it let through as well.
    assert jumps == list(range(jumps[0], jumps[0] + len(jumps))), chains["POSTROUTING"]
    assert all(without_comment(chains["POSTROUTING"][jump]) == GOOD_JUMP for jump in jumps)
    assert_reachable(chains["POSTROUTING"][: jumps[0]])
    assert not set(PREDECESSORS) & set(chains)


def _protocol(words: t.Sequence[str]) -> str:
    return words[1] if words[0] == "-p" else ""


def _masquerade(rule: Masquerade) -> t.List[str]:
    """The words of a masquerade rule, written out here as iptables prints them."""
    words = "-p %s " % rule.protocol if rule.protocol else ""
    if rule.share is not None:
        words += "-m statistic --mode random --probability %.11f " % (rule.share / 2147483648)
    words += "-j MASQUERADE"
    if rule.to_ports:
        first, last = rule.to_ports
        words += " --to-ports %d" % first + ("-%d" % last if last != first else "")
    return (words + " --random-fully" * rule.random_fully).split()


def assert_reachable(before: t.Sequence[str]) -> None:
    """Packets get past these rules of POSTROUTING."""
    for rule in before:
        words = without_comment(rule)
        final = words[0] == "-g" or (words[0] == "-j" and words[1] in FINAL)
        assert LEFT_OUT in rule or not final, "unreachable behind %s" % rule


def _destination(words: t.List[str], wanted: Ruleset) -> str:
    if not words:
        return "0.0.0.0/0" if wanted.exempt[0].version == 4 else "::/0"
    assert words[0] == "-d" and len(words) == 2, words
    return words[1]


def without_comment(rule: str) -> t.List[str]:
    """The words of a rule that say something to packets."""
    words = shlex.split(rule)
    while "--comment" in words:
        at = words.index("--comment")
        del words[at - 2 : at + 2]
    return words


def drop_jumps(chains: Chains) -> None:
    """Take the jumps to our chain out of a table."""
    chains["POSTROUTING"] = [rule for rule in chains["POSTROUTING"] if target(rule) != CHAIN]


def drop_chain(chains: Chains) -> None:
    """Take our chain and the jumps to it out of a table."""
    chains.pop(CHAIN, None)
    drop_jumps(chains)


_COMMENT = re.compile(r'-m comment --comment (?:"[^"]*"|\S+) ')

#: Ways in which other agents write the same rule.
RESTYLES: t.Dict[str, t.Callable[[str], str]] = {
    "as we do": lambda rule: rule,
    "no comment": lambda rule: _COMMENT.sub("", rule),
    "another comment": lambda rule: _COMMENT.sub('-m comment --comment "ip-masq: \\"local\\" traffic" ', rule),
    "addrtype on every rule": lambda rule: _COMMENT.sub(_NOT_LOCAL, rule),
}
