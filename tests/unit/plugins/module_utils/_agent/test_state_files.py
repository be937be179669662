# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent remembers, whatever happens to the file."""

from __future__ import annotations

import json
import os
import stat
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import state_files
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.effective_policy import find_policy
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.held_locks import HeldLock
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.repeated_repairs import Repeated
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import (
    Event,
    Memory,
    read_memory,
    write_memory,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.private_node import private_paths

GOOD = {"non_masquerade_cidrs": ["10.1.0.0/16"], "masq_link_local": True}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Paths of a node. One for all examples of a test: each overwrites the state file."""
    paths = private_paths(tmp_path)
    Path(paths.state_dir).mkdir(parents=True)
    return paths


#: Fewer examples than elsewhere: each writes files, by processes of their own.
one_node = settings(
    max_examples=settings.default.max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
lines = st.lists(st.text(max_size=20), min_size=1, max_size=3).map(tuple)
events = st.none() | st.builds(Event, st.floats(0, 4e9), lines)
remembered = st.builds(
    Memory,
    values=st.none() | st.just(GOOD),
    previous=st.none() | st.just(GOOD),
    sources=lines,
    last_change=events,
    last_error=events,
    failing=st.booleans(),
    drift_repaired=st.integers(0, 10**9),
    config_errors=st.integers(0, 10**9),
    notes=lines,
    unrecorded=lines,
    repairs=st.lists(
        st.builds(
            Repeated,
            *(st.text(max_size=20),) * 3,
            st.integers(0, 2**32 - 1),
            *(st.floats(0, 4e9),) * 2,
            st.integers(1, 10**9),
            st.floats(0, 4e9),
            *(st.text(max_size=20),) * 2,
        ),
        max_size=3,
    ).map(tuple),
    flushed=st.integers(0, 10**9),
    held=st.lists(st.builds(HeldLock, st.text(max_size=20), st.text(max_size=20), st.integers(0, 9)), max_size=2).map(
        tuple
    ),
)


@one_node
@given(remembered)
def test_what_is_saved_is_loaded(paths: Paths, saved: Memory) -> None:
    write_memory(paths, saved)
    assert read_memory(paths) == saved


def test_only_root_can_read_the_state_file(tmp_path: Path) -> None:
    paths = private_paths(tmp_path)
    write_memory(paths, Memory())
    path = Path(paths.state_file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
any_field = st.dictionaries(st.sampled_from([*Memory._fields, "strange"]), json_values, max_size=4)


@one_node
@given(st.binary(max_size=60) | (json_values | any_field).map(lambda value: json.dumps(value).encode()))
def test_no_damage_to_the_file_prevents_the_agent_from_working(paths: Paths, content: bytes) -> None:
    Path(paths.state_file).write_bytes(content)
    loaded = read_memory(paths)
    find_policy(paths, loaded)
    # What was read can be used and written again.
    write_memory(
        paths, loaded._replace(drift_repaired=loaded.drift_repaired + 1, config_errors=loaded.config_errors + 1)
    )
    assert read_memory(paths).drift_repaired == loaded.drift_repaired + 1


DAMAGED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 100_000,
    b'{"values": {"masq_chain": "POSTROUTING"}}',
    b'{"drift_repaired": null}',
    b'{"config_errors": true}',
    b'{"failing": "no"}',
    b'{"last_error": {"time": 1e300, "lines": ["x"]}}',
    b'{"last_error": {"time": NaN, "lines": ["x"]}}',
    b'{"last_change": {"time": 1, "lines": []}}',
    b'{"of a later version": 1}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_state_counts_as_none(paths: Paths, content: bytes) -> None:
    Path(paths.state_file).write_bytes(content)
    assert read_memory(paths) == Memory()
    spare = Path(paths.spare_state_file)
    spare.parent.mkdir(parents=True)
    spare.write_bytes(b'{"drift_repaired": 3}')
    os.utime(spare, (0, 0))
    assert read_memory(paths).drift_repaired == (3 if content in DAMAGED[:6] else 0)


@pytest.mark.parametrize("content", DAMAGED[:6], ids=range(6))
def test_a_damaged_verification_counts_as_none(paths: Paths, content: bytes) -> None:
    Path(paths.verification_file).write_bytes(content)
    assert state_files.read_verification(paths) is None


@pytest.mark.parametrize("other", [{"of a later version": 1}, {"failing": "no"}, {"repairs": [[1]]}, {"repairs": 7}])
def test_a_field_of_another_release_does_not_take_the_policy_with_it(paths: Paths, other: t.Dict[str, t.Any]) -> None:
    """After a downgrade with a broken config file, the node would have no policy."""
    write_memory(paths, Memory(values=GOOD, drift_repaired=7))
    path = Path(paths.state_file)
    path.write_text(json.dumps(dict(json.loads(path.read_text()), **other)))
    assert read_memory(paths) == Memory(values=GOOD, drift_repaired=7)


def test_an_option_of_a_later_release_does_not_take_the_policy_with_it(paths: Paths) -> None:
    """As in the config file, where a key that is not known has no effect."""
    write_memory(paths, Memory(values=dict(GOOD, of_a_later_version=[1])))
    policy = find_policy(paths, read_memory(paths))
    assert build(read_memory(paths).values or {}) == build(GOOD)
    assert policy.problem is None
