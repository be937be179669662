# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths of the agent on a node: those that an operator may choose, and fixed ones."""

from __future__ import annotations

import os
import re
import typing as t

from .._errors import ConfigError

METRICS_NAME = "ip_masq_agent.prom"

#: In every file of ours other than the configuration.
MARK = "Managed by the Ansible collection kubenode.ip_masq"

#: Where units are (systemd.unit(5)): those of an administrator, or of Ansible, and those of a package. A unit in the
#: first directory replaces the one of the same name in the second.
ADMIN_UNITS, PACKAGED_UNITS = "/etc/systemd/system", "/usr/lib/systemd/system"

#: The fields of ``Paths`` that an operator may choose.
CHOSEN = ("config_dir", "bin_dir", "metrics_dir", "python")

# Patterns are text: a start that compiled all of them took 2.8 % longer.
_SAFE_PATH = r"(?:/[A-Za-z0-9_.-]+)+\Z"


class _Below:
    """A path below one of the directories of ``Paths``."""

    def __init__(self, folder: str, path: str) -> None:
        self._folder, self._path = folder, path

    def __get__(self, paths: _Places, _owner: object = None) -> str:
        return "%s%s" % (getattr(paths, self._folder), self._path)


class _Places(t.NamedTuple):
    config_dir: str = "/etc/ip-masq-agent"
    bin_dir: str = "/usr/local/sbin"
    #: empty if no metrics are wanted
    metrics_dir: str = ""
    #: unlike the Python of a virtual environment, this one is not removed while the node is in use
    python: str = "/usr/bin/python3"
    #: the directory below which the fixed paths are; empty on a node. The chosen paths are not below it.
    root: str = ""
    #: the directory of the unit files: one of the two above
    units: str = ADMIN_UNITS


class Paths(_Places):
    """All paths of one agent. Build it with ``choose_paths``, which checks what was chosen."""

    #: the installed agent: a launcher
    program = _Below("bin_dir", "/ip-masq-agent")
    #: the script that the timer starts
    resync = _Below("bin_dir", "/ip-masq-agent-resync")
    config = _Below("config_dir", "/config")
    #: the directory of further configuration files
    drop_ins = _Below("config_dir", "/config.d")
    #: the configuration of ulogd that writes the log of connections
    log_config = _Below("config_dir", "/ulogd.conf")

    #: the units of an administrator, and the links that enable units, wherever those are
    admin_unit_dir = _Below("root", ADMIN_UNITS)
    packaged_unit_dir = _Below("root", PACKAGED_UNITS)
    #: drop-ins that do not outlive the boot; the first sync after it creates them again
    runtime_unit_dir = _Below("root", "/run/systemd/system")

    #: what outlives a boot. A unit creates it, best effort: the rules do not depend on it.
    state_dir = _Below("root", "/var/lib/ip-masq-agent")
    #: what the agent remembers
    state_file = _Below("state_dir", "/state.json")
    #: the result of the last verification
    verification_file = _Below("state_dir", "/verification.json")
    #: what applied the policy of the config file last
    applied_file = _Below("state_dir", "/applied.json")
    #: the paths of what is installed, for a release that knows fewer
    files_list = _Below("state_dir", "/files.json")
    #: the log of connections, and what is noted beside it
    log_dir = _Below("root", "/var/log/ip-masq-agent")

    #: what does not outlive the boot. A unit creates it, best effort.
    run_dir = _Below("root", "/run/ip-masq-agent")
    #: what one run of ours locks: the directory itself, which also a full or read-only file system can do
    run_lock = run_dir
    #: takes the place of the state file while that cannot be written
    spare_state_file = _Below("run_dir", "/state.json")
    #: the metrics of the last sync
    last_metrics = _Below("run_dir", "/metrics")
    #: the commands that list what rules have counted, a line each
    counted = _Below("run_dir", "/counted")
    #: how many resyncs have used a measured share of source ports, and the share
    port_share = _Below("run_dir", "/port-share")
    #: checksums that the resync script compares
    expected = _Below("run_dir", "/expected")
    #: the commands whose output the resync script compares, a line each
    commands = _Below("run_dir", "/commands")
    #: the time of the next full check (seconds since boot)
    due = _Below("run_dir", "/due")
    #: an empty file whose modification time is that of the last successful resync
    last_sync = _Below("run_dir", "/last-sync")

    def chosen(self) -> t.Dict[str, str]:
        """Return the chosen paths by name."""
        return {name: getattr(self, name) for name in CHOSEN}

    @property
    def lib_dir(self) -> str:
        """The directory of the agent's modules, in directories named by their digest."""
        return os.path.join(os.path.dirname(self.bin_dir), "lib", "ip-masq-agent")

    @property
    def metrics_file(self) -> str:
        """The metrics; empty if none are wanted."""
        return os.path.join(self.metrics_dir, METRICS_NAME) if self.metrics_dir else ""

    @property
    def unit_dir(self) -> str:
        """The unit files of this agent."""
        return self.root + self.units

    def unit_dirs(self) -> t.Tuple[str, ...]:
        """Return the directories that can have unit files of an agent, the one that prevails first."""
        return self.admin_unit_dir, self.packaged_unit_dir


#: Where packages (tools/dist) have the agent: nothing in them is in /usr/local or /etc.
PACKAGED = Paths(bin_dir="/usr/sbin", units=PACKAGED_UNITS)


def choose_paths(**chosen: str) -> Paths:
    """Check the chosen paths. A slash at the end of one is dropped.

    :raises ConfigError: one is not an absolute path of plain characters; it would have to be quoted in units.
    """
    for name, path in chosen.items():
        chosen[name] = path.rstrip("/") or path
        if (path or name != "metrics_dir") and (
            not re.match(_SAFE_PATH, chosen[name]) or {".", ".."} & set(path.split("/"))
        ):
            raise ConfigError(
                "%s: invalid path %s: must be absolute and consist of letters, digits, '_', '.', '-' and '/', "
                "without '.' or '..' as a component" % (name, ascii(path))
            )
    return Paths(**chosen)
