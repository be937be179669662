# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All tables of nf_tables: those of nft, and those of iptables-nft, which to the kernel are the same.

They are read and written over netlink, never with a tool: ``nft`` crashes on sets that a newer one made, iptables-nft
leaves out what it does not know, and one of them may not be installed. Every rule comes across, in whichever words it
was written. Attribute numbers: linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import re
import struct
import typing as t

from .._errors import NodeError
from . import netlink, nft_expressions
from .netlink import Message, Netlink

#: nfgen_family of each family that nft names
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}

SUBSYSTEM = 10 << 8
_BATCH_BEGIN, _BATCH_END, _GET_GENERATION = 16, 17, 16
DELETE_TABLE, DELETE_CHAIN, DELETE_RULE, DELETE_SET, DELETE_ELEMENT = 2, 5, 8, 11, 14
NEW_TABLE, NEW_CHAIN, NEW_RULE, NEW_SET, NEW_ELEMENT, _NEW_OBJECT, _NEW_FLOWTABLE = 0, 3, 6, 9, 12, 18, 22
GET_TABLE, GET_CHAIN, GET_RULE, _GET_SET, _GET_ELEMENT, _GET_OBJECT, _GET_FLOWTABLE = 1, 4, 7, 10, 13, 19, 23

#: In every kind of object the first attribute names the table, and for all that lies in a table the next the object.
TABLE = 1
TABLE_FLAGS, _TABLE_USE = 2, 3
CHAIN_NAME, CHAIN_HOOK, _CHAIN_POLICY, CHAIN_USE, CHAIN_TYPE = 3, 4, 5, 6, 7
RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS, RULE_COMPAT = 2, 3, 4, 5
RULE_COMMENTS = 7
SET_NAME, SET_FLAGS, SET_KEY_TYPE, SET_KEY_LENGTH, SET_ID, SET_COMMENTS = 2, 3, 4, 5, 10, 13
ELEMENTS_SET, ELEMENTS, _ELEMENTS_SET_ID = 2, 3, 4

#: NFT_OBJECT_*, in the order of their numbers
OBJECTS = "unspec counter quota ct_helper limit connlimit tunnel ct_timeout secmark ct_expect synproxy".split()
#: NF_INET_POST_ROUTING
POSTROUTING = 4

#: The attributes that are sent again. The kernel also reports some that it does not accept: handles, use counts.
_TABLE_KEEPS = frozenset((1, 6))
_CHAIN_KEEPS = frozenset((1, 3, 4, 5, 7, 8, 11))
_RULE_KEEPS = frozenset((1, 2, 4, 7))
_SET_KEEPS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18))
_OBJECT_KEEPS = frozenset((1, 2, 3, 4, 8))
_FLOWTABLE_KEEPS = frozenset((1, 2, 3))
_ELEMENTS_KEEPS = frozenset((TABLE, ELEMENTS))
#: NFT_TABLE_F_DORMANT: the kernel skips the chains of a table
DORMANT = 0x1
#: Attributes of expressions that the kernel reports as 0 and does not accept: the timeout for a set without timeouts,
#: the flags where an option is written (the *_init() and *_dump() functions in net/netfilter/nft_dynset.c, nft_osf.c,
#: nft_exthdr.c).
_REPORTED_ONLY = {"dynset": "timeout", "osf": "flags", "exthdr": "flags"}
_REPORTED_ONLY_MARKS = tuple(name.encode() + b"\0" for name in _REPORTED_ONLY)

#: NFT_SET_ANONYMOUS, NFT_SET_CONSTANT, NFT_SET_MAP; NFTA_SET_DESC
_ANONYMOUS, _CONSTANT, _MAP = 0x1, 0x2, 0x8
_SET_DESCRIPTION = 9
#: Up to so many elements of a map are read one by one: each comes as a message of its own.
_NUMBERED = 4
#: NFT_SET_TIMEOUT
_TIMEOUT = 0x10
#: NFTA_CHAIN_COUNTERS; NFTA_OBJ_TYPE, NFTA_OBJ_DATA, NFT_OBJECT_COUNTER
_CHAIN_COUNTERS = 8
OBJECT_TYPE, _OBJECT_DATA, _COUNTER_OBJECT = 3, 4, b"\0\0\0\1"
#: the names that the kernel gives to anonymous sets
_UNNAMED = rb"__(?:set|map)[0-9]+\0"
#: How often one table is read until no set is gone in between.
_READS = 20
#: How many rules one transaction makes.
_RULES_AT_A_TIME = 500
#: Above this the rules are read chain by chain: the square of their number, for each chain.
_MANY_RULES = 400000
#: how many bodies are compressed together
_AT_ONCE = 256


