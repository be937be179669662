# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet as one page of HTML that loads nothing. All text is escaped: it comes from nodes."""

from __future__ import annotations

import html
import typing as t

from .fleet import CONFLICTS, GOOD, STATES, TRAITS, Node, as_declared, by_kind, by_state, by_trait, named
from .names import cut, some_of, thousands

#: Characters of a list of hosts, and of a reason in the list of groups.
_HOSTS, _REASON = 240, 400
#: Reasons of one state, and values of one trait, that are listed; the table and the other files have all.
_LISTED = 12
#: States in which nothing is known to be wrong with the rules of a node.
_UNKNOWN = ("unreachable", "not checked", "not installed", "no report")

#: No script, no request.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #59636e; --line: #d9dee4;
  --bad: #b3261e; --unknown: #8a5a00; --warn: #7a4bb5; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --card: #181d24; --text: #e6eaf0; --soft: #9aa5b1;
  --line: #2d3540; --bad: #ff8a80; --unknown: #f0b450; --warn: #c6a3f5; --good: #5dd28a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1500px; margin: 0 auto; padding: 28px 24px 64px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 2px; }
h2 { font-size: 18px; margin: 36px 0 10px; }
p { margin: 0; }
.soft { color: var(--soft); }
.bar { display: flex; gap: 2px; height: 10px; margin: 18px 0 14px; border-radius: 5px; overflow: hidden; }
.bar span { min-width: 3px; background: var(--tone); }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; }
.tiles a { flex: 0 1 auto; min-width: 118px; padding: 9px 14px; color: inherit; text-decoration: none;
  background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--tone); border-radius: 6px; }
