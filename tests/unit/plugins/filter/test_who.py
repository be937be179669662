# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook who asks, and what it makes of the answers of a fleet."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.filter.who import FilterModule

who = FilterModule().filters()["who"]

SEEN = "198.51.100.1:40123"
HAS = "2: eth0    inet 198.51.100.1/24 scope global eth0\\       valid_lft forever preferred_lft forever\n"
NOT_TRACKED = {"rc": 1, "stdout_lines": [], "stderr": "ip-masq-agent: no tracked tcp connection: it may have ended\n"}


def host(listed: str = "", rc: int = 0, answer: t.Optional[t.Dict[str, t.Any]] = None) -> t.Dict[str, t.Any]:
    """The variables of a host."""
    found: t.Dict[str, t.Any] = {"ip_masq_agent__addresses": {"rc": rc, "stdout": listed}}
    return dict(found, ip_masq_agent__who=answer) if answer is not None else found


def asked(hostvars: t.Dict[str, t.Dict[str, t.Any]], seen: str = SEEN) -> t.Dict[str, t.Any]:
    """Question and answer."""
    return t.cast(t.Dict[str, t.Any], who([*hostvars, "nowhere"], hostvars, seen))


@pytest.mark.parametrize(
    ("given", "address", "arguments"),
    [
        ((SEEN,), "198.51.100.1", ["who", SEEN, "--protocol", "tcp"]),
        (
            (SEEN, "", "tcp", "2026-11-23T03:12"),
            "198.51.100.1",
            ["who", SEEN, "--protocol", "tcp", "--at", "2026-11-23T03:12"],
        ),
        (
            ("[2001:DB8::0:1]:4", "[2001:db8::2]:5"),
            "2001:db8::1",
            ["who", "[2001:db8::1]:4", "--to", "[2001:db8::2]:5", "--protocol", "tcp"],
        ),
    ],
)
def test_question(given: t.Sequence[str], address: str, arguments: t.List[str]) -> None:
    found = who([], {}, *given)
    assert (found["problem"], found["address"], found["arguments"]) == ("", address, arguments)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("",), "ip_masq_address is not given"),
        (("198.51.100.1",), "'198.51.100.1' is not an address with a port"),
        (("$(reboot):1",), "is not an address with a port"),
        ((SEEN, "203.0.113.10"), "'203.0.113.10' is not an address with a port"),
        ((SEEN, "[2001:db8::2]:5"), "not of the same IP version"),
        ((SEEN, "", "tcp", "noon"), "ip_masq_at: 'noon' is not a time"),
        ((SEEN, "", "icmp"), "ip_masq_protocol: 'icmp' is unknown: use tcp, udp, sctp"),
    ],
)
def test_question_that_is_refused(given: t.Sequence[t.Any], problem: str) -> None:
    found = who([], {}, *given)
    assert problem in found["problem"] and found["arguments"] == []


@pytest.mark.parametrize(
    "listed",
    [
        "2: eth0    inet 198.51.100.10/24 scope global eth0",
        "2: tun0    inet 10.0.0.1 peer 198.51.100.1/32 scope global tun0",
        "198.51.100.1 is what the banner of this host shows",
    ],
)
def test_no_node_has_the_address(listed: str) -> None:
    found = asked({"n1": host(listed), "n2": host(), "n3": host(HAS, rc=127), "n4": {}})
    lines = ["no node has 198.51.100.1: 2 nodes searched; 2 nodes did not answer: n[3-4]"]
    assert (found["holders"], found["lines"], found["found"]) == ([], lines, False)


def test_an_address_with_a_peer_is_one() -> None:
    assert asked({"n1": host("2: tun0    inet 198.51.100.1 peer 10.0.0.1/32 scope global tun0")})["holders"] == ["n1"]


def test_nodes_with_the_same_answer_are_one_line() -> None:
    """What differs in numbers is the same, such as from when to when a node has a log."""
    nodes = {"node%03d" % number: host(HAS, answer=NOT_TRACKED) for number in range(1, 289)}
    for number in range(1, 101):
        logged = {
            "rc": 1,
            "stderr": "ip-masq-agent: no logged tcp connection: the log has node%03d at 0%d:00" % (2 * (number,)),
        }
        nodes["node%03d" % number] = host(HAS, answer=logged)
    nodes["node288"] = host(HAS, answer={"unreachable": True, "msg": "timed out"})
    assert asked(nodes)["lines"] == [
        "288 nodes have 198.51.100.1: node[001-288]",
        "node[101-287] (187 nodes) have 198.51.100.1: no tracked tcp connection: it may have ended",
        "node[001-100] (100 nodes) have 198.51.100.1: e.g. no logged tcp connection: the log has node001 at 01:00",
        "node288 has 198.51.100.1: timed out",
    ]
    each = {"n%d" % number: host(HAS, answer={"rc": 1, "stderr": "n" * number}) for number in range(1, 9)}
    assert [line.partition(" ")[0] for line in asked(each)["lines"]] == ["8", "n1", "n2", "n3", "n4", "n5", "and"]
    assert asked(each)["lines"][-1] == "and 3 nodes more"


def test_many_connections_are_bounded() -> None:
    lines = ["tcp 10.244.1.2:%d -> 203.0.113.10:443" % port for port in range(1024, 1100)]
    nodes = {name: host(HAS, answer={"rc": 0, "stdout_lines": [*lines, "of " + name]}) for name in ("n1", "n2")}
    assert asked(nodes)["lines"] == [
        *("n[1-2]: " + line for line in lines),
        "n1: of n1",
        "n2: of n2",
        "2 nodes have 198.51.100.1: n[1-2]",
    ]
    more = {"rc": 0, "stdout_lines": [*lines, *(line + "0" for line in lines)]}
    assert asked({"n1": host(HAS, answer=more)})["lines"][99:] == [
        "n1: %s0" % lines[23],
        "and 52 more: give ip_masq_to",
    ]
