# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""systemctl and journalctl: what is run, what is read, how errors are worded. With real systemd: molecule."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import systemd
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome


class Programs:
    """Answers in the place of systemd's programs, and records what was run."""

    def __init__(self, *answers: t.Union[Outcome, Exception]) -> None:
        self._answers = list(answers)
        self.calls: t.List[t.List[str]] = []

    def __call__(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        self.calls.append(list(argv))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    "stderr, message",
    [
        (
            "Job for a.service failed.\nSee journalctl.\n",
            "systemctl start a.service failed: Job for a.service failed. See journalctl.",
        ),
        ("", "systemctl start a.service failed: exit status 4"),
    ],
)
def test_a_failure_names_verb_and_units_and_not_the_options(stderr: str, message: str) -> None:
    with pytest.raises(NodeError) as error:
        systemd.systemctl(Programs(Outcome(4, "", stderr)), "start", "--no-block", "a.service")
    assert str(error.value) == message


# systemd 247 and 257: a unit that does not exist has no FragmentPath; its other properties have defaults.
SHOWN = """\
Id=a.service
LoadState=loaded
EnvironmentFiles=/etc/default/a (ignore_errors=yes)
EnvironmentFiles=/etc/default/b (ignore_errors=no)
ExecStart={ path=/bin/a ; argv[]=/bin/a --b=c ; ignore_errors=no }
UnitFileState=enabled

Id=b.service
LoadState=not-found
UnitFileState=
"""


def test_properties_are_read_by_unit_with_all_their_values() -> None:
    programs = Programs(Outcome(0, SHOWN, ""))
    found = systemd.show_units(programs, ("Id", "LoadState"), ["a.service", "b.service"])
    assert programs.calls == [["systemctl", "show", "--property=Id,LoadState", "--", "a.service", "b.service"]]
    assert list(found) == ["a.service", "b.service"]
    assert len(found["a.service"]["EnvironmentFiles"]) == 2
    assert found["a.service"].first("ExecStart").endswith("argv[]=/bin/a --b=c ; ignore_errors=no }")
    assert found["b.service"] == {"Id": ["b.service"], "LoadState": ["not-found"]}
    assert found["b.service"].first("UnitFileState") == ""


@pytest.mark.parametrize(
    "shown, failure",
    [
        ("Result=success\nExecMainStatus=0\n", ""),
        ("Result=\nExecMainStatus=\n", ""),
        ("Result=exit-code\nExecMainStatus=203\n", "result exit-code, exit status 203"),
        ("Result=timeout\n", "result timeout, exit status unknown"),
    ],
)
def test_last_failure_is_the_result_that_systemd_has(shown: str, failure: str) -> None:
    assert systemd.last_failure(Programs(Outcome(0, shown, "")), "a.service") == failure


def test_journal_that_cannot_be_read_has_no_lines() -> None:
    assert systemd.journal(Programs(NodeError("cannot run journalctl")), "a.service", 0.0) == []
    programs = Programs(Outcome(1, "", "not implemented"), Outcome(0, "one\ntwo\n", ""))
    assert systemd.journal(programs, "a.service", 1.9) == ["one", "two"]
    assert "--since=@1" in programs.calls[1] and "--unit=a.service" in programs.calls[1]


def test_a_unit_that_did_not_fail_can_be_reset() -> None:
    systemd.reset_failed(Programs(Outcome(1, "", "Unit a.service not loaded.")), "a.service")
