# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task of Ansible is given and what it returns."""

from __future__ import annotations

import os
import typing as t

#: The options of a module, each with its value.
Params = t.Mapping[str, t.Any]


class Done(t.NamedTuple):
    """What a task of Ansible returns: its values, its warnings, and its message if it failed, else an empty one."""

    returned: t.Dict[str, t.Any]
    warnings: t.Tuple[str, ...] = ()
    failure: str = ""

    def end(self, module: t.Any) -> None:
        """End a module of Ansible with it."""
        for warning in self.warnings:
            module.warn(warning)
        if self.failure:
            module.fail_json(msg=self.failure, **self.returned)
        module.exit_json(**self.returned)


def named(note: str) -> str:
    """Name this node in a warning. Ansible prints warnings without a host, and equal ones of several hosts once."""
    return "%s: %s" % (os.uname().nodename, note)
