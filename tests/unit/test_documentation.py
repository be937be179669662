# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the README and the documents say is in the code: messages, options, defaults, metrics, links."""

from __future__ import annotations

import ast
import json
import re
import shlex
import typing as t
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.doc_fragments.policy import ModuleDocFragment
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.units import log_unit_files, unit_files
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.policy_rules import from_config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.rule_owners import OWNERS
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import config_file
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import (
    POLICY_OPTIONS,
    RESERVED_CIDRS,
    build,
)
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._fleet import STATES
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._kubespray import ADDRESSES, derive
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._kubespray_remarks import PLUGINS
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._kubespray_values import (
    DEFAULTS as DEFAULTS_OF_KUBESPRAY,
)
from ansible_collections.kubenode.ip_masq.plugins.plugin_utils._role_variables import (
    OF_PLAYBOOKS,
    check_values,
    config_file_keys,
    unknown_names,
)
from support import documented, tables
from support.agent_metrics import METRICS
from support.import_collection import ROOT, location
from support.templates import template

README = (ROOT / "README.md").read_text(encoding="utf-8")
OPTIONS = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
VERIFICATION = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
KUBESPRAY = (ROOT / "docs" / "kubespray.md").read_text(encoding="utf-8")
LIVE = (ROOT / "docs" / "kubespray-live.md").read_text(encoding="utf-8")
FLEETS = (ROOT / "docs" / "fleets.md").read_text(encoding="utf-8")
WINDOWS = (ROOT / "docs" / "windows.md").read_text(encoding="utf-8")
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / name for name in ("tests/support/README.md",)),
    *sorted((ROOT / "docs").glob("*.md")),
]
SOURCES = [path.read_text(encoding="utf-8") for path in (location() / "plugins").rglob("*.py")]


def anchors(page: Path) -> t.Set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(text: str, after: str) -> t.List[t.List[str]]:
    """The cells of the first table behind a piece of text, without its heading."""
    table = re.search(r"(?:^\|.*\n)+", text[text.index(after) :], re.MULTILINE)
    assert table, after
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.group().splitlines()[2:]]


def _texts(source: str) -> t.Iterator[str]:
    """The string literals that code can print: no comment, docstring or documentation."""
    tree = ast.parse(source)
    silent = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            silent.add(node.value)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in (
            "DOCUMENTATION",
            "EXAMPLES",
            "RETURN",
        ):
            silent.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in silent:
            yield node.value


TEXTS = [text for source in SOURCES for text in _texts(source)]


@pytest.mark.parametrize("message", [row[0].strip("`") for row in rows(TROUBLESHOOTING, "## By message")])
def test_every_message_is_one_that_the_code_prints(message: str) -> None:
    """Dots stand for what the code fills in."""
    parts = [part.strip("; ") for part in message.split("...")]
    assert max(map(len, parts)) >= 10, "too short to be told from other messages"
    for part in parts:
        assert any(part in text for text in TEXTS), part


@pytest.mark.parametrize("row", rows(TROUBLESHOOTING, "## By symptom"), ids=lambda row: row[0][:40])
def test_symptoms_are_told_in_words_that_are_printed(row: t.List[str]) -> None:
    """What is in monospace is a command, a name, systemd's word for an exit status, or text that the code prints."""
    names = {
        *METRICS,
        *STATES,
        *map(str.upper, STATES),
        *(option.name for option in POLICY_OPTIONS),
        "apply",
        "status",
        "program",
        "drift",
    }
    for word in re.findall(r"`([^`]+)`", " ".join(row)):
        exit_status = re.fullmatch(r"status=(\d+)/[A-Z]+", word)
        if exit_status:
            assert [exit_status.group(1)] in [one[:1] for one in rows(OPERATIONS, "| exit status | means |")]
        elif word not in names and not re.match(r"%s |-CD$|[a-z-]+\.service$" % documented.PROGRAMS, word):
            for part in filter(None, re.split(r"\.\.\. ?|: |:$", word)):
                assert part in names or any(part in text for text in TEXTS), part


