# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated systemctl. Python 3.8."""

from __future__ import annotations

import typing as t

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome


class Systemctl:
    """Records the calls that change something, and keeps the state of the units."""

    def __init__(self, enabled: t.Iterable[str] = (), active: t.Iterable[str] = ()) -> None:
        self.enabled = set(enabled)
        self.active = set(active)
        #: the units that have files
        self.known = set(units.ENABLED_UNITS)
        #: those of them that are linked to /dev/null
        self.masked: t.Set[str] = set()
        #: the exit status of those that failed
        self.failed: t.Dict[str, int] = {}
        #: those whose file systemd has not read since it changed
        self.changed: t.Set[str] = set()
        self.calls: t.List[t.List[str]] = []
        #: the verb that fails
        self.refuse = ""
        #: the units that cannot start, for want of resources
        self.cannot_start: t.Set[str] = set()
        #: whether units were enabled or disabled that systemd was not told of
        self.is_stale = False

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        program, verb, *names = argv
        assert program == "systemctl"
        if verb == "show":
            option, wanted = names.pop(0).split("=")
            assert option == "--property" and names.pop(0) == "--"
            return Outcome(0, "\n\n".join(self._show(name, wanted.split(",")) for name in names) + "\n", "")
        self.calls.append([verb, *names])
        if verb == self.refuse:
            return Outcome(1, "", "Failed to %s:\n  no\n" % verb)
        if verb in ("enable", "reenable", "disable"):
            assert names.pop(0) == "--no-reload", "systemd would read all units again for each call"
            (self.enabled.difference_update if verb == "disable" else self.enabled.update)(names)
            self.is_stale = True
        elif verb in ("start", "stop"):
            (self.active.update if verb == "start" else self.active.difference_update)(names)
            if self.active & self.cannot_start:
                self.active -= self.cannot_start
                return Outcome(1, "", "Job failed. See 'journalctl -xe' for details.\n")
        elif verb == "daemon-reload":
            self.is_stale = False
            self.changed.clear()
        return Outcome(0, "", "")

    def _show(self, name: str, wanted: t.Sequence[str]) -> str:
        load, file = "loaded", "enabled" if name in self.enabled else "disabled"
        if name in self.masked:
            load = file = "masked"
        elif name not in self.known:
            load, file = "not-found", ""
        values = {
            "LoadState": load,
            "UnitFileState": file,
            "ActiveState": "active" if name in self.active else "failed" if name in self.failed else "inactive",
            "Result": "resources" if name in self.cannot_start else "exit-code" if name in self.failed else "success",
            "ExecMainStatus": str(self.failed.get(name, 0)),
            "NeedDaemonReload": "yes" if name in self.changed else "no",
        }
        assert set(wanted) <= set(values), "properties that are not simulated"
        return "\n".join("%s=%s" % (key, value) for key, value in values.items() if key in wanted)
