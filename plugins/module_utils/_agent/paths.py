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


class Paths(t.NamedTuple):
    """All paths of one agent. Build it with ``choose_paths``, which checks what was chosen."""

    config_dir: str = "/etc/ip-masq-agent"
    bin_dir: str = "/usr/local/sbin"
    #: empty if no metrics are wanted
    metrics_dir: str = ""
    python: str = "/usr/bin/python3"
    #: the directory below which the fixed paths are; empty on a node. The chosen paths are not below it.
    root: str = ""
    #: the directory of the unit files: one of the two above
    units: str = ADMIN_UNITS

    def chosen(self) -> t.Dict[str, str]:
        """Return the chosen paths by name."""
        return {name: getattr(self, name) for name in CHOSEN}

    def fixed(self, path: str) -> str:
        """Return where a path is that nobody can choose."""
        return self.root + path

    @property
    def program(self) -> str:
        """The installed agent: a launcher."""
        return os.path.join(self.bin_dir, "ip-masq-agent")

    @property
    def lib_dir(self) -> str:
        """The directory of the agent's modules, in directories named by their digest."""
        return os.path.join(os.path.dirname(self.bin_dir), "lib", "ip-masq-agent")

    @property
    def resync(self) -> str:
        """The script that the timer starts."""
        return os.path.join(self.bin_dir, "ip-masq-agent-resync")

    @property
    def config(self) -> str:
        """The configuration file."""
        return os.path.join(self.config_dir, "config")

    @property
    def drop_ins(self) -> str:
        """The directory of further configuration files."""
        return os.path.join(self.config_dir, "config.d")

    @property
    def metrics_file(self) -> str:
        """The metrics; empty if none are wanted."""
        return os.path.join(self.metrics_dir, METRICS_NAME) if self.metrics_dir else ""

    @property
    def unit_dir(self) -> str:
        """The unit files of this agent."""
        return self.fixed(self.units)

    @property
    def admin_unit_dir(self) -> str:
        """The units of an administrator, and the links that enable units, wherever those are."""
        return self.fixed(ADMIN_UNITS)

    @property
    def packaged_unit_dir(self) -> str:
        """The units of packages."""
        return self.fixed(PACKAGED_UNITS)

    def unit_dirs(self) -> t.Tuple[str, ...]:
        """Return the directories that can have unit files of an agent, the one that prevails first."""
        return self.admin_unit_dir, self.packaged_unit_dir

    @property
    def runtime_unit_dir(self) -> str:
        """Drop-ins that do not outlive the boot; the first sync after it creates them again."""
        return self.fixed("/run/systemd/system")

    @property
    def state_dir(self) -> str:
        """What outlives a boot. A unit creates it, best effort: the rules do not depend on it."""
        return self.fixed("/var/lib/ip-masq-agent")

    @property
    def state_file(self) -> str:
        """What the agent remembers."""
        return os.path.join(self.state_dir, "state.json")

    @property
    def verification_file(self) -> str:
        """The result of the last verification."""
        return os.path.join(self.state_dir, "verification.json")

    @property
    def applied_file(self) -> str:
        """What applied the policy of the config file last."""
        return os.path.join(self.state_dir, "applied.json")

    @property
    def files_list(self) -> str:
        """The paths of what is installed, for a release that knows fewer."""
        return os.path.join(self.state_dir, "files.json")

    @property
    def log_dir(self) -> str:
        """The log of connections, and what is noted beside it."""
        return self.fixed("/var/log/ip-masq-agent")

    @property
    def log_config(self) -> str:
        """The configuration of ulogd that writes the log."""
        return os.path.join(self.config_dir, "ulogd.conf")

    @property
    def run_dir(self) -> str:
        """What does not outlive the boot. A unit creates it, best effort."""
        return self.fixed("/run/ip-masq-agent")

    @property
    def run_lock(self) -> str:
        """What one run of ours locks: the directory itself, which also a full or read-only file system can do."""
        return self.run_dir

    @property
    def spare_state_file(self) -> str:
        """Takes the place of the state file while that cannot be written."""
        return os.path.join(self.run_dir, "state.json")

    @property
    def interval_file(self) -> str:
        """The interval (nanoseconds) that the timer does not have yet; a unit sets it, and removes the file."""
        return os.path.join(self.run_dir, "interval")

    @property
    def port_share(self) -> str:
        """How many resyncs have used a measured share of source ports, and the share."""
        return os.path.join(self.run_dir, "port-share")

    @property
    def expected(self) -> str:
        """Checksums that the resync script compares."""
        return os.path.join(self.run_dir, "expected")

    @property
    def commands(self) -> str:
        """The commands whose output the resync script compares, a line each."""
        return os.path.join(self.run_dir, "commands")

    @property
    def due(self) -> str:
        """The time of the next full check (seconds since boot)."""
        return os.path.join(self.run_dir, "due")

    @property
    def last_sync(self) -> str:
        """An empty file whose modification time is that of the last successful resync."""
        return os.path.join(self.run_dir, "last-sync")


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
