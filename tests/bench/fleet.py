# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook apply costs where nothing changes: on one real node, and on the controller of a fleet.

The fleet are hosts that answer as the real node did, after as many seconds, and do nothing: what is left is the
controller. Ansible reaches all of them by its connection local, so a shell stands for the SSH client.

One node is a namespace with its own Python, modules not compiled. Settings: 30 hosts, each setting beside 20 forks with
pipelining and the strategy linear. With ``IP_MASQ_FORMER`` another release is measured beside this one.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import tempfile
import time
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

#: The directory with ansible_collections/ of another release, to measure beside this one.
FORMER = "IP_MASQ_FORMER"

_APPLY = ("kubenode.ip_masq.apply", "-e", "ip_masq_agent_hosts=all", "-e", "ip_masq_agent_become=false")
_PYTHON = "/usr/bin/python3"
_CALLS = Target(2)
_SECONDS = Target(0.6, of_ratio=True)
_SIZES = (10, 50, 100)
#: The fleet and the settings that the others are compared with.
_SIZE = 30
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
*'exec $program task'* | *'/ip-masq-agent task'*) ;; # 1.0.0 and later; before
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
*'exec $program task'* | *'/ip-masq-agent task'*) ;; # 1.0.0 and later; before
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


class _Side:
    """One release: its real node, and what that answered."""

    def __init__(self, root: Path, name: str, collections: Path) -> None:
        self.name = name
        self._root = root / name
        self._root.mkdir()
        self._collections = collections
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
                "ANSIBLE_COLLECTIONS_PATH": str(self._collections),
                "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
                "ANSIBLE_LOCAL_TEMP": str(self._root / "local"),
                "ANSIBLE_REMOTE_TEMP": str(self._root / "remote"),
                **settings,
            },
        )
        after = os.times()
        if done.returncode:
            raise RuntimeError("%s: %s" % (self.name, (done.stderr.strip() or done.stdout)[-400:]))
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
            raise RuntimeError(
                "%s: no task was seen on the node: compare the recorders with the action plugin" % self.name
            )
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

    def fleet(self, size: int, **settings: str) -> _Played:
        """Run on so many hosts that do not exist."""
        hosts = {"node%04d" % number: self._host for number in range(size)}
        return self._play(hosts, **{"ANSIBLE_FORKS": str(_FORKS), **settings})


def _minutes(text: str) -> float:
    """Return the seconds of a time that ``times`` printed: 0m1.250000s."""
    minutes, seconds = text.rstrip("s").split("m")
    return 60 * float(minutes) + float(seconds)


def measure(plan: Plan) -> t.Iterator[Row]:
    """Yield the rows of this part."""
    with tempfile.TemporaryDirectory(prefix="ip-masq-bench-") as folder:
        os.chmod(folder, 0o755)
        sides: t.List[_Side] = []
        try:
            sides.append(_Side(Path(folder), "ours", modules.collections()))
            if os.environ.get(FORMER):
                sides.append(_Side(Path(folder), "former", Path(os.environ[FORMER]).resolve()))
            for side in sides:
                side.install()
            yield from _one_node(plan, sides)
            for side in sides:
                side.learn()
            yield from _sizes(plan, sides)
            yield from _settings(plan, sides[0])
        finally:
            for side in sides:
                side.close()


def _in_turns(plan: Plan, what: str, runs: t.Mapping[str, t.Callable[[], t.Any]]) -> t.Dict[str, t.List[t.Any]]:
    found: t.Dict[str, t.List[t.Any]] = {name: [] for name in runs}
    for number in range(plan.slow_rounds):
        for name in list(runs)[:: -1 if number % 2 else 1]:
            say("fleet: %s: %s, round %d of %d" % (what, name, number + 1, plan.slow_rounds))
            found[name].append(runs[name]())
    return found


def _row(figure: str, unit: str, found: t.Mapping[str, t.Sequence[float]], target: t.Optional[Target] = None) -> Row:
    """Return the first series, with the second beside it if there is one."""
    (ours, *others) = found.items()
    sample = Sample(tuple(ours[1]), unit)
    if not others:
        return Row(figure, sample, target=None if target and target.of_ratio else target)
    return Row(figure, sample, others[0][0], Sample(tuple(others[0][1]), unit), target)


def _one_node(plan: Plan, sides: t.Sequence[_Side]) -> t.Iterator[Row]:
    found = _in_turns(plan, "one node", {side.name: side.unchanged for side in sides})

    def series(value: t.Callable[[_Played, t.Sequence[_Call]], float]) -> t.Dict[str, t.List[float]]:
        return {name: [value(*one) for one in runs] for name, runs in found.items()}

    yield _row("one node: remote calls", "calls", series(lambda _played, calls: len(calls)), _CALLS)
    yield _row("one node: seconds", "s", series(lambda played, _calls: played.seconds), _SECONDS)
    yield _row("one node: CPU on the node", "s", series(lambda _played, calls: sum(call.cpu for call in calls)))
    rest = series(lambda played, calls: played.cpu - sum(call.cpu for call in calls))
    yield _row("one node: CPU on the controller", "s", rest)


def _sizes(plan: Plan, sides: t.Sequence[_Side]) -> t.Iterator[Row]:
    for size in _SIZES:
        name = "%3d hosts, %d forks: " % (size, _FORKS)
        started = time.monotonic()
        runs = {side.name: functools.partial(side.fleet, size) for side in sides}
        found = _in_turns(plan, "%d hosts" % size, runs)
        yield _row(
            name + "seconds per host", "s", {key: [one.seconds / size for one in runs] for key, runs in found.items()}
        )
        yield _row(name + "CPU per host", "s", {key: [one.cpu / size for one in runs] for key, runs in found.items()})
        say("fleet: %d hosts took %d s" % (size, time.monotonic() - started))


def _settings(plan: Plan, side: _Side) -> t.Iterator[Row]:
    usual = "%d forks" % _FORKS
    settings: t.Dict[str, t.Dict[str, str]] = {
        usual: {},
        "5 forks": {"ANSIBLE_FORKS": "5"},
        "50 forks": {"ANSIBLE_FORKS": "50"},
        "no pipelining": {"ANSIBLE_PIPELINING": "0"},
        "strategy free": {"ANSIBLE_STRATEGY": "free"},
    }
    runs = {name: functools.partial(side.fleet, _SIZE, **given) for name, given in settings.items()}
    found = _in_turns(plan, "settings", runs)
    for name in settings:
        if name != usual:
            for figure, field in (("seconds", 0), ("CPU", 1)):
                both = {one: [played[field] for played in found[one]] for one in (name, usual)}
                yield _row("%3d hosts, %s: %s" % (_SIZE, name, figure), "s", both)
