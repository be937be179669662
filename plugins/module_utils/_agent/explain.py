# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``ip-masq-agent explain``: what a destination sees, by which rule, and the policy.

A packet through a copy of the node answers. Without a copy only the policy is shown.
"""

from __future__ import annotations

import ipaddress
import json
import re
import typing as t

from .._engine import effect_words
from .._engine.effects import Effect, as_returns
from .._engine.reconcile import Result
from .._engine.ruleset import service_number
from .._errors import ConfigError, NodeError
from .._system import files, intervals, pod_names
from .._system.families import Family, of_address
from .._system.node import Node
from .._verify import inspection
from .._verify.words import explanations
from .effective_policy import choose_policy, read_policy
from .paths import Paths
from .state_files import read_memory
from .sync import dry_run

Data = t.Dict[str, t.Any]

_BY = "decided by: %(owner)s, %(backend)s, table %(table)s, chain %(chain)s: %(rule)s"


def explain(
    node: Node, paths: Paths, wanted: inspection.Request, as_json: bool, proposed: t.Optional[str] = None
) -> t.List[str]:
    """Return the answer about one destination, one line each.

    :param wanted: names one destination.
    :param proposed: a file; also show what it would change in place of the config file.
    :raises ConfigError: there is no valid configuration. NodeError: the node cannot be read.
    """
    proposal = None if proposed is None else _propose(node, paths, proposed, wanted)
    found = inspection.inspect(node, lambda: choose_policy(paths), wanted)
    (one,) = found["explanations"]
    if as_json:
        data = dict(one, health=found["health"], limits=found["limits"])
        if proposal is not None:
            data["proposed"] = proposal
        return json.dumps(data, indent=2).split("\n")
    changes = () if proposal is None else _changes(proposal, one["destination"])
    return [*_lines(one, found), *warnings(found), *changes]


def _lines(one: Data, found: Data) -> t.Iterator[str]:
    service = one["protocol"] + ("" if one["protocol"] == "icmp" else "/%d" % one["port"])
    who = one["source"] or ("" if one["outcome"] == "not tested" else "the node itself")
    sender = " from %s" % pod_names.with_name(who, one.get("pod")) if who else ""
    yield "%s %s, for %s%s" % (one["destination"], _answer(one), service, sender)
    if one["policy"]:
        intended = "; the translation is intended" if one["policy"] != one["seen"] and one["agrees"] else ""
        yield "policy: %s%s" % (explanations.WHOSE.get(one["policy"], "the address " + one["policy"]), intended)
    elif one["source"] is not None and one["outcome"] == "sent":
        yield "policy: nothing: " + _why_nothing(one, found["policy"])
    if one["decided_by"]:
        yield _BY % one["decided_by"]
    if one["dropped_by"]:
        yield "reason: " + one["dropped_by"]
    if one["interface"]:
        yield "interface: " + one["interface"]
    for other in one["alternatives"]:
        by = "; " + _BY % other["decided_by"] if other["decided_by"] else ""
        over = ", over %s" % other["interface"] if other["interface"] not in (one["interface"], None) else ""
        yield "also possible: %s%s%s" % (_answer(other), over, by)
    for reason in one["depends_on"]:
        yield "depends on: " + reason
    for reason in one["not_understood"]:
        yield "not understood: " + reason
    if one["remedy"]:
        yield "remedy: " + one["remedy"]


def _why_nothing(one: Data, policy: Data) -> str:
    """Return why a policy says nothing of a packet that left."""
    family = of_address(one["destination"])
    if family in policy["exempt"]:
        # Of another source, interface or mark than the policy's, or from an address of the node.
        return "this connection is outside the policy's scope"
    if policy["origin"] not in (inspection.FROM_OPTIONS, inspection.FROM_AGENT):
        return "no policy is given, and no rules of this agent's form were found for IPv%d" % family.version
    return "IPv6 is not managed (enableIPv6 is off)"


def _answer(one: Data) -> str:
    if one["outcome"] == "sent":
        whose = explanations.WHOSE.get(one["seen"], "another address")
        return "sees %s%s" % (whose, "" if one["seen_address"] is None else " (%s)" % one["seen_address"])
    if one["outcome"] == "delivered":
        return "is an address of the node, or is translated to one: no packet leaves"
    if one["outcome"] == "not tested":
        return "was not tested"
    return "is not reached: the packet is %s" % one["outcome"]


def warnings(found: Data) -> t.Iterator[str]:
    """Return findings about the node that other lines do not contain, and what the copy lacks."""
    for one in found["health"]:
        if one["severity"] != "info" and one["code"] not in ("conflict", "foreign_nat_rule", "not_tested"):
            yield "%(severity)s: %(text)s" % one + ("; remedy: %s" % one["remedy"] if one["remedy"] else "")
    for one in found["limits"]:
        yield "not in the copy: %(text)s" % one


def _changes(proposal: Data, destination: str) -> t.Iterator[str]:
    """Return for people what a proposed configuration changes for packets to one destination."""
    for effect in proposal["effects"]:
        yield "proposed: " + effect_words.line(effect)
    # Whether the rules change their place among those of other programs, which is not compared.
    moved = effect_words.MOVED in proposal["notes"]
    if moved or not proposal["effects"]:
        yield "proposed: " + (effect_words.MOVED if moved else "nothing changes for packets to " + destination)
    yield from ("note: " + note for note in proposal["notes"] if note != effect_words.MOVED)


def _propose(node: Node, paths: Paths, path: str, wanted: inspection.Request) -> Data:
    """Return what a proposed configuration changes for packets to one destination.

    :param path: of a file with the text of the config file; drop-ins stay.
    :param wanted: names the destination; of a source None is any.
    :raises ConfigError: it is not valid. NodeError: the rules cannot be read.
    """
    text = files.read(path)
    if text is None:
        raise ConfigError("%s: there is no such file" % path)
    remembered = read_memory(paths)
    try:
        policy, config = read_policy(paths, remembered, text.decode("utf-8", "replace"))
    except ConfigError as exc:
        raise ConfigError(_called(path, paths, str(exc))) from None
    result = dry_run(node, paths, config, remembered, effects=True)
    if result.errors:
        raise NodeError("; ".join(result.errors))
    destination = ipaddress.ip_address(wanted.destinations[0])
    family = of_address(wanted.destinations[0])
    moved = any(one.moved for one in result.compared if one.family == family)
    notes = [_called(path, paths, note) for note in policy.notes]
    return {
        "file": path,
        "effects": as_returns(_concerned(result, family, int(destination), wanted)),
        "notes": [*[effect_words.MOVED] * moved, *notes, *result.notes, *result.effect_notes],
    }


def _called(path: str, paths: Paths, text: str) -> str:
    """Return a text about the config file as one about the file in its place; those of config.d keep their names."""
    return re.sub(re.escape(paths.config) + r"(?!\.d/)", lambda _found: path, text)


def _concerned(result: Result, family: Family, destination: int, wanted: inspection.Request) -> t.Iterator[Effect]:
    service = service_number(wanted.protocol, wanted.port, family)
    source = None if wanted.source is None else int(ipaddress.ip_address(wanted.source))
    for effect in (effect for one in result.compared for effect in one.effects):
        if (
            effect.family == family
            and intervals.contains(effect.destinations, destination)
            and (effect.services is None or intervals.contains(effect.services, service))
            and (effect.sources is None or source is None or intervals.contains(effect.sources, source))
        ):
            yield effect
