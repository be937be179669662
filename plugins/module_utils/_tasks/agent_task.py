# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module ip_masq_agent does on a node, whether Ansible has sent the code or the installed program has it."""

from __future__ import annotations

import time
import typing as t

from .._agent import install, log_service, removal, repeated_repairs, unit_control
from .._agent.effective_policy import read_policy
from .._agent.state_files import read_memory, record_applied
from .._agent.sync import dry_run, sync
from .._agent.units import SERVICE
from .._engine.reconcile import Result
from .._engine.rule_owners import KUBENET
from .._errors import IpMasqError, NodeError, ProgramMissingError
from .._kubelet.manage import manage_kubelets
from .._kubelet.options import Options
from .._policy.config_file import config_text
from .._system import packages, systemd
from .._system.node import Node
from .._system.process import run
from .._verify.words import concerned
from .._verify.words.other_tables import find_other_chains
from .._version import VERSION
from . import installed_program
from .agent_result import as_return
from .kubelet_result import as_return as kubelet_return
from .node_paths import find_paths, named_paths
from .task_result import Done, Params, named


def carry_out(params: Params, check: bool) -> Done:
    """Do what the options say.

    :param params: a value for each of ``agent_options.AGENT``.
    :param check: only report what would be done.
    """
    node = Node(run, params["lock_timeout"])
    try:
        done = _present(params, check, node) if params["state"] == "present" else _absent(params, check, node)
    except ProgramMissingError as exc:
        by_image = packages.by_image(exc.package)
        if by_image:  # nobody is to try to install it
            return Done({}, failure="%s. %s" % (exc, by_image))
        return Done({"missing_package": exc.package}, failure=str(exc))
    except IpMasqError as exc:
        return Done({}, failure=str(exc))
    return done._replace(warnings=tuple(map(named, done.warnings)))


def _present(params: Params, check: bool, node: Node) -> Done:
    """Install, sync, and start the units.

    :raises IpMasqError: bad input or an unfit node, before anything is touched; or a step that failed.
    """
    paths = find_paths(params)
    text = None if params["config"] is None else config_text(params["config"])
    remembered = read_memory(paths)
    policy, config = read_policy(paths, remembered, text)
    unit_control.check_systemd(node.run, paths)
    log_service.check(params["connection_log"])
    failed = systemd.last_failure(node.run, SERVICE)
    planned = dry_run(node, paths, config, remembered, effects=True)
    proposal: Params = {}
    if params["verify_before"] and planned.changed:
        # Imported here: to load it takes 40 ms, beside 70 ms of a sync, and most runs change nothing.
        from .._agent.verify import verify_proposed

        proposal = verify_proposed(node, config, remembered.backend)
        planned = planned._replace(undone=tuple(proposal["undone"]))
        # What kubenet left behind is deleted with the kubelet, after the rules are applied.
        if any(one["owner"] != KUBENET or params["kubelet"] is None for one in proposal["conflicts"]):
            return _refused(planned, proposal)
    installation = install.Installation(node.run, paths, text, check)
    installation.write_files()
    result, errors, notes = planned, planned.errors, policy.notes
    if not check:
        synced = sync(node, paths)
        result, errors, notes = synced.result or planned, synced.errors, policy.notes + synced.unrecorded
        # What was found before the write: afterwards nothing differs.
        result = result._replace(compared=planned.compared, undone=planned.undone)
        if text is not None and params["applied_by"]:
            notes += record_applied(paths, params["applied_by"], text)
    installation.update_units(params["enabled"])
    log_service.update(installation, params["connection_log"])
    installation.services += unit_control.set_timer(node.run, paths, config.resync_interval, check)
    warnings = (*notes, *result.notes, *installation.notes)
    warnings += tuple(repeated_repairs.notes(read_memory(paths).repairs, time.time()))
    if check and failed:
        warnings += ("the last run of %s failed: %s; a run without check mode runs it again" % (SERVICE, failed),)
    warnings += result.effect_notes + concerned.notes(config) + concerned.remarks(result.remarks, config)
    returned = dict(as_return(installation.result(result), present=True), version=VERSION)
    if proposal:
        returned["proposal"] = proposal
        if proposal["verified"] is None:
            warnings += ("the rules were not fully tested before they are written: %s" % proposal["summary"],)
    returned["rules"]["other_nat"] = find_other_chains(config)
    if not errors and not check and (installation.files or failed):
        try:
            unit_control.try_service(node.run, paths)
        except NodeError as exc:
            errors = (str(exc),)
    if errors:
        return Done(returned, warnings, "; ".join(errors))
    if params["verify"] and not check:
        returned["verification"] = installed_program.verify(node.run, paths, params["lock_timeout"])
    if params["kubelet"] is not None:
        returned["kubelet"], about_kubelets = _preview_kubelets(params["kubelet"])
        warnings += about_kubelets
    return Done(returned, warnings)


def _refused(planned: Result, proposal: Params) -> Done:
    """Return what would have been done to a node that is left as it is, and why."""
    returned = dict(as_return(install.InstallResult((), (), planned), present=True), changed=False, proposal=proposal)
    why = "left as it is, because rules of other programs undo the policy: %s" % "; ".join(planned.undone)
    return Done(returned, planned.notes + planned.effect_notes, why)


def _absent(params: Params, check: bool, node: Node) -> Done:
    """Remove the agent.

    :raises IpMasqError: a step failed.
    """
    removed = removal.Removal(node, named_paths(params), check, config=params["config"]).carry_out()
    return Done(
        as_return(removed, present=False), removed.notes + (removed.result.effect_notes if removed.result else ())
    )


def _preview_kubelets(options: Params) -> t.Tuple[t.Dict[str, t.Any], t.Tuple[str, ...]]:
    """Return what the module kubelet_masquerade would do, and its warnings."""
    try:
        report = manage_kubelets(Options(**options), run, check=True)
    except IpMasqError as exc:
        return {"failure": str(exc), "actions": []}, ()
    returned = kubelet_return(report)
    values = {name: returned[name] for name in returned if name not in ("changed", "diff")}
    return dict(values, failure=report.failure), tuple(report.warnings)