T = t.TypeVar("T")


class Bodies(t.Collection[bytes]):
    """Bodies of messages, in order. Many are kept compressed: those of kube-proxy's rules repeat each other."""

    def __init__(self, bodies: t.Iterable[bytes] = ()) -> None:
        """Keep some; more may follow."""
        self._compressed: t.List[t.Tuple[bytes, t.Sequence[int]]] = []
        self._last: t.List[bytes] = []
        for body in bodies:
            self.append(body)

    def append(self, body: bytes) -> None:
        """Keep one more."""
        self._last.append(body)
        if len(self._last) == _AT_ONCE:
            import zlib  # a start of the agent does without them
            from array import array

            self._compressed.append((zlib.compress(b"".join(self._last), 1), array("I", map(len, self._last))))
            self._last = []

    def __len__(self) -> int:
        return _AT_ONCE * len(self._compressed) + len(self._last)

    def __contains__(self, body: object) -> bool:
        return any(body == one for one in self)

    def __iter__(self) -> t.Iterator[bytes]:
        return itertools.chain(itertools.chain.from_iterable(itertools.starmap(_apart, self._compressed)), self._last)


def _apart(compressed: bytes, lengths: t.Sequence[int]) -> t.Iterator[bytes]:
    import zlib

    ends = [0, *itertools.accumulate(lengths)]
    content = zlib.decompress(compressed, zlib.MAX_WBITS, ends[-1])
    return map(content.__getitem__, map(slice, ends, ends[1:]))


class NftTable(t.NamedTuple):
    """One table, as the messages that describe it: bodies without the four bytes in front of the attributes.

    ``elements`` belong to sets in any order; ``rules`` are in the order of each chain.
    """

    family: int
    name: str
    table: bytes
    chains: t.Collection[bytes] = ()
    objects: t.Collection[bytes] = ()
    flowtables: t.Collection[bytes] = ()
    sets: t.Collection[bytes] = ()
    elements: t.Collection[bytes] = ()
    rules: t.Collection[bytes] = ()

    @property
    def title(self) -> str:
        """Its family and name, as nft writes them."""
        return "%s %s" % (FAMILIES.get(self.family, str(self.family)), self.name)


#: By the name of a table: the chains to read of it, none for all that it has; None: the table is not read.
Wanted = t.Callable[[str], t.Optional[t.Sequence[str]]]


def read(wanted: t.Optional[Wanted] = None) -> t.Tuple[NftTable, ...]:
    """Read all tables in this network namespace.

    :param wanted: what to read; the rest costs little then.
    :raises NodeError: the kernel does not answer, or they keep changing.
    """
    for _attempt, tables, generation in _attempts(lambda reader: reader.all(wanted), netlink.ATTEMPTS):
        if generation is not None:
            return tables
    raise NodeError("cannot read the tables of nf_tables: other programs keep changing them")


def read_one(family: int, name: str, chains: t.Sequence[str]) -> t.Tuple[t.Optional[NftTable], t.Optional[int]]:
    """Read one table of this network namespace, None if it is not there; no other table costs anything.

    :param chains: names of those that it may have; if there are others, all chains of the family are looked through.
    :returns: the table, and the generation of all rules; None if other programs write too often to tell.
    :raises NodeError: the kernel does not answer, or the table keeps changing.
    """
    for attempt, table, generation in _attempts(lambda reader: reader.one(family, name, chains), _READS):
        if generation is not None or attempt >= netlink.ATTEMPTS:
            return table, generation
    raise NodeError("cannot read the table %s: other programs keep changing it" % name)


