# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ulogd of the distribution, which writes the log: what it needs, and its configuration."""

from __future__ import annotations

import glob
import os
import typing as t

from .._errors import NodeError, ProgramMissingError
from .._system import files
from .._system.process import which
from .log_files import CURRENT

_PLUGINS = ("ulogd_inpflow_NFCT.so", "ulogd_filter_IP2STR.so", "ulogd_output_JSON.so")
_PLUGIN_DIRECTORIES = ("/usr/lib/*/ulogd", "/usr/lib64/ulogd", "/usr/lib/ulogd")
_EVENTS = "/proc/sys/net/netfilter/nf_conntrack_events"

#: event_mask: ends alone, which the kernel reports with the beginning (nf_conntrack_timestamp).
_CONFIG = """\
# %s; local changes are overwritten.
[global]
logfile="syslog"
loglevel=7
%s
stack=ct1:NFCT,ip2str1:IP2STR,json1:JSON

[ct1]
hash_enable=0
event_mask=4
accept_proto_filter=tcp,udp,sctp
netlink_socket_buffer_size=4194304
netlink_socket_buffer_maxsize=33554432

[json1]
sync=1
timestamp=0
file="%s"
"""


def check() -> None:
    """Refuse a node that cannot log.

    :raises NodeError: ulogd is missing, or the kernel does not report connections.
    """
    find_plugins()
    if (files.read(_EVENTS) or b"").strip() == b"0":
        raise NodeError(
            "connection_log: the kernel does not report ends of connections; set the sysctl "
            "net.netfilter.nf_conntrack_events to 1; files and rules left unchanged"
        )


def find_plugins() -> t.Tuple[str, t.List[str]]:
    """Return ulogd and its plugins.

    :raises ProgramMissingError: one of them is missing.
    """
    program = which("ulogd")
    folders = [folder for pattern in _PLUGIN_DIRECTORIES for folder in sorted(glob.glob(pattern))]
    for folder in folders if program else ():
        found = [os.path.join(folder, name) for name in _PLUGINS]
        if program and all(map(os.path.isfile, found)):
            return program, found
    package = "ulogd2-json" if which("apt-get") else "ulogd"
    raise ProgramMissingError(
        "connection_log needs ulogd with its JSON output: install the package ulogd2-json (Debian, Ubuntu) or ulogd "
        "(EPEL), or set connection_log to 0; files and rules left unchanged",
        package,
    )


def config_text(mark: str, folder: str, plugins: t.Iterable[str]) -> str:
    """Return the configuration.

    :param mark: the comment that marks the file as ours.
    :param folder: of the log.
    """
    named = "\n".join('plugin="%s"' % path for path in plugins)
    return _CONFIG % (mark, named, os.path.join(folder, CURRENT))
