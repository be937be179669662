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
from .._policy.policy import build
from .paths import MARK, Paths

#: Units whose start, restart or reload may flush the nat table (all are ordered before network-pre.target).
FIREWALL_UNITS = ("firewalld", "nftables", "netfilter-persistent", "iptables", "ip6tables", "ufw")

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
PREPARE_SERVICE = "ip-masq-agent-prepare.service"
FIREWALL_TEMPLATE = "ip-masq-agent-firewall@.service"
FIREWALL_HOOKS = tuple(FIREWALL_TEMPLATE.replace("@", "@" + unit) for unit in FIREWALL_UNITS)

#: The units that are enabled, and those of them that are started at once. Hooks start with their firewall.
ENABLED_UNITS = (SERVICE, TIMER, PATH) + FIREWALL_HOOKS
STARTED_UNITS = (TIMER, PATH)

#: Services that can be running or failed although they are not enabled.
SERVICES = (SERVICE, EDIT_SERVICE, INTERVAL_SERVICE, PREPARE_SERVICE)

#: Those of the log of connections, if it is wanted: what writes it, and what rotates it each minute.
LOG_SERVICE = "ip-masq-agent-log.service"
LOG_KEEP_SERVICE = "ip-masq-agent-log-keep.service"
LOG_TIMER = "ip-masq-agent-log-keep.timer"
LOG_STARTED = (LOG_SERVICE, LOG_TIMER)

#: That of RHEL 8. Those before lack too much of the sandbox, and are not tested.
LEAST_SYSTEMD = 239

_HEADER = "# %s; local changes belong in a drop-in.\n" % MARK


def unit_files(paths: Paths) -> t.Dict[str, str]:
    """Return the unit files by name."""
    firewalls, kubelets = (" ".join(unit + ".service" for unit in units) for units in (FIREWALL_UNITS, KUBELET_UNITS))
    units = {
        SERVICE: _SERVICE.format(
            firewalls=firewalls,
            kubelets=kubelets,
            conditions=_conditions(paths),
            resync=paths.resync,
            state=paths.state_dir,
            run=paths.run_dir,
            metrics=" -" + paths.metrics_dir if paths.metrics_dir else "",
            walls=_WALLS,
        ),
        TIMER: _TIMER,
        PATH: _PATH.format(config_dir=paths.config_dir),
        EDIT_SERVICE: _EDIT_SERVICE.format(walls=_WALLS),
        INTERVAL_SERVICE: _INTERVAL_SERVICE.format(
            program=paths.program,
            interval_file=paths.interval_file,
            units=paths.runtime_unit_dir,
            run=paths.run_dir,
            walls=_WALLS,
        ),
        PREPARE_SERVICE: _PREPARE_SERVICE.format(
            state=paths.state_dir, file=paths.state_file, run=paths.run_dir, walls=_WALLS
        ),
        FIREWALL_TEMPLATE: _FIREWALL.format(walls=_WALLS),
    }
    return {name: _HEADER + text for name, text in units.items()}


def log_unit_files(paths: Paths, ulogd: str, megabytes: int) -> t.Dict[str, str]:
    """Return the unit files of the log of connections by name.

    :param ulogd: the program.
    :param megabytes: what the log may take.
    """
    values = {
        "program": paths.program,
        "ulogd": ulogd,
        "config": paths.log_config,
        "log": paths.log_dir,
        "run": paths.run_dir,
        "timestamps": "/proc/sys/net/netfilter/nf_conntrack_timestamp",
        "megabytes": megabytes,
        "largest": megabytes // 2,
        "walls": _WALLS,
    }
    units = {LOG_SERVICE: _LOG_SERVICE, LOG_KEEP_SERVICE: _LOG_KEEP_SERVICE, LOG_TIMER: _LOG_TIMER}
    return {name: _HEADER + text.format(**values) for name, text in units.items()}


def _conditions(paths: Paths) -> str:
    """Return the conditions of the service: there is a configuration, or the agent has run before with defaults."""
    globs = [paths.config, *(os.path.join(paths.drop_ins, "*" + suffix) for suffix in DROP_IN_SUFFIXES)]
    globs += [paths.state_file, paths.spare_state_file]
    return "\n".join("ConditionPathExistsGlob=|" + path for path in globs)


def interval_drop_in(paths: Paths) -> str:
    """Return the path of the drop-in that sets the timer's interval."""
    return os.path.join(paths.runtime_unit_dir, TIMER + ".d", "interval.conf")


