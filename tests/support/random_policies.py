# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random policies, and random nat tables that hold them more or less, among the rules of other programs.

All of it is plain data: a policy is the options of the module by name. Nothing here imports the code under test, so
what ``assert_holds`` expects does not come from it. ``engine`` turns policies into values of the code under test.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
import typing as t

from hypothesis import strategies as st

from .nat_rules import BUILTIN_CHAINS, LEFT_OUT, Chains, target, without_comment

CHAIN = "IP-MASQ-AGENT"
GOOD_JUMP = ["-m", "addrtype", "!", "--dst-type", "LOCAL", "-j", CHAIN]
#: What comes before the exemptions that end the walk through POSTROUTING, by IP version, in alphabetical order.
_MARKED = "-m mark ! --mark 0x0/0x6000 -j RETURN"
GUARDS = {4: [_MARKED, "-s 127.0.0.0/8 -j RETURN"], 6: [_MARKED, "-s ::1/128 -j RETURN"]}
#: The rule in front of each accepted range: connections whose destination was changed go on.
REDIRECTED = ["-m", "conntrack", "--ctstate", "DNAT", "-j", "RETURN"]
#: Targets behind which no packet gets, where nothing limits them.
FINAL = ("ACCEPT", "RETURN", "MASQUERADE", "SNAT")
#: Chains of earlier agents, which may be in the table and jumped to.
PREDECESSORS = ("NON-MASQUERADE-DAEMON", "IP-MASQ")


def networks(version: int) -> st.SearchStrategy:
    """Return networks of one family, of any length except everything, with no host bits."""
    kind = ipaddress.IPv4Network if version == 4 else ipaddress.IPv6Network
    bits = 32 if version == 4 else 128
    # A small pool of addresses, so that ranges meet, contain and repeat each other.
    return st.builds(
        lambda base, length: kind(((base << (bits - 8)) >> (bits - length) << (bits - length), length)),
        st.sampled_from([10, 11, 100, 172, 192, 203, 252, 253]),
        st.integers(1, bits),
    )


Policy = t.Dict[str, t.Any]

ports = st.integers(1, 65535)
port_ranges = st.builds(lambda a, b: str(a) if a == b else "%d-%d" % (min(a, b), max(a, b)), ports, ports)
cidrs = (networks(4) | networks(6)).map(str)
interfaces = st.lists(st.sampled_from(["eth0", "eth1", "eth+", "eth1+", "bond0", "bond+"]), max_size=3)
#: Of single bits, of several, of all; some are part of others, or overlap them.
_MARKS = ("0x4000/0x4000", "0x2000/0x6000", "0x0/0xf", "7", "0", "0x200/0xff00", "0x200/0xf00", "0x1200/0xff00")
marks = st.lists(st.sampled_from([*_MARKS, "0x80000000/0x80000000", "0xffff0000", "0x1/0x3"]), max_size=4, unique=True)
services = (
    st.fixed_dictionaries({"protocols": st.lists(st.sampled_from(["tcp", "udp", "icmp"]), max_size=2, unique=True)})
    | st.fixed_dictionaries(
        {
            "protocols": st.lists(st.sampled_from(["tcp", "udp", "sctp"]), max_size=2, unique=True),
            "ports": st.lists(st.sampled_from(["80", "80-81", "80-82"]), min_size=1, max_size=2, unique=True),
        }
    )
)  # fmt: skip
addresses = st.sampled_from(["192.0.2.7", "192.0.2.8-192.0.2.9", "2001:db8::7", "2001:db8::8-2001:db8::9"])


def _of_family(address: str) -> st.SearchStrategy:
    return st.lists(networks(6 if ":" in address else 4).map(str), max_size=2)


_mappings = st.none() | st.sampled_from(["random", "keep"])


def _snat(address: str) -> st.SearchStrategy:
    return st.fixed_dictionaries(
        {
            "address": st.just(address),
            "out_interface": st.none() | st.sampled_from(["eth0", "eth1", "eth+", "bond+"]),
            "source_cidrs": _of_family(address),
            "ports_mapping": _mappings,
        }
    )


def _rule(action: str, address: t.Optional[str]) -> st.SearchStrategy:
    ranges = st.lists(cidrs, max_size=2) if address is None else _of_family(address)
    mapping = _mappings if action in ("masquerade", "snat") else st.none()
    entry = st.fixed_dictionaries(
        {"sources": ranges, "destinations": ranges, "out_interfaces": interfaces, "ports_mapping": mapping}
    )
    return st.builds(lambda one, service: dict(one, action=action, address=address, **service), entry, services)


