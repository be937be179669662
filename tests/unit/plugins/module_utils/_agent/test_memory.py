# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent remembers, and which policy is in force when the files are broken."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import memory as states
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import restraint
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.private_node import make_private

GOOD = {"non_masquerade_cidrs": ["10.1.0.0/16"], "masq_link_local": True}


@pytest.fixture(autouse=True)
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """State of our own."""
    make_private(monkeypatch, tmp_path)


@pytest.fixture
def keep() -> Path:
    """The state file. One for all examples of a test: each overwrites it."""
    path = Path(states.STATE_FILE)
    path.parent.mkdir(parents=True)
    return path


one_node = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
lines = st.lists(st.text(max_size=20), min_size=1, max_size=3).map(tuple)
events = st.none() | st.builds(states.Event, st.floats(0, 4e9), lines)
remembered = st.builds(
    states.State,
    values=st.none() | st.just(GOOD),
    sources=lines,
    last_change=events,
    last_error=events,
    failing=st.booleans(),
    drift_repaired=st.integers(0, 10**9),
    config_errors=st.integers(0, 10**9),
    notes=lines,
    unrecorded=lines,
    harmless=st.lists(st.builds(restraint.Done, st.floats(0, 4e9)), max_size=3).map(tuple),
)


@one_node
@given(remembered)
def test_what_is_saved_is_loaded(keep: Path, state: states.State) -> None:
    states.save(state)
    assert states.load() == state


def test_nothing_is_remembered_before_the_first_run() -> None:
    assert states.load() == states.State()


def test_state_is_root_s_business() -> None:
    states.save(states.State())
    path = Path(states.STATE_FILE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
any_field = st.dictionaries(st.sampled_from([*states.State._fields, "strange"]), json_values, max_size=4)


@one_node
@given(st.binary(max_size=60) | (json_values | any_field).map(lambda value: json.dumps(value).encode()))
def test_no_damage_to_the_file_keeps_the_agent_from_working(keep: Path, content: bytes) -> None:
    keep.write_bytes(content)
    state = states.load()
    states.policy_in_force(str(keep.parent / "none"), state)
    # What was read can be counted on and kept again.
    states.save(state._replace(drift_repaired=state.drift_repaired + 1, config_errors=state.config_errors + 1))
    assert states.load() is not None


DAMAGED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 100_000,
    b'{"values": {"masq_chain": "POSTROUTING"}}',
    b'{"values": []}',
    b'{"drift_repaired": null}',
    b'{"drift_repaired": "3"}',
    b'{"config_errors": true}',
    b'{"failing": "no"}',
    b'{"last_error": {"time": 1e300, "lines": ["x"]}}',
    b'{"last_error": {"time": NaN, "lines": ["x"]}}',
    b'{"last_change": {"time": 1, "lines": []}}',
    b'{"last_change": {"time": 1}}',
    b'{"of a later version": 1}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_state_counts_as_none(keep: Path, content: bytes) -> None:
    keep.write_bytes(content)
    assert states.load() == states.State()


def test_a_directory_in_the_state_s_place_counts_as_none(keep: Path) -> None:
    keep.mkdir()
    assert states.load() == states.State()


class TestPolicy:
    """states.policy_in_force"""

    def test_no_file_means_the_defaults(self, tmp_path: Path) -> None:
        policy = states.policy_in_force(str(tmp_path / "none"), states.State())
        assert policy.config == build({})
        assert (policy.values, policy.sources, policy.problem) == ({}, (), None)

    def test_files_are_in_force_and_named(self, tmp_path: Path) -> None:
        (tmp_path / "config").write_text('{"nonMasqueradeCIDRs": ["10.2.0.0/16"]}')
        policy = states.policy_in_force(str(tmp_path), states.State(values=GOOD))
        assert policy.config == build({"non_masquerade_cidrs": ["10.2.0.0/16"]})
        assert policy.sources == (str(tmp_path / "config"),)
        assert policy.problem is None

    @pytest.mark.parametrize("text", ["{", '{"nonMasqueradeCIDRs": ["10.0.0.1/8"]}', '{"resyncInterval": 5}', "[]"])
    def test_broken_files_leave_the_last_good_policy_in_force(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "config").write_text(text)
        policy = states.policy_in_force(str(tmp_path), states.State(values=GOOD, sources=("/was/here",)))
        assert policy.config == build(GOOD)
        assert (policy.values, policy.sources) == (GOOD, ("/was/here",))
        assert policy.problem is not None and str(tmp_path / "config") in policy.problem

    def test_broken_files_and_no_earlier_policy_give_none(self, tmp_path: Path) -> None:
        (tmp_path / "config").write_text("{")
        policy = states.policy_in_force(str(tmp_path), states.State())
        assert policy.config is None
        assert policy.problem

    def test_text_that_is_going_to_be_the_file_is_taken_for_it(self, tmp_path: Path) -> None:
        (tmp_path / "config").write_text("{")
        policy = states.policy_of(str(tmp_path), '{"masqLinkLocal": true}')
        assert policy.config == build({"masq_link_local": True})
        with pytest.raises(ConfigError, match="masqLinkLocal: 3 is not a boolean"):
            states.policy_of(str(tmp_path), '{"masqLinkLocal": 3}')

    def test_error_names_all_files_that_went_into_it(self, tmp_path: Path) -> None:
        (tmp_path / "config.d").mkdir()
        (tmp_path / "config").write_text('{"cidrLimit": 1, "nonMasqueradeCIDRs": ["10.0.0.0/8"]}')
        (tmp_path / "config.d" / "a.json").write_text('{"nonMasqueradeCIDRs": ["11.0.0.0/8"]}')
        with pytest.raises(ConfigError) as error:
            states.policy_of(str(tmp_path))
        assert str(error.value).startswith(
            "%s/config, %s/config.d/a.json: nonMasqueradeCIDRs: 2 entries" % ((tmp_path,) * 2)
        )

    def test_an_unexpected_exception_is_a_broken_config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever a parser meets, healing goes on."""

        def fail(*_arguments: object, **_options: object) -> None:
            raise MemoryError("line\nbreak")

        monkeypatch.setattr(states, "read_directory", fail)
        policy = states.policy_in_force(str(tmp_path), states.State(values=GOOD))
        assert policy.config == build(GOOD)
        assert policy.problem == "%s: cannot be read (MemoryError: 'line\\nbreak'); please report this" % tmp_path
