# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of connections: what is found, what is bounded, and what is damaged."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log import search as log
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.log_files import CURRENT
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.moments import Moment
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.endpoints import Endpoint
from support import import_collection

SEEN = Endpoint("198.51.100.1", 40123)


def line(start: float = 1000, end: float = 1010, port: int = 40123, **changed: t.Any) -> bytes:
    """Return a line as ulogd 2.0.8 writes it."""
    data = {
        "dvc": "Netfilter",
        "orig.ip.protocol": 6,
        "orig.l4.sport": 45736,
        "orig.l4.dport": 443,
        "orig.raw.pktlen": 0,
        "orig.raw.pktcount": 0,
        "reply.ip.protocol": 6,
        "reply.l4.sport": 443,
        "reply.l4.dport": port,
        "reply.raw.pktlen": 0,
        "reply.raw.pktcount": 0,
        "ct.mark": 0,
        "ct.id": 203049824,
        "ct.event": 4,
        "flow.start.sec": int(start),
        "flow.start.usec": int(start * 1e6) % 1000000,
        "flow.end.sec": int(end),
        "flow.end.usec": int(end * 1e6) % 1000000,
        "oob.family": 2,
        "oob.protocol": 0,
        "src_ip": "10.244.1.2",
        "dest_ip": "203.0.113.10",
        "reply.ip.saddr.str": "203.0.113.10",
        "reply.ip.daddr.str": "198.51.100.1",
    }
    data.update(changed)
    return json.dumps(data).encode("ascii") + b"\n"


def search(folder: Path, at: float = 1005, remote: t.Optional[Endpoint] = None, protocol: str = "tcp") -> log.Found:
    return log.search(str(folder), SEEN, remote, protocol, Moment(at, at + 1))


def write(folder: Path, *lines: bytes, name: str = CURRENT) -> None:
    content = b"".join(lines)
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def test_connection_is_found_while_it_was_open(tmp_path: Path) -> None:
    write(tmp_path, line(), line(port=401234), line(port=40124), line(**{"reply.ip.daddr.str": "198.51.100.2"}))
    found = search(tmp_path)
    (one,) = found.connections
    assert one.connection[:5] == (
        "tcp",
        Endpoint("10.244.1.2", 45736),
        Endpoint("203.0.113.10", 443),
        SEEN,
        Endpoint("203.0.113.10", 443),
    )
    assert (one.began, one.ended, found.first, found.last, found.damaged) == (1000, 1010, 1010, 1010, 0)
    assert [len(search(tmp_path, at).connections) for at in (998, 999.5, 1010, 1010.5)] == [0, 1, 1, 0]
    assert not search(tmp_path, protocol="udp").connections
    assert not search(tmp_path, remote=Endpoint("203.0.113.10", 80)).connections
    assert search(tmp_path, remote=Endpoint("203.0.113.10", 443)).connections


def test_beginning_that_the_kernel_did_not_know(tmp_path: Path) -> None:
    write(tmp_path, line(**{"flow.start.sec": 0, "flow.start.usec": 0}))
    assert [one.began for one in search(tmp_path, 5).connections] == [None]


def test_rotated_files_are_read_from_the_moment_on(tmp_path: Path) -> None:
    write(tmp_path, line(100, 200), name="connections-000000000200.log.gz")
    write(tmp_path, line(1000, 1100), name="connections-000000001100.log.gz")
    write(tmp_path, line(1001, 1200), name="connections-000000001200.log")
    # An interrupted compression: the same lines twice.
    write(tmp_path, line(1001, 1200)[:40], name="connections-000000001200.log.gz")
    write(tmp_path, line(1002, 1300))
    found = search(tmp_path)
    assert [one.ended for one in found.connections] == [1100, 1200, 1300]
    assert (found.first, found.last, found.damaged, found.damaged_files) == (200, 1300, 0, 0)


