# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook report prints and writes."""

from __future__ import annotations

import collections
import csv
import html
import html.parser
import io
import json
import re
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.filter.fleet import fleet
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._fleet import ASKED, STATES, by_state, judge
from hypothesis import given, settings
from hypothesis import strategies as st
from support import documented
from support.fleet_answers import MISSING, PROBLEM, asked, documented_fleet, documented_groups, large_fleet, verified
from support.import_collection import ROOT

NOW = "2026-11-22 13:05 UTC"
#: Characters of a line, and lines: two of 30 are for the place of the files and what Ansible counts.
WIDTH, LINES = 120, 28
VOID = {"meta", "wbr"}


def reported(answers: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """The filter's result, with files."""
    hostvars = {host: {ASKED: answer} for host, answer in answers.items()}
    return t.cast(t.Dict[str, t.Any], fleet(list(answers), hostvars, NOW))


class Page(html.parser.HTMLParser):
    """A page, read strictly: elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: t.List[str] = []
        self.tags: t.Set[str] = set()
        self.attributes: t.List[t.Tuple[str, str]] = []
        self.text: t.List[str] = []
        self.rows: t.List[t.List[str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag: str, attrs: t.List[t.Tuple[str, t.Optional[str]]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style",):
            self.text.append(data)
        if self.rows and "tr" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def large() -> t.Dict[str, t.Any]:
    """The report of 3,000 nodes and four more, in every state."""
    return reported(large_fleet())


def states(table: t.List[str]) -> t.Dict[str, int]:
    """The rows of states in a table: how many nodes each has."""
    found = re.findall(r"(?m)^(%s) +([\d,]+)  " % "|".join(STATES), "\n".join(table))
    return {state: int(number.replace(",", "")) for state, number in found}


def test_three_thousand_nodes_are_thirty_lines(large: t.Dict[str, t.Any]) -> None:
    table = large["table"]
    assert len(table) <= LINES and max(map(len, table)) <= WIDTH
    found = states(table)
    assert list(found) == [state for state in STATES if state in found], "worst first"
    assert len(found) == len(STATES) - 2 and sum(found.values()) == 3004, "all but 'not removed' and 'absent'"
    assert table[-1] == "3,004 nodes: 2,710 in order, 294 not"
    assert any(re.match(r"policy: 10 other values +900  node\[2001-2900\]", line) for line in table)
    # The playbook status ends with it.
    assert len(large["lines"]) <= LINES and max(map(len, large["lines"])) <= WIDTH
    assert large["lines"][-1] == table[-1] and states(large["lines"]) == found


def test_the_page_shows_the_table_of_its_fleet() -> None:
    """Every node of the page is in one state and has one policy: the numbers of each add up."""
    hostvars = {
        host: {ASKED: answer, "group_names": documented_groups(number)}
        for number, (host, answer) in enumerate(documented_fleet(documented.VERSION).items(), 1)
    }
    page = (ROOT / "docs" / "fleets.md").read_text(encoding="utf-8")
    (command,) = [one for one in documented.commands() if " kubenode.ip_masq.report " in one.text]
    table = fleet(list(hostvars), hostvars)["table"]
    assert table == command.output[: len(table)], "\n".join(table)
    assert "\n".join(table) in page


_TEXT = st.text(max_size=30) | st.sampled_from(
    ["<script>alert(1)</script>", "=1+1", "\x1b[2J", "a\nb", "&lt;", "{{ 7 }}", '" onclick="x', "</style></td>"]
)
_REPORTS = st.fixed_dictionaries(
    {},
    optional={
        "version": _TEXT,
        "in_sync": st.booleans(),
        "differs": st.lists(st.just(MISSING) | st.fixed_dictionaries({"family": _TEXT}), max_size=2),
        "errors": st.lists(_TEXT, max_size=2),
        "notes": st.lists(_TEXT, max_size=2),
        "config": st.fixed_dictionaries({"sources": st.lists(_TEXT, max_size=2), "problem": st.none() | _TEXT}),
        "policy_hash": _TEXT,
        "backend": st.fixed_dictionaries({"name": _TEXT, "version": _TEXT}) | st.none(),
        "last_verification": st.none() | st.builds(verified, st.integers(0, 1)) | _TEXT,
        "failing": st.booleans(),
        "drift_repaired": st.integers(0, 10**6) | _TEXT,
        "data_plane": _TEXT | st.fixed_dictionaries({}, optional={"kube_proxy": st.lists(_TEXT, max_size=3) | _TEXT}),
    },
)
_ANSWERS = (
    st.builds(asked, _REPORTS)
    | st.builds(lambda msg: {"unreachable": True, "msg": msg}, _TEXT)
    | st.builds(lambda names: asked(differs=names, pending=names), st.lists(_TEXT, max_size=2))
    | st.sampled_from(
        [{}, {"installed": False}, {"installed": True}, {"installed": True, "problems": ["x"], "report": 7}]
    )
    | st.none()
    | _TEXT
)
_FLEETS = st.dictionaries(_TEXT.filter(bool), _ANSWERS, max_size=12)


@given(_FLEETS)
def test_every_node_is_in_one_group_whatever_it_answers(answers: t.Dict[str, t.Any]) -> None:
    nodes = [judge(host, answer) for host, answer in answers.items()]
    groups = by_state(nodes)
    assert collections.Counter(node.host for group in groups for node in group.nodes) == dict.fromkeys(answers, 1)
    assert [STATES.index(group.value) for group in groups] == sorted(STATES.index(group.value) for group in groups)


@given(_FLEETS)
@settings(max_examples=50)
def test_tables_and_files_hold_whatever_nodes_answer(answers: t.Dict[str, t.Any]) -> None:
    found = reported(answers)
    assert len(found["table"]) <= LINES and max(map(len, found["table"])) <= WIDTH
    assert all(line.isprintable() for line in found["table"] + found["lines"])
    for text in found["files"].values():
        text.encode("utf-8")
    assert len(json.loads(found["files"]["report.json"])["hosts"]) == len(answers)
    page = Page(found["files"]["report.html"])
    assert not page.tags & {"script", "img", "link", "iframe", "object", "form", "input"}
    assert not [name for name, _value in page.attributes if name.startswith("on")]
    rows = list(csv.reader(io.StringIO(found["files"]["report.csv"], newline="")))
    assert len(rows) == len(answers) + 1 and {len(row) for row in rows} == {len(rows[0])}
    assert not [cell for row in rows for cell in row if cell[:1] and cell[0] in "=+-@\t\r\n"]


def test_the_page_has_all_nodes_and_loads_nothing(large: t.Dict[str, t.Any]) -> None:
    text = large["files"]["report.html"]
    page = Page(text)
    assert "2,710 of 3,004 nodes match the policy" in page.text and NOW in "".join(page.text)
    cells = [row for row in page.rows if len(row) == 9]
    assert len(cells) == 1 + 3004 and cells[1][:2] == ["node0031.fra1.example", "unreachable"]
    elsewhere = [value for name, value in page.attributes if name in ("src", "href") and not value.startswith("#")]
    assert text.count('<a rel="noreferrer" href="%s">' % "".join(elsewhere)) == 1, (
        "a link, which loads when it is chosen"
    )
    assert elsewhere[0].endswith("/docs/operations.md#status-of-a-fleet")
    assert "url(" not in text and "@import" not in text and "prefers-color-scheme: dark" in text
    anchors = {value for name, value in page.attributes if name == "id"}
    inside = {value for name, value in page.attributes if name == "href"} - set(elsewhere)
    assert {value[1:] for value in inside} == anchors
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'")


def test_a_state_is_a_filter_and_a_node_has_all_of_its_reason(large: t.Dict[str, t.Any]) -> None:
    """Without a script: links to a state make its rows the target, and the style hides the others."""
    text = large["files"]["report.html"]
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    links = re.findall(r'href="(#(?!nodes")[a-z-]+)"[^>]*>(?:<b>[\d,]+</b>)?([^<]+)</a>', text)
    assert ("#not-in-sync", "not in sync") in links
    assert collections.Counter(state for _href, state in links) == {
        state: 1 if state == "in sync" else 2 for state in states(large["table"])
    }, "a tile of each state, and its row of reasons"
    for href, state in set(links):
        rows = re.search(r'<tbody id="%s">\s*<tr>.*?class="state [a-z]+">([^<]+)<' % href[1:], text, re.DOTALL)
        assert rows and rows.group(1) == state
        assert 'main:has(%s:target) .tiles [href="%s"]' % (href, href) in style
    assert ".nodes:has(tbody:target) tbody:not(:target), main:not(:has(tbody:target)) .filtered" in style
    assert '<p class="filtered"><a href="#nodes">List all 3,004 nodes</a></p>' in text
    nodes = text[text.index('<h2 id="nodes">') :]
    reasons = [html.unescape(one) for one in re.findall(r'<td class="reason">([^<]*)</td>', nodes)]
    found = json.loads(large["files"]["report.json"])["hosts"]
    assert [bool(one) for one in reasons] == [bool(one["findings"]) for one in found]
    assert all(one["findings"][0]["reason"] in shown for one, shown in zip(found, reasons) if shown)
    assert "ellipsis" not in style and ".nodes .reason, .nodes .policy { white-space: normal; " in style


NEEDED = {"before": "nftables mode", "do": "set leaks to count", "why": "only iptables mode drops these packets"}
LEFT = {"what": "the link kube-ipvs0", "command": "ip link delete kube-ipvs0"}


def proxied(*modes: str, plugin: str = "nftables", **more: t.Any) -> t.Dict[str, t.Any]:
    """The answer of a node with kube-proxy in these modes, and Calico."""
    found = {"kube_proxy": list(modes), "network_plugins": ["Calico " + plugin], "leftovers": [], "steps": [], **more}
    return asked({"data_plane": found, "last_verification": verified()})


def test_half_moved_nodes_are_named_in_every_form() -> None:
    answers = {"node-%d" % number: proxied("nftables") for number in range(1, 11)}
    for number in (11, 12):
        answers["node-%d" % number] = proxied("iptables_nft", "nftables", plugin="iptables_nft", leftovers=[LEFT])
    answers["node-13"] = proxied("iptables_legacy", plugin="iptables_legacy", steps=[NEEDED])
    found = reported(answers)
    assert found["table"] == [
        "state                                          nodes  hosts",
        "in sync                                           13  all",
        "kube-proxy half moved: iptables_nft+nftables       2  node-[11-12]",
        "kube-proxy nftables                               10  node-[1-10]",
        "kube-proxy iptables_legacy                         1  node-13",
        "agent 0.1.0                                       13  all",
        "backend iptables_nft 1.8.9                        13  all",
        "policy 44136fa355b3                               13  all",
        "verification matches the policy                   13  all",
        "13 nodes: 13 in sync",
    ]
    assert found["lines"] == [
        "agent 0.1.0; iptables_nft 1.8.9",
        "kube-proxy nftables, half moved: iptables_nft+nftables (node-[11-12]), iptables_legacy (node-13)",
        "13 nodes: 13 in sync",
    ]
    assert found["off"] == [], "it is no state of the rules"
    data = json.loads(found["files"]["report.json"])
    half = "half moved: iptables_nft+nftables"
    assert data["kube_proxy"] == {half: 2, "nftables": 10, "iptables_legacy": 1}
    rows = {row["host"]: row for row in csv.DictReader(io.StringIO(found["files"]["report.csv"], newline=""))}
    assert (rows["node-12"]["kube-proxy"], rows["node-12"]["network plugin"]) == (half, "Calico iptables_nft")
    assert rows["node-12"]["left behind"] == "the link kube-ipvs0: ip link delete kube-ipvs0"
    assert rows["node-13"]["to do"].startswith("before nftables mode: set leaks to count: only")
    page = Page(found["files"]["report.html"])
    assert [half, "2", "node-[11-12]"] in page.rows
    assert [row[5] for row in page.rows if row[:1] == ["node-11"]] == [half]


def test_clusters_without_kube_proxy_have_no_row_of_it() -> None:
    found = reported({"n1": proxied(), "n2": asked()})
    assert not [line for line in found["table"] + found["lines"] if "kube-proxy" in line]
    assert "kube-proxy</h2>" not in found["files"]["report.html"]


def test_json_is_for_programs(large: t.Dict[str, t.Any]) -> None:
    data = json.loads(large["files"]["report.json"])
    assert (data["generated"], data["nodes"], data["match_policy"]) == (NOW, 3004, 2710)
    by_name = {one["state"]: one["hosts"] for one in data["states"]}
    assert by_name["broken config"] == ["node0077.fra1.example", "node0901.fra1.example", "node2650.fra1.example"]
    assert [one["state"] for one in data["states"] if one["match_policy"]] == ["in sync"]
    assert len(data["traits"]["policy"]) == 11
    (broken,) = [one for one in data["hosts"] if one["host"] == "node0077.fra1.example"]
    assert broken["findings"][0]["state"] == "broken config"
    assert broken["findings"][0]["reason"].startswith(PROBLEM.replace("10.0.0.1", "10.0.0.77"))
    assert (
        broken["traits"]["verification"] == ["matches the policy"] and broken["verified_at"] == "2026-11-21 04:00 UTC"
    )


def with_policy(digest: str, **policy: t.Any) -> t.Dict[str, t.Any]:
    """The answer of a node with this policy."""
    ranges = {"sources": ["/etc/x"], "problem": None, "non_masquerade_cidrs": ["10.0.0.0/8"], "exemption": "return"}
    return asked({"policy_hash": digest, "config": {**ranges, **policy}})


def test_policies_have_names_that_people_know() -> None:
    answers = {"n%d" % number: with_policy("a" * 12) for number in range(1, 6)}
    answers.update(
        n6=with_policy("b" * 12, exemption="enforce"),
        n7=with_policy("b" * 12, exemption="enforce"),
        n8=with_policy("c" * 12, non_masquerade_cidrs=["192.0.2.0/24", "10.9.0.0/16", "10.7.0.0/16"], enable_ipv6=True),
        n9=asked({"policy_hash": "d" * 12}),
        n10={"installed": False},
    )
    # n10 has no policy, and so does not keep rack_b from being a name.
    groups = {"rack_a": [1, 2, 3], "gateways": [4, 5], "rack_b": [6, 7, 10], "rack_c": [8, 9]}
    hostvars = {
        host: {
            ASKED: answer,
            "group_names": ["all", *(name for name, members in groups.items() if int(host[1:]) in members)],
        }
        for host, answer in answers.items()
    }
    found = fleet(list(answers), hostvars, NOW)
    names = {
        "rack_a, gateways (aaaaaaaaaaaa)": "n[1-5]",
        "rack_b (bbbbbbbbbbbb)": "n[6-7]",
        "with 192.0.2.0/24, 10.9.0.0/16 and 1 more, without 10.0.0.0/8, enable_ipv6 true (cccccccccccc)": "n8",
        "dddddddddddd": "n9",
    }
    rows = [line for line in found["table"] if line.startswith("policy ")]
    assert [line.split()[-1] for line in rows] == list(names.values())
    for line, name in zip(rows, names):
        assert line.startswith("policy " + (name if len(name) < 38 else name[:34].rstrip() + "...")), line
    page = "".join(Page(found["files"]["report.html"]).text)
    assert all(name in page for name in names)
    data = {one["host"]: one["policy_name"] for one in json.loads(found["files"]["report.json"])["hosts"]}
    assert data["n1"] == next(iter(names)) and data["n10"] is None


def test_the_policy_is_in_each_file_with_its_ranges_and_hosts() -> None:
    own = {
        "source_cidrs": ["10.244.0.0/16"],
        "snat": ["192.0.2.5 for 10.244.1.0/24, 10.244.2.0/24", "192.0.2.6"],
        "rules": ["masquerade to 10.8.0.0/16 of tcp/443"],
        "out_interfaces": ["eth<1>"],
        "jump_position": "first",
        "random_fully": True,
    }
    ranges = ["10.%d.0.0/16" % number for number in range(130)]
    answers = {"n%d" % number: with_policy("a" * 12, **own) for number in (1, 2)}
    answers["n3"] = with_policy("b" * 12, non_masquerade_cidrs=ranges, source_cidrs=[])
    answers["n3"]["report"]["backend"] = {"name": "nftables", "version": "1.0.9"}
    files = reported(answers)["files"]
    data = json.loads(files["report.json"])["policies"]
    assert [(one["policy"], one["hosts"], one["backends"]) for one in data] == [
        ("a" * 12, ["n1", "n2"], ["iptables_nft 1.8.9"]),
        ("b" * 12, ["n3"], ["nftables 1.0.9"]),
    ]
    assert data[0]["options"] == {"non_masquerade_cidrs": ["10.0.0.0/8"], "exemption": "return", **own}
    assert data[1]["options"]["non_masquerade_cidrs"] == ranges
    shown = {
        "non_masquerade_cidrs": "10.0.0.0/8",
        "exemption": "return",
        "source_cidrs": "10.244.0.0/16",
        "snat": "192.0.2.5 for 10.244.1.0/24, 10.244.2.0/24; 192.0.2.6",
        "rules": "masquerade to 10.8.0.0/16 of tcp/443",
    }
    rows = {row["host"]: row for row in csv.DictReader(io.StringIO(files["report.csv"], newline=""))}
    assert {name: rows["n1"][name] for name in shown} == shown
    assert rows["n1"]["other options"] == "out_interfaces: eth<1>; jump_position: first"
    cut = ", ".join(ranges[:100]) + " and 30 more"
    assert rows["n3"]["non_masquerade_cidrs"] == cut and rows["n3"]["source_cidrs"] == "no limit"
    first, second = [row for row in Page(files["report.html"]).rows if row[0].endswith(("aaa)", "bbb)", "aaa", "bbb"))]
    assert first[1:3] == ["2", "n[1-2]"] and second[1:3] == ["1", "n3"]
    for name, text in {
        **shown,
        "out_interfaces": "eth<1>",
        "jump_position": "first",
        "backend": "iptables_nft 1.8.9",
    }.items():
        assert "%s: %s" % (name, text) in first[3]
    assert "random_fully" not in first[3] and "non_masquerade_cidrs: " + cut in second[3]
    assert "backend: nftables 1.0.9" in second[3]


@pytest.mark.parametrize(
    "groups, off, name",
    [
        # cluster has nodes that report nothing, and kube_node is the smaller of those with all nodes of the policy
        (("all", "cluster", "kube_node"), range(9, 11), "most of kube_node (aaaaaaaaaaaa)"),
        (("all",), range(9, 11), "most nodes (aaaaaaaaaaaa)"),
        (("all",), range(6, 11), "aaaaaaaaaaaa"),
    ],
)
def test_the_policy_of_most_nodes_has_a_name_where_others_of_its_group_differ(
    groups: t.Sequence[str], off: t.Sequence[int], name: str
) -> None:
    answers = {"n%d" % number: with_policy("a" * 12) for number in range(1, 11)}
    answers.update({"n%d" % number: with_policy("%012d" % number, exemption="enforce") for number in off})
    hostvars = {host: {ASKED: answer, "group_names": groups} for host, answer in answers.items()}
    hostvars["db"] = {ASKED: with_policy("b" * 12), "group_names": groups[:2]}
    data = json.loads(fleet(list(hostvars), hostvars, NOW)["files"]["report.json"])
    names = {one["host"]: one["policy_name"] for one in data["hosts"]}
    assert names["n1"] == names["n5"] == name
    assert names["n10"] == "exemption enforce (000000000010)"


def test_files_are_made_only_when_asked_for() -> None:
    assert "files" not in fleet(["n1"], {"n1": {ASKED: asked()}})
