# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A function as a filter plugin."""

from __future__ import annotations

import functools
import typing as t

from ansible.errors import AnsibleFilterError

from ..module_utils._errors import ConfigError


def plugin(function: t.Callable[..., t.Any]) -> t.Type[t.Any]:
    """Return what Ansible looks for in the file of a filter: a class that has it by its name.

    What the function refuses with a ConfigError is an error of the filter.
    """

    @functools.wraps(function)
    def filtered(*values: t.Any, **options: t.Any) -> t.Any:
        try:
            return function(*values, **options)
        except ConfigError as exc:
            raise AnsibleFilterError("kubenode.ip_masq.%s: %s" % (function.__name__, exc)) from None

    return type("FilterModule", (), {"filters": lambda _self: {function.__name__: filtered}})
