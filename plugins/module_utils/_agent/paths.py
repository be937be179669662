# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie on a node: places that an operator may choose, and fixed ones."""

from __future__ import annotations

import os
import re
import typing as t

from .._errors import ConfigError

UNIT_DIR = "/etc/systemd/system"
#: Drop-ins that do not outlive the boot; the first sync after it makes them anew.
RUNTIME_UNIT_DIR = "/run/systemd/system"
STATE_DIR = "/var/lib/ip-masq-agent"
RUN_DIR = "/run/ip-masq-agent"
METRICS_NAME = "ip_masq_agent.prom"

#: iptables-legacy takes its lock here; the sandbox can only open what is there when the service starts (tmpfiles.d(5)).
TMPFILES = "/etc/tmpfiles.d/ip-masq-agent.conf"

#: In every file of ours other than the configuration.
MARK = "Managed by the Ansible collection kubenode.ip_masq"

_SAFE_PATH = re.compile(r"(?:/[A-Za-z0-9_.-]+)+\Z")


class Paths(t.NamedTuple):
    """The places that an operator may choose. Build it with :func:`choose_paths`."""

    config_dir: str = "/etc/ip-masq-agent"
    bin_dir: str = "/usr/local/sbin"
    metrics_dir: str = ""
    python: str = "/usr/bin/python3"

    @property
    def program(self) -> str:
        """The installed agent."""
        return os.path.join(self.bin_dir, "ip-masq-agent")

    @property
    def resync(self) -> str:
        """The script that the timer starts."""
        return os.path.join(self.bin_dir, "ip-masq-agent-resync")

    @property
    def metrics_file(self) -> str:
        """Where metrics go; empty where none are wanted."""
        return os.path.join(self.metrics_dir, METRICS_NAME) if self.metrics_dir else ""


def choose_paths(**places: str) -> Paths:
    """Check the places and put them together. A slash at the end of a path is dropped.

    :raises ConfigError: one is not an absolute path of plain characters; it would have to be quoted in units.
    """
    for name, path in places.items():
        places[name] = path.rstrip("/") or path
        if (path or name != "metrics_dir") and (
            not _SAFE_PATH.match(places[name]) or {".", ".."} & set(path.split("/"))
        ):
            raise ConfigError(
                "%s: %s is not usable: give an absolute path of letters, digits, '_', '.', '-' and '/', "
                "without '.' or '..' as a component" % (name, ascii(path))
            )
    return Paths(**places)
