# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a path does to a child process does not reach its parent."""

from __future__ import annotations

import os
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.limited import limited


@pytest.mark.parametrize("result", [None, True, 1.5, "text", b"bytes", ("a", [1, {"b": None}]), "x" * 1000000])
def test_the_result_is_that_of_the_work(result: t.Any) -> None:
    assert limited(lambda: result, 60, "work") == result


def test_what_the_work_does_stays_in_its_process() -> None:
    seen: t.List[int] = []
    assert limited(lambda: seen.append(1) or os.getpid(), 60, "work") != os.getpid()
    assert seen == []


@pytest.mark.parametrize(
    "fault, text",
    [
        (lambda: (_ for _ in ()).throw(NodeError("no /x")), "no /x"),
        (lambda: open("/none"), "[Errno 2] No such file or directory: '/none'"),
        (lambda: sys.exit(0), "0"),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt()), "KeyboardInterrupt"),
        (object, "unmarshallable object"),
        (lambda: os._exit(0), "cannot work: the process ended without an answer"),
        (lambda: os.kill(os.getpid(), 9), "cannot work: the process ended without an answer"),
    ],
)
def test_whatever_it_raises_is_an_error_of_the_node(fault: t.Callable[[], t.Any], text: str) -> None:
    with pytest.raises(NodeError) as error:
        limited(fault, 60, "work")
    assert str(error.value) == text


def test_work_without_an_answer_is_given_up_and_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def wait() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        os.rename(tmp_path / "pid", tmp_path / "started")
        (tmp_path / "pipe").read_bytes()

    with pytest.raises(NodeError, match="^cannot read it: no answer within 0.5 seconds$"):
        limited(wait, 0.5, "read it")
    pid = int((tmp_path / "started").read_text())
    while Path("/proc/%d/stat" % pid).exists() and Path("/proc/%d/stat" % pid).read_text().split()[2] != "Z":
        time.sleep(0.01)
