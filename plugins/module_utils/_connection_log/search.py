# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find connections in the log.

Each line is a connection, as ulogd writes it (plugins NFCT, IP2STR and JSON) when the kernel forgets it. Lines are in
the order of these ends.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import typing as t
import zlib

from .._system.conntrack import Connection
from .._system.endpoints import Endpoint
from .._system.families import PROTOCOL_NAMES
from .log_files import LogFile, locked, opened, parts
from .moments import LAST, Moment

#: Files that are read at most, and what is read of them at most, uncompressed.
_MOST_FILES = 10000
_MOST_BYTES = 64 << 30
#: Connections that are returned at most.
MOST_FOUND = 100
#: Bytes of one line; a connection has 600.
_LONGEST_LINE = 1 << 14

#: Seconds for which ulogd may still write to a file that was rotated.
_LATE = 60


def search(
    folder: str, seen: Endpoint, remote: t.Optional[Endpoint], protocol: str, at: Moment, twice: bool = False
) -> Found:
    """Return the logged connections that were open at a moment, and whose opener the other side saw as an endpoint.

    Takes the time to read what was logged since the moment, if it has none all of the log, and a few megabytes of
    memory.

    :param remote: the other side; None: any.
    :param twice: whether the clock has shown the moment twice.
    :raises NodeError: there is no log.
    """

    def is_meant(one: Connection) -> bool:
        return (one.protocol, one.seen) == (protocol, seen) and remote in (None, one.remote) and _was_open(one, at)

    with locked(folder, to_write=False):
        known = parts(folder)
        found = Found(seen.port, is_meant)
        # A connection is logged at its end: one that was open then is not in what ended before.
        recent = known[-_MOST_FILES:]
        later = [part for part in recent if part.is_current or part.ended >= at.start - _LATE]
        for part in later:
            found.read(part)
        # If the clock was set back while a file was written, the file has later ends than its last one.
        for part in recent if twice or not found.connections else ():
            if part not in later:
                found.read(part)
        ends = [one.ended for one in found.connections]
        firsts = [*ends, *(end for end in map(_end, recent) if end is not None)]
        if firsts:
            found.first = min(firsts)
            found.last = max(*firsts, *(end for end in (_end(part, last=True) for part in recent) if end is not None))
    found.is_complete = found.is_complete and len(known) <= _MOST_FILES
    return found


def _was_open(one: Connection, at: Moment) -> bool:
    if one.began is None:
        return one.ended >= at.start
    # It ended before it began: the clock was set back, from a time that is not known to one that is not known.
    unknown = max(one.began - one.ended, 0.0)
    first, last = min(one.began, one.ended), max(one.began, one.ended)
    return last + unknown >= at.start and first - unknown < at.end


class Found:
    """What the log has about a question."""

    def __init__(self, port: int, is_meant: t.Callable[[Connection], bool]) -> None:
        """Prepare a search.

        :param port: of all that are meant, as the other side sees it.
        """
        self._is_meant = is_meant
        # Few lines have it. To parse all would take ten times as long.
        self._needle = b'"reply.l4.dport": %d,' % port
        self._left = _MOST_BYTES
        self.connections: t.List[Connection] = []
        #: whether there are no more than ``MOST_FOUND``, and all could be read
        self.is_complete = True
        #: when the first and the last logged connection ended; None: the log is empty
        self.first: t.Optional[float] = None
        self.last: t.Optional[float] = None
        #: lines that could not be read, and files that could not
        self.damaged = 0
        self.damaged_files = 0

    def read(self, part: LogFile) -> None:
        """Read one file."""
        try:
            with opened(part) as handle:
                self._read(handle, part)
        # The end of a compressed file may be missing, or be another's.
        except (OSError, EOFError, zlib.error):
            self.damaged_files += 1

    def _read(self, handle: t.BinaryIO, part: LogFile) -> None:
        is_whole = True
        for piece in iter(functools.partial(handle.readline, _LONGEST_LINE), b""):
            if self._left <= 0:
                self.is_complete = False
                return
            self._left -= len(piece)
            was_whole, is_whole = is_whole, piece.endswith(b"\n")
            if not was_whole:  # the rest of a line that is too long
                continue
            if is_whole:
                self._look(piece[:-1])
            # Of the file that ulogd writes the last line may not be complete yet.
            elif not part.is_current or len(piece) == _LONGEST_LINE:
                self.damaged += 1

    def _look(self, line: bytes) -> None:
        """Look at a complete line."""
        if self._needle not in line:
            # An empty line is what ends a line that was cut off.
            if line and (line[:1] != b"{" or line[-1:] != b"}"):
                self.damaged += 1
            return
        one = _parse(line)
        if one is None:
            self.damaged += 1
            # A whole connection may be behind what was cut off, or behind zeros.
            one = _parse(line[line.rfind(b"{") :])
        if one is None or not self._is_meant(one):
            return
        if len(self.connections) < MOST_FOUND:
            self.connections.append(one)
        else:
            self.is_complete = False


def _parse(line: bytes) -> t.Optional[Connection]:
    """Parse a line; None if it is damaged."""
    # Deep nesting is a RecursionError; values of other types are one of the others.
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        data = json.loads(line.decode("utf-8"))
        source = _endpoint(data, "src_ip", "orig.l4.sport")
        destination = _endpoint(data, "dest_ip", "orig.l4.dport")
        remote = _endpoint(data, "reply.ip.saddr.str", "reply.l4.sport")
        seen = _endpoint(data, "reply.ip.daddr.str", "reply.l4.dport")
        protocol = PROTOCOL_NAMES.get(_number(data, "orig.ip.protocol", 255), "")
        began = _time(data, "flow.start") if "flow.start.sec" in data else None
        ended = _time(data, "flow.end")
        return Connection(protocol, source, destination, seen, remote, began=began or None, ended=ended)
    return None


def _time(data: t.Mapping[str, t.Any], name: str) -> float:
    fraction = _number(data, name + ".usec", 999999) if name + ".usec" in data else 0
    return _number(data, name + ".sec", LAST) + fraction / 1e6


def _endpoint(data: t.Mapping[str, t.Any], address: str, port: str) -> Endpoint:
    return Endpoint(str(ipaddress.ip_address(str(data[address]))), _number(data, port, 65535))


def _number(data: t.Mapping[str, t.Any], name: str, most: int) -> int:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError
    return value


def _end(part: LogFile, last: bool = False) -> t.Optional[float]:
    """Return when the first connection in a file ended, or the last one; None if no line at that place can be read."""
    if last and not part.is_current:  # its name has it
        return part.ended
    with contextlib.suppress(OSError, EOFError, zlib.error), opened(part) as handle:
        handle.seek(max(part.size - _LONGEST_LINE * 4, 0) if last else 0)
        lines = handle.read(_LONGEST_LINE * 4).split(b"\n")
        return next((one.ended for one in map(_parse, reversed(lines) if last else lines) if one), None)
    return None
