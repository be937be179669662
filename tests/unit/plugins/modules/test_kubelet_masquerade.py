# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the code: its options, what it returns, and its documentation."""

from __future__ import annotations

import json
import os
import re
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.state_files import (
    Verification,
    read_verification,
    write_verification,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet import decide, manage
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.manage import manage_kubelets
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.options import Options
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import process as runner
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks import kubelet_task
from ansible_collections.kubenode.ip_masq.plugins.modules import kubelet_masquerade as module
from support import kubelet_distributions as made
from support import module_process
from support.kubelet_node import KubeletNode, make_node
from support.private_node import private_paths

DOCUMENTATION = yaml.safe_load(module.DOCUMENTATION)
RETURN = yaml.safe_load(module.RETURN)
SET = "--non-masquerade-cidr=0.0.0.0/0"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[KubeletNode]:
    """A node that the module takes for the machine it runs on."""
    fresh = make_node(tmp_path, monkeypatch)

    def here(options: Options, _run: runner.Runner, check: bool) -> t.Any:
        return manage_kubelets(options, fresh.run, check, str(fresh.root))

    monkeypatch.setattr(kubelet_task, "manage_kubelets", here)
    monkeypatch.setattr(kubelet_task, "Paths", lambda: private_paths(tmp_path))
    yield fresh
    fresh.close()


def run(monkeypatch: pytest.MonkeyPatch, **options: t.Any) -> t.Dict[str, t.Any]:
    """What the module prints."""
    monkeypatch.setattr(sys, "argv", ["kubelet_masquerade"])
    return module_process.call(module.main, options)


def undocumented(value: t.Any, docs: t.Mapping[str, t.Any], where: str = "") -> t.List[str]:
    """Keys that RETURN does not know, or knows with another type."""
    found = []
    for name, content in value.items():
        entry = docs.get(name)
        kinds = {"str": str, "bool": (bool, type(None)), "list": list, "dict": dict}
        if entry is None or not isinstance(content, kinds[entry["type"]]):
            found.append(where + name)
        elif entry["type"] == "list" and entry["elements"] == "dict":
            keys = entry.get("contains") or {key: {"type": "str"} for key in entry["sample"][0]}
            found += [bad for one in content for bad in undocumented(one, keys, name + ".")]
    return found


def test_a_change_is_reported_as_documented(node: KubeletNode, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=--v=2 %s\n" % SET)
    node.start("kubelet")
    dry = run(monkeypatch, healthz_url=node.healthz, _ansible_check_mode=True, _ansible_diff=True)
    assert dry["changed"] and node.restarts() == [] and SET.encode() in node.read(path)
    done = run(monkeypatch, healthz_url=node.healthz, _ansible_diff=True)
    assert (done["changed"], done["decision"], done["files"]) == (True, "remove_stale", [path])
    (kubelet,) = done["kubelets"]
    assert (kubelet["distribution"], kubelet["version"], kubelet["flag_supported"]) == ("kubeadm", "v1.30.4", False)
    assert (
        done["diff"]
        == dry["diff"]
        == [
            {
                "before_header": path,
                "after_header": path,
                "before": "KUBELET_EXTRA_ARGS=--v=2 %s\n" % SET,
                "after": "KUBELET_EXTRA_ARGS=--v=2\n",
            }
        ]
    )
    assert kubelet["configured"] == [{"where": path + ", KUBELET_EXTRA_ARGS", "value": "0.0.0.0/0"}]
    ours = {name: value for name, value in done.items() if name not in ("changed", "diff", "invocation", "warnings")}
    assert undocumented(ours, RETURN) == [] and set(ours) == set(RETURN)


def test_what_was_verified_before_a_change_is_dropped(
    node: KubeletNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The status would show kubenet's rule as a conflict although it is gone."""
    paths = private_paths(tmp_path)
    found = Verification(1e9, False, 9, 1, "10.8.0.0/16: kubenet")
    write_verification(paths, found)
    made.kubeadm(node, "1.30.4", "KUBELET_EXTRA_ARGS=--v=2 %s\n" % SET)
    node.start("kubelet")
    run(monkeypatch, healthz_url=node.healthz, _ansible_check_mode=True)
    assert read_verification(paths) == found
    assert run(monkeypatch, healthz_url=node.healthz)["changed"]
    assert read_verification(paths) is None
    write_verification(paths, found)
    assert not run(monkeypatch, healthz_url=node.healthz)["changed"]
    assert read_verification(paths) == found


def test_a_failure_keeps_its_reasons(node: KubeletNode, monkeypatch: pytest.MonkeyPatch) -> None:
    made.kubespray(node, "1.30.4", SET)
    failed = run(monkeypatch, healthz_url=node.healthz)
    assert failed["failed"] and not failed["changed"] and "kubelet_custom_flags" in failed["msg"]
    assert failed["decision"] == "managed_elsewhere"


def test_a_warning_reaches_the_operator(node: KubeletNode, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, unit="k3s")
    assert done["decision"] == "no_kubelet" and done["kubelets"] == []
    assert all(warning.startswith(os.uname().nodename + ": ") for warning in done["warnings"])
    assert "was not found on this node" in json.dumps(done["warnings"])


def test_refused_options_are_a_message_and_no_traceback(node: KubeletNode, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = run(monkeypatch, args_file="/etc/kubernetes/kubelet.env", args_variable="KUBELET_ARGS")
    assert failed["failed"] and "is never edited" in failed["msg"]
    assert node.calls == []


def test_every_decision_is_documented() -> None:
    code = "".join(Path(module.__file__ or "").read_text() for module in (decide, manage))
    # Also two of which one holds: KubeletDecision("x" if supported else "y", ...
    found = re.findall(r'(?:\bKubeletDecision\(|\bKubeletReport\(|name = )"(\w+)"(?: if supported else "(\w+)")?', code)
    names = {name for both in found for name in both if name}
    documented = set(re.findall(r"(?<!R)V\((\w+)\)", " ".join(RETURN["decision"]["description"])))
    assert names == documented