def _attempts(read: t.Callable[[_Reader], T], number: int) -> t.Iterator[t.Tuple[int, T, t.Optional[int]]]:
    """Read again and again, without what failed because of changes, as of a set that was gone since it was listed.

    :returns: the number of the attempt, what was read, and the generation of all rules; None if it changed meanwhile.
    """
    with Netlink(netlink.NETFILTER) as kernel:
        for attempt in range(1, number + 1):
            before = generation_of(kernel)
            with netlink.ignoring(errno.ENOENT, errno.EINTR):
                found = read(_Reader(kernel))
                yield attempt, found, before if generation_of(kernel) == before else None


def generation_of(kernel: Netlink) -> int:
    """Return a number that each committed transaction raises by one; without an answer, raise NodeError."""
    answer = kernel.ask(SUBSYSTEM | _GET_GENERATION, netlink.family_head(2), "the generation of nf_tables")
    return netlink.number(netlink.attributes(answer.body[4:])[1])


def read_rules(family: int, name: str) -> t.Tuple[bytes, ...]:
    """Read the rules of one table alone, in the order of ``NftTable``; none if it is not there.

    :raises NodeError: the kernel does not answer, or they keep changing.
    """
    for _attempt, rules, _generation in _attempts(lambda reader: reader.rules(family, name), netlink.ATTEMPTS):
        return rules
    raise NodeError("cannot read the rules of the table %s: other programs keep changing them" % name)


class _Reader:
    """Collects the messages about tables."""

    def __init__(self, kernel: Netlink) -> None:
        self._kernel = kernel
        self._parts: t.Dict[t.Tuple[int, bytes], t.Dict[str, Bodies]] = {}

    def _collect(self, kind: int, field: str, request: bytes = b"", family: int = 0, one: bool = False) -> None:
        ask = (lambda *words: [self._kernel.ask(*words)]) if one else self._kernel.each
        head, bodies = b"none", Bodies()
        for _kind, body in ask(SUBSYSTEM | kind, netlink.family_head(family) + request, "nf_tables %s" % field):
            if not body.startswith(head):
                # The name of the table comes first in every message.
                head = body[: 4 + struct.unpack_from("=H", body, 4)[0]]
                bodies = self._parts.setdefault((body[0], head[8:]), {}).setdefault(field, Bodies())
            bodies.append(body[4:])

    def _collected(self, field: str) -> t.List[t.Tuple[int, bytes]]:
        return [(family, body) for (family, _name), fields in self._parts.items() for body in fields.get(field, ())]

    def _collect_sets(self, request: bytes = b"", family: int = 0) -> None:
        self._collect(_GET_SET, "sets", request, family)
        for owner, body in self._collected("sets"):
            known = netlink.attributes(body)
            wanted = netlink.attribute(1, known[TABLE]) + netlink.attribute(ELEMENTS_SET, known[SET_NAME])
            numbered = _numbered(self._kernel, owner, known, wanted)
            if numbered is None:
                self._collect(_GET_ELEMENT, "elements", wanted, owner)
                continue
            elements = self._parts[(owner, known[TABLE])].setdefault("elements", Bodies())
            for element in numbered:
                elements.append(element)

    def _collect_objects(self, family: int = 0) -> None:
        self._collect(_GET_OBJECT, "objects", family=family)
        with netlink.ignoring(errno.EOPNOTSUPP, errno.EINVAL):  # a kernel without flowtables
            self._collect(_GET_FLOWTABLE, "flowtables", family=family)

    def _tables(self) -> t.Tuple[NftTable, ...]:
        return tuple(
            NftTable(family, netlink.name(name), next(iter(fields.pop("table"))), **fields)
            for (family, name), fields in self._parts.items()
            if "table" in fields
        )

    def _made(self, family: int, name: str) -> NftTable:
        return next(table for table in self._tables() if (table.family, table.name) == (family, name))

    def all(self, wanted: t.Optional[Wanted] = None) -> t.Tuple[NftTable, ...]:
        """Return all tables, or what of them is wanted."""
        self._collect(GET_TABLE, "table")
        if wanted is not None:
            named = [(family, netlink.name(name)) for family, name in self._parts]
            self._parts.clear()
            asked = [
                (family, name, chains) for family, name in named for chains in [wanted(name)] if chains is not None
            ]
            read = [self._part(*one) if one[-1] else self.one(*one) for one in asked]
            return tuple(one for one in read if one is not None)
        self._collect(GET_CHAIN, "chains")
        self._collect_sets()
        self._collect_objects()
        for family, request in _rule_requests(self._collected("chains")):
            self._collect(GET_RULE, "rules", request, family)
        return self._tables()

    def rules(self, family: int, name: str) -> t.Tuple[bytes, ...]:
        """Return the rules of one table."""
        self._collect(GET_RULE, "rules", netlink.text(TABLE, name), family)
        return tuple(self._parts.get((family, name.encode() + b"\0"), {}).get("rules", ()))

    def _part(self, family: int, name: str, chains: t.Sequence[str]) -> NftTable:
        """Return some chains of a table with their rules, and nothing that these refer to."""
        named = netlink.text(TABLE, name)
        self._collect(GET_TABLE, "table", named, family, one=True)
        for chain in chains:
            with contextlib.suppress(netlink.KernelError):
                self._collect(GET_CHAIN, "chains", named + netlink.text(CHAIN_NAME, chain), family, one=True)
                self._collect(GET_RULE, "rules", named + netlink.text(RULE_CHAIN, chain), family)
        return self._made(family, name)

    def one(self, family: int, name: str, chains: t.Sequence[str]) -> t.Optional[NftTable]:
        """Return one table; None if it is not there."""
        named = netlink.text(TABLE, name)
        try:
            self._collect(GET_TABLE, "table", named, family, one=True)
        except netlink.KernelError as exc:
            if exc.code in netlink.NO_ANSWER:
                raise
            return None
        self._collect_sets(named, family)
        self.rules(family, name)
        for chain in chains:
            with contextlib.suppress(netlink.KernelError):
                self._collect(GET_CHAIN, "chains", named + netlink.text(CHAIN_NAME, chain), family, one=True)
        parts = self._parts[(family, name.encode() + b"\0")]
        (table,) = parts["table"]
        # The kernel counts what is in a table: chains, sets, objects.
        if netlink.number(netlink.attributes(table).get(_TABLE_USE)) != sum(
            len(parts.get(field, ())) for field in ("chains", "sets")
        ):
            parts.pop("chains", None)
            self._collect(GET_CHAIN, "chains", family=family)
            self._collect_objects(family)
        return self._made(family, name)


