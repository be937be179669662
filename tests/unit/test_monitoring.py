# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts and dashboard in docs/monitoring: what they ask for is what the agent writes, and each alert is tested."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
import yaml
from support.agent_metrics import LABELS, METRICS, SAMPLE
from support.import_collection import ROOT

FOLDER = ROOT / "docs" / "monitoring"
RULES_FILE = FOLDER / "ip-masq-agent.rules.yml"
TESTS_FILE = FOLDER / "ip-masq-agent.rules.test.yml"
RULES = [rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]]
TESTS = yaml.safe_load(TESTS_FILE.read_text())["tests"]
DASHBOARD = json.loads((FOLDER / "ip-masq-agent.dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def metrics_of(expressions: t.Iterable[str]) -> t.Set[str]:
    """The metrics that expressions name."""
    return {name for expression in expressions for name in re.findall(r"\bip_masq_agent_\w+", expression)}


def promtool(*arguments: t.Union[str, Path]) -> None:
    """Run promtool where there is one.

    :raises AssertionError: it finds an error.
    """
    program = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".cache")
    if not program:
        pytest.skip("no promtool: tools/setup could not download Debian's package of it")
    done = subprocess.run(
        [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_metric_is_one_that_the_agent_writes() -> None:
    assert metrics_of(rule["expr"] for rule in RULES) <= METRICS
    assert metrics_of(series["series"] for test in TESTS for series in test["input_series"]) <= METRICS
    variables = json.dumps(DASHBOARD["templating"])
    assert metrics_of([*EXPRESSIONS, variables]) == METRICS, "the dashboard shows all of them"


def test_sample_of_the_metrics_is_complete() -> None:
    assert [name for name, value in SAMPLE._asdict().items() if value is None or value in ({}, "")] == []


def test_every_label_is_one_that_a_metric_has() -> None:
    named = set(re.findall(r"\$labels\.(\w+)", RULES_FILE.read_text()))
    for panel in PANELS:
        for target in panel["targets"]:
            named |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for grouping in re.findall(r"\bby \(([^)]*)\)", target["expr"]):
                named |= set(grouping.split(", "))
            named |= set(re.findall(r"[{,](\w+)=", target["expr"]))
    assert {"instance", "program", "verdict"} <= named <= LABELS


def test_every_alert_says_where_and_what_to_look_at() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].startswith("{{ $labels.instance }}: ")
    named = re.findall(r"^\| `(\w+)` \|", OPERATIONS[OPERATIONS.index("| alert |") :], re.MULTILINE)
    assert named[: len(RULES)] == [rule["alert"] for rule in RULES]
    assert set(re.findall(r"\(alert (\w+)\)", TROUBLESHOOTING)) == {rule["alert"] for rule in RULES}


def test_every_alert_leads_to_its_row() -> None:
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == repository + "/blob/main/docs/troubleshooting.md"
        (row,) = [line for line in TROUBLESHOOTING.splitlines() if '<a name="%s"></a>' % anchor in line]
        assert "(alert %s)" % rule["alert"] in row


def test_every_alert_is_tested_both_ways() -> None:
    checks = [(check["alertname"], bool(check["exp_alerts"])) for test in TESTS for check in test["alert_rule_test"]]
    for rule in RULES:
        assert {fires for name, fires in checks if name == rule["alert"]} == {True, False}, rule["alert"]


def test_rules_are_valid_and_fire_as_expected() -> None:
    promtool("check", "rules", RULES_FILE)
    promtool("test", "rules", TESTS_FILE)


def test_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    queries = [query.replace("$__rate_interval", "5m").replace("$instance", ".*") for query in EXPRESSIONS]
    assert not [query for query in queries if "$" in query]
    rules = [{"record": "query:%d" % number, "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", file)


def test_no_graph_has_a_line_for_each_node() -> None:
    lines = [expression for expression in EXPRESSIONS if not re.match(r"(sum|count|min|max)\b", expression)]
    assert lines and all(re.search(r"\b(topk|bottomk)\(10, ", expression) for expression in lines)


def test_panels_are_described_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken: t.Set[t.Tuple[int, int]] = set()
    for panel in PANELS:
        assert panel["title"] and panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _y in cells) < 24, panel["title"]
        taken |= cells
