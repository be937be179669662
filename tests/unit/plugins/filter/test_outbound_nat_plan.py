# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CNI configurations of Windows nodes: the exceptions change, and no other byte."""

from __future__ import annotations

import base64
import json
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.kubenode.ip_masq.plugins.filter.outbound_nat_exceptions import FilterModule
from ansible_collections.kubenode.ip_masq.plugins.filter.outbound_nat_plan import FilterModule as Plan
from hypothesis import given
from hypothesis import strategies as st

exceptions = FilterModule().filters()["outbound_nat_exceptions"]
outbound_nat_plan = Plan().filters()["outbound_nat_plan"]

GOLDEN = Path(__file__).with_name("outbound_nat")
SHAPES = sorted(path.name[: -len(".before.json")] for path in GOLDEN.glob("*.before.json"))
CIDRS = ["10.8.0.0/16", "192.0.2.0/24"]
#: A node translates IPv6 only where a policy has IPv6 exceptions.
BOTH = [*CIDRS, "2001:db8::/32"]


def golden(shape: str, when: str) -> str:
    """A golden file, with its byte order mark and its line ends."""
    return (GOLDEN / ("%s.%s.json" % (shape, when))).read_bytes().decode("utf-8")


def conf(*values: t.Any, **more: t.Any) -> str:
    """A configuration of win-bridge with policies of these values."""
    policies = [{"name": "EndpointPolicy", "value": value} for value in values]
    return json.dumps({"type": "win-bridge", "mtu": 1.0, "policies": policies, **more}, indent=2)


def nat(*entries: str, **more: t.Any) -> t.Dict[str, t.Any]:
    """The value of an OutBoundNAT policy."""
    return {"Type": "OutBoundNAT", "ExceptionList": list(entries), **more}


def lists(text: str) -> t.List[t.List[str]]:
    """The exceptions of the policies of ``conf``, read by Python's own parser."""
    return [item["value"].get("ExceptionList") for item in json.loads(text)["policies"]]


@pytest.mark.parametrize("shape", SHAPES)
class TestGolden:
    """Configurations as network plugins have them."""

    def test_ranges_are_added_and_nothing_else_changes(self, shape: str) -> None:
        assert exceptions(golden(shape, "before"), BOTH) == golden(shape, "after")

    def test_a_second_time_changes_nothing(self, shape: str) -> None:
        assert exceptions(golden(shape, "after"), BOTH) == golden(shape, "after")

    def test_removal_of_what_was_added_restores_every_byte(self, shape: str) -> None:
        assert exceptions(golden(shape, "after"), [], BOTH) == golden(shape, "before")


def test_golden_files_are_of_all_kinds() -> None:
    texts = [(GOLDEN / (shape + ".before.json")).read_bytes() for shape in SHAPES]
    assert len(texts) == 7
    assert any(text.startswith(b"\xef\xbb\xbf") for text in texts)
    assert any(b"\r\n" in text for text in texts) and any(b"\r\n" not in text for text in texts)
    assert any(b"1.50e3" in text for text in texts) and any(b"Destinations" in text for text in texts)


class TestWhichPolicy:
    """Where ranges go."""

    def test_a_policy_with_destinations_is_left(self) -> None:
        text = conf(nat("10.244.0.0/16", Destinations=["10.8.0.1"]), {"Type": "OutBoundNAT", "destinations": []})
        assert exceptions(text, CIDRS) == text
        assert exceptions(text, [], ["10.244.0.0/16"]) == text

    def test_a_range_that_is_covered_or_there_is_not_added(self) -> None:
        text = conf(nat("10.0.0.0/8", "FD00:0::/8"))
        assert exceptions(text, ["10.8.0.0/16", "10.0.0.0/8", "fd00::/8", "fd00:1::/32"]) == text

    def test_of_ranges_inside_one_another_the_widest_is_added(self) -> None:
        text = exceptions(conf(nat("10.96.0.0/12")), ["10.8.0.0/16", "10.0.0.0/9", "10.8.0.0/16"])
        assert lists(text) == [["10.96.0.0/12", "10.0.0.0/9"]]

    def test_a_policy_with_none_is_for_the_family_without(self) -> None:
        assert lists(exceptions(conf(nat(), nat()), BOTH)) == [CIDRS, ["2001:db8::/32"]]
        assert lists(exceptions(conf(nat("10.96.0.0/12"), nat()), BOTH)) == [["10.96.0.0/12", *CIDRS], BOTH[2:]]

    def test_a_family_without_a_policy_is_not_translated(self) -> None:
        text = conf(nat("10.96.0.0/12", "10.8.0.0/16", "192.0.2.0/24"))
        assert exceptions(text, BOTH) == text

    def test_a_list_that_is_missing_is_added_to_its_policy(self) -> None:
        assert lists(exceptions(conf({"Type": "OutBoundNAT"}), CIDRS)) == [CIDRS]
        text = exceptions(conf({"Type": "OutBoundNAT", "Settings": {"VirtualIP": "198.51.100.7"}}), CIDRS)
        (policy,) = json.loads(text)["policies"]
        assert policy["value"]["Settings"] == {"VirtualIP": "198.51.100.7", "Exceptions": CIDRS}

    def test_an_entry_of_the_owner_with_host_bits_stays(self) -> None:
        assert lists(exceptions(conf(nat("172.17.0.1/16")), ["172.17.0.0/16", "10.8.0.0/16"])) == [
            ["172.17.0.1/16", "10.8.0.0/16"]
        ]