snats = st.lists(addresses.flatmap(_snat), max_size=2)
rules = st.lists(
    st.sampled_from(["exempt", "masquerade", "skip"]).flatmap(lambda action: _rule(action, None))
    | addresses.flatmap(lambda address: _rule("snat", address)),
    max_size=3,
)
#: Of ip-masq-agent, and what decides how traffic is masqueraded.
_PLAIN: t.Dict[str, st.SearchStrategy] = {
    "non_masquerade_cidrs": st.lists(cidrs, max_size=8),
    "masq_link_local": st.booleans(),
    "masq_link_local_ipv6": st.booleans(),
    "enable_ipv6": st.just(True),
    "random_fully": st.booleans(),
    "to_ports": st.lists(port_ranges, max_size=3),
    "exemption": st.sampled_from(["return", "accept"]),
}
_LINK_LOCAL = {4: ("masq_link_local", "169.254.0.0/16"), 6: ("masq_link_local_ipv6", "fe80::/10")}


def _agreeing(policy: Policy) -> Policy:
    """Return a policy without options that contradict each other, which would be refused."""
    exempt = [*policy["non_masquerade_cidrs"], *(network for _option, network in _LINK_LOCAL.values())]
    everything = {"0.0.0.0/0", "::/0"} & {str(network) for network in _collapsed(policy["source_cidrs"])}
    return dict(
        policy,
        masquerade_cidrs=[network for network in policy["masquerade_cidrs"] if network not in exempt],
        except_interfaces=[name for name in policy["except_interfaces"] if name not in policy["out_interfaces"]],
        leaks=policy["leaks"] if policy["source_cidrs"] and not everything else "ignore",
    )


def _collapsed(listed: t.Iterable[str], version: t.Optional[int] = None) -> t.List[t.Any]:
    """Return networks, merged and sorted.

    :param version: leaves others out; None: those of both versions.
    """
    parsed = [ipaddress.ip_network(one) for one in listed]
    kinds: t.List[t.List[t.Any]] = [[one for one in parsed if one.version == kind] for kind in (4, 6)]
    return [one for some in kinds for one in ipaddress.collapse_addresses(some) if version in (None, one.version)]


policies = st.fixed_dictionaries(_PLAIN)
#: With the options that treat part of the traffic otherwise.
narrow_policies = st.fixed_dictionaries(
    {
        **_PLAIN,
        "exemption": st.sampled_from(["return", "accept", "enforce"]),
        "masquerade_cidrs": st.lists(cidrs, max_size=8),
        "source_cidrs": st.lists(cidrs, max_size=3),
        "out_interfaces": interfaces,
        "except_interfaces": interfaces,
        "skip_marks": marks,
        "snat": snats,
        "rules": rules,
        "jump_position": st.sampled_from(["keep", "first", "last"]),
        "flush_conntrack": st.sampled_from(["none", "changed"]),
        "leaks": st.sampled_from(["ignore", "count", "drop"]),
    }
).map(_agreeing)
families = st.sampled_from(["ipv4", "ipv6"])


class World(t.NamedTuple):
    """A policy and a table that it meets."""

    family: str
    policy: Policy
    chains: Chains


#: Return the rules of the chain of a policy and family, as they are written.
Write = t.Callable[[Policy, str], t.List[str]]

JUMP = (
    "-m addrtype ! --dst-type LOCAL "
    '-m comment --comment "ip-masq-agent: all traffic that is not for the node itself" -j ' + CHAIN
)
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


def _foreign_rule_in_ours(family: str, draw: Draw, chains: Chains) -> None:
    if CHAIN in chains:
        foreign = st.sampled_from([*_FOREIGN_IN_OURS, *GUARDS[_version(family)]])
        chains[CHAIN].insert(_place(draw, chains[CHAIN]), draw(foreign))


def _flush(_draw: Draw, chains: Chains) -> None:
    if CHAIN in chains:
        chains[CHAIN].clear()


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


_DAMAGES: t.Tuple[t.Callable[[Draw, Chains], None], ...] = (
    _delete_rule,
    _move_rule,
    _double_rule,
    _flush,
    lambda _draw, chains: drop_chain(chains),
    lambda _draw, chains: drop_jumps(chains),
    _add_jump,
    _spoil_jump,
    _foreign_postrouting,
    _predecessor,
)


@st.composite
def worlds(draw: Draw, write: Write, predecessors: bool = True) -> World:
    """Draw a policy, and a table in which it held before up to six accidents.

    :param predecessors: whether earlier agents may have been there.
    """
    family = draw(families)
    policy = draw(policies)
    chains: Chains = {name: [] for name in BUILTIN_CHAINS}
    for name in _FOREIGN_CHAINS:
        chains[name] = ["-m mark ! --mark 0x4000/0x4000 -j RETURN", "-p tcp -j MASQUERADE"]
    chains["OUTPUT"] = ["-p udp -j RETURN"]
    chains["POSTROUTING"] = draw(st.lists(st.sampled_from(_FOREIGN_POSTROUTING), max_size=3))
    chains[CHAIN] = write(policy, family)
    chains["POSTROUTING"].insert(_place(draw, chains["POSTROUTING"]), JUMP)
    damages = [functools.partial(_foreign_rule_in_ours, family), *_DAMAGES[: None if predecessors else -1]]
    for damage in draw(st.lists(st.sampled_from(damages), max_size=6)):
        damage(draw, chains)
    return World(family, policy, chains)