DAMAGED = {
    "cut off": line()[:100] + b"\n",
    "no JSON": line().replace(b'"ct.mark": 0', b'"ct.mark": '),
    "missing address": line().replace(b"src_ip", b"src_xx"),
    "list": b'["reply.l4.dport": 40123, 1]\n',
    "port of another type": line(**{"reply.l4.sport": [1]}),
    "nested": b'{"reply.l4.dport": 40123, "a": ' + b"[" * 10000 + b"}\n",
    "zeros": b"\0" * 5000 + b"\n",
    "long": b"x" * 5000000 + b"\n",
    "long, with the port": b'{"reply.l4.dport": 40123, "x": "' + b"x" * 5000000 + b'"}\n',
    "no UTF-8": line().replace(b"Netfilter", b"\xff"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_line_is_counted_and_hides_no_other(tmp_path: Path, what: str) -> None:
    write(tmp_path, line(1000, 1006), DAMAGED[what], line(1001, 1007))
    found = search(tmp_path)
    assert ([one.ended for one in found.connections], found.damaged) == ([1006, 1007], 1)


def test_line_that_is_being_written_is_not_damaged(tmp_path: Path) -> None:
    write(tmp_path, line(), line()[:50])
    assert search(tmp_path).damaged == 0
    write(tmp_path, line(), line()[:50], b"\n\n", line())
    found = search(tmp_path)
    assert (len(found.connections), found.damaged) == (2, 1)


@pytest.mark.parametrize("content", [b"", b"no gzip", gzip.compress(line() * 3)[:-9], b"\x1f\x8b" + b"\xff" * 500])
def test_damaged_file_hides_no_other(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "connections-000000001100.log.gz").write_bytes(content)
    write(tmp_path, line(1002, 1300))
    found = search(tmp_path)
    assert found.connections[-1].ended == 1300
    assert found.damaged_files == (1 if content else 0)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    for name in (CURRENT, "connections-000000001100.log", "connections-000000001101.log.gz"):
        path = folder / name
        if kind == "link":
            write(tmp_path, line(), name=name)
            path.symlink_to(tmp_path / name)
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.mkdir()
    found = search(folder)
    assert (found.connections, found.first, found.last, found.damaged) == ([], None, None, 0)


def test_no_log(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="cannot read .*/none"):
        search(tmp_path / "none")


def test_answer_is_bounded(tmp_path: Path) -> None:
    write(tmp_path, *[line()] * (log.MOST_FOUND + 1))
    found = search(tmp_path)
    assert (len(found.connections), found.is_complete) == (log.MOST_FOUND, False)


def test_reading_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that unpacks to more than anyone has written ends."""
    monkeypatch.setattr(log, "_MOST_BYTES", 10 << 20)
    write(tmp_path, b"\0" * (64 << 20), name="connections-000000001100.log.gz")
    assert not search(tmp_path).is_complete


_PROGRAM = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.search import search
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.endpoints import Endpoint
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.moments import Moment
most = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
found = search(sys.argv[2], Endpoint("198.51.100.1", 40123), None, "tcp", Moment(1005, 1006))
print(len(found.connections), found.damaged, resource.getrusage(resource.RUSAGE_SELF))
"""


@pytest.mark.parametrize(("name", "size"), [(CURRENT, 64 << 20), ("connections-000000009000.log.gz", 1 << 30)])
def test_a_gigabyte_takes_little_memory(tmp_path: Path, name: str, size: int) -> None:
    other = b"".join(line(port=port) for port in range(1024, 2900)) * 16
    block = gzip.compress(other) if name.endswith(".gz") else other
    wanted = line() + b"damaged\n"
    with (tmp_path / name).open("wb") as out:
        for _ in range(size // len(other)):
            out.write(block)
        out.write(gzip.compress(wanted) if name.endswith(".gz") else wanted)
    # PyPy starts with ten times as much.
    most = (400 if sys.implementation.name == "pypy" else 200) << 20
    argv = [sys.executable, "-c", _PROGRAM, str(import_collection.location().parents[2]), str(tmp_path), str(most)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.split()[:2] == ["1", "1"], done