class TestAddPolicy:
    """A node that translates nothing keeps doing so, unless it is asked for."""

    @pytest.mark.parametrize("text", [conf(), conf({"Type": "ROUTE"}), "{}", '{"type": "nat", "policies": null}'])
    def test_without_being_asked_nothing_is_added(self, text: str) -> None:
        assert exceptions(text, CIDRS) == text

    @pytest.mark.parametrize(
        "plugin",
        [
            {"type": "sdnbridge", "AdditionalArgs": []},
            {"type": "win-overlay", "apiVersion": 2, "policies": []},
            {"type": "x", "policies": [{"Name": "EndpointPolicy", "Value": {"Type": "ACL", "Settings": {}}}]},
        ],
    )
    def test_version_2(self, plugin: t.Dict[str, t.Any]) -> None:
        after = json.loads(exceptions(json.dumps(plugin), CIDRS, add_policy=True))
        (array,) = [value for value in after.values() if isinstance(value, list)]
        assert array[-1]["Value"] == {"Type": "OutBoundNAT", "Settings": {"Exceptions": CIDRS}}

    def test_the_family_that_lacks_one_gets_one_beside_the_other(self) -> None:
        text = exceptions(conf(nat(*CIDRS)), BOTH, add_policy=True)
        assert lists(text) == [CIDRS, ["2001:db8::/32"]]
        assert exceptions(text, BOTH, add_policy=True) == text

    @pytest.mark.parametrize(
        "text, found",
        [
            ('{"type": "win-bridge"}', "no array of policies to add one to"),
            ('{"policies": [], "delegate": {"policies": []}}', "policies and delegate.policies to add one to"),
        ],
    )
    def test_where_it_cannot_be_told_the_place_is_named(self, text: str, found: str) -> None:
        with pytest.raises(AnsibleFilterError, match=found):
            exceptions(text, CIDRS, add_policy=True)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "invalid JSON, line 1: Expecting value"),
        ("{\n  // mine\n}", "invalid JSON, line 2: Expecting property name"),
        ('{"a": 01}', "invalid JSON, line 1: Expecting ',' delimiter"),
        ('{"a": {"b": 1, "b": 2}}', "duplicate key 'b': keep one"),
        ('{"a": ' + "[" * 200000, "nested too deeply"),
        ("[]", "the document is []: expected an object"),
        ('{"plugins": {}}', "plugins: expected an array of plugins, found {}"),
        ('{"policies": {}}', "policies: expected an array of policies, found {}"),
        ('{"policies": [], "Policies": []}', "keys policies and Policies differ in case alone"),
        (
            conf({"Type": "OutBoundNAT", "ExceptionList": "10.0.0.0/8"}),
            "policies[0].value.ExceptionList: expected an array of CIDRs, found '10.0.0.0/8'",
        ),
        (
            conf(nat("%CLUSTERCIDR%")),
            "policies[0].value.ExceptionList[0]: '%CLUSTERCIDR%' is not a CIDR: correct it or",
        ),
        (conf({"Type": "OutBoundNAT", "ExceptionList": [8]}), "ExceptionList[0]: 8 is not a CIDR"),
        (
            conf(nat(Settings={"Exceptions": []})),
            "two lists of exceptions, policies[0].value.ExceptionList and policies[0].value.Settings.Exceptions: keep",
        ),
        (
            conf(nat("10.0.0.0/9"), nat("10.128.0.0/9")),
            "IPv4 exceptions in policies[0].value.ExceptionList and policies[1].value.ExceptionList: keep one",
        ),
        ('{"hns": [{"Type": "OutBoundNAT"}]}', "hns[0]: an OutBoundNAT policy in a place that is not known"),
        (
            '{"policies": [{"name": "Other", "value": {"Type": "OutBoundNAT"}}]}',
            "policies[0].value: an OutBoundNAT policy in a place that is not known",
        ),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError) as refused:
        exceptions(text, CIDRS)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((["10.0.0.1/8"],), "aligned network is 10.0.0.0/8"),
        ((5,), "5 is not a list"),
        ((["10.0.0.0/8"], ["10/8"]), "'10/8' is not a CIDR"),
        ((["10.0.0.0/8"], "10.0.0.0/8"), "10.0.0.0/8 is to be added and to be removed: list it once"),
    ],
)
def test_ranges_are_checked_by_the_grammar_of_the_policy(arguments: t.Any, message: str) -> None:
    with pytest.raises(AnsibleFilterError) as refused:
        exceptions(conf(nat()), *arguments)
    assert message in str(refused.value)


