#!/usr/bin/python
# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ip_masq_agent
short_description: Install the agent that keeps a node's IP masquerading as declared
version_added: 0.1.0
description:
  - Installs an agent that keeps the masquerading of a node as declared. It consists of one program, its configuration,
    and systemd units that start a resync at an interval, after an edit of the configuration, and after a firewall was
    restarted or reloaded.
  - Applies the policy at once, as M(kubenode.ip_masq.ip_masq) does; the agent runs the same code.
  - If something was changed, or if the last run of the agent's service failed, starts that service once, in its
    sandbox, and fails with the lines of the journal if it fails. In check mode it warns instead.
  - The role P(kubenode.ip_masq.ip_masq_agent#role) calls this module once with the whole configuration.
options:
  state:
    description:
      - V(present) installs the agent and sets the rules.
      - V(absent) removes the rules in all variants and families, the units, and the files that the agent wrote or read,
        including the configuration. If an agent is installed, its own paths are used, not the other options.
      - A configuration directory that holds anything else stays, with a warning.
      - With V(absent) it is an error if a package of the distribution owns the agent's files; the message has the
        command that removes the package. Run this again after that command, to remove the configuration.
    type: str
    choices: [present, absent]
    default: present
  config:
    description:
      - The content of the file C(config) in O(config_dir), with the keys of ip-masq-agent's own file, such as
        C(nonMasqueradeCIDRs). Each policy option of M(kubenode.ip_masq.ip_masq) is a key there, written as
        C(enableIPv6) is for C(enable_ipv6); C(resyncInterval) is the only other one.
      - Keys that are not set have their defaults. An unknown key is an error.
      - Without C(nonMasqueradeCIDRs) the default list is written to the file, so that drop-ins add to it.
      - C(nonMasqueradeCIDRs) may be text, as in V(10.0.0.0/8,fd00::/8). Text is split at commas, in a list too.
      - If not set, the file on the node is kept.
    type: dict
  enabled:
    description:
      - Whether the units run, now and after a boot. If not, everything is installed, the rules are set once, and the
        service is started once as a test.
    type: bool
    default: true
  config_dir:
    description:
      - The directory of the file C(config) and its drop-ins in C(config.d), for the agent alone. Its name is
        C(ip-masq-agent), or it does not exist yet, or it is empty.
      - Like O(bin_dir), O(metrics_dir) and O(python) it must not be within C(/home), C(/root), C(/run/user), C(/tmp) or
        C(/var/tmp), which the agent's service does not see.
    type: path
    default: /etc/ip-masq-agent
  bin_dir:
    description:
      - The directory of the program.
    type: path
    default: /usr/local/sbin
  metrics_dir:
    description:
      - The directory of node_exporter's textfile collector. It must exist, and may belong to another user. The agent
        then writes C(ip_masq_agent.prom) there.
      - If not set, no metrics are written.
    type: path
  python:
    description:
      - The Python (3.8 or later) that runs the agent.
      - If not set, C(/usr/bin/python3) if it is 3.8 or later, else the one that runs this module.
    type: path
  lock_timeout:
    description:
      - Seconds that this module waits for the xtables lock, and for a run of the agent. The agent's own runs wait 5
        seconds.
    type: int
    default: 5
requirements:
  - iptables or nftables on the node
  - systemd on the node
attributes:
  check_mode:
    support: full
    description: Reports what would change and writes nothing, also if nothing is installed yet.
  diff_mode:
    support: full
    description:
      - Shows the rules, the configuration and every file that is edited, before and after. For files that are created
        or removed as a whole, and for services, it shows one line each.
  idempotent:
    support: full
    description: A second run with the same options changes nothing.
  platform:
    support: full
    platforms: linux
    description: Needs root and systemd on Linux.
seealso:
  - module: kubenode.ip_masq.ip_masq
author:
  - the kubenode.ip_masq maintainers (@kubenode)
"""

EXAMPLES = r"""
- name: Apply the default policy and keep it applied
  kubenode.ip_masq.ip_masq_agent:
    config: {}

- name: Apply a policy, resync every five minutes, and write metrics
  kubenode.ip_masq.ip_masq_agent:
    config:
      nonMasqueradeCIDRs:
        - 10.0.0.0/8
        - 100.64.0.0/10
      resyncInterval: 5m
    metrics_dir: /var/lib/node_exporter/textfile

- name: Remove the agent, its rules and its files
  kubenode.ip_masq.ip_masq_agent:
    state: absent
"""

RETURN = r"""
missing_package:
  description: A package whose program the node needs for the backend and does not have. Nothing was touched.
  returned: failure, if a program is missing
  type: str
  sample: nftables
version:
  description: The version of the agent that is installed.
  returned: with O(state=present)
  type: str
  sample: 0.1.0
files:
  description: The files that were written or removed, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: [/etc/ip-masq-agent/config]
services:
  description: Changes of units and directories, or in check mode those that would be made.
  returned: success
  type: list
  elements: str
  sample: ["start: ip-masq-agent.timer"]
rules:
  description: The return values of M(kubenode.ip_masq.ip_masq) for the rules, without C(changed) and C(diff).
  returned: success
  type: dict
"""

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

# Ansible sends along what a module imports; cli is here because it is in the program that this module installs.
from ..module_utils._agent import (  # pylint: disable=unused-import
    cli,  # noqa: F401
    install,
    module_options,
    removal,
)
from ..module_utils._agent.effective_policy import read_policy
from ..module_utils._agent.memory import read_memory
from ..module_utils._agent.paths import Paths
from ..module_utils._agent.sync import dry_run, sync
from ..module_utils._agent.units import SERVICE
from ..module_utils._engine import restraint
from ..module_utils._engine.detect import Node
from ..module_utils._engine.module_result import rules_diff, rules_return
from ..module_utils._engine.other_actors import find_other_actors
from ..module_utils._errors import IpMasqError, NodeError, ProgramMissingError
from ..module_utils._policy.config_file import config_text
from ..module_utils._system import systemd
from ..module_utils._system.node_warning import named
from ..module_utils._system.process import run
from ..module_utils._version import VERSION

ARGUMENT_SPEC = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    **module_options.ARGUMENT_SPEC,
}


def present(module: AnsibleModule, node: Node, where: Paths) -> t.Dict[str, t.Any]:
    """Install, sync, and start the units.

    :raises IpMasqError: bad input or an unfit node, before anything is touched; or a step that failed.
    """
    check, params = module.check_mode, module.params
    text = None if params["config"] is None else config_text(params["config"])
    remembered = read_memory(where)
    policy, config = read_policy(where, remembered, text)
    install.check_systemd()
    failed = systemd.last_failure(node.run, SERVICE)
    planned = dry_run(node, where, config, remembered, connections=check)
    put = install.name_package(node.run, install.put_files(where, text, check))
    result, errors, notes = planned, planned.errors, policy.notes
    if not check:
        synced = sync(node, where)
        result, errors, notes = synced.result or planned, synced.errors, policy.notes + synced.unrecorded
    services = put.services + tuple(install.update_units(node.run, where, put, params["enabled"], check))
    if install.set_timer(node.run, where, config.resync_interval, check):
        services += ("timer interval set to %gs" % (config.resync_interval / 1e9),)
    warnings = notes + result.notes + put.notes + tuple(restraint.notes(result))
    if check and failed:
        warnings += ("the last run of %s failed: %s; a run without check mode runs it again" % (SERVICE, failed),)
    for warning in (*warnings, *result.remarks):
        module.warn(named(warning))
    returned = dict(as_return(install.InstallResult(put.files, services, result), present=True), version=VERSION)
    returned["rules"]["other_nat"] = find_other_actors(node, config.families)
    if not errors and not check and (put.files or failed):
        try:
            install.try_service(node.run, where)
        except NodeError as exc:
            errors = (str(exc),)
    if errors:
        module.fail_json(msg="; ".join(errors), **returned)
    return returned


def as_return(done: install.InstallResult, present: bool) -> t.Dict[str, t.Any]:
    """The module's return values."""
    rules: t.Dict[str, t.Any] = {}
    diffs: t.List[t.Dict[str, str]] = []
    if done.result is not None:
        rules = rules_return(done.result, present)
        if done.result.changed:
            diffs.append(dict(rules_diff(done.result), before_header="rules", after_header="rules"))
    lines = []
    for change in done.files:
        # The text of the configuration and of changed files; of files that are created or removed only the names.
        if None not in (change.before, change.after) or os.path.basename(change.path) == "config":
            headers = {"before_header": change.path, "after_header": change.path}
            diffs.append(dict(headers, before=change.before or "", after=change.after or ""))
        else:
            lines.append("file %s: %s" % ("removed" if change.after is None else "written", change.path))
    lines += done.services
    if lines:
        diffs.append({"before": "", "after": "\n".join(lines) + "\n", "after_header": "files and services"})
    return {
        "changed": bool(done.lines),
        "files": [change.path for change in done.files],
        "services": list(done.services),
        "rules": rules,
        "diff": diffs,
    }


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    node = Node(run, module.params["lock_timeout"])
    try:
        if module.params["state"] == "present":
            returned = present(module, node, module_options.find_paths(module.params))
        else:
            removed = removal.uninstall(node, module_options.named_paths(module.params), module.check_mode)
            for note in removed.notes:
                module.warn(named(note))
            returned = as_return(removed, present=False)
    except ProgramMissingError as exc:
        module.fail_json(msg=str(exc), missing_package=exc.package)
    except IpMasqError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**returned)


if __name__ == "__main__":
    main()
