# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoints that the command who takes."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.who import line, parse_endpoint, parse_endpoints
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.conntrack import Connection, Endpoint, Zones


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("192.0.2.1:4711", Endpoint("192.0.2.1", 4711)),
        ("[2001:DB8::0:1]:1", Endpoint("2001:db8::1", 1)),
    ],
)
def test_endpoint(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text", ["", "192.0.2.1", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:65536", "2001:db8::1:80", "host:80", "1.2.3.4:٣"]
)
def test_endpoint_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address with a port"):
        parse_endpoint(text)


def test_two_ip_versions_are_refused() -> None:
    with pytest.raises(ConfigError, match="not of the same IP version"):
        parse_endpoints("192.0.2.1:80", "[2001:db8::1]:80")


def test_line_says_what_was_translated() -> None:
    pod, service, backend = Endpoint("10.244.1.2", 4000), Endpoint("10.96.0.1", 443), Endpoint("192.0.2.9", 6443)
    assert line(Connection("tcp", pod, service, pod, backend)) == (
        "tcp 10.244.1.2:4000 -> 10.96.0.1:443, translated to 192.0.2.9:6443, seen with its own address"
    )


@pytest.mark.parametrize(
    ("zones", "end"),
    [
        (Zones(), ""),
        (Zones(both=5), ", conntrack zone 5"),
        (Zones(original=5), ", conntrack zone of the opener's packets 5"),
        (Zones(reply=7), ", conntrack zone of the answers 7"),
    ],
)
def test_line_names_zones(zones: Zones, end: str) -> None:
    pod, remote = Endpoint("10.244.1.2", 4000), Endpoint("203.0.113.10", 443)
    shown = line(Connection("tcp", pod, remote, Endpoint("198.51.100.1", 4000), remote, zones))
    assert shown == "tcp 10.244.1.2:4000 -> 203.0.113.10:443, seen as 198.51.100.1:4000" + end