def test_a_mapping_is_not_the_text_of_a_file() -> None:
    with pytest.raises(AnsibleFilterError, match="the configuration is of type dict: give its text"):
        exceptions({"policies": []}, CIDRS)


# Documents with all that JSON allows, written with different white space.

SPACE = st.sampled_from(["", " ", "  ", "\n", "\r\n\t", "\n    "])
NETWORKS = st.builds(
    lambda number, prefix: "10.%d.0.0/%d" % (number * 2, prefix), st.integers(0, 127), st.integers(16, 24)
)
NUMBERS = st.sampled_from(["0", "-0", "1.0", "1e3", "1E-07", "12345678901234567890", "0.10"])
SCALARS = st.one_of(NUMBERS, st.sampled_from(["true", "false", "null"]), st.text(max_size=6).map(json.dumps))
KEYS = st.sampled_from(["ipam", "dns", "b", "A", "\u00e9", "mtu", "\u2028"])


@st.composite
def values(draw: t.Any, depth: int = 2) -> str:
    """The text of a value that is not a policy."""
    if depth == 0 or draw(st.booleans()):
        return t.cast(str, draw(SCALARS))
    inner = draw(st.lists(values(depth - 1), max_size=3))
    gap = draw(SPACE)
    if draw(st.booleans()):
        return "[" + gap + ("," + gap).join(inner) + gap + "]"
    keys = draw(st.lists(KEYS, min_size=len(inner), max_size=len(inner), unique=True))
    members = ["%s:%s%s" % (json.dumps(key), gap, value) for key, value in zip(keys, inner)]
    return "{" + gap + ("," + gap).join(members) + gap + "}"


class Parts(t.NamedTuple):
    """A configuration: what is before the list, its entries, what is behind it."""

    head: str
    entries: t.List[str]
    inner: str
    tail: str

    @property
    def text(self) -> str:
        """The whole file."""
        between = ("," + self.inner).join(map(json.dumps, self.entries))
        return self.head + "[" + self.inner + between + self.inner + "]" + self.tail


@st.composite
def configurations(draw: t.Any) -> Parts:
    """A configuration in one of the shapes, with anything around the list."""
    gap, other, third = draw(SPACE), draw(values()), draw(values())
    name, value = draw(st.sampled_from([("Name", "Value"), ("name", "value")]))
    array = draw(st.sampled_from(["policies", "Policies", "AdditionalArgs"]))
    key = draw(st.sampled_from(["ExceptionList", "exceptionList", "Exceptions"]))
    kind = draw(st.sampled_from(["OutBoundNAT", "outboundnat", "OutboundNat"]))
    head = '{%s"extra":%s,%s"%s":[{"x":%s},%s{"%s":"EndpointPolicy",%s"%s":{"Type":"%s",' % (
        gap, other, gap, array, third, gap, name, gap, value, kind,
    )  # fmt: skip
    tail = "}%s}%s]%s}" % (gap, gap, gap)
    if draw(st.booleans()):
        head, tail = head + '"Settings":{' + gap, gap + "}" + tail
    for outer in draw(st.sampled_from([(), ("delegate",), ("plugins",), ("plugins", "delegate")])):
        opened, closed = ("[", "]") if outer == "plugins" else ("", "")
        if not (outer == "plugins" and '"plugins"' in head):
            head, tail = '{"%s":%s%s' % (outer, opened, head), tail + closed + "}"
    bom, end = draw(st.sampled_from(["", "\ufeff"])), draw(SPACE)
    entries = draw(st.lists(NETWORKS, unique_by=lambda cidr: cidr.split("/")[0], max_size=4))
    return Parts(bom + head + '"%s":' % key, entries, draw(SPACE), tail + end)


NEW = st.lists(st.builds("172.{}.0.0/16".format, st.integers(16, 31)), unique=True, min_size=1, max_size=4)


def _known(parts: Parts) -> bool:
    """Whether the wrapping is one that plugins have: a delegate holds no plugins."""
    return not parts.head.lstrip("\ufeff").startswith('{"delegate":{"plugins"')


