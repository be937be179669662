#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq_agent_info
short_description: Report the state of a node's IP masquerading
version_added: 1.0.0
description:
  - Returns what the installed agent reports, as C(ip-masq-agent status --json) does, and what
    M(kubenode.ip_masq.ip_masq_agent) with the same options would change.
  - The playbook C(kubenode.ip_masq.status) summarizes it for a fleet.
options:
  config:
    description:
      - The configuration to compare the node's file C(config) with, as for M(kubenode.ip_masq.ip_masq_agent).
      - If not set, the file is not compared.
    type: dict
  enabled:
    description:
      - As for M(kubenode.ip_masq.ip_masq_agent).
    type: bool
    default: true
  config_dir:
    description:
      - As for M(kubenode.ip_masq.ip_masq_agent).
    type: path
    default: /etc/ip-masq-agent
  bin_dir:
    description:
      - As for M(kubenode.ip_masq.ip_masq_agent).
    type: path
    default: /usr/local/sbin
  metrics_dir:
    description:
      - As for M(kubenode.ip_masq.ip_masq_agent).
    type: path
  python:
    description:
      - As for M(kubenode.ip_masq.ip_masq_agent).
    type: path
  lock_timeout:
    description:
      - Seconds to wait for the xtables lock.
    type: int
    default: 5
requirements:
  - systemd on the node
attributes:
  check_mode:
    support: full
    description: Changes nothing in any mode.
  diff_mode:
    support: none
    description: Changes nothing.
  idempotent:
    support: full
    description: Changes nothing.
  platform:
    support: full
    platforms: linux
    description: Needs root and systemd on Linux.
seealso:
  - module: kubenode.ip_masq.ip_masq_agent
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Get the report of the agent
  kubenode.ip_masq.ip_masq_agent_info:
  register: masquerading

- name: Also compare the node with a policy
  kubenode.ip_masq.ip_masq_agent_info:
    config:
      nonMasqueradeCIDRs:
        - 10.0.0.0/8
        - 100.64.0.0/10
      resyncInterval: 5m
  register: masquerading
"""

RETURN = r"""
installed:
  description: Whether the agent is installed on the node.
  returned: success
  type: bool
report:
  description: What C(ip-masq-agent status --json) prints.
  returned: when the agent is installed and can report
  type: dict
  sample: {version: 1.0.0-rc1, in_sync: true}
problems:
  description: Why the agent cannot report, or the node cannot be compared.
  returned: when the agent is installed
  type: list
  elements: str
  sample: ["cannot run /usr/local/sbin/ip-masq-agent: No such file or directory"]
differs:
  description: The keys of the node's file C(config) whose values mean something else than those of O(config).
  returned: when the agent is installed and O(config) is given
  type: list
  elements: str
  sample: [nonMasqueradeCIDRs]
service_failure:
  description: How the last run of C(ip-masq-agent.service) failed, as systemd reports it. Empty if it did not.
  returned: when the agent is installed
  type: str
  sample: result exit-code, exit status 203
pending:
  description:
    - What M(kubenode.ip_masq.ip_masq_agent) would do to files and units, a line each.
    - Without rules, which are in C(differs) of RV(report), and without the file C(config) if RV(differs) has a key.
  returned: when the agent is installed
  type: list
  elements: str
  sample: ["start: ip-masq-agent.timer"]
"""

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._agent import install, installed_program
from ..module_utils._agent.chosen_paths import find_paths
from ..module_utils._agent.module_options import ARGUMENT_SPEC
from ..module_utils._agent.paths import Paths
from ..module_utils._agent.units import SERVICE

# Ansible sends along what a module imports; program is here because the installed program begins there and is compared.
from ..module_utils._entry import program  # noqa: F401  # pylint: disable=unused-import
from ..module_utils._errors import ConfigError, IpMasqError, NodeError
from ..module_utils._policy.config_file import config_text, load, parse
from ..module_utils._policy.policy import DEFAULTS, POLICY_OPTIONS
from ..module_utils._system import systemd
from ..module_utils._system.process import Runner, run


def reported(run: Runner, where: Paths, lock_timeout: int) -> t.Any:
    """What the installed agent reports.

    :raises NodeError: it cannot be started, or cannot report.
    """
    done, report = installed_program.ask(run, where, "status", lock_timeout)
    if report is None:
        raise NodeError("%s status: %s" % (where.program, done.error_text))
    return report


def differing_keys(where: Paths, text: str) -> t.List[str]:
    """The keys in which the node's config file means something else than ``text``; all where it cannot be read."""
    wanted = dict(DEFAULTS, **parse(text, "config").values)
    try:
        found = dict(DEFAULTS, **load(where.config).values)
    except ConfigError:
        found = {}
    return [key.key for key in POLICY_OPTIONS if not key.same(found.get(key.name), wanted.get(key.name))]


def pending(run: Runner, where: Paths, text: t.Optional[str], enabled: bool) -> t.List[str]:
    """What an installation would do to files and units, a line each.

    :param text: of the config file; none leaves it alone.
    :raises NodeError: a file cannot be read, or systemd cannot be asked.
    """
    put = install.put_files(where, text, check=True)
    services = put.services + tuple(install.update_units(run, where, put, enabled, check=True))
    return list(install.InstallResult(put.files, services).lines)


def asked(params: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """The module's return values.

    :raises ConfigError: bad input.
    """
    where = find_paths(params)
    text = None if params["config"] is None else config_text(params["config"])
    if not os.path.exists(where.program):
        return {"installed": False}
    found: t.Dict[str, t.Any] = {"installed": True, "problems": [], "pending": [], "service_failure": ""}
    if text is not None:
        found["differs"] = differing_keys(where, text)
    try:
        found["report"] = reported(run, where, params["lock_timeout"])
    except NodeError as exc:
        found["problems"].append(str(exc))
    try:
        found["service_failure"] = systemd.last_failure(run, SERVICE)
        found["pending"] = pending(run, where, None if found.get("differs") else text, params["enabled"])
    except NodeError as exc:
        found["problems"].append(str(exc))
    return found


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        found = asked(module.params)
    except IpMasqError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
