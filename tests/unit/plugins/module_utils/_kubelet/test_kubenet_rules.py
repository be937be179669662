# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rules are kubenet's, and nothing else. How they are deleted is shown in tests/kernel."""

from __future__ import annotations

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine.iptables_syntax import parse_postrouting
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.kubenet_rules import COMMENTS, is_kubenet_rule

SHAPE = '-A POSTROUTING ! -d %s -m comment --comment "%s" -m addrtype ! --dst-type LOCAL -j MASQUERADE'


def judged(line: str) -> bool:
    (rule,) = parse_postrouting([line])
    return is_kubenet_rule(rule)


@pytest.mark.parametrize("comment", COMMENTS)
@pytest.mark.parametrize("cidr", ["10.0.0.0/8", "10.152.183.0/24", "fd00::/8", "10.1.2.3/32"])
def test_the_rule_of_kubenet_is_known(comment: str, cidr: str) -> None:
    assert judged(SHAPE % (cidr, comment))


@pytest.mark.parametrize(
    "line",
    [
        SHAPE.replace(" ! -d %s", "%.0s") % ("", COMMENTS[0]),
        SHAPE.replace("! -d", "-d") % ("10.0.0.0/8", COMMENTS[0]),
        SHAPE.replace("! --dst-type", "--dst-type") % ("10.0.0.0/8", COMMENTS[0]),
        SHAPE.replace("-j MASQUERADE", "-j ACCEPT") % ("10.0.0.0/8", COMMENTS[0]),
        SHAPE % ("10.0.0.0/8", COMMENTS[0]) + " --random-fully",
        SHAPE.replace("POSTROUTING", "POSTROUTING -o eth0") % ("10.0.0.0/8", COMMENTS[0]),
        SHAPE % ("10.0.0.0/8", "mine: SNAT for outbound traffic from cluster"),
        '-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING',
        "-A POSTROUTING ! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE",
    ],
)
def test_every_other_rule_is_left_alone(line: str) -> None:
    assert not judged(line)