@given(configurations().filter(_known), NEW)
def test_all_else_is_preserved_byte_for_byte(parts: Parts, new: t.List[str]) -> None:
    json.loads(parts.text.lstrip("\ufeff"))  # the test's own document is JSON
    after = exceptions(parts.text, new)
    assert after.startswith(parts.head) and after.endswith(parts.tail)
    middle = after[len(parts.head) : len(after) - len(parts.tail)]
    assert json.loads(middle) == parts.entries + new
    # What was in the list is there as it was written.
    assert middle.startswith(("[" + parts.inner + ("," + parts.inner).join(map(json.dumps, parts.entries))).rstrip())


@given(configurations().filter(_known), st.data())
def test_removal_takes_what_is_named_and_nothing_else(parts: Parts, data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(parts.entries), unique=True)) if parts.entries else []
    after = exceptions(parts.text, [], gone)
    assert after.startswith(parts.head) and after.endswith(parts.tail)
    assert json.loads(after[len(parts.head) : len(after) - len(parts.tail)]) == [
        entry for entry in parts.entries if entry not in gone
    ]


@given(st.text(alphabet='{}[]",:0-1e.tfn\\u /\n\ufeff', max_size=40))
def test_what_python_refuses_is_refused(text: str) -> None:
    try:
        json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except ValueError:
        with pytest.raises(AnsibleFilterError):
            exceptions("\ufeff" + text, CIDRS)


def _unique(pairs: t.List[t.Tuple[str, t.Any]]) -> t.Dict[str, t.Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _refuse(_name: str) -> t.NoReturn:
    raise ValueError("no number")


class TestPlan:
    """What the role asks for."""

    @staticmethod
    def plan(content: bytes, policy: t.Mapping[str, t.Any], **more: t.Any) -> t.Dict[str, t.Any]:
        """The plan for one file."""
        file = {"item": r"C:\k\cni\config\cni.conf", "content": base64.b64encode(content).decode()}
        (planned,) = outbound_nat_plan([file], policy, **more)
        return planned

    def test_a_file_that_changes(self) -> None:
        before = (GOLDEN / "flannel_win_overlay.before.json").read_bytes()
        planned = self.plan(before, {"nonMasqueradeCIDRs": ["10.8.0.0/16,192.0.2.0/24"]})
        assert planned["changed"] and not planned["error"]
        assert base64.b64decode(planned["content"]) == (GOLDEN / "flannel_win_overlay.after.json").read_bytes()
        assert planned["lines"][0] == (
            r"C:\k\cni\config\cni.conf: delegate.Policies[0].Value.ExceptionList: add 10.8.0.0/16, 192.0.2.0/24"
        )
        assert "flannel's start script sets this list" in planned["lines"][1]
        assert [line[:1] for line in planned["diff"]] == ["-", "+", "@", " ", "-", "+", " "]

    def test_removal_is_reported(self) -> None:
        planned = self.plan(conf(nat("10.96.0.0/12")).encode(), {"nonMasqueradeCIDRs": []}, remove=["10.96.0.0/12"])
        assert planned["lines"][0].endswith("policies[0].value.ExceptionList: remove 10.96.0.0/12")

    def test_a_node_without_the_policy_is_not_translated(self) -> None:
        planned = self.plan(b'{"type": "nat"}', {})
        assert not planned["changed"] and "no OutBoundNAT policy for IPv4" in planned["lines"][1]

    @pytest.mark.parametrize(
        "content, error",
        [
            (conf().encode("utf-16"), "the file is UTF-16, which no network plugin reads"),
            (b'{"a": "\xe9"}', "byte 7 is not UTF-8"),
            (b"{", "invalid JSON, line 1"),
        ],
    )
    def test_a_file_that_is_refused_is_named(self, content: bytes, error: str) -> None:
        planned = self.plan(content, {})
        assert not planned["changed"] and error in planned["error"]
        assert planned["error"].startswith(r"C:\k\cni\config\cni.conf: ")
        assert planned["error"].endswith(". The file is unchanged")

    @pytest.mark.parametrize("kind, owner", [("calico", "IPPool"), ("azure-vnet", "the provisioning of the node")])
    def test_the_owner_of_a_file_is_named(self, kind: str, owner: str) -> None:
        assert owner in " ".join(self.plan(json.dumps({"type": kind}).encode(), {})["lines"])

    def test_what_windows_server_2019_makes_of_equal_addresses_is_a_note(self) -> None:
        planned = self.plan(conf(nat("10.0.0.0/16")).encode(), {"nonMasqueradeCIDRs": ["10.0.0.0/8"]})
        assert "may keep only one of 10.0.0.0/16 and 10.0.0.0/8" in planned["lines"][1]

    def test_a_policy_that_a_node_would_refuse_is_refused(self) -> None:
        with pytest.raises(AnsibleFilterError, match="IPv6 is off"):
            self.plan(b"{}", {"nonMasqueradeCIDRs": ["fd00::/8"]})
