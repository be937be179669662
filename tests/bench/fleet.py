# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook apply costs where nothing changes: on one real node, and on the controller of a fleet.

The fleet are hosts that answer as the real node did, after as many seconds, and do nothing: what is left is the
controller. Ansible reaches all of them by its connection local, so a shell stands for the SSH client.

One node is a namespace with its own Python, modules not compiled. The controller has 20 forks and pipelining.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import typing as t
from pathlib import Path

import yaml
from support import modules
from support.fleet import Fleet
from support.playbook_run import ansible_playbook

from .figures import Row, Sample, Target
from .plan import Plan, say
from .role import play_seconds

TITLE = "the playbook apply where nothing changes: one real node, and the controller of many"

_APPLY = ("kubenode.ip_masq.apply", "-e", "ip_masq_agent_hosts=all", "-e", "ip_masq_agent_become=false")
_PYTHON = "/usr/bin/python3"
_CALLS = Target(2)
_SIZES = (10, 50, 100)
_FORKS = 20

#: In place of Python on the real node: notes the module, what it returned, and what it took. `times` is that of sh.
_RECORDER = """#!/bin/sh
cd "$(mktemp -d %(calls)s/XXXXXX)" || exit 1
cat ${1:+"$1"} >payload
grep -ao 'modules\\.[a-z_]*' payload | head -n 1 >module
date +%%s.%%N >started
%(python)s <payload >answer
status=$?
date +%%s.%%N >ended
times >cpu
cat answer
exit $status
"""
#: In place of the shell on the real node: notes the tasks of the installed program in the same way.
_SHELL_RECORDER = """#!/bin/sh
case $* in
*'exec $program task'*) ;;
*) exec %(shell)s "$@" ;;
esac
cd "$(mktemp -d %(calls)s/XXXXXX)" || exit 1
echo task >module
date +%%s.%%N >started
%(shell)s "$@" >answer
status=$?
date +%%s.%%N >ended
times >cpu
cat answer
exit $status
"""
#: In place of Python on hosts that do not exist. Its argument is the payload, if it does not come on standard input.
_ANSWERER = """#!/bin/sh
module=$(cat ${1:+"$1"} | grep -ao 'modules\\.[a-z_]*' | head -n 1)
. %(answers)s/"$module".sh
cat %(answers)s/"$module"
"""


#: In place of the shell on hosts that do not exist; it answers in place of the installed program.
_SHELL_ANSWERER = """#!/bin/sh
case $* in
*'exec $program task'*) ;;
*) exec /bin/sh "$@" ;;
esac
. %(answers)s/task.sh
cat %(answers)s/task
"""


class _Call(t.NamedTuple):
    """One call of a module, or of the installed program, on the node; times in seconds."""

    module: str
    answer: str
    wall: float
    cpu: float


class _Played(t.NamedTuple):
    """A run of the playbook: seconds of its plays, and CPU seconds of it and all that it started."""

    seconds: float
    cpu: float


