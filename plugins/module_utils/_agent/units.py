# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd units of the agent, and their texts. None depends on the policy.

See systemd.service(5), systemd.timer(5), systemd.path(5), systemd.exec(5).
"""

from __future__ import annotations

import os
import typing as t

from .paths import MARK, RUN_DIR, RUNTIME_UNIT_DIR, STATE_DIR, TMPFILES, Paths

#: Units whose start, restart or reload may flush the nat table (all are ordered before network-pre.target).
FIREWALL_UNITS = ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables")

#: Units that run a kubelet. It starts the pods, so at boot it waits until the first sync has ended, well or not.
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

#: What is enabled on a node, and what of it is started at once. The hooks start with their firewalls, the rest at boot.
ENABLED_UNITS = (SERVICE, TIMER, PATH, INTERVAL_PATH, LEGACY_PATH, LEGACY_SERVICE) + FIREWALL_HOOKS
STARTED_UNITS = (TIMER, PATH, INTERVAL_PATH, LEGACY_PATH)

_HEADER = "# %s; local changes belong in a drop-in.\n" % MARK


def unit_files(where: Paths) -> t.Dict[str, str]:
    """The unit files by name."""
    firewalls, kubelets = (" ".join(unit + ".service" for unit in units) for units in (FIREWALL_UNITS, KUBELET_UNITS))
    # Of a path that is not there systemd would make a service that cannot start: hence "-".
    writable = "\nReadWritePaths=-%s" % where.metrics_dir if where.metrics_dir else ""
    units = {
        SERVICE: _SERVICE.format(firewalls=firewalls, kubelets=kubelets, resync=where.resync, writable=writable),
        TIMER: _TIMER,
        PATH: _PATH.format(config_dir=where.config_dir),
        EDIT_SERVICE: _EDIT_SERVICE,
        INTERVAL_SERVICE: _INTERVAL_SERVICE.format(program=where.program),
        INTERVAL_PATH: _INTERVAL_PATH.format(run_dir=RUN_DIR),
        LEGACY_SERVICE: _LEGACY_SERVICE.format(tmpfiles=TMPFILES, state=os.path.join(STATE_DIR, "state.json")),
        LEGACY_PATH: _LEGACY_PATH,
        FIREWALL_TEMPLATE: _FIREWALL,
    }
    return {name: _HEADER + text for name, text in units.items()}


def tmpfiles() -> str:
    """The text of the tmpfiles.d file."""
    return _HEADER + "f /run/xtables.lock 0600 root root -\n"


def interval_drop_in(interval: int) -> t.Tuple[str, str]:
    """Path and text of the timer's drop-in for an interval in nanoseconds."""
    text = _HEADER + "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=%dus\n" % max(interval // 1000, 1)
    return os.path.join(RUNTIME_UNIT_DIR, TIMER + ".d", "interval.conf"), text


# CAP_NET_RAW and AF_INET, AF_INET6 are for iptables-legacy, which speaks to the kernel through a raw socket.
# CAP_DAC_OVERRIDE is for files of other users: a configuration that is not readable for all, and the directory of
# node_exporter, which commonly belongs to its user. Without it root in the sandbox can do less than the operator saw.
# ReadOnlyPaths: from 252 on (seen up to 257) ProtectSystem=strict with ProtectKernelTunables leaves /run writable.
# Before= only orders: the kubelet starts after a sync that failed, too, and TimeoutStartSec and TimeoutStopSec are the
# longest that it waits.
# LogLevelMax keeps "Starting" and "Finished" of every tick out of the journal; changes are logged above it. What comes
# without a priority (a traceback, what the shell says where the program is missing) must not be lost: SyslogLevel.
# SuccessExitStatus: a restart may end the script before it has set its trap.
_SERVICE = """\
[Unit]
Description=Keep IP masquerading as declared
Documentation=https://github.com/kubenode/ansible-ip-masq
After=network-pre.target {firewalls}
Before={kubelets}
StartLimitIntervalSec=0

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

# The interval below is the default; another one comes as a drop-in from the config file.
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

# Not the sync itself: an edit made while one is under way, which has read the files already, needs another.
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

# The sandboxed service may only say a number; this one, outside of the sandbox, checks it and sets the timer.
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
PathChanged={run_dir}/interval

[Install]
WantedBy=paths.target
"""

# What iptables-legacy needs and the sandboxed service cannot get by itself: the lock file, which somebody may delete
# while the node is up, and the kernel module ip_tables after a boot. iptables-legacy loads that one through modprobe
# (libxtables, xtables_load_ko), which ProtectKernelModules forbids; all others the kernel itself asks for.
_LEGACY_SERVICE = """\
[Unit]
Description=Prepare the node for iptables-legacy in ip-masq-agent
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

# One instance a firewall unit: what a unit that is already up would swallow must start a sync each time.
# To systemd firewalld is started, or reloaded, before it touches a rule (seen: 0.9.3 takes its bus name first, and is
# told to reload by a signal). It answers on the bus when it has done that, so another sync waits for an answer.
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
