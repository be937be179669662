# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The systemd units of the agent. Their texts do not depend on the policy.

See systemd.service(5), systemd.timer(5), systemd.path(5), systemd.exec(5).
"""

from __future__ import annotations

import os
import typing as t

from .._engine.rule_flushers import FIREWALLS
from .._policy.policy import build
from .._system.kubelet_units import KUBELET_UNITS
from .paths import MARK, Paths

SERVICE = "ip-masq-agent.service"
TIMER = "ip-masq-agent.timer"
PATH = "ip-masq-agent.path"
BOOT_SERVICE = "ip-masq-agent-boot.service"
RECOVER_SERVICE = "ip-masq-agent-recover.service"
FIREWALL_TEMPLATE = "ip-masq-agent-firewall@.service"
FIREWALL_HOOKS = tuple(FIREWALL_TEMPLATE.replace("@", "@" + unit) for unit in FIREWALLS)

#: The units that are enabled, and those of them that are started at once. Hooks start with their firewall.
ENABLED_UNITS = (BOOT_SERVICE, TIMER, PATH) + FIREWALL_HOOKS
STARTED_UNITS = (TIMER, PATH)

#: Services that can be running or failed although they are not enabled.
SERVICES = (SERVICE, RECOVER_SERVICE)

#: Those of the log of connections, if it is wanted: what writes it, and what rotates it each minute.
LOG_SERVICE = "ip-masq-agent-log.service"
LOG_KEEP_SERVICE = "ip-masq-agent-log-keep.service"
LOG_TIMER = "ip-masq-agent-log-keep.timer"
LOG_STARTED = (LOG_SERVICE, LOG_TIMER)

#: That of RHEL 8. Those before lack too many of the walls, and are not tested.
LEAST_SYSTEMD = 239

_HEADER = "# %s; local changes belong in a drop-in.\n" % MARK
#: What each unit begins with, in front of its description.
_UNIT = _HEADER + "[Unit]\nDocumentation=https://github.com/kubenode/ansible-ip-masq\n"


def unit_files(paths: Paths) -> t.Dict[str, str]:
    """Return the unit files by name."""
    firewalls, kubelets = (" ".join(unit + ".service" for unit in units) for units in (FIREWALLS, KUBELET_UNITS))
    units = {
        SERVICE: _SERVICE.format(paths=paths, agent=_AGENT),
        TIMER: _TIMER,
        PATH: _PATH.format(paths=paths),
        BOOT_SERVICE: _BOOT_SERVICE.format(firewalls=firewalls, kubelets=kubelets, systemctl=_SYSTEMCTL),
        RECOVER_SERVICE: _RECOVER_SERVICE.format(paths=paths, agent=_AGENT),
        FIREWALL_TEMPLATE: _FIREWALL.format(systemctl=_SYSTEMCTL),
    }
    return {name: _UNIT + text for name, text in units.items()}


def log_unit_files(paths: Paths, ulogd: str, megabytes: int) -> t.Dict[str, str]:
    """Return the unit files of the log of connections by name.

    :param ulogd: the program.
    :param megabytes: what the log may take.
    """
    values = {
        "paths": paths,
        "ulogd": ulogd,
        "timestamps": "/proc/sys/net/netfilter/nf_conntrack_timestamp",
        "megabytes": megabytes,
        "largest": megabytes // 2,
        "walls": _WALLS,
    }
    units = {LOG_SERVICE: _LOG_SERVICE, LOG_KEEP_SERVICE: _LOG_KEEP_SERVICE, LOG_TIMER: _LOG_TIMER}
    return {name: _UNIT + text.format(**values) for name, text in units.items()}


def interval_drop_in(paths: Paths) -> str:
    """Return the path of the drop-in that sets the timer's interval."""
    return os.path.join(paths.runtime_unit_dir, TIMER + ".d", "interval.conf")