class _Playbook:
    """The playbook, its real node, and what that answered."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._calls = self._root / "calls"
        self._calls.mkdir()
        (self._root / "node").mkdir()
        self._fleet = Fleet(self._root / "node", {"all": ["node"]})
        self._fleet.nodes["node"].wire()
        recorder = _RECORDER % {"calls": self._calls, "python": _PYTHON}
        node = self._fleet.hosts["node"]
        shell = _SHELL_RECORDER % {"calls": self._calls, "shell": node["ansible_shell_executable"]}
        self._node = dict(
            node,
            ansible_python_interpreter=self._program("recorder", recorder),
            ansible_shell_executable=self._program("shell_recorder", shell),
        )
        self._host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": self._program("answerer", _ANSWERER % {"answers": self._root}),
            "ansible_shell_executable": self._program("shell_answerer", _SHELL_ANSWERER % {"answers": self._root}),
        }
        self._seen: t.List[t.List[_Call]] = []

    def _program(self, name: str, text: str) -> str:
        path = self._root / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def close(self) -> None:
        """Delete the node."""
        self._fleet.delete()

    def _play(self, hosts: t.Mapping[str, t.Any], **settings: str) -> _Played:
        """Run it.

        :raises RuntimeError: it failed, or changed something.
        """
        (self._root / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": dict(hosts)}}))
        before = os.times()
        done = ansible_playbook(
            self._root,
            "-i",
            "inventory.yml",
            *_APPLY,
            **{
                "ANSIBLE_COLLECTIONS_PATH": str(modules.collections()),
                "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
                "ANSIBLE_LOCAL_TEMP": str(self._root / "local"),
                "ANSIBLE_REMOTE_TEMP": str(self._root / "remote"),
                **settings,
            },
        )
        after = os.times()
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or done.stdout)[-400:])
        told = json.loads(done.stdout[done.stdout.index("{\n") :])
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        durations = [play["play"]["duration"] for play in told["plays"]]
        # A play without hosts has no end.
        return _Played(sum(play_seconds(duration) for duration in durations if "end" in duration), cpu)

    def install(self) -> None:
        """Run for the first time on the real node."""
        self._play({"node": self._node})
        self._take_calls()

    def unchanged(self) -> t.Tuple[_Played, t.List[_Call]]:
        """Run on the real node, where nothing is to be done; return the figures, and the calls that were made there."""
        played = self._play({"node": self._node})
        self._seen.append(self._take_calls())
        if not self._seen[-1]:
            raise RuntimeError("no task was seen on the node: compare the recorders with the action plugin")
        return played, self._seen[-1]

    def _take_calls(self) -> t.List[_Call]:
        found = []
        for folder in sorted(self._calls.iterdir(), key=lambda one: float((one / "started").read_text())):
            wall = float((folder / "ended").read_text()) - float((folder / "started").read_text())
            children = (folder / "cpu").read_text().split()[2:4]
            answer = (folder / "answer").read_text()
            found.append(_Call((folder / "module").read_text().strip(), answer, wall, sum(map(_minutes, children))))
            subprocess.run(["rm", "-r", str(folder)], check=True)
        return found

    def learn(self) -> None:
        """Have the hosts that do not exist answer as the node did, also where Ansible has no pipelining."""
        self._play({"node": self._node}, ANSIBLE_PIPELINING="0")
        for calls in (*zip(*self._seen), *zip(self._take_calls())):
            (self._root / calls[0].module).write_text(calls[0].answer)
            seconds = statistics.median(call.wall for call in calls)
            (self._root / (calls[0].module + ".sh")).write_text("sleep %.3f\n" % seconds)

    def fleet(self, size: int) -> _Played:
        """Run on so many hosts that do not exist."""
        hosts = {"node%04d" % number: self._host for number in range(size)}
        return self._play(hosts, ANSIBLE_FORKS=str(_FORKS))


def _minutes(text: str) -> float:
    """Return the seconds of a time that ``times`` printed: 0m1.250000s."""
    minutes, seconds = text.rstrip("s").split("m")
    return 60 * float(minutes) + float(seconds)


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    with tempfile.TemporaryDirectory(prefix="ip-masq-bench-") as folder:
        os.chmod(folder, 0o755)
        playbook = _Playbook(Path(folder))
        try:
            playbook.install()
            yield from _one_node(plan, playbook)
            playbook.learn()
            for size in _SIZES:
                yield from _of_size(plan, playbook, size)
        finally:
            playbook.close()


def _row(figure: str, unit: str, values: t.Iterable[float], target: t.Optional[Target] = None) -> Row:
    return Row(figure, Sample(tuple(values), unit), target=target)


def _one_node(plan: Plan, playbook: _Playbook) -> t.Iterator[Row]:
    found = []
    for number in range(plan.slow_rounds):
        say("fleet: one node, round %d of %d" % (number + 1, plan.slow_rounds))
        found.append(playbook.unchanged())
    spent = [sum(call.cpu for call in calls) for _played, calls in found]
    yield _row("one node: remote calls", "calls", (len(calls) for _played, calls in found), _CALLS)
    yield _row("one node: seconds", "s", (played.seconds for played, _calls in found))
    yield _row("one node: CPU on the node", "s", spent)
    rest = (played.cpu - there for (played, _calls), there in zip(found, spent))
    yield _row("one node: CPU on the controller", "s", rest)


def _of_size(plan: Plan, playbook: _Playbook, size: int) -> t.Iterator[Row]:
    found = []
    for number in range(plan.slow_rounds):
        say("fleet: %d hosts, round %d of %d" % (size, number + 1, plan.slow_rounds))
        found.append(playbook.fleet(size))
    name = "%3d hosts, %d forks: " % (size, _FORKS)
    yield _row(name + "seconds per host", "s", (one.seconds / size for one in found))
    yield _row(name + "CPU per host", "s", (one.cpu / size for one in found))
