# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd units of the agent. Their texts do not depend on the policy.

See systemd.service(5), systemd.timer(5), systemd.path(5), systemd.exec(5).
"""

from __future__ import annotations

import os
import typing as t

from .._policy.config_file import DROP_IN_SUFFIXES
from .paths import MARK, Paths

#: Units whose start, restart or reload may flush the nat table (all are ordered before network-pre.target).
FIREWALL_UNITS = ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables")

#: Units that run a kubelet. It starts the pods, so at boot it waits for the first sync, successful or not.
KUBELET_UNITS = (
    "kubelet",
    "k3s",
    "k3s-agent",
    "rke2-server",
    "rke2-agent",
    "k0scontroller",
    "k0sworker",
    "snap.microk8s.daemon-kubelite",
    "snap.microk8s.daemon-kubelet",
)

SERVICE = "ip-masq-agent.service"
TIMER = "ip-masq-agent.timer"
PATH = "ip-masq-agent.path"
EDIT_SERVICE = "ip-masq-agent-edit.service"
INTERVAL_SERVICE = "ip-masq-agent-interval.service"
INTERVAL_PATH = "ip-masq-agent-interval.path"
LEGACY_SERVICE = "ip-masq-agent-legacy.service"
LEGACY_PATH = "ip-masq-agent-legacy.path"
FIREWALL_TEMPLATE = "ip-masq-agent-firewall@.service"
FIREWALL_HOOKS = tuple(FIREWALL_TEMPLATE.replace("@", "@" + unit) for unit in FIREWALL_UNITS)

#: The units that are enabled, and those of them that are started at once. Hooks start with their firewall.
ENABLED_UNITS = (SERVICE, TIMER, PATH, INTERVAL_PATH, LEGACY_PATH, LEGACY_SERVICE) + FIREWALL_HOOKS
STARTED_UNITS = (TIMER, PATH, INTERVAL_PATH, LEGACY_PATH)

_HEADER = "# %s; local changes belong in a drop-in.\n" % MARK


def unit_files(where: Paths) -> t.Dict[str, str]:
    """The unit files by name."""
    firewalls, kubelets = (" ".join(unit + ".service" for unit in units) for units in (FIREWALL_UNITS, KUBELET_UNITS))
    # "-": without it the service could not start while the directory does not exist.
    writable = "\nReadWritePaths=-%s" % where.metrics_dir if where.metrics_dir else ""
    units = {
        SERVICE: _SERVICE.format(
            firewalls=firewalls,
            kubelets=kubelets,
            conditions=_conditions(where),
            resync=where.resync,
            writable=writable,
        ),
        TIMER: _TIMER,
        PATH: _PATH.format(config_dir=where.config_dir),
        EDIT_SERVICE: _EDIT_SERVICE,
        INTERVAL_SERVICE: _INTERVAL_SERVICE.format(program=where.program),
        INTERVAL_PATH: _INTERVAL_PATH.format(interval_file=where.interval_file),
        LEGACY_SERVICE: _LEGACY_SERVICE.format(tmpfiles=where.tmpfiles, state=where.state_file),
        LEGACY_PATH: _LEGACY_PATH,
        FIREWALL_TEMPLATE: _FIREWALL,
    }
    return {name: _HEADER + text for name, text in units.items()}


def _conditions(where: Paths) -> str:
    """There is a configuration, or the agent has run before, on a node whose policy is the default one."""
    paths = [where.config, *(os.path.join(where.drop_ins, "*" + suffix) for suffix in DROP_IN_SUFFIXES)]
    paths += [where.state_file, where.spare_state_file]
    return "\n".join("ConditionPathExistsGlob=|" + path for path in paths)


def tmpfiles_text() -> str:
    """The text of the tmpfiles.d file."""
    return _HEADER + "f /run/xtables.lock 0600 root root -\n"


def interval_drop_in(where: Paths) -> str:
    """The path of the drop-in that sets the timer's interval."""
    return os.path.join(where.runtime_unit_dir, TIMER + ".d", "interval.conf")


