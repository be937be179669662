# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Change one kubelet: rehearse the edits, write them, restart it, verify, and go back where it does not come up."""

from __future__ import annotations

import typing as t

from .._errors import ConfigError, IpMasqError, NodeError
from .._system import systemd
from . import healthz, owned_files
from .arguments import NEVER, last_value
from .environment_file import with_flag
from .host import Host
from .kubelets import Kubelet, find_places
from .options import Spot

#: Stopping may take as long as the unit allows (90 s unless it says otherwise), and starting comes after that.
_SYSTEMCTL_TIMEOUT = 240.0


class Edit(t.NamedTuple):
    """A file, before and after."""

    path: str
    before: owned_files.FileVersion
    after: str


def rehearse(kubelet: Kubelet, target: Spot, present: bool, host: Host) -> Edit:
    """Try to set or remove the flag, on the text alone.

    :raises ConfigError: the file cannot be changed with certainty, or the change would not have the effect wanted.
    """
    before = owned_files.read_version(host.path(target.path))
    owned_files.check_replaceable(before)
    after = with_flag(before.text, *target, present=present)
    _same, places = find_places(kubelet.unit, Host(host.run, host.options, host.root, {target.path: after}))
    if last_value(word for place in places for word in place.words) != (NEVER if present else None):
        said = "%s: a change would have no effect: %s does not read it, or sets the flag after it; nothing was changed"
        raise ConfigError(said % (target.path, kubelet.name))
    return Edit(target.path, before, after)


class Updater:
    """Changes one kubelet.

    :param edit: None to make up for a restart.
    :param healthy: asks healthz.
    """

    def __init__(self, kubelet: Kubelet, edit: t.Optional[Edit], host: Host, healthy: healthz.Healthy) -> None:
        self.unit = kubelet.unit
        self.edit = edit
        self.restarts = host.options.restart and kubelet.unit.active != "inactive"
        self._url = host.options.healthz_url or healthz.url_of(kubelet.words, host.read)
        self._timeout = host.options.healthz_timeout
        self._healthy = healthy
        self._host = host

    def problem(self) -> str:
        """Return why a restart could not be verified, before anything is written; empty if it could.

        Each run would edit, restart, wait, and undo. A kubelet that keeps failing is not asked: the change may be what
        it needs.
        """
        problem = ""
        if self.restarts and not self._url:
            problem = "its healthz endpoint is disabled (port 0)"
        elif self.restarts and self.unit.active == "active":
            problem = self._healthy(self._url, min(self._timeout, healthz.ANSWERS_WITHIN))
            now = [(one.active, one.pid) for one in self._host.units([self.unit.name])]
            if now != [(self.unit.active, self.unit.pid)]:
                return ""  # it ended meanwhile, and keeps failing
        return problem and (
            "cannot verify a restart of %s: %s; nothing was changed; set healthz_url to a URL that returns 200 while "
            "this kubelet is healthy, or set restart to false and restart the kubelet yourself"
            % (self.unit.name, problem)
        )

    def update(self) -> t.Tuple[str, bool]:
        """Write the file, and restart the kubelet; where one fails, put the file back and restart the kubelet again.

        :returns: why it failed, empty if it did not, and whether the new file stays.
        """
        now = None
        try:
            if self.edit:
                now = owned_files.replace(self.edit.before, self.edit.after.encode("utf-8"))
            if self.restarts:
                self._restart()
            return "", True
        except IpMasqError as exc:
            failure = str(exc)
        if not self.edit or not now:
            return failure + "; no file was changed", False
        try:
            owned_files.replace(now, self.edit.before.data)
        except IpMasqError as exc:
            return "%s; restoring %s failed too: %s" % (failure, self.edit.path, exc), True
        try:
            self._restart()
        except IpMasqError as exc:
            return "%s; the restart with the original file failed too: %s" % (failure, exc), False
        return failure + "; original file restored, kubelet restarted", False

    def _restart(self) -> None:
        """Restart the kubelet, and wait until it is healthy.

        :raises NodeError: it did not start, or did not become healthy.
        """
        name, run = self.unit.name, self._host.run
        # A kubelet that kept failing may have exceeded its start limit; systemd would then refuse this start.
        systemd.reset_failed(run, name)
        systemd.systemctl(run, "restart", name, timeout=_SYSTEMCTL_TIMEOUT)
        problem = self._healthy(self._url, self._timeout)
        state = systemd.show_units(run, ("ActiveState",), [name])[name].first("ActiveState")
        if problem or state != "active":
            raise NodeError(
                "%s did not become healthy within %g seconds (%s; the service is %s); see journalctl -u %s"
                % (name, self._timeout, problem or "another program answers", state or "unknown", name)
            )
