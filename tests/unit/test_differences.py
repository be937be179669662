# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documented list of what ip-masq-agent reads differently: each of its rows, with inputs that show it."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy import config_file
from ansible_collections.kubenode.ip_masq.plugins.module_utils._policy.policy import build, file_key
from support.import_collection import ROOT


def _rows() -> t.Dict[str, str]:
    """Our column, by the first one."""
    text = Path(ROOT, "docs", "operations.md").read_text(encoding="utf-8")
    section = text.split("### What the Go agent reads differently")[1].split("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[-1].strip() for row in cells[1:]}


def _yaml(key: str, *values: str) -> t.List[str]:
    return ["%s: %s\n" % (key, value) for value in values]


#: Text that the first column of a row begins with, and files. Those of flags are given as the key of the file.
INPUTS: t.Dict[str, t.Sequence[t.Union[str, bytes]]] = {
    "`--masq-chain` with other": [
        *_yaml("masqChain", "'A:B'", "A+B", "A=B", "A/B", "'A B'", ".A", "'-A'", "INPUT", "mark", "KUBE-X", "cali-x"),
        *_yaml("masqChain", "FLANNEL-X", "cilium_x", "CNI-x", "docker", "LIBVIRT_X", "weave", "netavark-x"),
    ],
    "`--to-ports`": [
        *_yaml("toPorts", "'0'", "0-100", "'+42'", "1-65536", "['1', '0']"),
        *_yaml("resyncInterval", "999ms", "0s", "-5s"),
        *_yaml("cidrLimit", "64.0", "1e2", "0o100", "0x40", "08"),
    ],
    "a prefix length": [
        *("enableIPv6: true\nnonMasqueradeCIDRs: ['%s']\n" % one for one in ("::/00", "10.0.0.0/08")),
        "enableIPv6: true\nnonMasqueradeCIDRs: ['::ffff:10.0.0.0/104']\n",
        *_yaml("nonMasqueradeCIDRs", "[null]", "[10.0.0.0/8, null]"),
    ],
    "a duplicate key": [
        *("cidrLimit: 3\ncidrLimit: 4\n", '{"cidrLimit": 3, "CIDRLIMIT": 4}'),
        "cidrLimit: 3\n---\ncidrLimit: 4\n",
        *("unknown: 1\n", '{"masqLinkLocl": true}', "ip_masq_agent_enable_ipv6: true\n"),
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  config: 'masqLinkLocal: true'\n",
    ],
    "YAML aliases": [
        *("a: &x 1\nb: *x\n", "<<: {cidrLimit: 3}\n", "masqLinkLocal: !!bool true\n"),
        *_yaml("masqLinkLocal", "y", "n"),
        *("{resyncInterval: 5m}", "cidrLimit:\t3\n\tmasqLinkLocal: true\n"),
    ],
    "damaged JSON": [
        *('#{"cidrLimit": 3}', '# a\n# {"cidrLimit": 3}\n'),
        *('x{"cidrLimit": 3}', "cidrLimit]: 3\n"),
    ],
    "UTF-16": [
        *("cidrLimit: 3\n".encode("utf-16"), b"a: \xff\n"),
        *("a: %s\n" % ("x" * 4097), "toPorts: [%s]\n" % ", ".join(["'1'"] * 101)),
    ],
    "`%YAML 1.2`": ["%YAML 1.2\n---\ncidrLimit: 3\n", "%FOO bar\n---\ncidrLimit: 3\n"],
    "a key that is null": ["%s: 1\ncidrLimit: 3\n" % key for key in ("~", "7", "true", '"\\ud800"')],
}


def test_each_difference_is_shown() -> None:
    assert [next((row for row in _rows() if row.startswith(start)), start) for start in INPUTS] == list(_rows())


@pytest.mark.parametrize("start", INPUTS)
def test_what_only_one_accepts_is_documented_as_it_is(start: str, tmp_path: Path) -> None:
    (ours,) = [cell for row, cell in _rows().items() if row.startswith(start)]
    for number, content in enumerate(INPUTS[start]):
        path = tmp_path / str(number)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            build(config_file.load(str(path)).values, label=file_key)
        except ConfigError as exc:
            assert ours.startswith("error"), (content, exc)
        else:
            assert re.match("accepted|an unknown key", ours), content
