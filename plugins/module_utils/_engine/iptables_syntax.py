# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules as iptables prints and reads them; no process is started here.

The form is that of ``iptables -S``, which iptables-restore reads too: destination and protocol before the matches,
``--to-ports`` before ``--random-fully``, no ``-d`` for everything, probabilities with eleven digits (xtables 1.8).
"""

from __future__ import annotations

import functools
import ipaddress
import re
import typing as t

from .._errors import ConfigError
from .._policy import values
from .._policy.values import EXEMPT, MASQUERADE, SKIP, AddressRange, Network, PortRange, Service
from .._system.families import PORT_PROTOCOLS, PROTOCOLS, Family
from . import rule_comments as comments
from .masquerade_ports import SHARE_UNIT
from .ruleset import EVERYTHING, FIRST, LEAK, REDIRECTED, UNSEEN, AnyRule, Guard, Masquerade, OwnRule, guards

#: Tables in which we have a chain.
NAT, MANGLE = "nat", "mangle"

#: What our jump matches, and what releases of ip-masq-agent before 2.0.1 repeat on every rule.
NOT_LOCAL = ("-m", "addrtype", "!", "--dst-type", "LOCAL")

#: The same for the jump to our chain in the mangle table: packets that pass through the node. And those of the node.
PASSING = ("-m", "addrtype", "!", "--src-type", "LOCAL", "!", "--dst-type", "LOCAL")
OWN = ("-m", "addrtype", "--src-type", "LOCAL")

#: How iptables 1.8.7 prints protocols on a node without /etc/protocols, and a second name that others have for one.
_PROTOCOL_NAMES = {**{str(number): name for name, number in PROTOCOLS.items()}, "icmpv6": "ipv6-icmp"}

#: The match on ranges of ports. Without it, iptables-nft from 1.8.8 writes a range so that an older one, of kube-proxy
#: for one, cannot read the table any more ("incompatible").
_MULTIPORT = "multiport"

#: What a rule of ours may have, and its words, whose last one may differ; in the order in which iptables prints it.
_PARTS = {
    "source": "-s %s",
    "network": "-d %s",
    "interface": "-o %s",
    "protocol": "-p %s",
    **{name: "-m " + name + " --dport %s" for name in PORT_PROTOCOLS},
    _MULTIPORT: "-m multiport --dports %s",
    "mark": "-m mark --mark %s",
    "no_mark": "-m mark ! --mark %s",
    "state": "-m conntrack --ctstate %s",
    "sender": "-m addrtype --src-type %s",
    "comment": "-m comment --comment %s",
    "share": "-m statistic --mode random --probability %s",
    "target": "-j %s",
    "to_source": "--to-source %s",
    "to_ports": "--to-ports %s",
    "random": "--random-fully",
}

#: The condition on a destination port, in ``conditions``, whatever the protocol is.
DESTINATION_PORT = "dport"

#: Targets after which a packet meets no later rule of POSTROUTING.
FINAL_TARGETS = ("ACCEPT", "RETURN", "MASQUERADE", "SNAT", "NETMAP")

#: States of conntrack that packets have which meet our chain in the mangle table; if first packets do too.
LEAK_STATES = (UNSEEN, "INVALID,NEW,UNTRACKED")

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_WORD = r'"((?:[^"\\]|\\.)*)"|(\S+)'
_PART = "|".join("(?P<%s> %s(?!\\S))" % (name, part.replace("%s", r"\S+")) for name, part in _PARTS.items())


def printed_rules(listing: str) -> t.Tuple[str, ...]:
    """Split the output of ``iptables -S CHAIN`` into rules. A comment may hold line ends, or look like a rule."""
    rules: t.List[str] = []
    quoted = False
    for line in listing.split("\n"):
        if quoted:
            rules[-1] += "\n" + line
        elif line.startswith("-A "):
            rules.append(line)
        else:
            continue
        if '"' in line:
            quoted ^= re.sub(r"\\.", "", line).count('"') % 2 == 1
    return tuple(rules)


def tokenise(line: str) -> t.List[str]:
    """Split one printed rule into its words, quotes resolved as iptables writes them."""
    return [re.sub(r"\\(.)", r"\1", quoted) if not bare else bare for quoted, bare in re.findall(_WORD, line)]


def _quote(text: str) -> str:
    return '"%s"' % re.sub(r"([\"\\'])", r"\\\1", text) if re.search(r"[^A-Za-z0-9_-]", text) or not text else text


def render_rule(chain: str, rule: AnyRule) -> str:
    """Return one rule as ``iptables -S`` prints it."""
    fields = _of_guard(rule) if isinstance(rule, Guard) else _of_own(rule)
    fields["comment"] = _quote(fields["comment"])
    words = (part.replace("%s", str(fields[name])) for name, part in _PARTS.items() if fields.get(name))
    return " ".join(["-A", chain, *words])


def _of_guard(guard: Guard) -> t.Dict[str, t.Any]:
    """Return the parts of a guard."""
    if guard.mark:
        fields = {"mark": str(guard.mark), "comment": comments.SKIPPED}
    elif guard.unseen_own:
        fields = {"state": UNSEEN, "sender": "LOCAL", "comment": comments.OWN}
    elif guard.marks:
        fields = {"no_mark": "0x0/0x%x" % guard.marks, "comment": comments.MARKS}
    else:
        fields = {"source": str(guard.source), "comment": comments.SOURCE}
    return {**fields, "target": "RETURN"}


def _of_own(rule: OwnRule) -> t.Dict[str, t.Any]:
    """Return the parts of any other rule."""
    network = rule.network if rule.network and rule.network.prefixlen else None
    fields: t.Dict[str, t.Any] = {"source": rule.source, "network": network, "interface": rule.interface}
    fields["state"] = rule.state
    if rule.service:
        fields["protocol"], ports = rule.service
        if ports and ports.size == 1:
            fields[rule.service.protocol] = ports
        elif ports:
            fields[_MULTIPORT] = str(ports).replace("-", ":")
    way = rule.way
    if way is None:
        return {**fields, "comment": _comment_of(rule), "target": rule.verdict}
    if way.protocol and not rule.service:
        fields["protocol"] = way.protocol
    if way.share is not None:
        fields["share"] = "%.11f" % (way.share / SHARE_UNIT)
    fields["random"] = way.random_fully
    if rule.address is None:
        return {**fields, "comment": comments.MASQUERADE, "target": "MASQUERADE", "to_ports": way.to_ports}
    to_source = _to_source(rule.address, way.to_ports)
    return {**fields, "comment": comments.SNAT, "target": "SNAT", "to_source": to_source}


def _comment_of(rule: OwnRule) -> str:
    if rule.kind == FIRST:
        return comments.MISSING if rule.verdict == "DROP" else comments.PRESENT
    if rule.state == REDIRECTED:
        return comments.DNAT
    return {SKIP: comments.SKIPPED, EXEMPT: comments.EXEMPT, LEAK: comments.LEAK}[rule.kind]


def _to_source(address: AddressRange, ports: t.Optional[PortRange]) -> str:
    if not ports:
        return str(address)
    return ("[%s]:%s" if address.version == 6 else "%s:%s") % (str(address), ports)


def conntrack(state: str) -> t.Tuple[str, ...]:
    """Return the match on states of conntrack."""
    return ("-m", "conntrack", "--ctstate", state)


def parse_rule(line: str, family: Family) -> t.Optional[AnyRule]:
    """Parse one printed rule of our chain; None if it is not a rule that we write.

    Comments do not count, nor does a match on "not local", which the jump has already.
    """
    words, comment = _split_comment(tokenise(line)[2:])
    fields = _parts(" ".join(["", *words]).replace(" ".join(["", *NOT_LOCAL]), ""))
    for guard, parts in _guards(family):
        if fields == parts:
            return guard
    try:
        if fields.keys() == {"mark", "target"} and fields["target"] == "RETURN":
            return Guard(mark=values.parse_mark(fields["mark"]))
        rule = _read(fields, comment, family)
    except (ConfigError, ValueError, OverflowError):
        return None
    return None if fields else rule


@functools.lru_cache(maxsize=None)
def _guards(family: Family) -> t.Tuple[t.Tuple[Guard, t.Dict[str, t.Any]], ...]:
    """Return the guards that have no mark of a policy, each with its parts; comments do not count."""
    found = [one for one in (*guards("ACCEPT", family), Guard(unseen_own=True)) if not one.dnat]
    return tuple((one, {name: part for name, part in _of_guard(one).items() if name != "comment"}) for one in found)


def _parts(text: str) -> t.Dict[str, str]:
    """Return the parts of a rule; what is none of them, and what is there twice, as one without a name."""
    fields: t.Dict[str, str] = {}
    while text:
        found = re.match(_PART, text)
        if found is None or found.lastgroup is None or found.lastgroup in fields:
            return {"": text}
        fields[found.lastgroup] = found.group().split()[-1]
        text = text[found.end() :]
    return fields


def _read(fields: t.Dict[str, str], comment: str, family: Family) -> t.Optional[OwnRule]:
    """Return the rule of some parts, which are taken out; None, or ValueError, if it is none that we write."""
    target, state = fields.pop("target", ""), fields.pop("state", "")
    masquerades = target in ("MASQUERADE", "SNAT")
    if state not in ("", REDIRECTED, UNSEEN) or (state and masquerades):
        return None
    source, network = (_parse_network(fields.pop(name, None), family) for name in ("source", "network"))
    protocol = fields.pop("protocol", None)
    protocol = _PROTOCOL_NAMES.get(protocol or "", protocol)
    service = _parse_service(fields, protocol, masquerades)
    rule = OwnRule(SKIP, network, source, fields.pop("interface", None), service, state=state)
    return _masquerading(rule, fields, protocol, target) if masquerades else _with_kind(rule, comment, target, family)


def _with_kind(rule: OwnRule, comment: str, target: str, family: Family) -> t.Optional[OwnRule]:
    """Return a rule that does not masquerade with its kind and verdict; None if we do not write such a rule."""
    if comment in _OF_MANGLE and target in ("DROP", "RETURN"):
        kind = LEAK if comment == comments.LEAK else FIRST
        possible = rule.state == "" or (rule.state == UNSEEN and kind == LEAK)
        return rule._replace(kind=kind, verdict=target) if possible else None
    if rule.state:
        known = rule.state == REDIRECTED or comment == comments.SKIPPED
        return rule if known and target == "RETURN" else None
    if target not in ("RETURN", "ACCEPT"):
        return None
    # An exemption of all destinations is the same to packets.
    of_interface = rule.interface and not (rule.source or rule.network or rule.service)
    if target == "RETURN" and (comment == comments.SKIPPED or of_interface):
        return rule
    network = rule.network or EVERYTHING[family]
    return OwnRule(EXEMPT, network, rule.source, rule.interface, rule.service, target)


#: Comments of rules in the mangle table.
_OF_MANGLE = (comments.LEAK, comments.MISSING, comments.PRESENT)


def _parse_service(fields: t.Dict[str, str], protocol: t.Optional[str], masquerades: bool) -> t.Optional[Service]:
    """Parse the service of a rule. Without a port, ``-p`` of a rule that masquerades is a condition of that.

    :raises ValueError: we cannot have meant it.
    """
    match = next((name for name in (*PORT_PROTOCOLS, _MULTIPORT) if name in fields), None)
    ports = fields.pop(match) if match else None
    if match is None and (protocol is None or (masquerades and protocol in PORT_PROTOCOLS)):
        return None
    ranged = match == _MULTIPORT
    if protocol not in PROTOCOLS or match not in (None, protocol, _MULTIPORT) or ranged != (":" in (ports or "")):
        raise ValueError(protocol)
    return Service(protocol, None if ports is None else PortRange.read(ports, ":"))


def _parse_network(text: t.Optional[str], family: Family) -> t.Optional[Network]:
    """Parse a network of a family; raise ValueError if it is invalid."""
    network = None if text is None else ipaddress.ip_network(text)
    if network is not None and network.version != family.version:
        raise ValueError(text)
    return network


def _masquerading(rule: OwnRule, fields: t.Dict[str, str], protocol: t.Optional[str], target: str) -> OwnRule:
    share = fields.pop("share", None)
    address = None
    if target == "SNAT":
        written, ports = _split_to_source(fields.pop("to_source", ""))
        address = values.parse_address_range(written)
    else:
        ports = fields.pop("to_ports", None)
    way = Masquerade(
        # What names ports names a protocol too; of a rule with a service it is that.
        protocol if ports is not None or rule.service is None else None,
        None if ports is None else PortRange.read(ports),
        None if share is None else int(SHARE_UNIT * float(share) + 0.5),
        fields.pop("random", None) is not None,
    )
    return rule._replace(kind=MASQUERADE, way=way, address=address)


def _split_to_source(text: str) -> t.Tuple[str, t.Optional[str]]:
    """Split the addresses and the ports of ``--to-source``."""
    if text.startswith("["):
        written, _bracket, ports = text[1:].partition("]")
        return written, ports[1:] or None
    written, colon, ports = text.partition(":")
    return (written, ports) if "." in written and colon else (text, None)


def _split_comment(words: t.Sequence[str]) -> t.Tuple[t.List[str], str]:
    """Return the words of a rule without its comments, and the (last) comment."""
    left, found = list(words), ""
    place = 0
    while place < len(left) - 3:
        if left[place : place + 3] == ["-m", "comment", "--comment"]:
            found = left[place + 3]
            del left[place : place + 4]
        else:
            place += 1
    return left, found


class PostroutingRule(t.NamedTuple):
    """One rule of POSTROUTING, as far as the place of our jump depends on it."""

    #: as iptables prints it; where it cannot, where the rule is to be found
    line: str
    #: what stands between the chain's name and the end, without comments
    words: t.Tuple[str, ...]
    comment: str
    #: whether the words are all that the rule asks; iptables-nft does not print everything
    whole: bool = True
    #: the command that deletes the rule where iptables-restore cannot name it
    deletion: str = ""
    #: whether iptables cannot print it, or a rule beside it
    unprintable: bool = False

    @property
    def target(self) -> str:
        """The chain or target of ``-j`` or ``-g``; empty if the rule has none."""
        for flag in ("-j", "-g"):
            if flag in self.words[:-1]:
                return self.words[self.words.index(flag) + 1]
        return ""

    @property
    def deleted(self) -> str:
        """The line of a transaction that deletes it."""
        return "-D" + self.line[2:]

    def inserted(self, place: int) -> str:
        """Return the line of a transaction that puts it at a place of POSTROUTING, counted from 1."""
        return "-I POSTROUTING %d%s" % (place, self.line[len("-A POSTROUTING") :])

    def is_jump(self, wanted: Jump) -> bool:
        """Return whether this is the jump that we want: the right match, the right target, nothing else."""
        return self.whole and self.words == (*wanted.match, "-j", wanted.chain)

    def leads_all_to(self, chain: str) -> bool:
        """Return whether all packets that are not for the node meet the rules of a chain because of this rule."""
        return self.whole and self.words in (("-j", chain), NOT_LOCAL + ("-j", chain))

    @property
    def shuts_out_the_rest(self) -> bool:
        """Whether no packet reaches the rules behind this one."""
        # After a goto the chain that it leads to ends as POSTROUTING itself would (iptables(8)).
        return self.whole and (
            self.words[:1] == ("-g",) or (self.words[:1] == ("-j",) and self.target in FINAL_TARGETS)
        )


def removal(chains: t.Sequence[str], kept: t.Container[str] = ()) -> t.List[str]:
    """Return the lines of a transaction that empty chains, and delete those that are not kept."""
    # All are emptied before any goes: they may jump to each other.
    return ["-F " + name for name in chains] + ["-X " + name for name in chains if name not in kept]


def parse_postrouting(lines: t.Iterable[str]) -> t.Tuple[PostroutingRule, ...]:
    """Parse rules of POSTROUTING as ``iptables -t nat -S POSTROUTING`` prints them."""
    rules = []
    for line in lines:
        words, comment = _split_comment(tokenise(line)[2:])
        rules.append(PostroutingRule(line, tuple(words), comment))
    return tuple(rules)


@functools.lru_cache(maxsize=1024)
def conditions(words: t.Tuple[str, ...]) -> t.Tuple[str, ...]:
    """Return which matches and which target a rule has, whatever their values and order are."""
    found = []
    for word, value in zip(words, words[1:] + ("",)):
        if word == "-m" and value in PORT_PROTOCOLS:
            # Newer releases of iptables-nft write a condition on the port without an extension.
            found.append("-m " + DESTINATION_PORT)
        elif word in ("-m", "-j", "-g"):
            found.append("%s %s" % (word, value))
        elif word in ("-s", "-d", "-p", "-i", "-o"):
            found.append(word)
    return tuple(sorted(found))


@functools.lru_cache(maxsize=1024)
def _conditions_of(line: str) -> t.Tuple[str, ...]:
    return conditions(tuple(_split_comment(tokenise(line)[2:])[0]))


def rule_conditions(line: str) -> t.Tuple[str, ...]:
    """Return the same as ``conditions``, of a printed rule."""
    # Ten thousand rules differ in nothing but the address.
    head, found, rest = line.partition(" -d ")
    if found and '"' not in head:
        line = "%s -d ADDRESS %s" % (head, rest.partition(" ")[2])
    return _conditions_of(line)


class Jump(t.NamedTuple):
    """The rule of POSTROUTING that leads to a chain of ours, as it is to be."""

    table: str
    chain: str
    match: t.Tuple[str, ...]
    comment: str
    #: whether a new one comes first, and no second one stays: the chain counts packets, each of them once
    strict: bool = False

    @property
    def line(self) -> str:
        """The rule as ``iptables -S`` prints it."""
        return " ".join(("-A", "POSTROUTING", *self.match, _PARTS["comment"] % _quote(self.comment), "-j", self.chain))


def nat_jump(chain: str) -> Jump:
    """Return the jump to our chain in the nat table."""
    return Jump(NAT, chain, NOT_LOCAL, comments.JUMP)


def leak_jump(chain: str, first: bool) -> Jump:
    """Return the jump to our chain in the mangle table.

    :param first: whether first packets of connections meet the chain too, also those of the node itself.
    """
    passing = NOT_LOCAL if first else PASSING
    return Jump(MANGLE, chain, (*conntrack(LEAK_STATES[first]), *passing), comments.LEAK_JUMP, strict=True)
