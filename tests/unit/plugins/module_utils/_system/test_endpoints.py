# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoints that the command and the playbook who take."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.endpoints import (
    Endpoint,
    parse_endpoint,
    parse_endpoints,
)


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