def interval_text(interval: int) -> str:
    """The text of that drop-in for an interval in nanoseconds."""
    return _HEADER + "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=%dus\n" % max(interval // 1000, 1)


# CAP_NET_RAW and AF_INET, AF_INET6 are for iptables-legacy, which talks to the kernel through a raw socket.
# CAP_DAC_OVERRIDE is for files of other users: a configuration that is not world-readable, and the directory of
# node_exporter, which commonly belongs to its user. Without it root in the sandbox can access less than root outside.
# ReadOnlyPaths: from 252 on (seen up to 257) ProtectSystem=strict with ProtectKernelTunables leaves /run writable.
# Before= only orders: the kubelet also starts after a failed sync, and waits for at most TimeoutStartSec and
# TimeoutStopSec.
# Condition: an image may contain the agent before anybody has declared a policy; then it changes no rule.
# LogLevelMax keeps "Starting" and "Finished" of every tick out of the journal; changes are logged above it. Output
# without a priority (a traceback, the shell's error if the program is missing) must not be lost: SyslogLevel.
# SuccessExitStatus: a restart may terminate the script before it has set its trap.
_SERVICE = """\
[Unit]
Description=Sync IP masquerading rules with the configuration
Documentation=https://github.com/kubenode/ansible-ip-masq
After=network-pre.target {firewalls}
Before={kubelets}
StartLimitIntervalSec=0
{conditions}

[Service]
Type=oneshot
ExecStart={resync}
TimeoutStartSec=90
TimeoutStopSec=30
SuccessExitStatus=SIGTERM
LogLevelMax=notice
SyslogLevel=notice
SyslogIdentifier=ip-masq-agent
UMask=0077
StateDirectory=ip-masq-agent
StateDirectoryMode=0700
RuntimeDirectory=ip-masq-agent
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
ReadOnlyPaths=/run
ReadWritePaths=-/run/xtables.lock{writable}
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_NETLINK AF_INET AF_INET6
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
ProtectProc=default
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
IPAddressDeny=any

[Install]
WantedBy=multi-user.target
"""

# The interval below is the default; another one is set in a drop-in.
_TIMER = """\
[Unit]
Description=Resync IP masquerading at resyncInterval
Documentation=https://github.com/kubenode/ansible-ip-masq

[Timer]
OnActiveSec=0
OnUnitInactiveSec=60s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""

_PATH = """\
[Unit]
Description=Resync IP masquerading when its configuration is edited
Documentation=https://github.com/kubenode/ansible-ip-masq

[Path]
PathChanged={config_dir}
PathChanged={config_dir}/config.d
Unit=ip-masq-agent-edit.service

[Install]
WantedBy=paths.target
"""

# Not the sync itself: an edit made while a sync is running, which has already read the files, needs another one.
_EDIT_SERVICE = """\
[Unit]
Description=Resync IP masquerading after an edit of its configuration
Documentation=https://github.com/kubenode/ansible-ip-masq
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/bin/systemctl --no-block restart ip-masq-agent.service
LogLevelMax=notice
"""

# The sandboxed service can only write a number; this one, outside of the sandbox, checks it and sets the timer.
_INTERVAL_SERVICE = """\
[Unit]
Description=Set the timer of ip-masq-agent to resyncInterval
Documentation=https://github.com/kubenode/ansible-ip-masq
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={program} set-timer
SyslogIdentifier=ip-masq-agent
LogLevelMax=notice
"""

_INTERVAL_PATH = """\
[Unit]
Description=Watch for a new resyncInterval of ip-masq-agent
Documentation=https://github.com/kubenode/ansible-ip-masq

[Path]
PathChanged={interval_file}

[Install]
WantedBy=paths.target
"""

# What iptables-legacy needs and the sandboxed service cannot create: the lock file, which may be deleted while the node
# is up, and the kernel module ip_tables after a boot. iptables-legacy loads that module with modprobe (libxtables,
# xtables_load_ko), which ProtectKernelModules forbids; the kernel itself requests all others.
_LEGACY_SERVICE = """\
[Unit]
Description=Prepare lock file and kernel module for iptables-legacy
Documentation=https://github.com/kubenode/ansible-ip-masq
Before=ip-masq-agent.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=-/bin/systemd-tmpfiles --create {tmpfiles}
ExecStart=-/bin/sh -c 'if grep -qs "backend.*iptables_legacy" {state}; then exec modprobe -aq ip_tables ip6_tables; fi'
TimeoutStartSec=30
LogLevelMax=notice

[Install]
WantedBy=multi-user.target
"""

_LEGACY_PATH = """\
[Unit]
Description=Watch for the removal of the lock file of iptables-legacy
Documentation=https://github.com/kubenode/ansible-ip-masq

[Path]
PathChanged=/run/xtables.lock

[Install]
WantedBy=paths.target
"""

# One instance for each firewall unit, since each start, restart and reload must start a sync, also if one is running.
# systemd considers firewalld started, or reloaded, before it has changed a rule (seen: 0.9.3 takes its bus name first,
# and reloads on a signal). It answers on the bus when it is done, so a second sync waits for an answer.
_FIREWALL = """\
[Unit]
Description=Resync IP masquerading after %i.service
Documentation=https://github.com/kubenode/ansible-ip-masq
After=%i.service
PartOf=%i.service
ReloadPropagatedFrom=%i.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/systemctl --no-block restart ip-masq-agent.service
ExecStart=-/bin/sh -c 'test %i = firewalld && firewall-cmd --state && systemctl --no-block restart ip-masq-agent'
ExecReload=/bin/systemctl --no-block restart ip-masq-agent.service
ExecReload=-/bin/sh -c 'test %i = firewalld && firewall-cmd --state && systemctl --no-block restart ip-masq-agent'
TimeoutStartSec=60
LogLevelMax=notice

[Install]
WantedBy=%i.service
"""
