# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tools/nodes says of a machine on which nodes cannot work."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from support.import_collection import ROOT

#: Few machines have less, and in a user namespace there is a limit of its own as well.
LIMIT = 128
#: Starts a program as root of a user namespace, of whom this machine thinks as a user of its own: others keep their
#: instances. Such a user need not see the directories above the checkout.
AS_ANOTHER = """
mount --bind "$1" /mnt
exec setpriv --reuid "$2" --regid "$2" --clear-groups unshare --user --map-root-user sh -ec '
echo "$1" >/proc/sys/user/max_inotify_instances
shift
exec timeout 60 "$@"' sh "$3" python3 -c "$4" "$5" /mnt/tools/nodes up never_booted
"""
#: Takes inotify instances, and leaves them to the program that it becomes.
TAKE = """
import ctypes, os, sys
take = ctypes.CDLL(None).inotify_init1
assert all(take(0) >= 0 for _number in range(int(sys.argv[1])))
os.execvp(sys.argv[2], sys.argv[2:])
"""


def up(taken: int) -> subprocess.CompletedProcess[str]:
    """Boot a lab where root has taken so many inotify instances."""
    user = 1_000_000 + os.getpid()
    words = ["sh", str(ROOT), str(user), str(LIMIT), TAKE, str(taken)]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-euc", AS_ANOTHER, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


@pytest.mark.parametrize("left", [0, 29])
def test_used_up_inotify_instances_are_reported_at_once_with_the_remedy(left: int) -> None:
    with open("/proc/sys/fs/inotify/max_user_instances", encoding="ascii") as limit:
        now = int(limit.read())
    done = up(LIMIT - left)
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: root can create %d more inotify instances, and the nodes of one lab need 30: raise the limit with: "
        r"sysctl fs\.inotify\.max_user_instances=%d   \(it is %d; or remove other labs\)\n" % (left, now + 128, now),
        done.stderr,
    ), done.stderr