def interval_text(interval: int) -> t.Optional[bytes]:
    """Return the text of that drop-in for an interval in nanoseconds; None for the timer's own."""
    if interval == build({}).resync_interval:
        return None
    lines = "[Timer]\nOnUnitInactiveSec=\nOnUnitInactiveSec=%dus\n" % max(interval // 1000, 1)
    return (_HEADER + lines).encode("utf-8")


# What no unit of ours needs. Nothing here needs a mount namespace, since to build one takes time for each mount of the
# node (pods bring mounts), and fails where a path that the namespace changes is a link in a loop, a file, or not
# readable by root. So there is no Protect...= of a directory, no Private...=, no ...Paths= and no ...Directory=. System
# calls are denied by groups: to allow @system-service instead takes 7 ms at each start, more than the comparison.
_WALLS = """\
NoNewPrivileges=yes
DevicePolicy=closed
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=~@privileged @resources @mount @debug @cpu-emulation @obsolete
IPAddressDeny=any"""

# What runs the agent.
# CAP_NET_RAW and AF_INET, AF_INET6 are for iptables-legacy, which talks to the kernel through a raw socket; AF_UNIX is
# for systemctl, which sets the timer. CAP_DAC_OVERRIDE is for files of other users: a configuration that is not
# world-readable, and the directory of node_exporter.
# LogLevelMax keeps "Starting" and "Finished" of every tick out of the journal; changes are logged above it. Output
# without a priority (a traceback, the shell's error if the program is missing) must not be lost: SyslogLevel.
_AGENT = (
    """\
LogLevelMax=notice
SyslogLevel=notice
SyslogIdentifier=ip-masq-agent
UMask=0077
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_NETLINK AF_INET AF_INET6 AF_UNIX
"""
    + _WALLS
)

# What only calls systemctl.
_SYSTEMCTL = "LogLevelMax=notice\nCapabilityBoundingSet=\nRestrictAddressFamilies=AF_UNIX\n" + _WALLS

# The tick. It depends on nothing but its program: it has no order, no conditions and names no other path, so that no
# job, mount or file keeps the rules from being repaired.
# SuccessExitStatus: a restart may terminate the script before it has set its trap.
_SERVICE = """\
Description=Sync IP masquerading rules with the configuration
DefaultDependencies=no
Conflicts=shutdown.target
StartLimitIntervalSec=0
OnFailure=ip-masq-agent-recover.service

[Service]
Type=oneshot
ExecStart={paths.resync}
TimeoutStartSec=30
TimeoutStopSec=5
SuccessExitStatus=SIGTERM
{agent}
"""

# The interval below is the default; another one is set in a drop-in. OnBootSec: the first sync of a boot is that of the
# boot's own unit, unless that has to wait for longer; at any other time it has passed, and a sync begins at once.
_TIMER = """\
Description=Resync IP masquerading at resyncInterval
StartLimitIntervalSec=0
OnFailure=ip-masq-agent-recover.service

[Timer]
OnBootSec=30s
OnUnitInactiveSec=60s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""

_PATH = """\
Description=Resync IP masquerading when its configuration is edited
StartLimitIntervalSec=0
OnFailure=ip-masq-agent-recover.service

[Path]
PathChanged={paths.config_dir}
PathChanged={paths.drop_ins}
Unit=ip-masq-agent.service

[Install]
WantedBy=paths.target
"""

# At boot alone: pods start after the first sync. Before= only orders, and JobTimeoutSec ends the wait whatever hangs,
# a firewall that does not start too. A kubelet that is started later finds no job of ours to wait for.
_BOOT_SERVICE = """\
Description=Sync IP masquerading rules before the kubelet starts
After=network-pre.target {firewalls}
Before={kubelets}
JobTimeoutSec=30

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=-/bin/systemctl restart ip-masq-agent.service
TimeoutStartSec=25
TimeoutStopSec=5
{systemctl}

[Install]
WantedBy=multi-user.target
"""

# A failure starts it. The agent repairs the rules itself, without the script and with more time, if systemd ended the
# last tick. A timer or watch that failed is started again and again until it runs: a timer fails for good if its
# service cannot be loaded for one tick, a watch if root has no inotify instance left. One that was stopped is not.
_RECOVER_SERVICE = """\
Description=Repair IP masquerading after a failure of its units
StartLimitIntervalSec=0

[Service]
ExecStartPre=-{paths.program} recover
ExecStart=/bin/sh -c 'for unit in ip-masq-agent.timer ip-masq-agent.path; do \
    if systemctl --quiet is-failed $$unit; then systemctl start $$unit || failed=yes; fi; done; test -z "$$failed"'
TimeoutStartSec=300
TimeoutStopSec=5
Restart=on-failure
RestartSec=15
{agent}
"""

# One instance for each firewall unit, since each start, restart, reload and stop must start a sync, also if one is
# running. firewalld and nftables remove all rules as they stop. This unit stops before them, and a transient unit that
# systemd starts after that requests the sync. None is requested if the firewall has no job: then this unit alone is
# stopped, to be removed. systemd refuses the request while the node shuts down.
# systemd considers firewalld started, or reloaded, before it has changed a rule (seen: 0.9.3 takes its bus name first,
# and reloads on a signal). It answers on the bus when it is done, so a second sync waits for an answer.
_FIREWALL = """\
Description=Resync IP masquerading after %i.service
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
ExecStop=-/bin/sh -c 'systemctl show -p Job %i | grep -q "=[1-9]" && systemd-run --quiet --no-block --collect \
    --property=After=%i.service systemctl --no-block restart ip-masq-agent.service'
TimeoutStartSec=60
TimeoutStopSec=30
{systemctl}

[Install]
WantedBy=%i.service
"""

# The kernel stores when a connection began only with nf_conntrack_timestamp; what that was is restored. LimitFSIZE ends
# ulogd before it fills a disk within a minute, and the start that follows rotates its file. LogsDirectory: without the
# directory there is nothing to log to, so this service may fail; the rules do not depend on it.
# SystemCallErrorNumber: ulogd requests a higher priority, and goes on without.
_LOG_SERVICE = """\
Description=Log connections that have ended, for ip-masq-agent who --at
After=ip-masq-agent.service
StartLimitIntervalSec=0

[Service]
Type=forking
ExecStartPre={paths.program} keep-log --megabytes {megabytes} --starting
ExecStartPre=+-/bin/sh -c 'modprobe -q nf_conntrack; mkdir -p -m 0700 {paths.run_dir}'
ExecStartPre=+-/bin/sh -c 'cat {timestamps} >{paths.run_dir}/timestamps && echo 1 >{timestamps}'
ExecStart={ulogd} --daemon --configfile {paths.log_config}
ExecStopPost=+-/bin/sh -c 'cat {paths.run_dir}/timestamps >{timestamps} && rm {paths.run_dir}/timestamps'
Restart=always
RestartSec=1
LimitFSIZE={largest}M
LimitCORE=0
SyslogIdentifier=ip-masq-agent-log
UMask=0077
LogsDirectory=ip-masq-agent
LogsDirectoryMode=0700
ProtectSystem=strict
ProtectHome=yes
ReadOnlyPaths=/run
InaccessiblePaths=-/tmp -/var/tmp
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
CapabilityBoundingSet=CAP_NET_ADMIN CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_NETLINK AF_UNIX
{walls}
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

_LOG_KEEP_SERVICE = """\
Description=Rotate the log of connections, and note the addresses of pods
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={paths.program} keep-log --megabytes {megabytes}
TimeoutStartSec=300
SyslogIdentifier=ip-masq-agent-log
LogLevelMax=notice
SyslogLevel=notice
UMask=0077
Nice=10
CapabilityBoundingSet=CAP_DAC_OVERRIDE
RestrictAddressFamilies=AF_UNIX
{walls}
"""

_LOG_TIMER = """\
Description=Rotate the log of connections each minute

[Timer]
OnActiveSec=5
OnUnitInactiveSec=60s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""
