# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one resync records and reports, whatever reconcile found. With real rules: the tests of the kernel."""

from __future__ import annotations

import collections
import json
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import (
    effective_policy,
    snapshot,
    state_files,
    sync,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import (
    KEPT_ACTIONS,
    Memory,
    Verification,
    read_memory,
    write_verification,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.reconcile import Result
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import Config
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import conntrack, shared_directory
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.local_ports import LocalPorts
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.private_node import private_paths, reconciled
from support.prometheus import parse

BROKEN = '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}'


class World:
    """A node on which reconcile returns what a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        monkeypatch.setattr(sync, "reconcile", self._reconcile)
        self.paths = private_paths(root, config_dir=str(root / "config"))
        self.config = root / "config" / "config"
        self.config.parent.mkdir()
        self.metrics = root / "metrics"
        self.metrics.mkdir()
        self.actions: t.Tuple[str, ...] = ()
        self.errors: t.Tuple[str, ...] = ()
        self.notes: t.Tuple[str, ...] = ()
        self.trouble: t.Optional[Exception] = None
        self.policies: t.List[Config] = []

    def _reconcile(
        self,
        node: Node,
        config: Config,
        check: bool = False,
        used_before: t.Optional[str] = None,
        lock_path: t.Optional[str] = "",
        effects: bool = False,
    ) -> t.Any:
        assert lock_path == self.paths.run_lock and not effects, "a resync compares nothing for people"
        if self.trouble:
            raise self.trouble
        if not check:
            self.policies.append(config)
        done = reconciled(config, () if check else self.actions, errors=self.errors, notes=self.notes)
        for change in done.changes:
            for command in change.via.fingerprint():
                node.run(command)
        return done

    def _run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        if list(argv) == [self.paths.resync, "checksums"]:
            return Outcome(0, "checksums of: %s" % stdin, "")
        return Outcome(0, "all as it should be\n", "")

    def sync(
        self,
        actions: t.Sequence[str] = (),
        errors: t.Sequence[str] = (),
        trouble: t.Optional[str] = None,
        notes: t.Sequence[str] = (),
        unless_new: bool = False,
    ) -> sync.SyncResult:
        """One resync that meets this."""
        self.actions, self.errors, self.notes = tuple(actions), tuple(errors), tuple(notes)
        self.trouble = NodeError(trouble) if trouble else None
        return sync.sync(Node(self._run), self.paths, unless_new=unless_new)

    def remembered(self) -> Memory:
        """What the agent remembers."""
        return read_memory(self.paths)

    def has_snapshot(self) -> bool:
        """Whether the resync script has something to compare."""
        return Path(self.paths.expected).exists()

    def metric_values(self) -> t.Dict[str, float]:
        """The metrics without labels."""
        text = (self.metrics / "ip_masq_agent.prom").read_text()
        return {name[len("ip_masq_agent_") :]: v for (name, labels), v in parse(text).values.items() if not labels}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """A node without a config file."""
    return World(monkeypatch, tmp_path)


def test_the_timer_changes_nothing_before_there_is_a_policy(world: World) -> None:
    assert world.sync(actions=["-A X"], unless_new=True).changes == ()
    assert world.policies == [] and not list(Path(world.paths.state_file).parent.glob("*"))
    world.config.write_text("{}")
    assert world.sync(actions=["-A X"], unless_new=True).changes
    world.config.unlink()
    assert world.sync(actions=["-A X"], unless_new=True).changes, "there was one"
    assert len(world.policies) == 2


def test_a_concurrent_edit_invalidates_the_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reconcile = sync.reconcile

    def edited_meanwhile(*arguments: t.Any, **more: t.Any) -> t.Any:
        world.config.write_text('{"masqLinkLocal": true}')
        return reconcile(*arguments, **more)

    monkeypatch.setattr(sync, "reconcile", edited_meanwhile)
    assert world.sync().policy.values == {}
    assert not world.has_snapshot()
    world.sync()
    assert world.policies[-1].masq_link_local
    assert world.has_snapshot()


@pytest.mark.parametrize(
    ("name", "first", "later"),
    [("read_local_ports", LocalPorts(32768, 60999), LocalPorts(1024, 60999)), ("legacy_tables", ["nat"], [])],
)
def test_what_is_changed_meanwhile_invalidates_the_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, first: t.Any, later: t.Any
) -> None:
    answers = [first]
    monkeypatch.setattr(sync, name, lambda *_family: answers.pop() if answers else later)
    world.sync()
    assert not world.has_snapshot()
    world.sync()
    assert world.has_snapshot()


def test_state_is_written_when_something_happened_and_only_then(world: World) -> None:
    world.sync()
    path = Path(world.paths.state_file)
    before = path.stat().st_mtime_ns
    world.sync()
    assert path.stat().st_mtime_ns == before
    world.sync(actions=["-A X"])
    assert path.stat().st_mtime_ns != before


def test_first_install_and_a_new_policy_are_changes_and_no_drift(world: World) -> None:
    outcome = world.sync(actions=["-A X"])
    assert outcome.changes == ("ipv4, iptables_nft: rule added: -A X",)
    world.config.write_text('{"masqLinkLocal": true}')
    world.sync(actions=["-A Y"])
    state = world.remembered()
    assert state.last_change is not None and state.last_change.lines == ("ipv4, iptables_nft: rule added: -A Y",)
    assert state.drift_repaired == 0
    assert (state.values, state.previous) == ({"masq_link_local": True}, {})
    world.config.write_text('{"masqLinkLocal": false}')
    world.sync()
    world.sync()
    assert world.remembered().previous == {"masq_link_local": True}


def test_long_changes_are_remembered_in_part(world: World) -> None:
    outcome = world.sync(actions=["-A X%d" % number for number in range(50)])
    assert len(outcome.changes) == 50
    state = world.remembered()
    assert state.last_change is not None
    assert len(state.last_change.lines) == KEPT_ACTIONS + 1
    assert state.last_change.lines[-1] == "and 30 more"


class TestInvalid:
    """A broken config file: the last valid policy stays active."""

    def test_without_a_previous_policy_rules_are_left_unchanged(self, world: World) -> None:
        world.config.write_text(BROKEN)
        outcome = world.sync()
        assert world.policies == []
        assert outcome.result is None
        assert outcome.errors[0].endswith("; rules left unchanged")
        assert snapshot.last_sync(world.paths) is None

    def test_it_is_counted_and_remembered_once(self, world: World) -> None:
        world.sync()
        world.config.write_text(BROKEN)
        world.sync()
        first = world.remembered()
        for _again in range(3):
            assert world.sync().errors
        assert world.remembered() == first
        assert (first.config_errors, first.failing) == (1, True)
        world.config.write_text("{")
        world.sync()
        assert world.remembered().config_errors == 2

    def test_no_snapshot_is_kept(self, world: World) -> None:
        world.sync()
        world.config.write_text(BROKEN)
        world.sync()
        assert not world.has_snapshot()


class TestFailing:
    """A node whose rules cannot be synced."""

    def test_error_is_reported_and_remembered(self, world: World) -> None:
        outcome = world.sync(trouble="iptables is missing")
        assert outcome.errors == ("iptables is missing",)
        state = world.remembered()
        assert state.last_error is not None and state.last_error.lines == ("iptables is missing",)
        assert state.failing and state.config_errors == 0
        assert snapshot.last_sync(world.paths) is None

    def test_one_family_s_error_does_not_hide_the_other_s_change(self, world: World) -> None:
        outcome = world.sync(actions=["-A X"], errors=["ipv6: no module"])
        assert outcome.changes and outcome.errors == ("ipv6: no module",)
        assert snapshot.last_sync(world.paths) is None
        assert not world.has_snapshot()

    def test_snapshot_of_an_earlier_time_goes_before_anything_else(self, world: World) -> None:
        world.sync()
        world.sync(trouble="killed here")
        assert not world.has_snapshot()


class TestEmptied:
    """A file that is empty where it said something: an editor that truncates a file may be about to write it."""

    @pytest.fixture(autouse=True)
    def good(self, world: World) -> None:
        """An active policy."""
        world.config.write_text('{"masqLinkLocal": true}')
        world.sync()

    @staticmethod
    def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        """Have it be later: nobody can set back the time at which a file was changed."""
        now = time.time()
        monkeypatch.setattr(effective_policy.time, "time", lambda: now + seconds)

    @pytest.mark.parametrize("text", ["", "\n", "# managed by hand\n", "---\n", "---\n# nonMasqueradeCIDRs:\n"])
    def test_last_good_policy_stays_in_force_for_a_moment(
        self, world: World, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        world.config.write_text(text)
        outcome = world.sync(actions=["-A X"])
        assert world.policies[-1].masq_link_local
        assert outcome.errors == () and outcome.changes, "repairs go on"
        (warning,) = outcome.warnings
        assert warning.startswith("%s is empty: the last valid configuration stays active until" % world.config)
        assert not world.has_snapshot(), "the next resync must look again"
        assert world.sync().warnings == ()
        self.pass_time(monkeypatch, effective_policy.EMPTIED_FOR - 5)
        world.sync()
        assert world.policies[-1].masq_link_local
        self.pass_time(monkeypatch, effective_policy.EMPTIED_FOR + 5)
        world.sync()
        assert not world.policies[-1].masq_link_local
        assert world.has_snapshot()

    def test_an_emptied_drop_in_is_held_back_as_well(self, world: World) -> None:
        drop_in = world.config.parent / "config.d" / "a.json"
        drop_in.parent.mkdir()
        drop_in.write_text('{"resyncInterval": "5m"}')
        world.sync()
        drop_in.write_text("")
        outcome = world.sync()
        assert outcome.policy.values == {"masq_link_local": True, "resync_interval": "5m"}
        assert str(drop_in) in outcome.warnings[0]

    def test_a_new_drop_in_that_is_empty_keeps_nothing_back(self, world: World) -> None:
        drop_in = world.config.parent / "config.d" / "a.json"
        drop_in.parent.mkdir()
        drop_in.write_text("")
        assert world.sync().warnings == ()

    def test_a_clock_that_was_set_back_does_not_hold_it_back_for_longer(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.config.write_text("")
        self.pass_time(monkeypatch, -1000)
        assert world.sync().policy.values == {}


def test_timer_is_given_the_interval_of_the_policy_after_the_rules(world: World) -> None:
    given: t.List[t.Tuple[int, int]] = []
    node = Node(world._run)
    sync.sync(node, world.paths, lambda interval: given.append((interval, len(world.policies))))
    world.config.write_text('{"resyncInterval": "1m30s"}')
    sync.sync(node, world.paths, lambda interval: given.append((interval, len(world.policies))))
    assert given == [(60 * 10**9, 1), (90 * 10**9, 2)]


def test_a_timer_that_cannot_be_set_is_reported(world: World) -> None:
    def refuse(_interval: int) -> None:
        raise NodeError("no answer")

    done = sync.sync(Node(world._run), world.paths, refuse)
    assert done.errors == () and done.warnings == ("the timer keeps its previous interval: no answer",)


class TestMetrics:
    """The metrics file, where one is asked for."""

    @pytest.fixture(autouse=True)
    def wanted(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ask for it, on a node whose kernel tracks no connections."""
        monkeypatch.setattr(conntrack, "statistics", lambda: None)
        world.paths = world.paths._replace(metrics_dir=str(world.metrics))

    def test_they_follow_what_happens(self, world: World) -> None:
        world.sync()
        values = world.metric_values()
        assert values.pop("last_success_timestamp_seconds") > 0
        assert values.pop("in_sync") == 1
        assert values == dict.fromkeys(values, 0) and {"config_broken", "drift_repaired_total"} <= set(values)
        world.sync(actions=["-A X"])
        world.config.write_text(BROKEN)
        world.sync()
        values = world.metric_values()
        assert (values["in_sync"], values["config_broken"]) == (1, 1)
        assert (values["config_errors_total"], values["drift_repaired_total"]) == (1, 1)
        world.sync(trouble="no")
        assert world.metric_values()["in_sync"] == 0

    def test_counters_and_ranges_are_those_of_the_policy(self, world: World) -> None:
        cidrs = ["10.0.0.0/8", "10.0.0.0/9", "fd00::/8"]
        world.config.write_text(json.dumps({"enableIPv6": True, "nonMasqueradeCIDRs": cidrs}))
        world.sync()
        values = parse((world.metrics / "ip_masq_agent.prom").read_text()).values
        assert values["ip_masq_agent_exempt_cidrs", (("family", "ipv4"),)] == 2  # link-local, 10.0.0.0/8
        assert values["ip_masq_agent_exempt_cidrs", (("family", "ipv6"),)] == 2
        for family in ("ipv4", "ipv6"):
            labels = (("family", family), ("verdict", "masqueraded"))
            assert values["ip_masq_agent_packets_total", labels] == 3

    def test_the_last_verification_is_counted(self, world: World) -> None:
        write_verification(world.paths, Verification(1e9, False, 9, 2, "9 kinds of packets, 2 conflicts"))
        world.sync()
        values = world.metric_values()
        assert (values["verification_conflicts"], values["last_verification_timestamp_seconds"]) == (2, 1e9)

    def test_they_can_be_read_by_node_exporter_and_replaced_whole(self, world: World) -> None:
        world.sync()
        path = world.metrics / "ip_masq_agent.prom"
        first = path.stat()
        assert first.st_mode & 0o777 == 0o644
        world.sync()
        assert path.stat().st_ino != first.st_ino
        assert [entry.name for entry in world.metrics.iterdir()] == [path.name]

    def test_a_directory_that_is_gone_is_a_warning_once_and_no_error(self, world: World) -> None:
        world.metrics.rmdir()
        outcome = world.sync(actions=["-A X"])
        assert outcome.changes and outcome.errors == () and not world.remembered().failing
        (warning,) = outcome.warnings
        assert warning.startswith("metrics not written: cannot write to %s: " % world.metrics)
        assert warning.endswith("/metrics: No such file or directory")
        again = world.sync()
        assert (again.warnings, again.unrecorded) == ((), (warning,))
        world.metrics.mkdir()
        assert world.sync().unrecorded == ()
        assert world.metric_values()["in_sync"] == 1
        (world.metrics / "ip_masq_agent.prom").unlink()
        world.metrics.rmdir()
        assert world.sync().warnings == (warning,)

    def test_counters_that_cannot_be_read_are_a_warning(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_arguments: object) -> None:
            raise NodeError("no counters")

        monkeypatch.setattr(Result, "counted", refuse)
        outcome = world.sync()
        assert (outcome.errors, outcome.warnings) == ((), ("metrics not written: no counters",))


class TestRecords:
    """A failure to record something prevents no repair. With real file systems: the kernel tests."""

    @staticmethod
    def obstruct(*paths: str) -> None:
        """Keep files from being written, for root too: there are directories in their places."""
        for path in paths:
            Path(path).mkdir(parents=True)

    def test_state_comes_before_metrics(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(*_arguments: object) -> None:
            raise NodeError(repr(world.remembered().last_change))

        world.paths = world.paths._replace(metrics_dir=str(world.metrics))
        monkeypatch.setattr(shared_directory, "write", write)
        (unrecorded,) = world.sync(actions=["-A X"]).unrecorded
        assert "-A X" in unrecorded

    def test_state_is_kept_until_the_next_boot_where_its_place_cannot_be_written(self, world: World) -> None:
        self.obstruct(world.paths.state_file)
        for _again in range(3):
            world.sync(actions=["-A X"])
        state = world.remembered()
        assert state.drift_repaired == 2
        assert state.unrecorded == ("cannot write %s: Is a directory" % world.paths.state_file,)
        Path(world.paths.state_file).rmdir()
        world.sync(actions=["-A X"])
        now = world.remembered()
        assert now == state._replace(drift_repaired=3, unrecorded=(), last_change=now.last_change, repairs=now.repairs)
        assert [repair.times for repair in now.repairs] == [3]
        assert Path(world.paths.state_file).exists() and not Path(world.paths.spare_state_file).exists()

    def test_where_nothing_can_be_recorded_each_run_reports_it(self, world: World) -> None:
        self.obstruct(world.paths.state_file, world.paths.spare_state_file)
        for _again in range(2):
            outcome = world.sync(actions=["-A X"])
            assert outcome.changes and outcome.errors == ()
            assert outcome.warnings == ("cannot write %s: Is a directory" % world.paths.state_file,)


class TestNotes:
    """What an operator should know, and has not asked for."""

    TYPO = '{"nonMasqueradeCIDR": ["10.0.0.0/8"], "cidrLimit": 64}'

    def test_a_new_one_is_logged_once_and_again_when_it_comes_back(self, world: World) -> None:
        world.config.write_text(self.TYPO)
        (warning,) = world.sync().warnings
        assert "'nonMasqueradeCIDR' is not known" in warning
        assert world.sync().warnings == ()
        world.config.write_text('{"masqLinkLocal": true, "nonMasqueradeCIDR": []}')
        assert world.sync().warnings == ()
        world.config.write_text("{}")
        assert world.sync().warnings == ()
        world.config.write_text(self.TYPO)
        assert world.sync().warnings == (warning,)

    def test_each_new_one_is_logged_by_itself(self, world: World) -> None:
        world.config.write_text(self.TYPO)
        world.sync()
        world.config.write_text('{"nonMasqueradeCIDR": [], "cidrLimits": 3, "nonMasqueradeCIDRs": ["0.0.0.0/0"]}')
        first, second = world.sync(notes=["0.0.0.0/0 exempts everything"]).warnings
        assert "'cidrLimits' is not known" in first and second == "0.0.0.0/0 exempts everything"

    def test_a_broken_file_does_not_have_them_logged_again(self, world: World) -> None:
        world.config.write_text(self.TYPO)
        world.sync()
        world.config.write_text("{")
        world.sync()
        world.sync(trouble="no iptables")
        world.config.write_text(self.TYPO)
        assert world.sync().warnings == ()

    def test_another_holder_of_a_lock_is_nothing_new(self, world: World) -> None:
        """Each time it is another process; no tick may write the state for that, or log it again."""
        held = "ipv4: the xtables lock stayed taken, by process %d (iptables -A X (%d)). Wait"
        written = set()
        for number in range(3):
            outcome = world.sync(errors=[held % (number, number)], notes=[held % (number, number)])
            assert outcome.errors == (held % (number, number),)
            about = Path(world.paths.state_file).stat()
            assert len(outcome.warnings) == (1 if number == 0 else 0)
            written.add((about.st_ino, about.st_mtime_ns))
        assert len(written) == 1
        state = world.remembered()
        assert state.last_error is not None and state.last_error.lines == (held % (0, 0),)
        world.sync(errors=["ipv4: something else"])
        assert world.remembered().last_error != state.last_error


steps = st.lists(
    st.tuples(
        st.sampled_from(["{}", '{"masqLinkLocal": true}', '{"masqLinkLocal": false}', BROKEN, "{", ""]),
        st.sampled_from([(), ("-A X",), ("-A X", "-A Y")]),
        st.sampled_from([(), ("ipv6: no module",)]),
        st.sampled_from([None, None, None, "no iptables"]),
    ),
    max_size=8,
)


#: Fewer examples than elsewhere: each is a history of up to eight syncs.
@settings(
    max_examples=settings.default.max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps)
def test_any_history_adds_up(world: World, history: t.Any) -> None:
    # Without processes of their own for files: there are thousands of syncs.
    with pytest.MonkeyPatch.context() as patch:
        for module in (sync, effective_policy, state_files):
            patch.setattr(module, "limited", at_once)
        follow(world, history)


def at_once(work: t.Callable[[], t.Any], _seconds: float, _what: str) -> t.Any:
    """Do the work of ``limited`` here."""
    try:
        return work()
    except OSError as exc:
        raise NodeError(str(exc)) from None


def follow(world: World, history: t.Any) -> None:
    """Sync through a history of configurations and repairs."""
    if Path(world.paths.state_file).exists():
        Path(world.paths.state_file).unlink()
    drift, good = 0, None
    repaired: t.Counter[t.Any] = collections.Counter()
    for text, actions, errors, trouble in history:
        world.config.write_text(text)
        outcome = world.sync(actions, errors, trouble)
        state = world.remembered()
        broken = text in (BROKEN, "{")
        done = trouble is None and (good is not None or not broken)
        # An empty file is not believed as long as it is new, and an editor may be about to write it.
        kept = broken or (text == "" and good is not None)
        before, good = good, good if kept else {"masq_link_local": "true" in text} if "masq" in text else {}
        drift += bool(done and actions and before == good and before is not None)
        assert state.drift_repaired == drift
        assert state.values == good
        assert state.failing == bool(outcome.errors) == bool(broken or errors and done or trouble and good is not None)
        if before != good:
            repaired.clear()
        elif done and actions:
            repaired[actions] += 1
        assert bool(outcome.changes) == bool(done and actions and repaired[actions] < 2)
        again = [line for line in outcome.warnings if ": repaired 2 times since " in line]
        assert len(again) == (1 if done and actions and repaired[actions] == 2 else 0)
