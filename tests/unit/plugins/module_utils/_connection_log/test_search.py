# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of connections: what is found, what is bounded, and what is damaged."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log import coverage, rotation
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log import search as log
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.log_files import CURRENT
from ansible_collections.kubenode.ip_masq.plugins.module_utils._connection_log.moments import Moment
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.endpoints import Endpoint
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from support import import_collection
from support.connection_lines import line

SEEN = Endpoint("198.51.100.1", 40123)


def search(folder: Path, at: float = 1005, remote: t.Optional[Endpoint] = None, protocol: str = "tcp") -> log.Found:
    return log.search(str(folder), SEEN, remote, protocol, Moment(at, at + 1))


def write(folder: Path, *lines: bytes, name: str = CURRENT) -> None:
    content = b"".join(lines)
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


def test_connection_is_found_while_it_was_open(tmp_path: Path) -> None:
    write(tmp_path, line(), line(port=401234), line(port=40124), line(**{"reply.ip.daddr.str": "198.51.100.2"}))
    found = search(tmp_path)
    (one,) = found.connections
    other = Endpoint("203.0.113.10", 443)
    assert one[:5] == ("tcp", Endpoint("10.244.1.2", 45736), other, SEEN, other)
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
    "address of another type": line(src_ip=["10.244.1.2"]),
    "address that is none": line(src_ip="\x1b[31m"),
}
_FIELDS = ("orig.ip.protocol", "orig.l4.sport", "reply.l4.sport", "flow.start.sec", "flow.start.usec", "flow.end.sec")
_VALUES = ("1e999", "NaN", "-1", "9" * 30, "9" * 400, "1.5", "true", "{}", '"1"')
DAMAGED.update(
    (
        "%s: %.9s" % (field, value),
        re.sub(b'"%s": [0-9]+' % field.encode(), b'"%s": %s' % (field.encode(), value.encode()), line()),
    )
    for field in (*_FIELDS, "flow.end.usec")
    for value in _VALUES
)
DAMAGED.update(
    ("without " + field, line().replace(b'"%s"' % field.encode(), b'"x"'))
    for field in (
        *_FIELDS[:3],
        "orig.l4.dport",
        "dest_ip",
        "reply.ip.saddr.str",
        "reply.ip.daddr.str",
        "flow.end.sec",
    )
)


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_line_is_counted_and_hides_no_other(tmp_path: Path, what: str) -> None:
    write(tmp_path, line(1000, 1006), DAMAGED[what], line(1001, 1007))
    found = search(tmp_path)
    assert ([one.ended for one in found.connections], found.damaged) == ([1006, 1007], 1)


@pytest.mark.parametrize("before", [b"\0" * 5000, line()[:100], b'{"x": ', b"\xff"])
def test_what_is_behind_a_damaged_part_is_found(tmp_path: Path, before: bytes) -> None:
    write(tmp_path, before + line(1000, 1006), line(1001, 1007))
    found = search(tmp_path)
    assert ([one.ended for one in found.connections], found.damaged) == ([1006, 1007], 1)


@pytest.mark.parametrize(
    ("start", "end", "known"),
    [
        (1000, 900, {600: False, 850: True, 950: True, 1050: True, 1200: False}),
        # A step of a hundredth of a second.
        (1000.01, 1000.0, {900: False, 998: False, 999: True, 1000: True, 1002: False}),
    ],
)
def test_connection_during_which_the_clock_was_set_back(
    tmp_path: Path, start: float, end: float, known: t.Dict[float, bool]
) -> None:
    write(tmp_path, line(start, end))
    assert {at: bool(search(tmp_path, at).connections) for at in known} == known


