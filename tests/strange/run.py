# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run random nodes: ``PYTHONPATH=tests python -m strange.run --seeds 1-200 --realistic --jobs 2 --keep-going``."""

from __future__ import annotations

import argparse
import collections
import ipaddress
import json
import multiprocessing
import os
import pathlib
import random
import sys
import time
import traceback
import typing as t

from . import ipv6, marks, nodes, oracle, policies, programs, realistic, settings_and_routes
from .spaces import Failed

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT / ".cache" / "collections"
MODULE = "ansible_collections.kubenode.ip_masq.plugins.modules."

GREEN, ERROR, UNNAMED = "FALSE GREEN", "FALSE ERROR", "NOT NAMED"
UNTESTED, RIGHT, REFUSED = "NOT TESTED", "RIGHT", "REFUSED"
#: what must never be
WRONG = (GREEN, ERROR, UNNAMED)


def call(node: nodes.Node, module: str, options: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Run a module of the installed collection in the node's namespace, as Ansible does, and return its result."""
    environment = "PYTHONPATH=%s" % COLLECTIONS
    command = ["env", environment, sys.executable, "-W", "ignore", "-m", MODULE + module]
    try:
        text = node.space.run(command, json.dumps({"ANSIBLE_MODULE_ARGS": options}), private=True)
    except Failed as exc:
        text = str(exc)
        if "{" not in text:
            raise
    for line in text.splitlines():
        at = line.find("{")
        if at >= 0:
            try:
                return t.cast(t.Dict[str, t.Any], json.JSONDecoder().raw_decode(line[at:])[0])
            except ValueError:
                continue
    raise Failed(text)


class Verdict(t.NamedTuple):
    """One packet: what the policy says, what was seen, and whether it is kept (None: nothing is said)."""

    probe: oracle.Probe
    promise: policies.Promise
    seen: t.Optional[oracle.Seen]
    kept: t.Optional[bool]

    def __str__(self) -> str:
        seen = "nothing" if self.seen is None else "%s at %s" % (self.seen.source, self.seen.end)
        said = self.promise.kind + (" " + ",".join(self.promise.addresses[:2]) if self.promise.addresses else "")
        return "%s: policy says %s, seen %s" % (self.probe, said, seen)


def judge(node: nodes.Node, probes: t.Sequence[oracle.Probe]) -> t.List[Verdict]:
    """Send packets and judge each."""
    with marks.Marks(node.space, node.policy.options.get("skip_marks", [])) as marked:
        seen = node.watch.send(probes)
        skipped = marked.destinations()
    return [_judged(node, probe, seen.get(place), skipped) for place, probe in enumerate(probes)]


def _judged(
    node: nodes.Node, probe: oracle.Probe, seen: t.Optional[oracle.Seen], skipped: t.Container[t.Tuple[str, str]]
) -> Verdict:
    if seen is None or (probe.source, seen.destination) in skipped:
        return Verdict(probe, policies.NOTHING, seen, None)
    link = seen.end
    if link.startswith("pod"):
        link = node.pods[int(link[3:])].link
    mark = 0
    for host, value in node.marks:
        if policies.within(probe.destination, [host]) >= 0:
            mark |= value
    packet = policies.Packet(probe.source, seen.destination, probe.protocol, seen.dport, link, mark)
    promise = node.policy.promise(packet)
    translated = seen.destination != probe.destination or (seen.dport or probe.dport) != probe.dport
    own = node.addresses(link, seen.destination)
    if promise.kind == "none":
        return Verdict(probe, promise, seen, None)
    if promise.kind == "pod":
        kept = seen.source == probe.source
        return Verdict(probe, promise, seen, True if kept else None if translated else False)
    return Verdict(probe, promise, seen, seen.source in (promise.addresses if promise.kind == "fixed" else own))


def of_node(node: nodes.Node, conflict: t.Mapping[str, t.Any]) -> bool:
    """Return whether a conflict is about connections of the node itself, which are not sent here."""
    sources = [ipaddress.ip_network(one) for one in conflict.get("sources") or []]
    pods = [ipaddress.ip_address(address) for pod in node.pods for address in (pod.four, pod.six) if address]
    return bool(sources) and not any(pod in network for pod in pods for network in sources)


def asked(node: nodes.Node, conflict: t.Mapping[str, t.Any], r: random.Random) -> t.Optional[t.List[oracle.Probe]]:
    """Return packets that a conflict speaks of, None if its words cannot be read."""
    try:
        first, _, last = str(conflict.get("range", "")).partition("-")
        if last:
            start, end = ipaddress.ip_address(first.strip()), ipaddress.ip_address(last.strip())
        else:
            network = ipaddress.ip_network(first.strip(), strict=False)
            start, end = network[0], network[-1]
    except ValueError:
        return None
    six = start.version == 6
    addresses = {int(start), int(end), (int(start) + int(end)) // 2, min(int(start) + 1, int(end))}
    addresses.add(max(int(end) - 1, int(start)))
    for what in node.interests:
        network = ipaddress.ip_network(what.get("dst", "0.0.0.0/32"))
        if network.version == start.version:
            addresses.update(one for one in map(int, (network[0], network[-1])) if int(start) <= one <= int(end))
    services = []
    sports = [what["sport"] for what in node.interests if "sport" in what][:1]
    for text in conflict.get("services") or []:
        service, _, port_from = str(text).partition(" from port ")
        if port_from:
            sports = [int(port_from.partition(",")[0].partition("-")[0])]
        proto, _, port = service.replace("icmpv6", "icmp").partition("/")
        if proto in oracle.PROTOCOLS:
            services.append((proto, int(port.partition("-")[0]) if port.partition("-")[0].isdigit() else 80))
    if not services:
        services = [("tcp", 80), ("udp", 53), ("tcp", 443), ("sctp", 3868), ("icmp", 0)]
        for rule in node.policy.options.get("rules", []):
            ports = [int(str(port).partition("-")[0]) for port in rule.get("ports", [])] or [80]
            services += [(proto, port) for proto in rule.get("protocols", ["tcp"]) for port in ports]
    sources = [str(one) for one in conflict.get("sources") or []]
    chosen = []
    for number, pod in enumerate(node.pods):
        address = pod.six if six else pod.four
        nets = [one for one in sources if "/" in one or one == address]
        if not sources or address in sources or policies.within(address, [n for n in nets if "/" in n]) >= 0:
            chosen.append((number, address))
    if not chosen:
        return None  # no pod of the node has one of these addresses
    toses = sorted({what["tos"] for what in node.interests if "tos" in what})[:2]
    found = [
        oracle.Probe(
            place, source, str(type(start)(number)), proto, port_from or oracle.sport(r), to_port, tos, "conflict"
        )
        for number in sorted(addresses)[:20]
        for place, source in chosen
        for proto, to_port in services
        for port_from in [0, *sports]
        for tos in [0, *toses]
    ]
    r.shuffle(found)
    return found[:150]


def named(checked: t.Mapping[str, t.Any], verdict: Verdict) -> bool:
    """Return whether a result says of a packet that breaks the promise that it does so, or that it is not tested."""
    probe = verdict.probe
    for missed in checked.get("untested") or []:
        if not missed.get("ranges") or policies.within(probe.destination, missed["ranges"]) >= 0:
            return True
    for conflict in checked.get("conflicts") or []:
        if policies.within(probe.destination, [conflict["range"]]) < 0:
            continue
        if conflict["sources"] and policies.within(probe.source, conflict["sources"]) < 0:
            continue
        if not conflict["services"] or any(_is_service(text, probe) for text in conflict["services"]):
            return True
    return False


def _is_service(text: str, probe: oracle.Probe) -> bool:
    """Return whether ``udp/53-60 from port 4000-4010,5000`` means a packet."""
    service, _, sources = text.partition(" from port ")
    proto, _, ports = service.partition("/")
    if proto.replace("icmpv6", "icmp") != probe.protocol or (ports and not _in_span(ports, probe.dport)):
        return False
    return not sources or any(_in_span(one, probe.sport) for one in sources.split(","))


def _in_span(text: str, number: int) -> bool:
    first, _, last = text.partition("-")
    return int(first) <= number <= int(last or first)


def _again(
    node: nodes.Node, options: t.Mapping[str, t.Any], suspects: t.Sequence[t.Tuple[t.List[oracle.Probe], str]]
) -> t.Iterator[str]:
    """Yield those that also a fresh node does not show: limits and quotas may be used up on the old one."""
    node.close()
    node.make()
    node.rules(late=False)
    call(node, "ip_masq", options)
    node.rules(late=True)
    for probes, told in suspects:
        if not any(one.kept is False for one in judge(node, probes[:6])):
            yield told


class Outcome(t.NamedTuple):
    """What one node showed."""

    name: str
    kind: str
    sent: int
    said: int
    broken: t.Tuple[str, ...]
    false_errors: t.Tuple[str, ...]
    summary: str
    constructions: t.Tuple[str, ...]
    skipped: t.Tuple[str, ...]
    policy: str
    seconds: t.Tuple[float, ...]
    note: str = ""


def run(node: nodes.Node, name: str) -> Outcome:
    """Make a node, apply its policy, verify it, send packets, and compare."""
    clock = [time.monotonic()]

    def lap() -> None:
        clock.append(time.monotonic())

    options = dict(node.policy.options)
    policy = json.dumps(options, sort_keys=True)
    empty: t.Tuple[str, ...] = ()
    try:
        node.make()
        node.rules(late=False)
        lap()
        applied = call(node, "ip_masq", options)
        if applied.get("failed"):
            used = tuple(sorted(node.used - {""}))
            text = str(applied.get("msg"))[:400]
            return Outcome(name, REFUSED, 0, 0, empty, empty, text, used, tuple(node.skipped), policy, ())
        node.rules(late=True)
        lap()
        checked = call(node, "ip_masq_info", dict(options, verify=True))
        lap()
        r = random.Random(node.seed)
        probes = node.probes()
        verdicts = judge(node, probes)
        told = [one for one in checked.get("conflicts") or [] if one.get("severity") == "error"]
        errors = [one for one in told if not of_node(node, one)]
        false_errors: t.List[str] = []
        notes, suspects = [], []
        for conflict in errors[:12]:
            more = asked(node, conflict, r)
            if more is None:
                notes.append("nobody can send: %s" % _told(conflict))
                continue
            extra = judge(node, more)
            verdicts += [one for one in extra if one.kept is False][:3]
            if any(one.kept is False for one in extra):
                continue
            if any(one.kept is None and one.seen is not None for one in extra):
                notes.append("unclear: %s" % _told(conflict))
                continue
            if not any(one.seen for one in extra):
                notes.append("nothing arrived: %s" % _told(conflict))
                continue
            seen = sum(one.seen is not None for one in extra)
            suspects.append((more, "%s [%d sent, %d seen]" % (_told(conflict), len(more), seen)))
        if suspects:
            false_errors += _again(node, options, suspects)
        lap()
    finally:
        node.close()
    broken = [one for one in verdicts if one.kept is False]
    verified = checked.get("verified")
    if checked.get("failed"):
        notes.append("verify failed: %s" % checked.get("msg"))
        verified = None
    if verified is True and broken:
        kind = GREEN
    elif false_errors:
        kind = ERROR
    elif not checked.get("failed") and not all(named(checked, one) for one in broken):
        kind = UNNAMED
        broken.sort(key=lambda one: named(checked, one))
    elif verified is None and not errors:
        kind = UNTESTED
    else:
        kind = RIGHT
    return Outcome(
        name,
        kind,
        len(verdicts),
        sum(one.kept is not None for one in verdicts),
        tuple(str(one) for one in broken),
        tuple(false_errors),
        "%s: %s" % (verified, checked.get("summary")),
        tuple(sorted(node.used - {""})),
        tuple(node.skipped),
        policy,
        tuple(round(b - a, 2) for a, b in zip(clock, clock[1:])),
        "; ".join(notes + [str(one.get("text")) for one in checked.get("limits") or []]),
    )


def _told(conflict: t.Mapping[str, t.Any]) -> str:
    by = (conflict.get("decided_by") or {}).get("rule", "")
    words = (conflict.get(key) for key in ("range", "policy", "seen", "services", "sources"))
    return "%s: policy %s, seen %s, services %s, sources %s, by %s" % (*words, by)


SORTS: t.Dict[str, t.Callable[[int], nodes.Node]] = {
    "program": programs.Program,
    "ipv6": ipv6.Ipv6,
    "settings": settings_and_routes.SettingsAndRoutes,
}


def node(what: str) -> nodes.Node:
    """Return a node by its name: a seed, one of SORTS with a seed, or one of ``strange.realistic``."""
    kind, _, rest = what.partition(":")
    if kind.isdigit():
        return nodes.Node(int(kind))
    if kind in SORTS:
        return SORTS[kind](int(rest))
    return realistic.build(what)


def _one(what: str) -> t.Union[Outcome, str]:
    try:
        return run(node(what), what)
    except Exception:
        return "%s: %s" % (what, traceback.format_exc())


def seeds(text: str) -> t.List[int]:
    """Return the numbers of ``1-20,33``."""
    found: t.List[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def show(outcome: Outcome, full: bool) -> None:
    bad = outcome.kind in WRONG
    counts = "%d sent, %d with a promise, %d broken" % (outcome.sent, outcome.said, len(outcome.broken))
    print("%s: %s (%s) %s %s" % (outcome.name, outcome.kind, outcome.summary, counts, outcome.seconds))
    if bad or full:
        print("    constructions: %s" % ", ".join(outcome.constructions))
        print("    policy: %s" % outcome.policy)
        for line in (outcome.broken if full or outcome.kind in (GREEN, UNNAMED) else ())[:6]:
            print("    broken: %s" % line)
        for line in outcome.false_errors:
            print("    false error: %s" % line)
        for line in outcome.skipped:
            print("    left out: %s" % line.replace("\n", " "))
    if outcome.note and (bad or full or outcome.kind == UNTESTED):
        print("    note: %s" % outcome.note)
    sys.stdout.flush()


def outcomes(work: t.Sequence[str], jobs: int) -> t.Iterator[t.Union[Outcome, str]]:
    """Yield what each node showed, in order."""
    if jobs <= 1:
        yield from map(_one, work)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(_one, work)


def totals(counts: t.Mapping[str, int]) -> str:
    known = [counts[kind] for kind in (GREEN, ERROR, UNNAMED, UNTESTED, RIGHT)]
    words = "%d nodes: %d false green, %d false errors, %d with a packet not named, %d not fully tested, %d right"
    return words % (sum(known), *known)


def main(argv: t.Optional[t.Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m strange.run", description=__doc__)
    parser.add_argument("--seeds", default="", help="such as 1-200,333")
    parser.add_argument("--program", default="", help="such as 1-200: random programs of rules and routes")
    parser.add_argument(
        "--settings", default="", help="such as 1-200: the same with settings, addresses and routes that few use"
    )
    parser.add_argument("--ipv6", default="", help="such as 1-200: the same for IPv6")
    parser.add_argument("--realistic", action="store_true", help="nodes as people have them")
    parser.add_argument("--only", default="", help="one of the realistic nodes")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first that is wrong")
    parser.add_argument("--full", action="store_true", help="show everything of each node")
    chosen = parser.parse_args(argv)
    if os.geteuid() != 0:
        parser.error("needs root")
    work = [str(number) for number in seeds(chosen.seeds)] if chosen.seeds else []
    for sort in SORTS:
        given = getattr(chosen, sort)
        work += ["%s:%d" % (sort, number) for number in seeds(given)] if given else []
    work += realistic.NAMES if chosen.realistic else []
    work += [chosen.only] if chosen.only else []
    counts: t.Dict[str, int] = collections.Counter()
    causes: t.Dict[str, t.Dict[str, int]] = {kind: collections.Counter() for kind in WRONG}
    broken = 0
    for outcome in outcomes(work, chosen.jobs):
        if isinstance(outcome, str):
            print(outcome)
            counts["CRASH"] += 1
            if not chosen.keep_going:
                break
            continue
        counts[outcome.kind] += 1
        broken += len(outcome.broken) > 0
        show(outcome, chosen.full)
        if outcome.kind in causes:
            for name in outcome.constructions:
                causes[outcome.kind][name] += 1
            if not chosen.keep_going:
                break
    for kind, found in causes.items():
        if found:
            print("%s, constructions there: %s" % (kind, ", ".join("%s %d" % one for one in sorted(found.items()))))
    print(
        "nodes on which a packet breaks the promise: %d; refused: %d; crashed: %d"
        % (broken, counts[REFUSED], counts["CRASH"])
    )
    print(totals(counts))
    return 1 if any(counts[kind] for kind in (*WRONG, "CRASH")) else 0


if __name__ == "__main__":
    sys.exit(main())