@pytest.mark.parametrize("name", [option.name for option in POLICY_OPTIONS if option.type == "list"])
def test_what_an_empty_list_means_is_said_of_each(name: str) -> None:
    fragment = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"][name]["description"]
    spec = yaml.safe_load((location() / "roles/ip_masq_agent/meta/argument_specs.yml").read_text(encoding="utf-8"))
    variable = spec["argument_specs"]["main"]["options"]["ip_masq_agent_" + name]["description"]
    assert "V([])" in " ".join(fragment) and "V([])" in variable
    (row,) = [row for row in rows(OPTIONS, "## Policy") if row[0].startswith("`%s`" % name)]
    assert "`[]`" in row[2] or row[1] == "none"


def test_every_reserved_range_is_listed() -> None:
    fragment = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]["nomasq_all_reserved_ranges"]["description"]
    assert re.findall(r"V\(([0-9./]+)\)", " ".join(fragment)) == list(RESERVED_CIDRS)
    (row,) = [row for row in rows(OPTIONS, "## Policy") if row[0].startswith("`nomasq_all_reserved_ranges`")]
    assert re.findall(r"[0-9.]+/[0-9]+", row[2]) == list(RESERVED_CIDRS[3:])


def test_variables_are_those_of_the_role() -> None:
    spec = yaml.safe_load((location() / "roles/ip_masq_agent/meta/argument_specs.yml").read_text(encoding="utf-8"))
    known = {*spec["argument_specs"]["main"]["options"], *OF_PLAYBOOKS, *METRICS}
    for text in (README, OPTIONS, OPERATIONS, TROUBLESHOOTING, VERIFICATION, KUBESPRAY, LIVE, FLEETS, WINDOWS):
        for name in re.findall(r"\bip_masq_agent_[a-z0-9_]+\b", text):
            assert name in known or any(one.startswith(name) for one in known if name.endswith("_")), name


#: What the README calls programs that rules belong to, if it is another name.
NAMES = {"CNI plugin bridge or ptp": "bridge, ptp"}


