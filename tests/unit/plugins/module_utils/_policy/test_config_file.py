# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Config files: the reference agent's keys and semantics, and a clear word where it says nothing."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import string
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import config_file, drop_ins, yaml_text
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config, build, file_key
from hypothesis import settings

RFC1918 = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]


def policy(text: str) -> Config:
    return build(config_file.parse(text, "cfg").values, label=file_key)


class Expected(t.NamedTuple):
    cidrs: t.Sequence[str] = RFC1918
    masq_link_local: bool = False
    seconds: int = 60


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", Expected()),
        ("\n# only a remark\n", Expected()),
        ("{}", Expected()),
        ("null", Expected()),
        (
            "nonMasqueradeCIDRs:\n  - 172.16.0.0/12\n  - 10.0.0.0/8\nmasqLinkLocal: true\nresyncInterval: 5s\n",
            Expected(["172.16.0.0/12", "10.0.0.0/8"], True, 5),
        ),
        ("nonMasqueradeCIDRs:\n", Expected([])),
        ("nonMasqueradeCIDRs: []\n", Expected([])),
        ("masqLinkLocal:\n", Expected()),
        ("cidrLimit: 3\n", Expected()),
        ("RESYNCINTERVAL: 5m\nMasqLinklocal: true\n", Expected(masq_link_local=True, seconds=300)),
        (
            '{"nonMasqueradeCIDRs": ["172.16.0.0/12", "10.0.0.0/8"], "masqLinkLocal": true, "resyncInterval": "5s"}',
            Expected(["172.16.0.0/12", "10.0.0.0/8"], True, 5),
        ),
        ('{"nonMasqueradeCIDRs": null}', Expected([])),
        ('{"resyncInterval": "\\u0035\\u006d"}', Expected(seconds=300)),
        ("--- {resyncInterval: 5m} # flow YAML", Expected(seconds=300)),
        ("cidrLimit: 1_000\nmasqLinkLocal: Yes\n", Expected(masq_link_local=True)),
        ('"masqLinkLocal": true\n', Expected(masq_link_local=True)),
        ('# write {} for the defaults, or a list: {"nonMasqueradeCIDRs": [...]}\n', Expected()),
        ('# {\n#   "masqLinkLocal": true\n# }\n', Expected()),
        ('# {"nonMasqueradeCIDRs": []}\nmasqLinkLocal: true\n', Expected(masq_link_local=True)),
    ],
)
def test_what_a_file_says_and_defaults_for_the_rest(text: str, expected: Expected) -> None:
    config = policy(text)
    assert [str(network) for network in config.non_masquerade_cidrs] == list(expected.cidrs)
    assert config.masq_link_local is expected.masq_link_local
    assert config.resync_interval == expected.seconds * 10**9
    assert config_file.parse(text, "cfg").notes == ()


