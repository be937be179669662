# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Namespaces, variants and families for the tests of the kernel."""

from __future__ import annotations

import itertools
import os
import shutil
import typing as t
from pathlib import Path

import pytest
from support import modules, namespaces, program_versions, variants
from support.programs import Programs
from support.topology import Topology

_NEEDED = ("ip", "nsenter", "flock", "setpriv", "nft") + tuple(
    variant.tool(family) for variant in variants.VARIANTS.values() for family in variants.FAMILIES
)


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    """What all tests here need. Says what is missing and how to get it."""
    if os.geteuid() != 0:
        pytest.fail("the tests of the kernel make network namespaces: run them as root", pytrace=False)
    missing = [name for name in _NEEDED if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if missing:
        pytest.fail("not installed: %s: run `make setup`" % ", ".join(missing), pytrace=False)
    try:
        modules.collections()
    except RuntimeError as exc:
        pytest.fail(str(exc), pytrace=False)
    namespaces.sweep()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Once all of it is over, also where tests ran side by side and some of their processes were killed."""
    if not hasattr(config, "workerinput") and os.geteuid() == 0:
        namespaces.sweep()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables of ``show_table``: what tests print themselves is lost where they run side by side."""
    tables: t.Dict[t.Tuple[str, ...], t.List[t.List[t.Tuple[str, ...]]]] = {}
    for reports in list(terminalreporter.stats.values()):
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "table":
                        head, rows = value
                        tables.setdefault(tuple(head), []).append(list(map(tuple, rows)))
    for head, parts in tables.items():
        lines = [head, *(parts[0] if len(parts) == 1 else sorted(itertools.chain(*parts)))]
        widths = [max(len(cell) for cell in column) + 2 for column in zip(*lines)]
        terminalreporter.write_line("")
        for line in lines:
            terminalreporter.write_line("".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


#: Prints a table: what stands in its corner, the other columns' heads, rows of a name and cells. Those of several tests
#: with the same heads are one.
ShowTable = t.Callable[[str, t.Sequence[str], t.Iterable[t.Tuple[str, t.Sequence[str]]]], None]


@pytest.fixture
def show_table(record_property: t.Callable[[str, object], None]) -> ShowTable:
    """Print a table once all tests are over."""

    def show(corner: str, heads: t.Sequence[str], rows: t.Iterable[t.Tuple[str, t.Sequence[str]]]) -> None:
        record_property("table", ((corner, *heads), [(name, *cells) for name, cells in rows]))

    return show


@pytest.fixture
def ns() -> t.Iterator[namespaces.Namespace]:
    """A network namespace in which nothing has touched netfilter yet."""
    with namespaces.Namespace() as fresh:
        yield fresh


@pytest.fixture
def topology() -> t.Iterator[Topology]:
    """A pod, a node and the world outside."""
    made = Topology()
    yield made
    made.delete()


@pytest.fixture(params=variants.BACKENDS)
def variant(request: pytest.FixtureRequest) -> variants.Variant:
    """Each backend in turn; see ``support.marks.iptables_only``."""
    return variants.BACKENDS[request.param]


@pytest.fixture(params=variants.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Each address family in turn."""
    return t.cast(str, request.param)


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """Stand-ins for the firewall programs that keep a log."""
    return Programs(tmp_path)


@pytest.fixture(scope="session")
def nfts() -> t.Dict[str, program_versions.Nft]:
    """The nft of every supported Debian release and of the next, by release, oldest first."""
    return {release: program_versions.nft_of(release) for release in program_versions.RELEASES}