def test_variables_of_kubespray_are_those_that_are_read() -> None:
    table = rows(README, "| network plugin | masquerades itself |")
    assert set(PLUGINS) <= {name for row in table for name in re.findall(r"`([^`]+)`", row[0])}
    named = set(re.findall(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b", KUBESPRAY + " ".join(row[3] for row in table)))
    assert {*DEFAULTS_OF_KUBESPRAY, *ADDRESSES} - {"ip", "ip6", "ip_masq_agent_nomasq_all_reserved_ranges"} <= named
    for row in rows(KUBESPRAY, "| variable of kubespray |"):
        for default in re.findall(r"`([^`]+)`", row[1]):
            assert default in [str(value).lower() for value in DEFAULTS_OF_KUBESPRAY.values()]


def test_the_table_of_network_plugins_says_what_the_programs_say() -> None:
    """Each setting that ends masquerading is in the remedy of that program's rules, or in kubespray's remark."""
    table = {
        re.split(r" \(", row[0])[0].lower(): row for row in rows(README, "| network plugin | masquerades itself |")
    }
    remedies = {NAMES.get(actor.name, actor.name).lower(): actor.remedy for actor in OWNERS}
    assert {"calico", "flannel", "cilium", "kube-router", "antrea", "kubenet", "bridge, ptp"} <= {*table, *remedies}
    remarks = {name: " ".join(_remarks(name)) for name in PLUGINS}
    for name, row in table.items():
        for setting in re.findall(r"`([^`]+)`", row[2]):
            said = remedies.get(name, "") + remarks.get(name, "")
            assert re.sub(r'["\s]', "", setting) in re.sub(r'["\s]', "", said), setting
        if name in remarks:
            for variable in re.findall(r"`([a-z]\w+_\w+): ", row[3]):
                assert variable in remarks[name], variable


def _remarks(plugin: str) -> t.List[str]:
    """What the playbook prints about a network plugin, with kubespray's defaults and IPv6."""
    hosts: t.Dict[str, t.Dict[str, t.Any]] = {
        "node": {"kube_network_plugin": plugin, "ipv6_stack": True, "nat_outgoing_ipv6": True}
    }
    return derive(["node"], ["node"], hosts).lines


def test_variables_for_windows_are_those_of_its_role() -> None:
    spec = yaml.safe_load((location() / "roles/ip_masq_windows/meta/argument_specs.yml").read_text(encoding="utf-8"))
    options = spec["argument_specs"]["main"]["options"]
    table = {row[0].strip("`"): row[1].strip("`") for row in rows(WINDOWS, "| variable | default |")}
    assert set(table) == set(options)
    for name, about in options.items():
        assert table[name] == "not set" if "default" not in about else yaml.safe_load(table[name]) == about["default"]
    known = {*options, "ip_masq_windows"}
    assert set(re.findall(r"\bip_masq_windows\w*", WINDOWS + README)) <= known


def test_usual_directories_are_those_that_the_role_reads() -> None:
    variables = yaml.safe_load((location() / "roles/ip_masq_windows/vars/main.yml").read_text(encoding="utf-8"))
    for path in variables["ip_masq_windows__usual_paths"]:
        assert "`%s`" % path in WINDOWS


def test_states_of_a_fleet_are_those_that_are_printed() -> None:
    assert tuple(row[0] for row in rows(OPERATIONS, "| state | means |")) == STATES


#: What the page of platforms calls what the metadata of roles calls otherwise.
PLATFORMS = {"EL": "RHEL-likes", "bullseye": "11", "bookworm": "12", "trixie": "13", "jammy": "22.04",
             "noble": "24.04", "resolute": "26.04"}  # fmt: skip


def test_platforms_of_the_role_are_in_the_table() -> None:
    page = (ROOT / "docs/platforms.md").read_text(encoding="utf-8")
    usable = [row[0] for row in rows(page, "| nodes | state |") if not row[1].startswith("not supported")]
    role = yaml.safe_load((location() / "roles/ip_masq_agent/meta/main.yml").read_text(encoding="utf-8"))
    for platform in role["galaxy_info"]["platforms"]:
        name = PLATFORMS.get(platform["name"], platform["name"])
        for version in platform["versions"]:
            shown = PLATFORMS.get(version, version.replace("SP", " SP")).split()[-1]
            assert any(re.search(r"\b%s [^A-Z]*(?:SP\d, )?%s\b" % (name, shown), row) for row in usable), (
                name,
                version,
            )


def test_units_are_those_that_are_installed() -> None:
    named: t.List[str] = []
    for row in rows(OPERATIONS, "| unit | does |"):
        for unit in re.findall(r"`([^`]+)`", row[0]):
            # "`name.path`, `.service`" are two units of one name.
            named.append(named[-1].rpartition(".")[0] + unit if unit.startswith(".") else unit.replace("@*.", "@."))
    assert sorted(named) == sorted([*unit_files(Paths()), *log_unit_files(Paths(), "", 0)])


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/images").iterdir()), ids=lambda path: path.name)
def test_pictures_are_readable_in_light_and_dark_and_name_what_there_is(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    svg = "{http://www.w3.org/2000/svg}"
    tree = ElementTree.fromstring(text)
    assert tree.findtext(svg + "title") and tree.findtext(svg + "desc") and picture.name in README + OPERATIONS
    light, dark = text.split("prefers-color-scheme: dark")
    classes = set(re.findall(r"\.([a-z-]+) \{[^}]*(?:fill|stroke): #", light))
    assert classes and classes <= set(re.findall(r"\.([a-z-]+) \{", dark)), "colours for dark too"
    paths = Paths()
    names = {paths.config, paths.program, paths.resync, *unit_files(paths)}
    found = {
        name
        for one in tree.iter(svg + "text")
        for name in re.findall(r"/?[\w/.-]*ip-masq-agent[\w/.-]*", one.text or "")
    }
    assert all(any(name in one for one in [*names, paths.state_file]) for name in found), found


#: What an operator may have to read; each page's share is printed by tools/tables --words.
WORDS, WORDS_OF_README = 17000, 1300


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_made_of_the_code(document: Path) -> None:
    assert tables.written(document) == document.read_text(encoding="utf-8"), "run tools/tables"


#: Words with no use in what users read: "policy", "show", "active", "for" and "differently" replace them.
UNCLEAR = re.compile(
    r"\b(as declared|declared (policy|ranges)|policy declares|in force|towards|mended|stands in for|none where"
    r"|because of which|has been said|otherwise than|says?)\b"
    r"|, too\b(?! (few|high|large|long|low|many|old|short|small)\b)"
    r"|name: [\"']?(Ask|Name|Say|Tell)\b"
)


def _strings(source: str) -> t.Iterator[str]:
    """The messages and the documentation of a module: string literals, no comments and docstrings."""
    tree = ast.parse(source)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value


@pytest.mark.parametrize(
    "folder", ["*.md", "docs/**/*.*", "examples/**/*.*", "playbooks/*.yml", "roles/**/*.*", "plugins/**/*.py"]
)
def test_users_read_plain_words(folder: str) -> None:
    read = {
        path: path.read_text(encoding="utf-8")
        for path in ROOT.glob(folder)
        if path.suffix in (".md", ".rst", ".py", ".yml", ".yaml")
    }
    assert read
    unclear = [
        "%s: %s" % (path.relative_to(ROOT), found.group())
        for path, text in read.items()
        for part in (_strings(text) if path.suffix == ".py" else [text])
        for found in UNCLEAR.finditer(" ".join(part.split()))
        if path.name != "CHANGELOG.md"
    ]
    assert not unclear


def test_pages_are_short() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    counts = {page.name: len(tables.by_hand(page).split()) for page in pages}
    assert counts["README.md"] <= WORDS_OF_README
    assert sum(counts.values()) <= WORDS, counts


#: What the address of a file of this repository begins with.
OWN = (
    r"https://(?:github\.com/kubenode/ansible-ip-masq/(?:blob|tree)|raw\.githubusercontent\.com/kubenode/ansible-ip-masq)"
    "/main/"
)


def test_links_of_the_readme_work_on_galaxy() -> None:
    """Which shows that page alone, as Automation Hub does."""
    assert [one for one in _targets(README) if not re.match("https?://|#", one)] == []


def _targets(text: str) -> t.List[str]:
    """Where the links of a page lead; each label that a link names has its address at the end of the page."""
    addresses = dict(re.findall(r"(?m)^\[([^]]+)\]: (\S+)$", text))
    assert set(re.findall(r"\]\[([^]]+)\]", text)) == set(addresses)
    return [*re.findall(r"\]\(([^)\s]+)\)", text), *addresses.values()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in _targets(text):
        own = re.match(OWN, target)
        if re.match("https?://", target) and not own:
            continue
        path, _, anchor = (target[own.end() :] if own else target).partition("#")
        other = ((ROOT if own else document.parent) / path).resolve() if path else document
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other), target


@pytest.mark.parametrize("guide", sorted((ROOT / "docs/docsite/rst").iterdir()), ids=lambda path: path.name)
def test_guides_of_the_docsite_lead_to_the_pages(guide: Path) -> None:
    """The text of a guide is in one place, its page: what is on the docsite is short, and links there."""
    links = re.findall(r"ansible-ip-masq/(?:blob|tree)/main/([^>#]+)#?([^>]*)>", guide.read_text(encoding="utf-8"))
    assert links
    for path, anchor in links:
        assert (ROOT / path).exists(), path
        assert not anchor or anchor in anchors(ROOT / path), anchor


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    folders = r"`((?:docs|molecule|playbooks|plugins|roles|tests|tools)/[\w./-]+)"
    for path in re.findall(folders, document.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


def _examples() -> t.Iterator[t.Any]:
    """What the blocks of YAML in all pages say, by page and line."""
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"(?ms)^```yaml\n(.*?)^```$", text):
            where = "%s:%d" % (page.name, text.count("\n", 0, block.start()) + 1)
            yield pytest.param(yaml.safe_load(block.group(1)), id=where)


#: What examples have of other variables.
OTHER_VARIABLES = {"loopback_address": "192.0.2.10"}


@pytest.mark.parametrize("example", list(_examples()))
def test_examples_in_yaml_are_what_the_code_takes(example: t.Any) -> None:
    """Variables and config files lead to rules for both families; roles and playbooks exist, with their variables."""
    assert example
    ours = {}
    if isinstance(example, dict):
        ours = {name: value for name, value in example.items() if name.startswith("ip_masq_")}
        for file in example.get("write_files", []):
            policy = build(config_file.parse(file["content"], file["path"]).values)
            assert all(from_config(policy, family).rules for family in policy.families)
    else:
        for play in example:
            for role in play.get("roles", []):
                name = role["role"].rpartition("kubenode.ip_masq.")[2]
                assert (location() / "roles" / name).is_dir(), name
                ours.update({key: value for key, value in role.items() if key.startswith("ip_masq_")})
            imported = play.get("ansible.builtin.import_playbook", "").partition("kubenode.ip_masq.")[2]
            assert not imported or (location() / "playbooks" / (imported + ".yml")).exists(), imported
            ours.update(play.get("vars", {}))
    assert unknown_names(ours) == []
    values = template(ours, OTHER_VARIABLES)
    for ipv6 in (True,) if ours.get("ip_masq_agent_enable_ipv6") else (False, True):
        values["ip_masq_agent_enable_ipv6"] = ipv6
        if ipv6 and "ip_masq_agent_source_cidrs" in values:  # a family without pods is left alone
            values["ip_masq_agent_source_cidrs"] = [*values["ip_masq_agent_source_cidrs"], "fd00:10:244::/56"]
        checked = check_values(values)
        assert not checked.errors and checked.policy is not None
        assert len(checked.policy.families) == 1 + ipv6
        for family in checked.policy.families:
            assert from_config(checked.policy, family).rules, family
        assert build(config_file.parse(config_file.config_text(config_file_keys(values)), "config").values)


def test_every_command_is_executed_by_a_test_or_there_is_a_reason() -> None:
    """Those in neither map are executed by tests/kernel/test_documented_commands.py."""
    texts = {command.text for command in documented.commands()}
    assert texts >= {*documented.ELSEWHERE, *documented.NOT_HERE}, "commands that no page has"
    assert not set(documented.ELSEWHERE) & set(documented.NOT_HERE)
    for command, test in documented.ELSEWHERE.items():
        tree = ast.parse((ROOT / test).read_text(encoding="utf-8"))
        literals = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert command in literals, "%s does not execute it: %s" % (test, command)


def test_patches_are_patches() -> None:
    """Of commands that need a cluster, for which no test executes them."""
    patches = [
        json.loads(words[words.index(option) + 1])
        for words in (shlex.split(text) for text in documented.NOT_HERE)
        for option in ("-p", "--patch")
        if option in words
    ]
    of_pools = [patch["spec"]["natOutgoing"] for patch in patches if isinstance(patch, dict)]
    assert of_pools == [False, False, True]
    # What kubespray's template starts the first container of the DaemonSet with.
    command = ["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"]
    (steps,) = (patch for patch in patches if isinstance(patch, list))
    assert [step["op"] for step in steps] == ["test", "remove"]
    (path,) = {step["path"] for step in steps}
    where, _slash, index = path.rpartition("/")
    assert where == "/spec/template/spec/containers/0/command" and command[int(index)] == steps[0]["value"]


@pytest.mark.parametrize("page", documented.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_in_blocks_where_they_are_found(page: Path) -> None:
    """Such as begin a line of another block would be executed by no test. (Dots stand for what a message fills in.)"""
    text = documented.without_blocks(page.read_text(encoding="utf-8"))
    blocks = re.findall(r"(?ms)^ *```(?!yaml|ini|json)\w*\n(.*?)^ *```$", text) + re.findall(r"(?m)^ {4,}\S.*$", text)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert [line for line in lines if re.match(r"\$ |(# )?%s [^.:]" % documented.PROGRAMS, line)] == []


@pytest.mark.parametrize("page", documented.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_not_wider_than_the_page(page: Path) -> None:
    """What a browser of 1280 pixels shows on GitHub: the end of a command is often what matters, such as ``-CD``."""
    blocks = re.findall(r"(?ms)^ *```console\n(.*?)^ *```$", page.read_text(encoding="utf-8"))
    lines = [re.sub(r" +# .*", "", line) for block in blocks for line in block.splitlines()]
    assert [line for line in lines if line.lstrip().startswith(("$ ", "# ", "-")) and len(line) > 106] == []


@pytest.mark.parametrize("page", documented.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_sentences_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    playbooks = {path.stem for path in (location() / "playbooks").glob("*.yml")}
    assert set(re.findall(r"ansible-playbook (?:-\S+ \S+ )*kubenode\.ip_masq\.(\w+)", text)) <= playbooks
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    words = set(re.findall(r"`ip-masq-agent ([a-z]+)", text))
    assert words <= {"status", "explain", "verify", "who", "ports", "sync", "remove"}, words
