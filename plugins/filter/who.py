# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: who
short_description: Which pod of many nodes is behind a connection
version_added: 1.0.0
author:
  - the kubenode.ip_masq maintainers (@kubenode)
description:
  - Returns what the playbook C(kubenode.ip_masq.who) queries on nodes about a connection, and what their answers mean.
positional: hostvars, address, to, protocol, at
options:
  _input:
    description: Names of hosts. One that is not in the inventory is left out.
    type: list
    elements: str
    required: true
  hostvars:
    description:
      - The variable C(hostvars), in which each host has its addresses as C(ip_masq_agent__addresses), and those that
        were queried about the connection their answer as C(ip_masq_agent__who).
    type: dict
    required: true
  address:
    description: Address and port of a node as another host reports them, C(192.0.2.1:4711) or C([2001:db8::1]:4711).
    type: str
    required: true
  to:
    description: Address and port of the other host. Empty means any.
    type: str
  protocol:
    description: The protocol.
    type: str
    choices: [tcp, udp, sctp]
    default: tcp
  at:
    description: A time such as C(2026-11-23T03:12), in UTC or with an offset, for what nodes logged. Empty means now.
    type: str
notes:
  - Internal. Playbooks and roles of this collection call it; it may change in any release.
"""

RETURN = r"""
_value:
  description:
    - C(problem) is why the question is not valid, empty if it is. C(address) is what nodes are queried about,
      C(arguments) are those of C(ip-masq-agent).
    - C(holders) are the hosts that have the address, C(lines) the answer, C(found) is whether a node knows the
      connection.
  type: dict
"""

import typing as t

from ..module_utils._errors import ConfigError
from ..plugin_utils._fleet_who import Hostvars, Who, ask, reply


def who(
    hosts: t.Sequence[str],
    hostvars: Hostvars,
    address: t.Any,
    to: t.Any = None,
    protocol: t.Any = "tcp",
    at: t.Any = None,
) -> t.Dict[str, t.Any]:
    """See above."""
    try:
        question = ask(address, to, protocol, at)
    except ConfigError as exc:
        question = Who(problem=str(exc))
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in reply(question, hosts, hostvars)._asdict().items()
    }


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> t.Dict[str, t.Callable[..., t.Any]]:
        """Return the filters of this file."""
        return {"who": who}
