# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of the pods on a node by address, from the results that libcni keeps for container runtimes.

Format: ``cachedInfo`` in libcni/api.go; results: the CNI specification. Nothing but names is taken from there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import stat
import typing as t

from . import files

#: Where containerd, CRI-O and the kubelet with Docker keep results; of MicroK8s (the last two) expected, not seen.
DIRECTORIES = (
    "/var/lib/cni/results",
    "/var/lib/cni/cache/results",
    "/var/snap/microk8s/common/var/lib/cni/results",
    "/var/snap/microk8s/current/var/lib/cni/results",
)

#: Files of this boot in all directories; with more no name is certain, and none is returned.
MOST_FILES = 10000
#: Bytes of one file; a result has a few thousand.
_LARGEST = 128 * 1024

#: Names that Kubernetes allows: of a namespace (RFC 1123 label), and of a pod (subdomain).
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL, re.ASCII)
_POD = re.compile(r"(?=.{1,253}\Z)%s(?:\.%s)*" % ((r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?",) * 2), re.ASCII)


class Pod(t.NamedTuple):
    """A pod, as ``namespace/name``, and since when at the latest it has its address (seconds since the epoch)."""

    name: str
    since: float


#: By address.
Pods = t.Mapping[str, Pod]


def read(directories: t.Sequence[str] = DIRECTORIES) -> t.Dict[str, Pod]:
    """Return the pods by address. An address that two pods claim has no entry.

    Results of an earlier boot, and of pods whose network namespace is gone, are ignored, as are damaged files.
    """
    found: t.Dict[str, t.Set[str]] = {}
    since: t.Dict[str, float] = {}
    for number, (path, written) in enumerate(_results(directories)):
        if number == MOST_FILES:
            return {}
        name, addresses = _attachment(path)
        for address in addresses:
            found.setdefault(address, set()).add(name)
            since[address] = max(written, since.get(address, 0.0))
    return {address: Pod(min(names), since[address]) for address, names in found.items() if len(names) == 1}


def of_ranges(ranges: t.Iterable[str], pods: Pods) -> t.Dict[str, str]:
    """Return the names of pods by range, for those of the ranges that are one address.

    :param ranges: networks as text.
    """
    single = {one: one.partition("/")[0] for one in ranges if ipaddress.ip_network(one).num_addresses == 1}
    return {one: pods[address].name for one, address in single.items() if address in pods}


def beside(ranges: t.Iterable[str], names: t.Mapping[str, str]) -> t.List[str]:
    """Return ranges for people, with the names that are known behind them: ``10.244.1.2/32 (default/web)``.

    :param names: as ``of_ranges`` returns them.
    """
    return [with_name(one, names.get(one)) for one in ranges]


def with_name(address: object, name: t.Optional[str]) -> str:
    """Return an address for people, with the name of its pod behind it if that is known."""
    return "%s (%s)" % (address, name) if name else str(address)


def _results(directories: t.Sequence[str]) -> t.Iterator[t.Tuple[str, float]]:
    """Return path and time of the regular files of this boot."""
    boot = _boot_time()
    for directory in directories:
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST and status.st_mtime >= boot:
                        yield entry.path, status.st_mtime


def _boot_time() -> float:
    """Return the seconds from the epoch to the boot, by the clock of now."""
    return next(float(line.split()[1]) for line in files.lines("/proc/stat") if line.startswith("btime "))


def _attachment(path: str) -> t.Tuple[str, t.Sequence[str]]:
    """Return the pod of a result, and its addresses: none if it is damaged, or not of a pod of Kubernetes here."""
    # Deep nesting is a RecursionError. A value of another type than libcni writes is one of the others.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        data = files.read_json(path, _LARGEST)[0]
        name, addresses = _parse(data)
        return name, addresses if _is_live(str(data.get("netns") or "")) else ()
    return "", ()


def _parse(data: t.Any) -> t.Tuple[str, t.Sequence[str]]:
    arguments: t.Dict[str, t.Set[str]] = {}
    for key, value in data["cniArgs"]:
        arguments.setdefault(key, set()).add(value)
    # A plugin that calls others, such as Multus, gives them its own arguments too: twice the same.
    (namespace,), (name,) = arguments["K8S_POD_NAMESPACE"], arguments["K8S_POD_NAME"]
    if data["kind"] != "cniCacheV1" or not _NAMESPACE.fullmatch(namespace) or not _POD.fullmatch(name):
        raise ValueError
    result = data["result"]
    # Since version 0.3.0 of the specification there is a list, before that one address of each IP version.
    texts = [one["address"] for one in result.get("ips") or ()]
    texts += [result[key]["ip"] for key in ("ip4", "ip6") if result.get(key)]
    addresses = [ipaddress.ip_interface(str(text)).ip for text in texts]
    return "%s/%s" % (namespace, name), [str(one) for one in addresses if not one.is_loopback]


def _is_live(network_namespace: str) -> bool:
    """Return whether a network namespace exists, or that is not known: older releases of libcni do not name it."""
    if not network_namespace.startswith(("/run/netns/", "/var/run/netns/", "/proc/")):
        return True
    with contextlib.suppress(OSError, ValueError):
        # A file that is no namespace is what remains where one was mounted.
        return os.stat(network_namespace).st_dev == os.stat("/proc/self/ns/net").st_dev
    return False
