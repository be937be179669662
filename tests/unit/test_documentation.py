# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the README and the documents say is in the code: messages, options, defaults, metrics, links."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.metrics import Sample, render
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.units import unit_files
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import Counters
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import DEFAULTS, POLICY_OPTIONS
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils.role_variables import OF_PLAYBOOKS
from support.import_collection import ROOT, location

README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = {path: path.read_text(encoding="utf-8") for path in (location() / "plugins").rglob("*.py")}


def rows(text: str, after: str) -> t.List[t.List[str]]:
    """The cells of the first table behind a piece of text, without its heading."""
    table = re.search(r"(?:^\|.*\n)+", text[text.index(after) :], re.MULTILINE)
    assert table, after
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.group().splitlines()[2:]]


def _pieces(message: str) -> t.List[str]:
    """The parts of a message that do not depend on the value."""
    return [
        piece.strip()
        for piece in re.split(r"\.\.\.|\bN\b|cidrLimit \(64\)|before/behind", message)
        if piece.strip(" ;")
    ]


@pytest.mark.parametrize("message", [row[0].strip("`") for row in rows(README, "## When something is wrong")])
def test_every_message_is_one_that_the_code_says(message: str) -> None:
    joined = "\n".join(re.sub(r'"\n\s+"', "", source) for source in SOURCES.values())
    for piece in _pieces(message):
        assert piece.strip("; ") in joined, piece


def test_policy_table_has_every_key_with_its_default() -> None:
    table = {row[1].strip("`"): row for row in rows(README, "## Policy")}
    assert set(table) == {key.key for key in POLICY_OPTIONS}
    for key in POLICY_OPTIONS:
        option, _file_key, default = table[key.key][:3]
        assert option.split()[0] == "`%s`" % key.name
        if key.name in DEFAULTS and DEFAULTS[key.name] != ():
            assert yaml.safe_load(default.strip("`")) == DEFAULTS[key.name]


def test_variables_are_those_of_the_role() -> None:
    spec = yaml.safe_load((location() / "roles/ip_masq_agent/meta/argument_specs.yml").read_text(encoding="utf-8"))
    known = set(spec["argument_specs"]["main"]["options"])
    known |= {*OF_PLAYBOOKS, "ip_masq_agent_info"}  # a module
    metrics = (
        r"ip_masq_agent_(?:in_sync|last_success|drift|config_broken|config_errors|repairs_w|exempt_c|packets|bytes)\w*"
    )
    for text in (README, OPERATIONS):
        for name in re.findall(r"\bip_masq_agent_[a-z0-9_]+\b", re.sub(metrics, "", text)):
            assert name in known or any(one.startswith(name) for one in known if name.endswith("_")), name


def test_metrics_are_those_that_are_written() -> None:
    text = render(Sample(True, 1.0, 0, 0, False, {"ipv4": 1}, {"ipv4": Counters()}))
    written = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    listed = set(
        re.findall(r"\bip_masq_agent_\w+", " ".join(row[0] for row in rows(OPERATIONS, "With `ip_masq_agent_metrics")))
    )
    assert listed == written


def test_units_are_those_that_are_installed() -> None:
    named = " ".join(row[0] for row in rows(OPERATIONS, "| unit | does |"))
    for unit in unit_files(Paths()):
        stem = unit.rpartition(".")[0].rstrip("@")
        assert stem in named, unit


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        other = (document.parent / path).resolve() if path else document
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_in_yaml_are_yaml(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for example in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        assert yaml.safe_load(example)
