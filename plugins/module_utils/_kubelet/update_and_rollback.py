# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edit the files of kubelets, restart them, verify, and go back where a kubelet does not come up."""

from __future__ import annotations

import typing as t

from .._errors import IpMasqError, NodeError
from . import healthz, owned_files
from .host import Host, Unit
from .kubelet import all_words
from .observe import Observation
from .options import Options
from .planned_edits import Edit
from .probe import probe
from .restart import restart


class Step(t.NamedTuple):
    """What is done to one kubelet."""

    seen: Observation
    edits: t.Tuple[Edit, ...]
    #: whether its service is restarted
    restarts: bool
    #: where it answers healthz; None if it does not
    url: t.Optional[str]


class Applied(t.NamedTuple):
    """What was done. ``failure`` is empty if all of it worked."""

    actions: t.Tuple[str, ...] = ()
    #: the edits that stay
    edits: t.Tuple[Edit, ...] = ()
    failure: str = ""
    restarted: bool = False
    #: whether a change waits for a restart
    restart_needed: bool = False

    def plus(self, other: Applied) -> Applied:
        """Add another result behind this one."""
        return Applied(
            self.actions + other.actions,
            self.edits + other.edits,
            other.failure,
            self.restarted or other.restarted,
            self.restart_needed or other.restart_needed,
        )


class Updater:
    """Changes kubelets.

    :param check: do as if, and write nothing.
    """

    def __init__(self, options: Options, host: Host, healthy: healthz.Healthy, check: bool) -> None:
        self._options = options
        self._host = host
        self._healthy = healthy
        self._check = check

    def steps(self, edits: t.Sequence[Edit], pending: t.Sequence[Observation]) -> t.List[Step]:
        """Return the edits by kubelet, those that only wait for a restart first.

        :raises ConfigError: a kubelet's configuration cannot be understood.
        :raises NodeError: a kubelet's configuration cannot be read.
        """
        grouped: t.Dict[str, t.Tuple[Observation, t.List[Edit]]] = {seen.unit.name: (seen, []) for seen in pending}
        for edit in edits:
            grouped.setdefault(edit.seen.unit.name, (edit.seen, []))[1].append(edit)
        return [self._step(seen, mine) for seen, mine in grouped.values()]

    def _step(self, seen: Observation, edits: t.Sequence[Edit]) -> Step:
        restarts = self._options.restart and seen.unit.active != "inactive"
        url: t.Optional[str] = self._options.healthz_url
        if restarts and not url:
            url = healthz.url_of(all_words(seen.kubelet, self._host.read), self._host.read)
        return Step(seen, tuple(edits), restarts, url)

    def check_healthz(self, steps: t.Sequence[Step]) -> None:
        """Ask the kubelets that would be restarted, before anything is written.

        Where one does not answer now, its restart could not be verified: each run would edit, restart, wait, and undo.
        A kubelet that keeps failing is not tested: the change may be what it needs.

        :raises NodeError: a kubelet that runs does not answer.
        """
        for step in steps:
            problem = self._unverifiable(step) if step.restarts else ""
            if problem:
                raise NodeError(
                    "cannot verify a restart of %s.service: %s; nothing was changed; set healthz_url to a URL that "
                    "returns 200 while this kubelet is healthy, or set restart to false and restart the kubelet "
                    "yourself" % (step.seen.unit.name, problem)
                )

    def _unverifiable(self, step: Step) -> str:
        """Return why a restart could not be verified; empty if it could."""
        unit = step.seen.unit
        if step.url is None:
            return "its healthz endpoint is disabled (port 0)"
        if unit.active != "active":
            return ""
        problem = self._healthy(step.url, min(self._options.healthz_timeout, healthz.ANSWERS_WITHIN))
        # One that ended meanwhile, or is another process by now, keeps failing.
        return problem if problem and self._runs_still(unit) else ""

    def _runs_still(self, unit: Unit) -> bool:
        return [(one.active, one.pid) for one in self._host.units([unit.name])] == [(unit.active, unit.pid)]

    def update(self, steps: t.Sequence[Step]) -> Applied:
        """Take one step after the other, and stop at the first that fails."""
        done = Applied()
        for step in steps:
            done = done.plus(self._update(step))
            if done.failure:
                break
        return done

    def _update(self, step: Step) -> Applied:
        written: t.List[t.Tuple[Edit, owned_files.FileVersion]] = []
        actions = ["%s %s" % ("removed" if edit.after is None else "edited", edit.path) for edit in step.edits]
        disturbed = False
        try:
            for edit in () if self._check else step.edits:
                after = None if edit.after is None else edit.after.encode("utf-8")
                written.append((edit, owned_files.replace(edit.before, after)))
            if not step.restarts:
                waits = step.seen.unit.active != "inactive"
                return Applied(tuple(actions), step.edits, restart_needed=waits)
            if not self._check:
                self._check_still_supported(step)
                disturbed = True
                self._restart(step)
            actions.append("restarted %s.service" % step.seen.unit.name)
            return Applied(tuple(actions), step.edits, restarted=True)
        except IpMasqError as exc:
            return self._undo(step, written, str(exc), disturbed)

    def _check_still_supported(self, step: Step) -> None:
        """Check that the binary still supports the flag: an upgrade may have replaced it meanwhile."""
        if not any(edit.sets for edit in step.edits):
            return
        answer = probe(step.seen.kubelet.program(), self._host.run, self._options.probe_timeout)
        if answer.supported is not True:
            raise NodeError("the kubelet's binary was replaced during this run and may not support the flag")

    def _restart(self, step: Step) -> None:
        timeout = self._options.healthz_timeout
        restart(self._host.run, step.seen.unit.name, step.url or "", timeout, self._healthy)

    def _undo(
        self, step: Step, written: t.Sequence[t.Tuple[Edit, owned_files.FileVersion]], error: str, disturbed: bool
    ) -> Applied:
        """Restore the files, and restart a kubelet that was restarted with the new ones."""
        trouble = []
        left = []
        for edit, now in reversed(written):
            before = edit.before
            try:
                owned_files.replace(now._replace(mode=before.mode, uid=before.uid, gid=before.gid), before.data)
            except IpMasqError as exc:
                left.append(edit)
                trouble.append("restoring %s failed too: %s" % (before.path, exc))
        if written and disturbed and not left:
            try:
                self._restart(step)
            except IpMasqError as exc:
                trouble.append("the restart with the original file failed too: %s" % exc)
        if trouble:
            end = "; ".join(trouble)
        elif written:
            end = "original file restored, " + ("kubelet restarted" if disturbed else "kubelet not restarted")
        else:
            end = "no file was changed"
        return Applied(edits=tuple(left), failure="%s; %s" % (error, end))