.tiles b { display: block; font-size: 21px; line-height: 1.25; color: var(--tone); }
.bad { --tone: var(--bad); } .unknown { --tone: var(--unknown); }
.warn { --tone: var(--warn); } .good { --tone: var(--good); }
.card { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 6px; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 6px 12px; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--soft); font-size: 13px; font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 600; white-space: nowrap; }
td.state, th.state { color: var(--tone); font-weight: 600; white-space: nowrap; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.short { white-space: nowrap; }
code { font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
.hosts { width: 38%; min-width: 220px; }
.reason { min-width: 260px; overflow-wrap: anywhere; }
.nodes { font-size: 13.5px; }
@media print { body { background: none; } .card { overflow: visible; } }
"""


class _Markup(str):
    """Text that is HTML already."""


def _tag(name: str, *inside: str, **attributes: str) -> _Markup:
    """An element. What is inside is escaped, unless it is markup; so are the values of attributes."""
    given = "".join(' %s="%s"' % (key.rstrip("_"), html.escape(value)) for key, value in attributes.items() if value)
    return _Markup("<%s%s>%s</%s>" % (name, given, _all(inside), name))


def _all(inside: t.Iterable[str]) -> _Markup:
    return _Markup("".join(one if isinstance(one, _Markup) else html.escape(one) for one in inside))


def as_html(nodes: t.Sequence[Node], generated: str) -> str:
    """The page: counts, groups worst first, what nodes differ in, all nodes.

    :param generated: when the nodes were queried.
    """
    wrong = len(nodes) - as_declared(nodes)
    title = "%s of %s nodes as declared" % (thousands(len(nodes) - wrong), thousands(len(nodes)))
    body = _tag(
        "main",
        _tag("h1", title),
        _tag("p", "IP masquerading, queried ", generated, " with kubenode.ip_masq.report", class_="soft"),
        _bar(nodes),
        _tiles(nodes),
        _tag("h2", "What is wrong"),
        _groups(nodes),
        _tag("h2", "What nodes differ in"),
        _traits(nodes),
        _tag("h2", "All nodes"),
        _nodes(nodes),
    )
    head = _all(
        [
            _Markup('<meta charset="utf-8">'),
            _Markup('<meta http-equiv="Content-Security-Policy" content="%s">' % _POLICY),
            _Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            _tag("title", "IP masquerading: ", title),
            _tag("style", _Markup(_STYLE)),
        ]
    )
    page = _tag("html", _tag("head", head), "\n", _tag("body", "\n", body, "\n"), lang="en")
    return "<!DOCTYPE html>\n%s\n" % page


def _tone(state: str) -> str:
    """How serious a state is, as a class of the style."""
    if state in _UNKNOWN:
        return "unknown"
    if state == CONFLICTS:
        return "warn"
    return "good" if state in GOOD else "bad"


def _anchor(state: str) -> str:
    return "state-%d" % STATES.index(state)


def _bar(nodes: t.Sequence[Node]) -> _Markup:
    parts = [
        _tag("span", class_=_tone(group.value), style="flex: %d" % len(group.nodes), title=group.value)
        for group in by_state(nodes)
    ]
    return _tag("div", *parts, class_="bar")


def _tiles(nodes: t.Sequence[Node]) -> _Markup:
    tiles = [
        _tag(
            "a",
            _tag("b", thousands(len(group.nodes))),
            group.value,
            href="#" + _anchor(group.value),
            class_=_tone(group.value),
        )
        for group in by_state(nodes)
    ]
    return _tag("div", *tiles, class_="tiles")


def _table(columns: t.Sequence[str], body: t.Iterable[str], class_: str = "") -> _Markup:
    head = [_tag("th", column, scope="col", class_="number" if column in _NUMBERS else "") for column in columns]
    return _tag(
        "div", _tag("table", _tag("thead", _tag("tr", *head)), *body, "\n", class_=class_), class_="card", tabindex="0"
    )


_NUMBERS = ("nodes", "drift repaired")


def _hosts(names: t.Sequence[str]) -> _Markup:
    text = html.escape(cut(some_of(names, _HOSTS), 2 * _HOSTS))
    return _tag("td", _tag("code", _Markup(text.replace(",", ",<wbr>"))), class_="hosts")


def _groups(nodes: t.Sequence[Node]) -> _Markup:
    """A row for each reason of each state."""
    rows = []
    for group in by_state(nodes):
        if not group.nodes[0].findings:
            continue
        reasons = by_kind(group.nodes)
        for reason in reasons[:_LISTED]:
            rows.append(_group_row(group.value, len(reason.nodes), reason.hosts, reason.value))
        left = [name for reason in reasons[_LISTED:] for name in reason.hosts]
        if left:
            other = "%s other reasons" % thousands(len(reasons) - _LISTED)
            rows.append(_group_row(group.value, len(left), left, other))
    if not rows:
        return _tag("p", "Nothing.", class_="soft")
    return _table(("state", "nodes", "hosts", "reason"), [_tag("tbody", *rows)])


def _group_row(state: str, number: int, hosts: t.Sequence[str], reason: str) -> _Markup:
    return _row(
        _tag("td", state, class_="state " + _tone(state)),
        _tag("td", thousands(number), class_="number"),
        _hosts(hosts),
        _tag("td", cut(reason, _REASON), class_="reason"),
    )


def _row(*inside: str) -> _Markup:
    return _Markup("\n" + _tag("tr", *inside))


def _traits(nodes: t.Sequence[Node]) -> _Markup:
    """A row for each value that nodes report."""
    rows = []
    for trait in TRAITS:
        groups = by_trait(nodes, trait)
        for number, group in enumerate(groups[:_LISTED]):
            rows.append(_trait_row("" if number else trait, cut(named(trait, group), _REASON), group.hosts))
        left = list(dict.fromkeys(name for group in groups[_LISTED:] for name in group.hosts))
        if left:
            rows.append(_trait_row("", "%s other values" % thousands(len(groups) - _LISTED), left))
    if not rows:
        return _tag("p", "No node has reported.", class_="soft")
    return _table(("", "value", "nodes", "hosts"), [_tag("tbody", *rows)])


def _trait_row(trait: str, value: str, hosts: t.Sequence[str]) -> _Markup:
    return _row(
        _tag("th", trait, scope="row" if trait else ""),
        _tag("td", value, class_="reason"),
        _tag("td", thousands(len(hosts)), class_="number"),
        _hosts(hosts),
    )


def _nodes(nodes: t.Sequence[Node]) -> _Markup:
    columns = ("host", "state", "reason", "agent", "backend", "policy", "verification", "drift repaired")
    bodies = [
        _tag("tbody", *(_node_row(node) for node in group.nodes), id=_anchor(group.value)) for group in by_state(nodes)
    ]
    return _table(columns, bodies, class_="nodes")


def _node_row(node: Node) -> _Markup:
    agent, backend, policy, verification = (
        ", ".join(node.traits.get(trait, ())) for trait in ("agent", "backend", "policy", "verification")
    )
    policy = node.policy_name or policy
    return _row(
        _tag("th", _tag("code", node.name), scope="row"),
        _tag("td", node.state, class_="state " + _tone(node.state)),
        _tag("td", node.why, class_="reason"),
        _tag("td", agent, class_="short"),
        _tag("td", backend, class_="short"),
        _tag("td", _tag("code", policy)),
        _tag("td", verification, class_="short", title=node.verified_at),
        _tag("td", str(node.repaired) if node.repaired else "", class_="number"),
    )