def test_moment_that_the_clock_has_shown_twice(tmp_path: Path) -> None:
    """Both connections of that moment are told, though one is in a file that has an earlier time."""
    write(tmp_path, line(700, 710), line(2000, 2100), line(800, 850), name="connections-000000000900.log")
    write(tmp_path, line(2000, 2150))
    (tmp_path / "runs.json").write_text("[[null, 500], [2110, 790]]")
    told = {at: coverage.came_twice(str(tmp_path), Moment(at, at + 1)) for at in (700, 789, 790, 2050, 2110, 2111)}
    assert told == {700: False, 789: False, 790: True, 2050: True, 2110: True, 2111: False}
    found = log.search(str(tmp_path), SEEN, None, "tcp", Moment(2050, 2051), twice=True)
    assert [one.ended for one in found.connections] == [2150, 2100]
    for runs in ("", "[]", "[[null, 500], [600, 700]]"):
        (tmp_path / "runs.json").write_text(runs)
        assert not coverage.came_twice(str(tmp_path), Moment(650, 651))


def test_beginning_of_a_file_that_is_damaged(tmp_path: Path) -> None:
    """The log has the connection that was found."""
    write(tmp_path, b"damaged\n" * 20000, line())
    found = search(tmp_path)
    assert (found.first, found.last) == (1010, 1010)
    assert "ended from 1970-01-01T00:16:50Z" in "; ".join(coverage.describe(str(tmp_path), found, Moment(1005, 1006)))


@pytest.mark.parametrize(
    "runs", ["[[1e999, 5]]", "[[5, NaN]]", "[[5, %s]]" % ("9" * 400), "[[-1, 5]]", '[["a", 5]]', "[[5]]", "{"]
)
def test_damaged_interruptions_are_not_known(tmp_path: Path, runs: str) -> None:
    write(tmp_path, line())
    (tmp_path / "runs.json").write_text(runs)
    about = list(coverage.describe(str(tmp_path), search(tmp_path), Moment(1005, 1006)))
    assert about[-1:] == ["when it was interrupted is not known"]


@pytest.mark.parametrize("moment", [-1e18, 1e18, 999999999999])
def test_times_of_files_that_no_date_has(tmp_path: Path, moment: float) -> None:
    write(tmp_path, line(), name="connections-999999999999.log")
    found = search(tmp_path)
    found.first = found.last = moment
    assert list(coverage.describe(str(tmp_path), found, Moment(1005, 1006)))


def test_clock_that_is_set_back_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, line(7000, 7100))
    runs = tmp_path / "runs.json"
    monkeypatch.setattr(time, "time", lambda: 6000.0)
    coverage.note_start(str(tmp_path))
    os.utime(runs, (7200, 7200))
    monkeypatch.setattr(time, "time", lambda: 3600.0)
    coverage.note_run(str(tmp_path))
    os.utime(runs, (3600, 3600))
    coverage.note_run(str(tmp_path))
    assert json.loads(runs.read_text())[1:] == [[7200, 3600]]
    about = list(coverage.describe(str(tmp_path), search(tmp_path, 7050), Moment(7050, 7051)))
    assert (
        len(about) == 4 and about[-1] == "the clock was set back from 1970-01-01T02:00:00Z to 1970-01-01T01:00:00Z"
    ), about


def test_file_that_is_rotated_after_the_clock_was_set_back_is_not_the_oldest(tmp_path: Path) -> None:
    write(tmp_path, line(5000, 5100) * 100, name="connections-000000005100.log.gz")
    write(tmp_path, line(), line(port=7) * 1000)
    os.utime(tmp_path / CURRENT, (1010, 1010))
    rotation.keep(lambda *_a, **_o: Outcome(0, "", ""), "", str(tmp_path), 1 << 20, True)
    assert sorted(path.name for path in tmp_path.glob("connections*")) == [
        "connections-000000005100.log.gz",
        "connections-000000005101.log",
    ]
    assert [one.ended for one in search(tmp_path).connections] == [1010]


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


@pytest.mark.parametrize(("name", "size"), [(CURRENT, 64 << 20), ("connections-000000009000.log.gz", 256 << 20)])
def test_what_is_larger_than_memory_takes_little(tmp_path: Path, name: str, size: int) -> None:
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
