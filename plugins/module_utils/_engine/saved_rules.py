# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of ours in files that other services restore at boot. They were saved while the agent ran, and outlive it."""

from __future__ import annotations

import glob
import os
import re
import typing as t

from .._system import files
from .._system.printable import shown
from . import rule_comments as comments
from .nftables_syntax import TABLE


class SavedFile(t.NamedTuple):
    """A file of rules, the service that restores it, and the program that writes it; empty if people do."""

    #: as of glob(7)
    path: str
    service: str
    program: str = ""


_NFTABLES = "nftables"
_FILES = (
    SavedFile("/etc/iptables/rules.v4", "netfilter-persistent", "iptables-save"),
    SavedFile("/etc/iptables/rules.v6", "netfilter-persistent", "ip6tables-save"),
    # RHEL and its likes, Alpine, Arch
    SavedFile("/etc/sysconfig/iptables", "iptables", "iptables-save"),
    SavedFile("/etc/sysconfig/ip6tables", "ip6tables", "ip6tables-save"),
    SavedFile("/etc/iptables/rules-save", "iptables", "iptables-save"),
    SavedFile("/etc/iptables/rules6-save", "ip6tables", "ip6tables-save"),
    SavedFile("/etc/iptables/iptables.rules", "iptables", "iptables-save"),
    SavedFile("/etc/iptables/ip6tables.rules", "ip6tables", "ip6tables-save"),
    SavedFile("/etc/ufw/*.rules", "ufw"),
    # Debian and Arch; RHEL and its likes, SUSE; Alpine
    SavedFile("/etc/nftables.conf", _NFTABLES),
    SavedFile("/etc/sysconfig/nftables.conf", _NFTABLES),
    SavedFile("/etc/nftables.nft", _NFTABLES),
)

#: Bytes of a file, and files with those that nft includes, that are read: no file makes a removal hang.
_BYTES, _MOST = 64 << 20, 64

_COMMENTS = (comments.JUMP, comments.LEAK_JUMP)
_NO_RULE = r"\s*(?:#|(?:-[DFX]|delete|destroy|flush)\s)"
_INCLUDE = r'\s*include\s+"([^"]+)"'
_TABLE = r"\btable\s+ip6?\s+%s\b" % TABLE
#: What is before the name of a chain that is made, filled or led to: by iptables-save, by a person, by nft.
_BEFORE = (
    r"(?:^|\s)(?::|(?:-[AINgj]|--(?:append|goto|insert|jump|new-chain)|(?:chain|rule)(?:\s+ip6?\s+\w+)?|goto|jump)\s+)"
)
#: Behind the name of a chain, and behind a comment of ours, whatever the chain is called.
_END = r"(?![\w.-])"
_TARGET = r'(?:\s-j|\bjump)\s+"?([^\s"]+)'


def notes(chains: t.Sequence[str], root: str = "") -> t.Tuple[str, ...]:
    """Return which files have rules of ours, and the remedy, a line each; also which file could not be read.

    :param chains: the names of our chain. Others are known by the comment on their jump.
    :param root: the directory below which the files are.
    """
    found: t.List[str] = []
    waiting = [*_FILES]
    seen: t.List[str] = []
    while waiting:
        saved = waiting.pop(0)
        for path in sorted(glob.glob(glob.escape(root) + saved.path)):
            if path in seen or len(seen) == _MOST:
                continue
            seen.append(path)
            text = problem = ""
            try:
                with files.open_regular(path) as handle:
                    text = handle.read(_BYTES).decode("utf-8", "replace")
                    problem = "it is larger than %d MiB" % (_BYTES >> 20) if handle.read(1) else ""
            except (FileNotFoundError, NotADirectoryError, files.NotRegularFile):
                continue  # nothing that could be restored
            except OSError as exc:
                problem = exc.strerror or str(exc)
            ours: t.Dict[str, int] = {}
            for number, line in enumerate(text.split("\n"), 1):
                ours.setdefault(_ours(line, chains), number)
                included = re.match(_INCLUDE, line) if saved.service == _NFTABLES else None
                if included:
                    # Where nft searches by default.
                    waiting.append(SavedFile(os.path.join("/etc", included.group(1)), _NFTABLES))
            ours.pop("", None)
            found += _words(saved, shown(path[len(root) :]), ours, problem)
    return tuple(found)


def _words(saved: SavedFile, path: str, found: t.Mapping[str, int], problem: str) -> t.Iterator[str]:
    """Return what is said of one file.

    :param found: what it has of ours, with the first line. :param problem: why not all of it was read.
    """
    if found:
        text = (
            "%s has the %s: when %s restores this file, such as at boot, the removed rules come back. Delete them "
            "from the file" % (path, " and the ".join("%s (line %d)" % one for one in found.items()), saved.service)
        )
        again = ", or, after the removal, save the rules again: %s >%s" % (saved.program, path)
        yield text + (again if saved.program else "")
    if problem:
        yield "%s was not searched for rules of the agent: %s" % (path, problem)


def _ours(line: str, chains: t.Sequence[str]) -> str:
    """Return the chain or table of ours that a line makes, fills or leads to; empty if there is none."""
    # First what is fast: a file may have a hundred thousand lines of others.
    if not any(text in line for text in (TABLE, *_COMMENTS, *chains)) or re.match(_NO_RULE, line):
        return ""
    if re.search(_TABLE, line):
        return "table " + TABLE
    chain = re.search(_BEFORE + '"?(%s)%s' % ("|".join(map(re.escape, chains)), _END), line) if chains else None
    if chain is None and any(comment in line for comment in _COMMENTS):
        chain = re.search(_TARGET, line)
    return "chain " + shown(chain.group(1)) if chain else ""
