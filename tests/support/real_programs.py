# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of Debian that make rules of NAT, as they run: unpacked, with a root directory and a bus of their own."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import typing as t
from pathlib import Path

from .import_collection import ROOT
from .namespaces import Namespace

#: seconds
_PATIENCE = 25

#: What is unpacked together: a release, and packages of programs.
LIGHT = ("bookworm", "firewalld", "network-manager", "lxc", "ufw", "containernetworking-plugins", "netavark")
HEAVY = ("bookworm", "docker.io", "shorewall", "systemd", "libvirt-daemon", "libvirt-clients")
INCUS = ("trixie", "incus", "tar")
CNI = ("sid", "containernetworking-plugins")  # 1.9, with a backend for nftables
_EVERYWHERE = (
    *("dbus", "dnsmasq-base"),
    *("bash", "coreutils", "dash", "gawk", "grep", "iproute2", "iptables", "libc-bin", "nftables", "procps", "sed"),
)

#: The root directory is thrown away; its lower half is what was unpacked.
_ENTER = r"""set -eu
room=$(mktemp -d)
mount -t tmpfs tmpfs "$room"
mkdir "$room/upper" "$room/work" "$room/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$room/upper,workdir=$room/work" "$room/root"
cd "$room/root"
mkdir -p proc sys dev run/dbus run/netns run/lxc tmp var/lib/NetworkManager var/lib/misc var/log
rm -rf var/run
ln -s /run var/run
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount --rbind /run/netns run/netns
for one in iptables ip6tables; do
  for end in "" -save -restore; do ln -sf xtables-nft-multi "usr/sbin/$one$end"; done
done
ln -sf gawk usr/bin/awk
number=0
for one in root messagebus polkitd dnsmasq systemd-network nobody; do
  printf '%s:x:%d:%d::/:/bin/sh\n' "$one" "$number" "$number" >>etc/passwd
  printf '%s:x:%d:\n' "$one" "$number" >>etc/group
  number=$((number + 1))
done
printf 'netdev:x:50:\n' >>etc/group
echo 0123456789abcdef0123456789abcdef >etc/machine-id
[ ! -d etc/ufw ] || cp usr/share/ufw/ufw.conf usr/share/ufw/*.init usr/share/ufw/iptables/*.rules etc/ufw/
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /bin/bash
"""

#: Programs that others need: a bus.
_BUS = (
    "dbus-daemon --system --nofork --nopidfile 2>/tmp/bus & until [ -S /run/dbus/system_bus_socket ]; do sleep .1; done"
)


class NatRule(t.NamedTuple):
    """A rule that translates sources; ``table`` is its name without the family."""

    table: str
    chain: str
    text: str


class Programs:
    """The programs on a node. End them with ``end``."""

    def __init__(self, node: Namespace, packages: t.Sequence[str] = LIGHT) -> None:
        made = subprocess.run(
            [ROOT / "tools/debian-tree", *packages, *_EVERYWHERE],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        tree = Path(made.stdout.strip())
        enter = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh", str(tree))
        self._shell = subprocess.Popen(
            node.argv(*enter), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def do(self, script: str) -> str:
        """Carry out commands of bash, in the same shell as those before, and return what they print.

        :raises AssertionError: the last one failed, or they do not end.
        """
        watch = threading.Timer(_PATIENCE, self._shell.kill)
        watch.start()
        try:
            return self._answer(script)
        finally:
            watch.cancel()

    def _answer(self, script: str) -> str:
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write("{ %s\n} </dev/null\nstatus=$?; echo; echo done $status\n" % script)
        self._shell.stdin.flush()
        lines: t.List[str] = []
        for line in self._shell.stdout:
            if re.fullmatch(r"done [0-9]+\n", line):
                assert line == "done 0\n", "%s\n%s" % (script, "".join(lines))
                return "".join(lines)
            lines.append(line)
        raise AssertionError("the shell ended: " + "".join(lines))

    def start_bus(self) -> None:
        """Start the system bus."""
        self.do(_BUS)

    def rules(self) -> t.List[NatRule]:
        """Return the rules of the node that translate sources, as their tools list them."""
        found = []
        for line in self.do("iptables-nft-save -t nat").splitlines():
            if re.match(r"-A .* -j (MASQUERADE|SNAT)", line):
                found.append(NatRule("nat", line.split()[1], line))
        table = chain = ""
        for line in self.do("nft list ruleset").splitlines():  # another version may crash on what this one wrote
            words = line.split()
            table = " ".join(words[1:3]) if words[:1] == ["table"] else table
            chain = words[1] if words[:1] == ["chain"] else chain
            if re.search(r"\b(masquerade|snat)\b", line) and "hook" not in words and table not in ("ip nat", "ip6 nat"):
                found.append(NatRule(table.split()[1], chain, line.strip()))
        return found

    def end(self) -> None:
        """End all of them."""
        with contextlib.suppress(ProcessLookupError):
            self._shell.kill()
        self._shell.communicate()
