# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verifications end at their limit, whatever they are doing."""

from __future__ import annotations

import itertools
import signal
import threading
import time
import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.families import FAMILIES
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.questions import limits, verification
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways import packet_policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify.ways.cpu_time import (
    TimeOverError,
    limited,
)

#: Seconds after which a test fails that should have ended before.
_PATIENCE = 60.0


class Copy:
    """Stands for the copy of a node that takes too long to be understood."""

    state = None
    unseen = ()


def _busy(*_arguments: t.Any, **_named: t.Any) -> t.NoReturn:
    end = time.monotonic() + _PATIENCE
    for _number in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        pass
    raise AssertionError("not interrupted")


def test_rules_that_take_too_long_to_be_read_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "NodeModel", _busy)
    monkeypatch.setattr(verification, "GRACE", 0.0)
    policy = packet_policy.Policy(dict.fromkeys(FAMILIES, ()))
    report = verification.verify(t.cast(t.Any, Copy()), policy, limits.begin(0, 0.01))
    assert [one.code for one in report.untested] == ["time"]
    assert report.untested[0].text.startswith("the time was over after 0 questions, and all were left: ")
    assert (report.questions, report.conflicts) == (0, ())


def test_nothing_is_left_of_a_limit() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with limited(_PATIENCE):
        pass
    with pytest.raises(TimeOverError), limited(0.01):
        _busy()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_other_threads_have_no_limit() -> None:
    done = []

    def work() -> None:
        with limited(0.01):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(_PATIENCE)
    assert done == [True]