@pytest.mark.parametrize(
    "text, problem",
    [
        ("nonMasqueradeCIDRs: [10.0.0.0/8", r"cfg: invalid YAML, line \d"),
        ("resyncInterval: 5m\n\tmasqLinkLocal: true\n", r"cfg: invalid YAML, line 2"),
        ("a: b: c\n", r"cfg: invalid YAML, line 1"),
        ("masqLinkLocal: true\n---\nmasqLinkLocal: false\n", "cfg: 2 YAML documents, .* keep one"),
        ("masqLinkLocal: !!python/object:os.system true\n", r"cfg: line 1: tags \(.*os.system'\) are not supported"),
        ('{\n "masqLinkLocal": true\n "cidrLimit": 3}', r"cfg: invalid JSON, line 3"),
        ("- masqLinkLocal\n", "cfg: must be a mapping .*, not a list"),
        ("masqLinkLocal", "cfg: must be a mapping .*, not a text"),
        ("masqLinkLocal: true\nmasqLinkLocal: true\n", "cfg: duplicate key 'masqLinkLocal': keep one"),
        ('{"masqLinkLocal": true, "masqLinkLocal": true}', "cfg: duplicate key 'masqLinkLocal': keep one"),
        ("unknown: {a: 1, a: 2}\n", "duplicate key 'a': keep one"),
        ("nonMasqueradeCIDRs: &a [10.0.0.0/8]\nother: *a\n", r"line 2: aliases \(\*name\) are not supported"),
        ("nonMasqueradeCIDRs: [10.0.0.0/8, null]\n", "nonMasqueradeCIDRs: entry 2 is null"),
        (
            "nonMasqueradeCIDRs: [10.0.0.0/8, ]\nresyncInterval: 60\n",
            "resyncInterval: 60 is not a duration: .* with a unit",
        ),
        ("resyncInterval: 1:30\n", "resyncInterval: '1:30' is not a duration"),
        ("nonMasqueradeCIDRs: 10.0.0.0/8\n", "nonMasqueradeCIDRs: .* a list of CIDRs, each with an entry of its own$"),
        ("[" * 100_000, "cfg: "),
        ("a: 1\x00", "cfg: invalid YAML"),
        ("cidrLimit: 0100\n", "cidrLimit: '0100' must be an integer"),
        ("cidrLimit: 1e2\n", "cidrLimit: 100.0 must be an integer"),
        ("masqChain: 1.5\n", "masqChain: 1.5 cannot be a chain's name"),
        ("<<: {cidrLimit: 3}\n", "line 1: merge keys"),
        ("? [a, b]\n: c\n", "line 1: a key must be text"),
        (" \t\n", "cfg: invalid YAML, line 1"),
        ("\u00a0\n", "cfg: must be a mapping .*, not a text"),
        ('{"cidrLimit": NaN}', "cfg: invalid JSON: NaN is not a value"),
        ('{"nonMasqueradeCIDRs": }', "cfg: invalid JSON, line 1"),
        ('\n \t{"cidrLimit": 3,}\n', "cfg: invalid JSON, line 2"),
        ('\ufeff\ufeff {"nonMasqueradeCIDRs": }', "cfg: invalid JSON, line 1"),
        ('#{"cidrLimit": 3}\n', "cfg: line 1: a '#' makes a comment of a JSON document: remove it, or write {}"),
        ('# a\n\n  # {"cidrLimit": 3}\n# b\n', "cfg: line 3: a '#' makes a comment of a JSON document"),
        ('# a template wrote this{"cidrLimit": 3}\r\n', "cfg: line 1: a '#' makes a comment of a JSON document"),
        ("#" * 100_000 + '{"cidrLimit": 3}', "cfg: line 1: a '#' makes a comment of a JSON document"),
        ('x{"masqLinkLocal": true}\n', "cfg: line 1: 'x{.*' is not a key of YAML"),
        ('# a\n// {"masqLinkLocal": true}\n', "cfg: line 2: '// {"),
        ("masqLinkLocal: true\nnonMasqueradeCIDRs]: [10.0.0.0/8]\n", "cfg: line 2: 'nonMasqueradeCIDRs]'"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        policy(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


BEYOND = {
    "a decimal number": ('{"enableIPv6": %s}' % ("1" * 4301), "is too long for a number"),
    "a decimal number of YAML": ("enableIPv6: " + "1" * 4301, "a value of 4301 characters is too long"),
    "a shorter one of YAML": ("unknown: " + "1" * 4000, "is too long for a number"),
    "a hexadecimal number": ("enableIPv6: 0x" + "f" * 4300, "a value of 4302 characters is too long"),
    "a shorter hexadecimal number": ("enableIPv6: 0x" + "f" * 4000, "is not a boolean"),
    "a sexagesimal number": ("cidrLimit: 1" + ":1" * 200_000, "a value of 400001 characters is too long"),
    "a shorter sexagesimal number": ("cidrLimit: 1" + ":1" * 2000, "must be an integer"),
    "a long text of YAML": ("masqChain: '%s'" % ("x" * 4097), "a value of 4097 characters is too long"),
    "keys": (json.dumps({"key%d" % number: 1 for number in range(100_000)}), "100000 keys are more than"),
    "keys of YAML": ("".join("k%d: 1\n" % number for number in range(100_000)), "more than 100 keys"),
    "YAML": ("# %s\na: 1\n" % ("x" * 1024 * 1024), "characters of YAML are more than .*: write JSON"),
    "an escape beyond Unicode": ('a: "\\U00110000"\n', "invalid YAML"),
    "a version of thousands of digits": ("%YAML 1." + "1" * 5000 + "\n---\na: 1\n", "invalid YAML"),
    "a float": ("cidrLimit: 1e999\n", "cidrLimit: inf must be an integer"),
    "an unknown key that is long": (json.dumps({"x" * 1_000_000: 1, "cidrLimit": "3"}), "cidrLimit: '3' must be"),
}


@pytest.mark.parametrize("case", BEYOND)
def test_what_is_beyond_all_measure_is_refused_with_a_short_message(case: str) -> None:
    text, problem = BEYOND[case]
    with pytest.raises(ConfigError, match=problem) as refused:
        policy(text)
    assert len(str(refused.value)) < 400


def _damages(text: str) -> t.Iterator[str]:
    """Every text that differs by one character left out, added or replaced."""
    # Of letters those that JSON, YAML or numbers give a meaning to; all others are like x.
    others = [
        *string.punctuation,
        *string.whitespace,
        *"0189efnotuxyEINTX\0\x1b\x7f\x85\xa0\u017f\u2028\u212a\ufeff\ud800",
    ]
    for place in range(len(text) + 1):
        rest = text[place + 1 :]
        if place < len(text):
            yield text[:place] + rest
        for other in others:
            yield text[:place] + other + text[place:]
            if place < len(text) and other != text[place]:
                yield text[:place] + other + rest


def _shape(values: t.Mapping[str, t.Any]) -> t.Dict[t.Tuple[str, int], t.Any]:
    """Every single value, by its option and its place in a list; an empty list is one."""
    shape: t.Dict[t.Tuple[str, int], t.Any] = {}
    for option, value in values.items():
        for place, entry in enumerate(value if isinstance(value, list) else [value], 1):
            shape[option, place] = entry
        if isinstance(value, list):
            shape[option, 0] = "a list of %d" % len(value)
    return shape


JSON_FILES = {
    "as the role writes it": json.dumps(
        {
            "nonMasqueradeCIDRs": ["10.0.0.0/8", "fd00::/8"],
            "cidrLimit": 64,
            "enableIPv6": True,
            "resyncInterval": "60s",
            "toPorts": ["1024-29999"],
        },
        indent=2,
    ),
    "on one line": '{"nonMasqueradeCIDRs": ["198.18.0.0/15"], "masqLinkLocal": false}\n',
    "an empty list": '{"nonMasqueradeCIDRs": []}\n',
    "one key": '{"masqLinkLocal": true}\n',
    "one key behind comments": '# a template of {{ }} wrote this\n#\n{"cidrLimit": 640, "enableIPv6": true}\n',
}


@pytest.mark.parametrize("name", JSON_FILES)
def test_no_damage_by_one_character_gives_json_another_meaning(name: str) -> None:
    """What may come of it: an error; the same policy; one value that is another valid one of the same kind (8 for 64);
    or, where it still is JSON, one key that is not known, and then a note says so."""
    text = JSON_FILES[name]
    good = _shape(config_file.parse(text, "cfg").values)
    refused = same = other_value = unknown = 0
    # All of them on one Python; on those that try fewer examples, of all kinds of damage one in some.
    step = max(1, 150 // settings.default.max_examples)
    for damaged in itertools.islice(_damages(text), 0, None, step):
        try:
            document = config_file.parse(damaged, "cfg")
            build(document.values, label=file_key)
        except ConfigError:
            refused += 1
            continue
        found = _shape(document.values)
        if document.notes:
            unknown += 1
            lost = {option for option, _place in good} - {option for option, _place in found}
            assert len(document.notes) == 1 and len(lost) == 1 and "is not known" in document.notes[0], damaged
            assert found.items() <= good.items(), damaged
            json.loads(re.sub("^ *#.*\n", "", damaged, flags=re.MULTILINE))
            continue
        assert found.keys() == good.keys(), damaged
        changed = [place for place in good if found[place] != good[place]]
        assert len(changed) <= 1, damaged
        assert all(type(found[place]) is type(good[place]) for place in changed), damaged
        same, other_value = same + (not changed), other_value + bool(changed)
    # Spaces and the case of a key change nothing; damage to what is no key's name is refused, nearly all of it, and to
    # the name of the only key too.
    assert same > 20 // step and refused > 500 // step and refused > 5 * other_value
    assert (
        unknown > 500 // step if len(json.loads(re.sub("^ *#.*\n", "", text, flags=re.MULTILINE))) > 1 else not unknown
    )


@pytest.mark.parametrize("depth", [10, 100, 500, 700, 900, 950, 980, 990, 3000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}"), ("- ", ""), ("a: {", "}")])
def test_nesting_of_any_depth_is_refused_and_not_a_crash(opening: str, closing: str, depth: int) -> None:
    with pytest.raises(ConfigError):
        policy('{"nonMasqueradeCIDRs": %s1%s}' % (opening * depth, closing * depth))


def test_an_unknown_key_is_reported_with_the_nearest_known_one_and_what_is_in_it() -> None:
    text = "nonMasqueradeCidr: [10.0.0.0/8]\nresyncInterval: 5m\n7: x\nconfig: {nonMasqueradeCIDRs: []}\n"
    document = config_file.parse(text, "cfg")
    assert document.values == {"resync_interval": "5m"}
    assert [note.replace("is not known and has no effect", "...") for note in document.notes] == [
        "cfg: the key 'nonMasqueradeCidr' ...; the nearest known key is nonMasqueradeCIDRs",
        "cfg: the key '7' ...; remove it",
        "cfg: the key 'config' ...; the policy in config belongs at the top level",
    ]


POLICY = "nonMasqueradeCIDRs: [10.5.0.0/16]\nresyncInterval: 60s\n"
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "ip-masq-agent"},
    "data": {"config": POLICY},
}
DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"template": {}}}
OF_CONFIG_MAP = "is a ConfigMap and not a policy: write only "
OF_OBJECT = "is a Kubernetes object of kind '%s' and not a policy: write "
IN = "has its policy in {0}: write only what is in {0} to the file"
NEAR = "no key of it is known: %s; write keys such as nonMasqueradeCIDRs, or {} for the defaults"

#: The text of a file or its value, and what is wrong with it. The Go agent takes each for the default policy.
FOREIGN: t.Dict[str, t.Tuple[t.Any, str]] = {
    "a ConfigMap": (CONFIG_MAP, OF_CONFIG_MAP + "the text of data.config to the file"),
    "a ConfigMap of JSON": (
        {**CONFIG_MAP, "data": {"x": "y", "ip-masq-agent": '{"NonMasqueradeCIDRs":[],"MasqLinkLocal":true}'}},
        OF_CONFIG_MAP + "the text of data.ip-masq-agent to the file",
    ),
    "a ConfigMap without a text": (
        {"apiVersion": "v1", "kind": "ConfigMap", "data": None},
        OF_CONFIG_MAP + "the policy, which is a text in data to the file",
    ),
    "a list of objects": (
        {"apiVersion": "v1", "kind": "List", "items": [DAEMON_SET, CONFIG_MAP]},
        OF_OBJECT % "List" + "only what is in items[1].data.config to the file",
    ),
    "another object": (DAEMON_SET, OF_OBJECT % "DaemonSet" + "keys such as nonMasqueradeCIDRs"),
    "objects in one file": (
        "---\n%s\n---\n%s\n" % (json.dumps(DAEMON_SET), json.dumps(CONFIG_MAP)),
        "2 YAML documents; number 2 " + OF_CONFIG_MAP + "the text of data.config to the file",
    ),
    "data alone": ({"data": {"config": POLICY}}, IN.format("data.config")),
    "values of a chart": (
        {"ipMasqAgent": {"enabled": True, "config": {"nonMasqueradeCIDRs": []}}},
        IN.format("ipMasqAgent.config"),
    ),
    "variables in a group": ({"ip_masq": {"non_masquerade_cidrs": []}}, IN.format("ip_masq")),
    "variables of the role": (
        {"ip_masq_agent_non_masquerade_cidrs": [], "ip_masq_agent_backend": "auto", "ip_masq_agent_hosts": "x"},
        NEAR % "'ip_masq_agent_non_masquerade_cidrs' (the nearest known key is nonMasqueradeCIDRs), "
        "'ip_masq_agent_backend' (the nearest known key is backend) and 1 more",
    ),
    "a typing error": (
        {"nonMasqueradeCIDR": []},
        NEAR % "'nonMasqueradeCIDR' (the nearest known key is nonMasqueradeCIDRs)",
    ),
    "a relative's key": (
        {"forceMasqueradeCIDRs": []},
        NEAR % "'forceMasqueradeCIDRs' (the equivalent is masqueradeCIDRs)",
    ),
    "anything": ({"a": {"rules": 1}, "b": "see nonMasqueradeCIDRs: x", "c": 1, "d": 1}, NEAR % "'a', 'b' and 2 more"),
    "a comment": ({"_comment": "nothing yet"}, NEAR % "'_comment'"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_file_of_which_no_key_is_known_is_refused_for_what_it_is(case: str, tmp_path: Path) -> None:
    given, problem = FOREIGN[case]
    text = given if isinstance(given, str) else json.dumps(given)
    with pytest.raises(ConfigError, match="^cfg: %s$" % re.escape(problem)):
        config_file.parse(text, "cfg")
    folder = drop_in(tmp_path, config="nonMasqueradeCIDRs: [10.0.0.0/8]\n", a_yaml=text)
    with pytest.raises(ConfigError, match="config.d/a.yaml: "):
        load_directory(str(folder))


def test_what_is_huge_is_not_searched_for_a_policy_for_long() -> None:
    nested: t.Any = 1
    for _level in range(300):
        nested = {"x" * 10_000: nested}
    for data in ({"k" * 1_000_000: dict.fromkeys(map(str, range(2000)), 1)}, {"k": nested}, {"k": [[]] * 500_000}):
        with pytest.raises(ConfigError, match="no key of it is known") as refused:
            config_file.parse(json.dumps(data), "cfg")
        assert len(str(refused.value)) < 400


def test_json_needs_no_yaml_and_yaml_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "yaml", None)
    assert policy('{"resyncInterval": "5m"}').resync_interval == 300 * 10**9
    with pytest.raises(
        ConfigError, match="is not JSON, and for YAML .* no yaml module: install python3-yaml, or write JSON"
    ):
        policy("resyncInterval: 5m\n")
    with pytest.raises(ConfigError, match="invalid JSON, line 1"):
        policy('{"resyncInterval": 5m}')


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\xef\xbb\xbfresyncInterval: 5m\n")
    assert config_file.load(str(path)) == config_file.Document({"resync_interval": "5m"})


def test_what_is_no_readable_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(str(tmp_path / "pipe"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin").write_bytes(b"masqLinkLocal: true\n# \xe4\n")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(config_file.SIZE_LIMIT + 1)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    for name, problem in {
        "pipe": "is not a regular file",
        "folder": "is not a regular file|cannot be read: Is a directory",
        "socket": "cannot be read",
        "loop": "cannot be read",
        "latin": r"is not UTF-8 text \(line 2\)",
        "huge": "is larger than .* is it the right file",
        "latin/below": "cannot be read: Not a directory",
        "nul\0": "is not a path",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            config_file.load(str(tmp_path / name))


def test_a_file_that_may_not_be_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text("{}")

    def refuse(*_arguments: t.Any, **_options: t.Any) -> t.Any:  # root may read everything
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="config cannot be read: Permission denied"):
        config_file.load(str(path))


def load_directory(directory: str, main: t.Optional[str] = None) -> t.Tuple[config_file.Document, t.Tuple[str, ...]]:
    """What the files of a directory say, and their paths."""
    sources = drop_ins.read_directory(directory, main)
    return drop_ins.merge(sources), tuple(source.path for source in sources)


def drop_in(folder: Path, **files: str) -> Path:
    (folder / "config.d").mkdir()
    for name, text in files.items():
        path = folder / name if name == "config" else folder / "config.d" / name.replace("_", ".")
        path.write_text(text)
    return folder