def interval_text(interval: int) -> t.Optional[bytes]:
    """Return the text of that drop-in for an interval in nanoseconds; None for the timer's own."""
    if interval == build({}).resync_interval:
        return None
    lines = "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=%dus\n" % max(interval // 1000, 1)
    return (_HEADER + lines).encode("utf-8")


# What no unit of ours needs. Nothing in here or in a unit has systemd create or chmod anything on a disk, or fail where
# a path is missing ("-"): a directory that is full, read-only, missing or a file would keep the service from starting.
# So there is no PrivateDevices=, which up to 252 makes a directory in /tmp; no PrivateTmp=, which needs /tmp; and no
# StateDirectory= or RuntimeDirectory=, which end a service with 238 and 233.
_WALLS = """\
NoNewPrivileges=yes
ProtectHome=yes
InaccessiblePaths=-/tmp -/var/tmp
ProtectProc=default
DevicePolicy=closed
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
IPAddressDeny=any"""

# CAP_NET_RAW and AF_INET, AF_INET6 are for iptables-legacy, which talks to the kernel through a raw socket.
# CAP_DAC_OVERRIDE is for files of other users: a configuration that is not world-readable, and the directory of
# node_exporter, which commonly belongs to its user. Without it root in the sandbox can access less than root outside.
# ReadOnlyPaths: from 252 on (seen up to 257) ProtectSystem=strict with ProtectKernelTunables leaves /run writable.
# Before= only orders: the kubelet also starts after a failed sync, and waits for at most TimeoutStartSec and
# TimeoutStopSec.
# Wants= starts two helpers with each run. systemd checks their conditions, which takes no process, and skips the one
# that has nothing to do. There is no watch that could miss a change.
# Condition: an image may contain the agent before there is a policy; then it changes no rule.
# LogLevelMax keeps "Starting" and "Finished" of every tick out of the journal; changes are logged above it. Output
# without a priority (a traceback, the shell's error if the program is missing) must not be lost: SyslogLevel.
# SuccessExitStatus: a restart may terminate the script before it has set its trap.
_SERVICE = """\
[Unit]
Description=Sync IP masquerading rules with the configuration
Documentation=https://github.com/kubenode/ansible-ip-masq
Wants=ip-masq-agent-prepare.service ip-masq-agent-interval.service
After=ip-masq-agent-prepare.service network-pre.target {firewalls}
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
ProtectSystem=strict
ReadOnlyPaths=/run
ReadWritePaths=-{state} -{run} -/run/xtables.lock{metrics}
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_NETLINK AF_INET AF_INET6
{walls}

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

# Wanted by the service: where root has no inotify instance left, each resync tries again to start the watch.
_PATH = """\
[Unit]
Description=Resync IP masquerading when its configuration is edited
Documentation=https://github.com/kubenode/ansible-ip-masq

[Path]
PathChanged={config_dir}
PathChanged={config_dir}/config.d
Unit=ip-masq-agent-edit.service

[Install]
WantedBy=paths.target ip-masq-agent.service
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
ProtectSystem=strict
ReadOnlyPaths=/run
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX
{walls}
"""

# The service may only write a number; this one, which may write units, checks it and sets the timer.
_INTERVAL_SERVICE = """\
[Unit]
Description=Set the timer of ip-masq-agent to resyncInterval
Documentation=https://github.com/kubenode/ansible-ip-masq
After=ip-masq-agent.service
StartLimitIntervalSec=0
ConditionPathExists={interval_file}

[Service]
Type=oneshot
ExecStart={program} set-timer
TimeoutStartSec=60
SyslogIdentifier=ip-masq-agent
LogLevelMax=notice
ProtectSystem=strict
ReadOnlyPaths=/run
ReadWritePaths=-{units} -{run}
CapabilityBoundingSet=CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_UNIX
{walls}
"""

# What the service needs and cannot create: its directories, the lock file of iptables-legacy, and after a boot (there
# is no directory in /run then) the kernel module ip_tables. iptables-legacy loads that module with modprobe
# (libxtables, xtables_load_ko), which ProtectKernelModules forbids; the kernel itself requests all others. Each step
# may fail: the service runs without it, and reports what it lacks. -C: nothing that is there is written to, and no link
# is followed. Where SELinux is enabled, the lock file gets the label that the policy has for it: with another one every
# other iptables-legacy of the node is refused. restorecon takes SELinux for disabled in a sandbox with a read-only
# /sys, so this command has none ("+").
_PREPARE_SERVICE = """\
[Unit]
Description=Prepare directories, lock file and kernel module for ip-masq-agent
Documentation=https://github.com/kubenode/ansible-ip-masq
StartLimitIntervalSec=0
ConditionPathIsDirectory=|!{run}
ConditionPathIsDirectory=|!{state}
ConditionPathExists=|!/run/xtables.lock

[Service]
Type=oneshot
ExecStart=-/bin/sh -Cc 'mkdir -p -m 0700 {run}; mkdir -p -m 0700 {state}; umask 077; true >/run/xtables.lock'
ExecStart=-+/bin/sh -c 'if test -e /sys/fs/selinux/enforce; then exec restorecon /run/xtables.lock; fi'
ExecStart=-/bin/sh -c 'if grep -qs "backend.*iptables_legacy" {file}; then exec modprobe -aq ip_tables ip6_tables; fi'
TimeoutStartSec=30
TimeoutStopSec=10
LogLevelMax=notice
ProtectSystem=full
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_SYS_MODULE
RestrictAddressFamilies=AF_UNIX
{walls}
ProtectKernelModules=no
SystemCallFilter=@module
"""

# One instance for each firewall unit, since each start, restart, reload and stop must start a sync, also if one is
# running. firewalld and nftables remove all rules as they stop. This unit stops before them, and the sync that it
# requests waits: a start comes after the stop of a unit that it is ordered with. It requests none if the firewall has
# no job: then this unit alone is stopped, to be removed. systemd refuses the request while the node shuts down.
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
ExecStop=-/bin/sh -c 'systemctl show -p Job %i | grep -q "=[1-9]" && systemctl --no-block restart ip-masq-agent'
TimeoutStartSec=60
TimeoutStopSec=30
LogLevelMax=notice
ProtectSystem=strict
ReadOnlyPaths=/run
CapabilityBoundingSet=
RestrictAddressFamilies=AF_UNIX
{walls}

[Install]
WantedBy=%i.service
"""

# The kernel stores when a connection began only with nf_conntrack_timestamp; what that was is restored. LimitFSIZE ends
# ulogd before it fills a disk within a minute, and the start that follows rotates its file. LogsDirectory: without the
# directory there is nothing to log to, so this service may fail; the rules do not depend on it.
# SystemCallErrorNumber: ulogd requests a higher priority, and goes on without.
_LOG_SERVICE = """\
[Unit]
Description=Log connections that have ended, for ip-masq-agent who --at
Documentation=https://github.com/kubenode/ansible-ip-masq
After=ip-masq-agent.service
StartLimitIntervalSec=0

[Service]
Type=forking
ExecStartPre={program} keep-log --megabytes {megabytes} --starting
ExecStartPre=+-/bin/sh -c 'modprobe -q nf_conntrack; mkdir -p -m 0700 {run}'
ExecStartPre=+-/bin/sh -c 'cat {timestamps} >{run}/timestamps && echo 1 >{timestamps}'
ExecStart={ulogd} --daemon --configfile {config}
ExecStopPost=+-/bin/sh -c 'cat {run}/timestamps >{timestamps} && rm {run}/timestamps'
Restart=always
RestartSec=1
LimitFSIZE={largest}M
LimitCORE=0
SyslogIdentifier=ip-masq-agent-log
UMask=0077
LogsDirectory=ip-masq-agent
LogsDirectoryMode=0700
ProtectSystem=strict
ReadOnlyPaths=/run
CapabilityBoundingSet=CAP_NET_ADMIN CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_NETLINK AF_UNIX
{walls}
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

_LOG_KEEP_SERVICE = """\
[Unit]
Description=Rotate the log of connections, and note the addresses of pods
Documentation=https://github.com/kubenode/ansible-ip-masq
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={program} keep-log --megabytes {megabytes}
TimeoutStartSec=300
SyslogIdentifier=ip-masq-agent-log
LogLevelMax=notice
SyslogLevel=notice
UMask=0077
Nice=10
ProtectSystem=strict
ReadOnlyPaths=/run
ReadWritePaths=-{log}
CapabilityBoundingSet=CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_UNIX
{walls}
"""

_LOG_TIMER = """\
[Unit]
Description=Rotate the log of connections each minute
Documentation=https://github.com/kubenode/ansible-ip-masq

[Timer]
OnActiveSec=5
OnUnitInactiveSec=60s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""
