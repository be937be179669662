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
from .policy_rules import SHARE_UNIT
from .ruleset import EVERYTHING, FIRST, LEAK, REDIRECTED, UNSEEN, AnyRule, Guard, Masquerade, OwnRule, guards

#: Tables in which we have a chain.
NAT, MANGLE = "nat", "mangle"

#: What our jump matches, and what releases of ip-masq-agent before 2.0.1 repeat on every rule.
NOT_LOCAL = ("-m", "addrtype", "!", "--dst-type", "LOCAL")

#: The same for the jump to our chain in the mangle table: packets that pass through the node. And those of the node.
PASSING = ("-m", "addrtype", "!", "--src-type", "LOCAL", "!", "--dst-type", "LOCAL")
OWN = ("-m", "addrtype", "--src-type", "LOCAL")

#: How iptables 1.8.7 prints protocols on a node without /etc/protocols, and a second name that others have for one.
#: As rules name them: by name or by number.
_WITH_PORTS = (*PORT_PROTOCOLS, *(str(PROTOCOLS[name]) for name in PORT_PROTOCOLS))
_PROTOCOL_NAMES = {**{str(number): name for name, number in PROTOCOLS.items()}, "icmpv6": "ipv6-icmp"}

#: The condition on a destination port, in ``conditions``, whatever the protocol is.
DESTINATION_PORT = "dport"

#: Targets after which a packet meets no later rule of POSTROUTING.
FINAL_TARGETS = ("ACCEPT", "RETURN", "MASQUERADE", "SNAT", "NETMAP")

#: States of conntrack that packets have which meet our chain in the mangle table; if first packets do too.
LEAK_STATES = (UNSEEN, "INVALID,NEW,UNTRACKED")

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_WORD = r'"((?:[^"\\]|\\.)*)"|(\S+)'
_BACKSLASHED = r"\\."
_UNSAFE = r"[^A-Za-z0-9_-]"
_ESCAPED = r"\\(.)"


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
            quoted ^= re.sub(_BACKSLASHED, "", line).count('"') % 2 == 1
    return tuple(rules)


def tokenise(line: str) -> t.List[str]:
    """Split one printed rule into its words, quotes resolved as iptables writes them."""
    return [re.sub(_ESCAPED, r"\1", quoted) if not bare else bare for quoted, bare in re.findall(_WORD, line)]


def _quote(text: str) -> str:
    return '"%s"' % re.sub(r"([\"\\'])", r"\\\1", text) if re.search(_UNSAFE, text) or not text else text


def render_rule(chain: str, rule: AnyRule) -> str:
    """Return one rule as ``iptables -S`` prints it."""
    words = ["-A", chain]
    if isinstance(rule, Guard):
        comment = comments.MARKS if rule.marks else comments.SOURCE if rule.source else comments.SKIPPED
        comment = comments.OWN if rule.unseen_own else comment
        return " ".join([*words, *_guarded(rule), *_comment(comment), "-j", "RETURN"])
    if rule.source:
        words += ["-s", str(rule.source)]
    if rule.network and rule.network.prefixlen:
        words += ["-d", str(rule.network)]
    if rule.interface:
        words += ["-o", rule.interface]
    if rule.service:
        words += _service(rule.service)
    words += conntrack(rule.state) if rule.state else ()
    words += [*_comment(_comment_of(rule)), "-j", rule.verdict] if rule.way is None else _masquerade(rule, rule.way)
    return " ".join(words)


def _comment_of(rule: OwnRule) -> str:
    if rule.kind == FIRST:
        return comments.MISSING if rule.verdict == "DROP" else comments.PRESENT
    if rule.state == REDIRECTED:
        return comments.DNAT
    return {SKIP: comments.SKIPPED, EXEMPT: comments.EXEMPT, LEAK: comments.LEAK}[rule.kind]


def _masquerade(rule: OwnRule, way: Masquerade) -> t.List[str]:
    words = ["-p", way.protocol] if way.protocol and not rule.service else []
    words += _comment(comments.MASQUERADE if rule.address is None else comments.SNAT)
    if way.share is not None:
        words += ["-m", "statistic", "--mode", "random", "--probability", "%.11f" % (way.share / SHARE_UNIT)]
    if rule.address is not None:
        words += ["-j", "SNAT", "--to-source", _to_source(rule.address, way.to_ports)]
    else:
        words += ["-j", "MASQUERADE"]
        words += ["--to-ports", str(way.to_ports)] if way.to_ports else []
    return words + (["--random-fully"] if way.random_fully else [])


