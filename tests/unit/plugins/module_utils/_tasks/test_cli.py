# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line on the node: its output and its exit status. With real rules: the kernel tests."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import (
    program_modules,
    states,
    status,
    sync,
    units,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import (
    Event,
    Memory,
    Verification,
    write_memory,
    write_verification,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.backend import View
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import POLICY_OPTIONS, Config, build
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack, systemd
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import agent_info_task, cli
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.task_result import Done
from ansible_collections.kubenode.ip_masq.plugins.module_utils._verify import inspection
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.import_collection import PRELUDE, ROOT
from support.private_node import in_force, private_paths, reconciled
from support.units import Systemctl

REASON = "packets were not tested: unshare: Operation not permitted"
BROKEN = '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}'

UNITS_DIFFER, OUT_OF_SYNC = (states.EXIT_STATUS[one] for one in (states.UNITS, states.NOT_IN_SYNC))


class Agent:
    """The command line on a node whose rules are what a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, capsys: t.Any) -> None:
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
        monkeypatch.setattr(sync, "reconcile", self._reconcile)
        monkeypatch.setattr(cli, "run", self._run)
        monkeypatch.setattr(status, "find_other_chains", lambda *_: [])
        monkeypatch.setattr(conntrack, "read_ports", lambda _version: iter(()))
        monkeypatch.setattr(inspection, "inspect", self._inspect)
        self.paths = private_paths(root, config_dir=str(root / "config"))
        self.config = root / "config" / "config"
        self.config.parent.mkdir()
        self._capsys = capsys
        self.asked = inspection.Request()
        self.met: t.Dict[str, t.Any] = {}
        self.systemctl = Systemctl(units.ENABLED_UNITS, units.STARTED_UNITS)
        self.systemctl.known.update(units.SERVICES)
        monkeypatch.setattr(systemd, "is_running", lambda: self.is_booted)
        self.is_booted = True

    def _reconcile(self, _node: t.Any, config: Config, check: bool, **_more: t.Any) -> Result:
        assert check
        return reconciled(config, **self.met)

    def _inspect(
        self, _node: t.Any, _policy: t.Any, wanted: inspection.Request, *_progress: t.Any
    ) -> t.Dict[str, t.Any]:
        """A node that cannot be copied."""
        self.asked = wanted
        health = [{"code": "no_copy", "severity": "warning", "text": REASON, "remedy": ""}]
        return {
            "verified": None, "summary": "not verified: " + REASON, "questions": 0, "questions_left_out": 0,
            "untested": [],
            "conflicts": [], "limits": [],
            "health": health, "explanations": [],
        }  # fmt: skip

    def _run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        return self.systemctl(argv)

    def remember(self, memory: Memory) -> None:
        """Have the agent remember this."""
        write_memory(self.paths, memory)

    def __call__(self, *argv: str) -> int:
        """Run a command; what it printed is in ``out`` and ``err``."""
        try:
            status = cli.main(argv, self.paths)
        except SystemExit as exc:
            status = t.cast(int, exc.code)
        self.out, self.err = self._capsys.readouterr()
        return status


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: t.Any) -> Agent:
    """The command line."""
    return Agent(monkeypatch, tmp_path, capsys)


class TestEnd:
    """console.leave, and output that cannot be written."""

    PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from support.import_collection import make_importable
make_importable()
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import console
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
console.prepare()
try:
    console.print_lines(["x" * int(sys.argv[2])])
except BrokenPipeError:
    pass
except NodeError as exc:
    console.log(console.ERROR, str(exc))
    console.leave(1)
console.leave(int(sys.argv[3]))
"""
    #: characters: more than fits into the buffers, and less
    SIZES = (10, 200000)

    def run(self, size: int, status: int, stdout: int) -> subprocess.CompletedProcess[str]:
        """Print so many characters, and leave with this status."""
        argv = [sys.executable, "-c", self.PROGRAM, str(ROOT / "tests"), str(size), str(status)]
        env = {name: value for name, value in os.environ.items() if name not in ("JOURNAL_STREAM", "PYTHONUNBUFFERED")}
        return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, env=env, text=True, check=False)

    @pytest.mark.parametrize("size", SIZES)
    def test_what_was_printed_arrives(self, size: int) -> None:
        done = self.run(size, OUT_OF_SYNC, subprocess.PIPE)
        assert (done.returncode, done.stdout, done.stderr) == (OUT_OF_SYNC, "x" * size + "\n", "")

    @pytest.mark.parametrize("size", SIZES)
    def test_what_nobody_reads_is_dropped(self, size: int) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = self.run(size, cli.OK, writer)
        os.close(writer)
        assert (done.returncode, done.stderr) == (cli.OK, "")

    @pytest.mark.parametrize("size", SIZES)
    def test_what_cannot_be_written_is_a_failure_and_said_once(self, size: int) -> None:
        with open("/dev/full", "wb") as full:
            done = self.run(size, cli.OK, full.fileno())
        assert done.returncode == cli.FAILED
        assert done.stderr == "ip-masq-agent: cannot write the output: No space left on device\n"

    def test_output_may_be_closed(self) -> None:
        argv = [sys.executable, "-c", self.PROGRAM, str(ROOT / "tests"), "10", "4"]
        done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *argv], check=False)
        assert done.returncode == OUT_OF_SYNC


