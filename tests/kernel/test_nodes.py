# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tools/nodes says of a machine on which nodes cannot work."""

from __future__ import annotations

import re
import subprocess

from support.import_collection import ROOT

#: A user namespace has a limit of its own, so the machine's stays.
LIMITED = "echo %d >/proc/sys/user/max_inotify_instances; exec timeout 60 %s/tools/nodes up never_booted"


def up(instances: int) -> subprocess.CompletedProcess[str]:
    """Boot a lab where root can create so many inotify instances."""
    command = ["unshare", "--user", "--map-root-user", "sh", "-ec", LIMITED % (instances, ROOT)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_too_few_inotify_instances_are_said_at_once() -> None:
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as limit:
        now = int(limit.read())
    done = up(20)
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: root can create 20 more inotify instances, and the nodes of one lab need 30: raise the limit with: "
        r"sysctl fs\.inotify\.max_user_instances=%d   \(it is %d; or remove other labs\)\n" % (now + 128, now),
        done.stderr,
    )