def _service(service: Service) -> t.List[str]:
    words = ["-p", service.protocol]
    if service.ports and service.ports.size == 1:
        words += ["-m", service.protocol, "--dport", str(service.ports)]
    elif service.ports:
        # Without multiport, iptables-nft from 1.8.8 writes a range so that an older one, of kube-proxy for one, cannot
        # read the table any more ("incompatible").
        words += ["-m", "multiport", "--dports", str(service.ports).replace("-", ":")]
    return words


def _to_source(address: AddressRange, ports: t.Optional[PortRange]) -> str:
    if not ports:
        return str(address)
    return ("[%s]:%s" if address.version == 6 else "%s:%s") % (str(address), ports)


def conntrack(state: str) -> t.Tuple[str, ...]:
    """Return the match on states of conntrack."""
    return ("-m", "conntrack", "--ctstate", state)


def _guarded(guard: Guard) -> t.List[str]:
    if guard.mark:
        return ["-m", "mark", "--mark", str(guard.mark)]
    if guard.unseen_own:
        return [*conntrack(UNSEEN), *OWN]
    return ["-m", "mark", "!", "--mark", "0x0/0x%x" % guard.marks] if guard.marks else ["-s", str(guard.source)]


def _comment(text: str) -> t.List[str]:
    return ["-m", "comment", "--comment", _quote(text)]


def parse_rule(line: str, family: Family) -> t.Optional[AnyRule]:
    """Parse one printed rule of our chain; None if it is not a rule that we write.

    Comments do not count, nor does a match on "not local", which the jump has already.
    """
    words, comment = _split_comment(tokenise(line)[2:])
    words, port = _split_port(_without(NOT_LOCAL, words))
    for guard in (*guards("ACCEPT", family), Guard(unseen_own=True)):
        if not guard.dnat and words == _guarded(guard) + ["-j", "RETURN"]:
            return guard
    try:
        if words[:3] == ["-m", "mark", "--mark"] and words[4:] == ["-j", "RETURN"]:
            return Guard(mark=values.parse_mark(words[3]))
        words, state = _split_match("conntrack", "--ctstate", words)
        options = _options(words)
        if options is None or state not in ("", REDIRECTED, UNSEEN):
            return None
        target = options.pop("-j", "")
        interface = options.pop("-o", None)
        source, network = (_parse_network(options.pop(flag, None), family) for flag in ("-s", "-d"))
        rule = OwnRule(SKIP, network, source, interface, _parse_service(options, port, target), state=state)
        if target in ("MASQUERADE", "SNAT"):
            return None if state else _parse_masquerade(rule, options, target)
    except (ConfigError, ValueError, OverflowError):
        return None
    return None if options else _with_kind(rule, comment, target, family)


def _options(words: t.Sequence[str]) -> t.Optional[t.Dict[str, str]]:
    """Return options with their values; None if one is unknown, or is there twice."""
    options: t.Dict[str, str] = {}
    left = iter(words)
    for word in left:
        if word == "--random-fully":
            options[word] = ""
            continue
        value = next(left, None)
        if word not in _OPTIONS or word in options or value is None:
            return None
        options[word] = value
    return options


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

#: What our rules are made of, besides comments and ports.
_OPTIONS = ("-s", "-d", "-o", "-p", "-m", "--mode", "--probability", "-j", "--to-ports", "--to-source")


def _split_port(words: t.List[str]) -> t.Tuple[t.List[str], t.Optional[t.Tuple[str, str]]]:
    """Return the words of a rule without its condition on destination ports, and the match and ports of that."""
    for position in range(len(words) - 3):
        flag, match, option, ports = words[position : position + 4]
        single = match in PORT_PROTOCOLS and option == "--dport"
        if flag == "-m" and (single or (match, option) == ("multiport", "--dports")) and single == (":" not in ports):
            return words[:position] + words[position + 4 :], (match, ports)
    return words, None