COMMANDS = ["sync", "status", "explain 10.1.2.3", "verify", "who 192.0.2.1:1", "remove", "resync", "recover", "task"]
COMMANDS.append("keep-log --megabytes 16")


class TestUsage:
    """Help, version, and what is no command."""

    def test_help_has_commands_exit_statuses_and_the_configuration(self, run: Agent) -> None:
        assert run("--help") == 0
        for word in ("sync", "status", "explain", "verify", "who", "remove", "--lock-timeout", "journalctl -u ip-masq"):
            assert word in run.out
        statuses = re.findall(r"^ +([0-9]+)  ", run.out, re.MULTILINE)
        statuses_of_code = {cli.OK, cli.FAILED, 2, cli.NOT_TESTED, *states.EXIT_STATUS.values()}
        assert [int(status) for status in statuses] == sorted(statuses_of_code)
        assert run.paths.config in run.out and run.paths.drop_ins in run.out
        assert max(len(line) for line in run.out.splitlines() if run.paths.config_dir not in line) <= 101

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_has_a_help(self, run: Agent, command: str) -> None:
        name = command.split()[0]
        assert run(name, "--help") == 0
        assert "usage: ip-masq-agent %s" % name in run.out

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_command_without_root_says_so(self, run: Agent, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert run(*command.split()) == cli.FAILED
        assert "%s requires root; use sudo" % command.split()[0] in run.err

    @pytest.mark.parametrize(
        "argv",
        [
            (),
            ("stat",),
            ("explain",),
            ("explain", "example.org"),
            ("explain", "10.0.0.1", "--source", "pod"),
            ("explain", "203.0.113.7", "--source", "fd00::1"),
            ("explain", "10.0.0.1", "--port", "0"),
            ("explain", "10.0.0.1", "--protocol", "gre"),
            ("who",),
            ("who", "192.0.2.1:80", "--to", "[2001:db8::1]:80"),
            ("who", "192.0.2.1:80", "--protocol", "icmp"),
            ("sync", "now"),
            ("--lock-timeout", "-1", "sync"),
            ("--lock-timeout", "3601", "sync"),
        ],
    )
    def test_invalid_usage_has_its_own_status(self, run: Agent, argv: t.Sequence[str]) -> None:
        assert run(*argv) == 2
        assert run.out == ""
        assert run.err.startswith("usage: ip-masq-agent")
        assert len(run.err) < 500

    def test_only_listed_commands_are_suggested(self, run: Agent) -> None:
        assert run("statu") == 2
        assert "(choose from sync, status, explain, verify, who, ports, remove)" in run.err


class TestTask:
    """task"""

    def test_a_task_is_read_and_its_result_is_one_line(self, run: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        request = {"module": "ip_masq_agent_info", "params": {"é": 1}, "check": True}
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
        monkeypatch.setattr(program_modules, "are_intact", lambda: True)
        monkeypatch.setattr(agent_info_task, "carry_out", lambda params, _check: Done(params))
        assert run("task") == cli.OK
        assert (json.loads(run.out)["returned"], run.out.count("\n"), run.err) == ({"é": 1}, 1, "")


class TestStatus:
    """status"""

    def test_in_sync(self, run: Agent) -> None:
        assert run("status") == cli.OK
        assert re.search(r"^rules +in sync$", run.out, re.MULTILINE)
        assert re.search(r"^exempt +10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16$", run.out, re.MULTILINE)
        assert "connections: 3 masqueraded, 12 exempt" in run.out
        assert run.err == ""

    def test_json_has_what_the_table_has_and_more(self, run: Agent) -> None:
        run.config.write_text('{"nonMasqueradeCIDRs": ["10.0.0.0/8"], "resyncInterval": "1500ms"}')
        assert run("status", "--json") == cli.OK
        report = json.loads(run.out)
        assert report["in_sync"] is True and report["differs"] == [] and report["errors"] == []
        assert report["version"] == VERSION
        assert report["config"]["sources"] == [str(run.config)]
        assert report["config"]["problem"] is None
        assert report["config"]["non_masquerade_cidrs"] == ["10.0.0.0/8"]
        assert report["config"]["resync_interval_seconds"] == 1.5
        shown = {"resync_interval" if name == "resync_interval_seconds" else name for name in report["config"]}
        assert shown >= {option.name for option in POLICY_OPTIONS} - {"cidr_limit", "nomasq_all_reserved_ranges"}
        assert report["backend"] == {"name": "iptables_nft", "version": "1.8.9"}
        view = in_force(build({"non_masquerade_cidrs": ["10.0.0.0/8"]}), "ipv4")
        assert report["families"]["ipv4"]["rules"] == list(view.rules)
        assert report["families"]["ipv4"]["jump"] == view.jump
        assert report["families"]["ipv4"]["counters"]["masqueraded_packets"] == 3
        assert (report["last_sync"], report["last_change"], report["last_error"]) == (None, None, None)
        assert (report["drift_repaired"], report["config_errors"], report["failing"]) == (0, 0, False)

    def test_out_of_sync_lists_the_pending_changes(self, run: Agent) -> None:
        run.met = {"actions": ["-A IP-MASQ-AGENT -j X"], "found": View((), None)}
        assert run("status") == OUT_OF_SYNC
        assert "NOT IN SYNC" in run.out and "\npending changes:\n" in run.out
        assert "ipv4, iptables_nft: rule added: -A IP-MASQ-AGENT -j X" in run.out

    def test_units_that_are_as_installed(self, run: Agent) -> None:
        assert run("status") == cli.OK
        assert re.search(r"^units +as installed\nresync +every 60s$", run.out, re.MULTILINE)
        assert run("status", "--json") == cli.OK
        assert json.loads(run.out)["units"] == {"differ": {}, "problem": None}

    def test_a_timer_that_does_not_run_is_no_resync(self, run: Agent) -> None:
        run.systemctl.active.discard(units.TIMER)
        assert run("status") == UNITS_DIFFER
        assert re.search(
            r"^units +NOT AS INSTALLED; see systemctl status UNIT\n"
            r" +stopped: ip-masq-agent.timer\n"
            r"resync +every 60s, but ip-masq-agent.timer is stopped$",
            run.out,
            re.MULTILINE,
        )
        assert run("status", "--json") == UNITS_DIFFER
        assert json.loads(run.out)["units"]["differ"] == {units.TIMER: ["stopped"]}

    def test_a_timer_that_runs_until_the_boot(self, run: Agent) -> None:
        run.systemctl.masked.add(units.TIMER)
        assert run("status") == UNITS_DIFFER
        assert re.search(r"^resync +every 60s, but \S+ is masked$", run.out, re.MULTILINE)

    def test_units_are_unknown_without_systemd(self, run: Agent) -> None:
        run.is_booted = False
        assert run("status") == cli.OK
        assert re.search(r"^units +unknown: this node was not booted with systemd$", run.out, re.MULTILINE)
        assert re.search(r"^resync +every 60s$", run.out, re.MULTILINE)
        assert run("status", "--json") == cli.OK
        assert json.loads(run.out)["units"]["differ"] is None

    def test_long_lists_are_shortened_for_people_only(self, run: Agent) -> None:
        cidrs = ["10.%d.0.0/17" % number for number in range(60)]
        run.config.write_text(json.dumps({"nonMasqueradeCIDRs": cidrs}))
        run("status")
        assert "and 52 more" in run.out and "... 22 more; --json lists all" in run.out
        run("status", "--json")
        assert len(json.loads(run.out)["families"]["ipv4"]["rules"]) == 62


class TestRecover:
    """A sync where the agent did not itself end the last resync, or systemd no longer says how it ended."""

    @pytest.mark.parametrize(
        ("state", "failing", "resyncs"),
        [("failed", True, 0), ("failed", False, 1), ("active", True, 1), ("", True, 1)],
    )
    def test_resyncs_unless_the_agent_ended_itself(
        self, run: Agent, monkeypatch: pytest.MonkeyPatch, state: str, failing: bool, resyncs: int
    ) -> None:
        done: t.List[object] = []
        monkeypatch.setattr(cli, "_resync", lambda *given: done.append(given) or cli.OK)
        run.systemctl.failed = {units.SERVICE: 1} if state == "failed" else {}
        run.systemctl.active = {units.SERVICE} if state == "active" else set()
        run.remember(Memory(failing=failing))
        assert run("recover") == cli.OK
        assert len(done) == resyncs


class TestVerify:
    """verify, on a node of which no copy can be made"""

    def test_a_node_that_cannot_be_copied_is_not_verified(self, run: Agent) -> None:
        assert run("verify") == cli.NOT_TESTED
        assert run.out.splitlines()[0] == "not verified: " + REASON
        assert run("status") == cli.OK
        assert re.search(r"^traffic +verified \d+ s ago: not verified: packets were not", run.out, re.MULTILINE)

    def test_number_of_questions(self, run: Agent) -> None:
        run("verify", "--max-questions", "0")
        assert run.asked == inspection.Request(verify=True, max_questions=0)
        run("verify")
        assert run.asked == inspection.Request(verify=True)
        assert run("verify", "--max-questions", "-1") == 2
        assert "max_questions: -1 is negative" in run.err

    def test_status_says_that_rules_have_changed_since(self, run: Agent) -> None:
        write_verification(run.paths, Verification(1e9, False, 9, 1, "9 kinds of packets, 1 conflict"))
        run.remember(Memory(last_change=Event(1e9 - 1, ("x",))))
        assert run("status") == cli.CONFLICT
        assert run.out.startswith("CONFLICTS: 9 kinds of packets, 1 conflict (verified ")
        assert run("status", "--tolerate-conflicts") == cli.OK
        assert run.out.startswith("CONFLICTS: ")
        assert re.search(r"^traffic +verified \d+ d ago: 9 kinds of packets, 1 conflict$", run.out, re.MULTILINE)
        run.remember(Memory(last_change=Event(1e9 + 1, ("x",))))
        assert run("status") == cli.OK
        assert re.search(
            r"^traffic +verified \d+ d ago, before the last change of the rules and with conflicts: run",
            run.out,
            re.MULTILINE,
        )

    def test_status_shows_interfaces_as_they_are_written(self, run: Agent) -> None:
        policy = {
            "outInterfaces": ["eth0", "bond*"],
            "exceptInterfaces": ["wg+"],
            "snat": [{"address": "192.0.2.2", "outInterface": "bond*"}],
            "rules": [{"action": "skip", "outInterfaces": ["eth*"]}],
        }
        run.config.write_text(json.dumps(policy))
        assert run("status") == cli.OK, run.err
        assert re.search(r"^interfaces +eth0, bond\*$", run.out, re.MULTILINE)
        assert re.search(r"^skipped +wg\+$", run.out, re.MULTILINE)
        assert re.search(r"^snat +192\.0\.2\.2 by bond\*$", run.out, re.MULTILINE)
        assert re.search(r"^policy rules +skip by eth\*$", run.out, re.MULTILINE)

    def test_status_shows_options_that_are_not_at_their_default(self, run: Agent) -> None:
        titles = ["masqueraded", "sources", "interfaces", "skipped", "skip marks", "snat", "policy rules"]
        titles += ["position", "flush", "leaks"]
        policy = {
            "masqueradeCIDRs": ["10.9.0.0/16"],
            "sourceCIDRs": ["10.244.0.0/16"],
            "outInterfaces": ["eth0"],
            "exceptInterfaces": ["wg0"],
            "skipMarks": ["0x7"],
            "snat": [{"address": "192.0.2.2"}],
            "rules": [{"action": "skip"}],
            "jumpPosition": "last",
            "flushConntrack": "changed",
            "leaks": "count",
        }
        assert run("status") == cli.OK, run.err
        assert not [row for row in run.out.splitlines() if row.startswith(tuple(titles))]
        run.config.write_text(json.dumps(policy))
        assert run("status") == cli.OK, run.err
        assert [one for row in run.out.splitlines() for one in titles if row.startswith(one + " ")] == titles

    def test_result_that_cannot_be_stored_is_reported(self, run: Agent) -> None:
        folder = Path(run.paths.state_dir)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.write_text("not a directory")
        assert run("verify", "--json") == cli.NOT_TESTED
        assert json.loads(run.out)["verified"] is None
        assert "result not stored: " in run.err


class TestJournal:
    """What is logged, and how."""

    def test_whatever_a_line_holds_it_is_one_line(self, run: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        """The journal would take the rest for another message, of the priority that it names."""
        name = os.fsdecode(b"a\n<0>forged\r\x1b[2J\xff\xe2\x80\xa8.json")
        folder = run.config.parent / "config.d"
        folder.mkdir()
        (folder / name).write_text("{")
        escaped = "a\\n<0>forged\\r\\x1b[2J\\udcff\\u2028.json: invalid JSON"
        assert run("status") == cli.CONFIG_BROKEN
        assert run.err.count("\n") == 1 and escaped in run.err
        monkeypatch.setenv("JOURNAL_STREAM", "8:1234")
        assert run("status") == cli.CONFIG_BROKEN
        assert run.err.startswith("<3>") and run.err.count("\n") == 1 and escaped in run.err

    def test_what_others_named_does_not_reach_the_terminal_as_it_is(self, run: Agent) -> None:
        run.remember(Memory(last_change=Event(1.0, ("x\x1b[2Jy\nz",)), unrecorded=("a\x07b",)))
        assert run("status") == cli.OK
        assert "x\\x1b[2Jy\\nz" in run.out and "a\\x07b" in run.out
        assert run("status", "--json") == cli.OK
        assert json.loads(run.out)["notes"][0] == "a\x07b"


def test_loading_compiles_no_pattern() -> None:
    """A run uses a few of them; re compiles a pattern when it is first used, and keeps it."""
    code = (
        PRELUDE + "import re\n"
        "compile, callers = re.compile, []\n"
        "def noted(*arguments):\n"
        "    callers.append(sys._getframe(1).f_globals['__name__'])\n"
        "    return compile(*arguments)\n"
        "re.compile = noted\n"
        "from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import cli\n"
        "from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import yaml_text\n"
        "print(sorted({name for name in callers if name.startswith('ansible_collections.')}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"[]\n"