def others(chains: Chains) -> Chains:
    """Return all that is neither ours nor an earlier agent's."""
    gone = (CHAIN,) + PREDECESSORS
    return {
        name: [rule for rule in rules if target(rule) not in gone] for name, rules in chains.items() if name not in gone
    }


def guards(policy: Policy, family: str) -> t.List[str]:
    """Return what the chain of a policy begins with."""
    return GUARDS[_version(family)] if policy.get("exemption") == "accept" else []


def _version(family: str) -> int:
    return {"ipv4": 4, "ipv6": 6}[family]


def _exempt(policy: Policy, version: int) -> t.List[t.Any]:
    """Return the exempt ranges of a policy, merged."""
    option, link_local = _LINK_LOCAL[version]
    listed = policy.get("non_masquerade_cidrs", ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"])
    return _collapsed([*listed, *([] if policy.get(option) else [link_local])], version)


def assert_holds(chains: Chains, policy: Policy, family: str = "ipv4") -> None:
    """Assert that the table does what the policy says, without the code under test."""
    rules = [without_comment(rule) for rule in chains[CHAIN]]
    version, expected = _version(family), guards(policy, family)
    leading = list(itertools.takewhile(expected.__contains__, (" ".join(rule) for rule in rules)))
    # What stands there twice says the same twice.
    assert sorted(set(leading)) == expected
    rules = rules[len(leading) :]
    accepts = policy.get("exemption") == "accept"
    if accepts:
        accepting = [i for i, rule in enumerate(rules) if rule[-1] == "ACCEPT"]
        assert all(i and rules[i - 1] == rules[i][:-2] + REDIRECTED for i in accepting)
        assert sum(rule[-len(REDIRECTED) :] == REDIRECTED for rule in rules) == len(accepting)
        rules = [rule for rule in rules if rule[-len(REDIRECTED) :] != REDIRECTED]
    count = sum(1 for rule in rules if rule[-2:] in (["-j", "RETURN"], ["-j", "ACCEPT"]))
    exempt = [_destination(rule[:-2], version) for rule in rules[:count]]
    assert {rule[-1] for rule in rules[:count]} <= {"ACCEPT" if accepts else "RETURN"}
    assert _collapsed(exempt) == _exempt(policy, version)
    # No packet meets the rules of two protocols: only within one does their order matter.
    masquerade = list(_masquerade(policy))
    # What follows the rule for all packets is never met.
    rules, unmet = rules[count : rules.index(masquerade[-1]) + 1], rules[rules.index(masquerade[-1]) + 1 :]
    assert sorted(rules, key=_protocol) == sorted(masquerade, key=_protocol)
    assert all("MASQUERADE" in rule for rule in unmet)
    jumps = [i for i, rule in enumerate(chains["POSTROUTING"]) if target(rule) == CHAIN]
    # What the first one lets through, those that directly follow it let through as well.
    assert jumps == list(range(jumps[0], jumps[0] + len(jumps))), chains["POSTROUTING"]
    assert all(without_comment(chains["POSTROUTING"][jump]) == GOOD_JUMP for jump in jumps)
    assert_reachable(chains["POSTROUTING"][: jumps[0]])
    assert not set(PREDECESSORS) & set(chains)


def _protocol(words: t.Sequence[str]) -> str:
    return words[1] if words[0] == "-p" else ""


def _masquerade(policy: Policy) -> t.Iterator[t.List[str]]:
    """Return the words of the masquerade rules of a policy, written out here as iptables prints them."""
    fully = ["--random-fully"] if policy.get("random_fully", True) else []
    ranges = [(text, [int(part) for part in text.split("-")]) for text in policy.get("to_ports", [])]
    sizes = [listed[-1] - listed[0] + 1 for _text, listed in ranges]
    for protocol in ("tcp", "udp", "sctp") if ranges else ():
        for number, (text, _listed) in enumerate(ranges):
            # The kernel counts in units of 2**-31.
            share = int(2**31 * (sizes[number] / sum(sizes[number:])) + 0.5) / 2**31
            by_chance = "-m statistic --mode random --probability %.11f" % share if ranges[number + 1 :] else ""
            yield ["-p", protocol, *by_chance.split(), "-j", "MASQUERADE", "--to-ports", text, *fully]
    yield ["-j", "MASQUERADE", *fully]


def assert_reachable(before: t.Sequence[str]) -> None:
    """Assert that packets get past these rules of POSTROUTING."""
    for rule in before:
        words = without_comment(rule)
        final = words[0] == "-g" or (words[0] == "-j" and words[1] in FINAL)
        assert LEFT_OUT in rule or not final, "unreachable behind %s" % rule


def _destination(words: t.List[str], version: int) -> str:
    if not words:
        return "0.0.0.0/0" if version == 4 else "::/0"
    assert words[0] == "-d" and len(words) == 2, words
    return words[1]


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