def _parse_service(options: t.Dict[str, str], port: t.Optional[t.Tuple[str, str]], target: str) -> t.Optional[Service]:
    """Parse the service of a rule. Without a port, ``-p`` of a rule that masquerades is a condition of that.

    :raises ValueError: we cannot have meant it.
    """
    if port is None and target in ("MASQUERADE", "SNAT") and options.get("-p") in _WITH_PORTS:
        return None
    protocol = options.pop("-p", None)
    protocol = _PROTOCOL_NAMES.get(protocol or "", protocol)
    if protocol is None and port is None:
        return None
    if protocol not in PROTOCOLS or (port is not None and port[0] not in (protocol, "multiport")):
        raise ValueError(protocol)
    return Service(protocol, None if port is None else PortRange.read(port[1], ":"))


def _parse_network(text: t.Optional[str], family: Family) -> t.Optional[Network]:
    """Parse a network of a family; raise ValueError if it is invalid."""
    network = None if text is None else ipaddress.ip_network(text)
    if network is not None and network.version != family.version:
        raise ValueError(text)
    return network


def _parse_masquerade(rule: OwnRule, options: t.Dict[str, str], target: str) -> t.Optional[OwnRule]:
    share = None
    if "-m" in options:
        if (options.pop("-m"), options.pop("--mode", None)) != ("statistic", "random"):
            return None
        share = int(SHARE_UNIT * float(options.pop("--probability", "nan")) + 0.5)
    address = None
    ports = options.pop("--to-ports", None)
    if target == "SNAT":
        if ports is not None:
            return None
        written, ports = _split_to_source(options.pop("--to-source", ""))
        address = values.parse_address_range(written)
    to_ports = None if ports is None else PortRange.read(ports)
    protocol = options.pop("-p", None)
    protocol = _PROTOCOL_NAMES.get(protocol or "", protocol)
    # What names ports names a protocol too; of a rule with a service it is that.
    if to_ports is not None and protocol is None and rule.service is not None:
        protocol = rule.service.protocol
    way = Masquerade(protocol, to_ports, share, options.pop("--random-fully", None) is not None)
    return None if options else rule._replace(kind=MASQUERADE, way=way, address=address)


def _split_to_source(text: str) -> t.Tuple[str, t.Optional[str]]:
    """Split the addresses and the ports of ``--to-source``."""
    if text.startswith("["):
        written, _bracket, ports = text[1:].partition("]")
        return written, ports[1:] or None
    written, colon, ports = text.partition(":")
    return (written, ports) if "." in written and colon else (text, None)


def _split_comment(words: t.Sequence[str]) -> t.Tuple[t.List[str], str]:
    """Return the words of a rule without its comments, and the (last) comment."""
    return _split_match("comment", "--comment", words)


def _split_match(match: str, option: str, words: t.Sequence[str]) -> t.Tuple[t.List[str], str]:
    """Return the words of a rule without a match of one option, and the (last) value; empty without it."""
    kept: t.List[str] = []
    found = ""
    position = 0
    while position < len(words):
        if list(words[position : position + 3]) == ["-m", match, option] and position + 3 < len(words):
            found = words[position + 3]
            position += 4
        else:
            kept.append(words[position])
            position += 1
    return kept, found


def _without(condition: t.Tuple[str, ...], words: t.List[str]) -> t.List[str]:
    size = len(condition)
    for position in range(len(words) - size, -1, -1):
        if tuple(words[position : position + size]) == condition:
            words = words[:position] + words[position + size :]
    return words


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
        return " ".join(("-A", "POSTROUTING", *self.match, *_comment(self.comment), "-j", self.chain))


def nat_jump(chain: str) -> Jump:
    """Return the jump to our chain in the nat table."""
    return Jump(NAT, chain, NOT_LOCAL, comments.JUMP)


def leak_jump(chain: str, first: bool) -> Jump:
    """Return the jump to our chain in the mangle table.

    :param first: whether first packets of connections meet the chain too, also those of the node itself.
    """
    passing = NOT_LOCAL if first else PASSING
    return Jump(MANGLE, chain, (*conntrack(LEAK_STATES[first]), *passing), comments.LEAK_JUMP, strict=True)
