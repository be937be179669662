# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kubespray's variables mean for the networks of a cluster."""

from __future__ import annotations

import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..plugin_utils import _filters
from ..plugin_utils._kubespray import derive


def kubespray(
    hosts: t.Sequence[str], nodes: t.Sequence[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]
) -> t.Dict[str, t.Any]:
    """See above.

    :raises ConfigError: a value has no meaning, or hosts do not agree about it.
    """
    found = derive(hosts, nodes, hostvars)._asdict()
    # They can quote a template that could not be evaluated, and must not be taken for one.
    return {**found, "lines": wrap_var(found["lines"])}


FilterModule = _filters.plugin(kubespray)