def _numbered(kernel: Netlink, family: int, known: t.Mapping[int, bytes], wanted: bytes) -> t.Optional[t.List[bytes]]:
    """Read a map from the numbers 0 to N - 1, as those for a choice by chance are; None if it is no such map.

    For a dump of all elements the kernel walks through all sets of the table three times, for some, once: with 5,000
    Services of kube-proxy that is 0.3 s. It is whole if it may have no more elements than were found.
    """
    flags = netlink.number(known.get(SET_FLAGS))
    if flags != _ANONYMOUS | _CONSTANT | _MAP or known.get(SET_KEY_LENGTH) != b"\0\0\0\4":
        return None
    size = netlink.number(netlink.attributes(known.get(_SET_DESCRIPTION, b"")).get(1))
    if not 0 < size <= _NUMBERED:
        return None
    keys = (netlink.nest(1, netlink.nest(1, netlink.attribute(1, struct.pack("=I", key)))) for key in range(size))
    request = netlink.family_head(family) + wanted + netlink.nest(ELEMENTS, *keys)
    with netlink.ignoring(errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
        found = kernel.ask_all(SUBSYSTEM | _GET_ELEMENT, request, size, "elements of a map")
        return [message.body[4:] for message in found]
    return None


def _rule_requests(chains: t.Sequence[t.Tuple[int, bytes]]) -> t.Iterator[t.Tuple[int, bytes]]:
    """Return the requests, with their families, that get all rules: at once, or chain by chain if there are many.

    Asked for all rules, the kernel answers in parts of about a hundred, and walks to each part from the first rule on
    (nf_tables_dump_rules() in net/netfilter/nf_tables_api.c): 50,000 of one chain take twice as long. Asked for each
    chain, it answers each time: 42,000 rules in 21,000 chains take three times as long.
    """
    # The kernel counts the rules of a chain, and what jumps to it.
    if sum(netlink.number(netlink.value(body, CHAIN_USE)) for _family, body in chains) ** 2 <= _MANY_RULES * len(
        chains
    ):
        yield 0, b""
        return
    for family, body in chains:
        named = netlink.attribute(RULE_CHAIN, netlink.value(body, CHAIN_NAME))
        yield family, netlink.attribute(TABLE, netlink.value(body, TABLE)) + named


def write(table: NftTable) -> None:
    """Make a table like one that was read.

    :raises KernelError: the kernel refuses; nothing was made.
    """
    for number, part in enumerate(transactions(table)):
        try:
            transact(part, "table " + table.title)
        except netlink.KernelError:
            if number:
                transact([change(DELETE_TABLE, table.family, table.name)], "table " + table.title)
            raise


def transactions(table: NftTable) -> t.Iterator[t.List[Message]]:
    """Return the transactions that make a table: rules with the sets without name that are theirs come last.

    Several, because for each set without name the kernel walks through all of its transaction to find where the set was
    made (__nft_set_trans_bind() in net/netfilter/nf_tables_api.c).
    """
    family = netlink.family_head(table.family)
    flags = DORMANT if is_dormant(table) else 0

    def add(kind: int, *bodies: bytes) -> t.List[Message]:
        return [Message(SUBSYSTEM | kind, family + body) for body in bodies]

    bodies = {netlink.attributes(body)[SET_NAME]: body for body in table.sets}
    places = {name: place for place, name in enumerate(bodies, 1)}
    elements = _elements(table)

    def add_set(name: bytes) -> t.List[Message]:
        made = netlink.only(bodies[name], _SET_KEEPS) + netlink.network_word(SET_ID, places[name])
        return add(NEW_SET, made)

    def fill_set(name: bytes) -> t.List[Message]:
        # By the number that it has in this transaction: by a name the kernel walks through all sets of the table.
        number = netlink.network_word(_ELEMENTS_SET_ID, places[name])
        return add(NEW_ELEMENT, *(netlink.only(body, _ELEMENTS_KEEPS) + number for body in elements.get(name, ())))

    users = _users(table)
    whole = not users  # a set without name has to be made with the rule that has it
    named = [name for name in bodies if name not in users]
    part = add(NEW_TABLE, netlink.only(table.table, _TABLE_KEEPS) + netlink.network_word(TABLE_FLAGS, flags))
    # Chains without a name of their own (jump { ... }) are reported with one, and made as ordinary ones. No flags are
    # sent: offloaded chains need hardware, and base chains are known by their hook.
    part += add(NEW_CHAIN, *(netlink.only(body, _CHAIN_KEEPS) for body in table.chains))
    part += add(_NEW_OBJECT, *(netlink.only(body, _OBJECT_KEEPS) for body in table.objects))
    # In the twin there is no hardware to which a flow could be offloaded.
    part += add(_NEW_FLOWTABLE, *(netlink.only(body, _FLOWTABLE_KEEPS) for body in table.flowtables))
    part += [one for name in named for one in add_set(name)]
    part += [one for name in named for one in fill_set(name)]
    of_rule: t.Dict[int, t.List[bytes]] = {}
    for name, number in users.items():
        of_rule.setdefault(number, []).append(name)
    for number, rule in enumerate(table.rules):
        if number and number % _RULES_AT_A_TIME == 0 and not whole:
            yield part
            part = []
        for name in of_rule.get(number, ()):
            part += add_set(name) + fill_set(name)
        part += add(NEW_RULE, _rule(rule))
    yield part


def _elements(table: NftTable) -> t.Dict[bytes, t.List[bytes]]:
    """Return the messages with the elements of each set that has any."""
    found: t.Dict[bytes, t.List[bytes]] = {}
    for body in table.elements:
        known = netlink.attributes(body)
        if known.get(ELEMENTS):
            found.setdefault(known[ELEMENTS_SET], []).append(body)
    return found


def _users(table: NftTable) -> t.Dict[bytes, int]:
    """Return the place of the rule that has a set without name, for each such set; empty if not all are found."""
    sets = map(netlink.attributes, table.sets)
    anonymous = {known[SET_NAME] for known in sets if netlink.number(known.get(SET_FLAGS)) & _ANONYMOUS}
    found: t.Dict[bytes, int] = {}
    if anonymous:
        for number, rule in enumerate(table.rules):
            found.update((name, number) for name in re.findall(_UNNAMED, rule) if name in anonymous)
    return found if len(found) == len(anonymous) else {}


def is_unnamed(name: bytes) -> bool:
    """Return whether a set has a name of the kernel's, by which one rule alone has it."""
    return bool(re.fullmatch(_UNNAMED, name))


def is_dormant(table: NftTable) -> bool:
    """Return whether the kernel skips its chains."""
    return bool(netlink.number(netlink.attributes(table.table).get(TABLE_FLAGS)) & DORMANT)


#: NFPROTO_BRIDGE, NFT_PAYLOAD_LL_HEADER
_BRIDGE, _LINK_HEADER = 7, 0
#: Expressions that only load and compare, or count; of those with a source register none of these.
_COMPARING = frozenset(("meta", "payload", "cmp", "range", "bitwise", "byteorder", "lookup", "immediate", "counter"))
_READING = frozenset(("meta", "payload"))


def filters_frames(table: NftTable) -> bool:
    """Return whether a table only lets frames pass or not inside of a bridge, by their hardware addresses and links."""
    return table.family == _BRIDGE and all(
        name in _COMPARING
        and not (name in _READING and "sreg" in data)
        and not (name == "payload" and netlink.number(data.get("base")) != _LINK_HEADER)
        for body in table.rules
        for name, data in nft_expressions.of_rule(netlink.attributes(body).get(RULE_EXPRESSIONS, b""))
    )


class NftBaseChain(t.NamedTuple):
    """A chain that the kernel itself asks; ``drops`` is its policy."""

    name: str
    hook: int
    priority: int
    kind: str
    drops: bool


def base_chains(table: NftTable) -> t.Iterator[NftBaseChain]:
    """Return all base chains."""
    return filter(None, (base_chain(netlink.attributes(body)) for body in table.chains))


def base_chain(known: netlink.Attributes) -> t.Optional[NftBaseChain]:
    """Return a chain if it is a base chain."""
    if CHAIN_HOOK not in known:
        return None
    hook = netlink.attributes(known[CHAIN_HOOK])
    priority: int = struct.unpack("!i", hook[2])[0]
    name, kind = (netlink.name(known[place]) for place in (CHAIN_NAME, CHAIN_TYPE))
    drops = netlink.number(known.get(_CHAIN_POLICY, b"\1")) == 0
    return NftBaseChain(name, netlink.number(hook[1]), priority, kind, drops)


def filled_sets(table: NftTable) -> t.Set[str]:
    """Return the sets of a table that its rules fill."""
    return {name for body in table.rules for name in _filled(body)}


def _filled(rule: bytes) -> t.Iterator[str]:
    if b"dynset\0" in rule:
        for name, data in nft_expressions.of_rule(netlink.value(rule, RULE_EXPRESSIONS)):
            if name == "dynset":
                yield netlink.name(data.get("set_name", b""))


def is_timed(table: NftTable) -> bool:
    """Return whether a table changes with time alone: elements that expire, rules that match the time."""
    flags = (netlink.number(netlink.attributes(body).get(SET_FLAGS)) for body in table.sets)
    return any(each & _TIMEOUT for each in flags) or any(map(_timed_pattern().search, table.rules))


def lasting(table: NftTable) -> t.Iterator[bytes]:
    """Return the content of a table without what packets change: counters, and the elements of sets that rules fill."""
    yield b"%d" % table.family
    yield netlink.only(table.table, _TABLE_KEEPS | {TABLE_FLAGS})
    kept = _CHAIN_KEEPS - {_CHAIN_COUNTERS}
    for parts, keeps in ((table.chains, kept), (table.flowtables, _FLOWTABLE_KEEPS), (table.sets, _SET_KEEPS)):
        yield from (netlink.only(body, keeps) for body in parts)
    for body in table.objects:
        counts = netlink.attributes(body)[OBJECT_TYPE] == _COUNTER_OBJECT
        yield netlink.only(body, _OBJECT_KEEPS - {_OBJECT_DATA} if counts else _OBJECT_KEEPS)
    filled: t.Set[str] = set()
    for body in table.rules:
        filled.update(_filled(body))
        yield _counted_pattern().sub(b"", netlink.only(body, _RULE_KEEPS))
    for name, bodies in _elements(table).items():
        if netlink.name(name) not in filled:
            listed = (piece for body in bodies for piece in netlink.pieces(netlink.attributes(body)[ELEMENTS]))
            yield name
            yield from sorted(_counted_pattern().sub(b"", whole) for _kind, _value, whole in listed)  # in no order


def put_first(table: NftTable) -> None:
    """Make the kernel run the chains of a table in this network namespace before others of the same priority.

    :raises KernelError: the kernel refuses.
    """
    for on in (False, True):  # what was registered last comes first
        switch(table, on)


def switch(table: NftTable, on: bool) -> None:
    """Let the kernel ask the chains of a table in this network namespace, or none of them.

    :raises KernelError: the kernel refuses.
    """
    flags = netlink.network_word(TABLE_FLAGS, 0 if on else DORMANT)
    transact([change(NEW_TABLE, table.family, table.name, flags)], "table " + table.title)


def change(kind: int, family: int, table: str, *attributes: bytes) -> Message:
    """Return one change of a transaction, about a table or what is in it."""
    body = netlink.family_head(family) + netlink.text(TABLE, table) + b"".join(attributes)
    return Message(SUBSYSTEM | kind, body)


def new_chain(family: int, table: str, name: str, kind: str, hook: int, priority: int) -> Message:
    """Return the change that makes a base chain, which lets pass what its rules do not decide about.

    :param hook: NF_INET_*.
    """
    place = netlink.network_word(1, hook), netlink.attribute(2, struct.pack("!i", priority))
    named, typed = netlink.text(CHAIN_NAME, name), netlink.text(CHAIN_TYPE, kind)
    return change(NEW_CHAIN, family, table, named, netlink.nest(CHAIN_HOOK, *place), typed)


def new_rule(family: int, table: str, chain: str, *parts: bytes) -> Message:
    """Return the change that adds a rule behind the last one of a chain.

    :param parts: its expressions, and other attributes.
    """
    return change(NEW_RULE, family, table, netlink.text(RULE_CHAIN, chain), *parts)


#: NFTA_RULE_POSITION
_RULE_POSITION = 6


def before_rule(handle: int) -> bytes:
    """Return the attribute of a new rule that puts it in front of another one; see ``transact``."""
    return netlink.attribute(_RULE_POSITION, struct.pack("!Q", handle))


def transact(messages: t.Sequence[Message], what: str, behind: bool = True) -> None:
    """Commit one transaction.

    :param behind: whether new rules come behind others, and not in front of them.
    :raises KernelError: the kernel refuses; nothing was changed.
    """
    with Netlink(netlink.NETFILTER, buffer=netlink.LARGE) as kernel:
        edge = struct.pack("!BBH", 0, 0, 10)
        batch = [Message(_BATCH_BEGIN, edge), *messages, Message(_BATCH_END, edge)]
        try:
            kernel.send(batch, netlink.REQUEST | netlink.CREATE | netlink.APPEND * behind)
        except OSError as exc:  # it does not fit, without CAP_NET_ADMIN
            raise netlink.KernelError(exc.errno or 0, what) from None
        # The transaction is finished, and its errors can be received, when the call returns.
        kernel.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                for _flags, _number, message in kernel.receive():
                    code = -struct.unpack_from("=i", message.body)[0]
                    if message.kind == 2 and code:
                        raise netlink.KernelError(code, what)


def _rule(body: bytes) -> bytes:
    kept = netlink.only(body, _RULE_KEEPS)
    if any(name in kept for name in _REPORTED_ONLY_MARKS):
        kept = netlink.replace(kept, {RULE_EXPRESSIONS: _accepted(kept)}, netlink.NESTED)
    return kept + _compat(body)


def _accepted(rule: bytes) -> bytes:
    """Return the expressions of a rule as the kernel accepts them: without what it only reports."""
    parts = []
    for _kind, element, reported in netlink.pieces(netlink.attributes(rule)[RULE_EXPRESSIONS]):
        whole, known = reported, netlink.attributes(element)
        expression = netlink.name(known.get(1, b""))
        if expression in _REPORTED_ONLY:
            refused = nft_expressions.number(expression, _REPORTED_ONLY[expression])
            if not any(netlink.attributes(known[2]).get(refused, b"")):
                changed = netlink.replace(known[2], {refused: None})
                whole = netlink.nest(1, netlink.replace(element, {2: changed}, netlink.NESTED))
        parts.append(whole)
    return b"".join(parts)


def _compat(rule: bytes) -> bytes:
    """Return the protocol for which extensions of xtables are checked: the kernel needs it, but does not report it.

    iptables-nft writes ``-p`` as a load of the protocol and a comparison. It is done for every rule, so the bytes are
    not taken apart for it.
    """
    if b"match\0" not in rule and b"target\0" not in rule:
        return b""
    found = _protocol_pattern().search(rule)
    if not found:
        return b""
    return _compat_of(found.group(2)[0], found.group(1) != b"\0")


@functools.lru_cache(maxsize=None)
def _compat_of(protocol: int, inverted: bool) -> bytes:
    return netlink.nest(RULE_COMPAT, netlink.network_word(1, protocol), netlink.network_word(2, 2 if inverted else 0))


@functools.lru_cache(maxsize=None)  # a start of the agent needs none of them
def _protocol_pattern() -> t.Pattern[bytes]:
    """Match the expressions "load the protocol, compare it"; groups: the last byte of the operator, the protocol."""
    exact = re.escape
    header = b"[\\s\\S]{4}"
    register = b"[\\s\\S]{8}"
    by_meta = exact(netlink.text(1, "meta")) + header + exact(netlink.network_word(2, 16)) + register
    # protocol in the header of IPv4, next header in that of IPv6
    by_header = [
        b"".join(exact(netlink.network_word(2 + place, value)) for place, value in enumerate((1, offset, 1)))
        for offset in (9, 6)
    ]
    by_payload = exact(netlink.text(1, "payload")) + header + register + b"(?:" + b"|".join(by_header) + b")"
    operator = exact(netlink.network_word(2, 0)[:-1]) + b"([\\s\\S])"
    value = header + exact(netlink.attribute(1, b"\0")[:4]) + b"([\\s\\S])"
    compare = header + exact(netlink.text(1, "cmp")) + header + register + operator + value
    return re.compile(b"(?:" + by_meta + b"|" + by_payload + b")" + compare)


@functools.lru_cache(maxsize=None)
def _counted_pattern() -> t.Pattern[bytes]:
    """Match what the expression "counter" has counted."""
    number = b"[\\s\\S]{8}"
    exact = [re.escape(struct.pack("=HH", 12, kind)) for kind in (1, 2)]
    data = b"(?:" + b"|".join(re.escape(struct.pack("=HH", 28, 2 | flag)) for flag in (0, netlink.NESTED)) + b")"
    return re.compile(re.escape(netlink.text(1, "counter")) + data + exact[0] + number + exact[1] + number)


@functools.lru_cache(maxsize=None)
def _timed_pattern() -> t.Pattern[bytes]:
    """Match the keys of the expression "meta" that are times (NFT_META_TIME_NS and the next two), and xt_time."""
    keys = b"|".join(re.escape(netlink.network_word(2, key)) for key in (30, 31, 32))
    by_meta = re.escape(netlink.text(1, "meta")) + b"[\\s\\S]{4}(?:" + keys + b")"
    return re.compile(by_meta + b"|" + re.escape(netlink.text(1, "time")))
