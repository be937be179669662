# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of modules as a terminal may show them: the text in them is a node's, and Ansible prints it as it is."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import merge_hash

from ..module_utils._policy.policy import NULL_REFUSED
from ..module_utils._system.printable import shown

#: What Ansible prints of a difference: text.
_DIFF = ("before", "after", "before_header", "after_header", "prepared")

#: A module cannot tell null from not set.
_EXEMPT = "non_masquerade_cidrs"

Result = t.Dict[str, t.Any]


class ShownResult(ActionBase):
    """An action plugin that runs a module, and returns what can be shown."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: t.Any = None, task_vars: t.Optional[t.Dict[str, t.Any]] = None) -> Result:
        """Do the task. Ansible's own documentation describes the parameters and the result."""
        if self._task.args.get(_EXEMPT, ()) is None:
            raise AnsibleActionFail(NULL_REFUSED % _EXEMPT)
        result = super().run(tmp, task_vars)
        wrap_async = self._task.async_val
        done = self._done(wrap_async, task_vars)
        if not wrap_async:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return t.cast(Result, merge_hash(result, shown_result(done)))

    def _done(self, wrap_async: int, task_vars: t.Optional[t.Dict[str, t.Any]]) -> Result:
        """Run the module."""
        return t.cast(Result, self._execute_module(task_vars=task_vars, wrap_async=wrap_async))


def shown_result(result: Result) -> Result:
    """Return the result of a module with nothing in it that a terminal acts on, and no difference of another shape."""
    found = t.cast(Result, printable(result))
    if "diff" in found:
        diff = found["diff"] if isinstance(found["diff"], list) else [found["diff"]]
        parts = [
            {name: one[name] for name in _DIFF if isinstance(one.get(name), str)}
            for one in diff
            if isinstance(one, dict)
        ]
        found["diff"] = [one for one in parts if ("before" in one) == ("after" in one)]
    return found


def printable(value: t.Any) -> t.Any:
    """Return a value with all text in it as ``shown``, line by line."""
    if isinstance(value, str):
        return re.sub("[^\n\t]+", lambda part: shown(part[0]), value)
    if isinstance(value, dict):
        return {printable(name): printable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # warnings of ansible-core 2.19
        return dataclasses.replace(
            value, **{one.name: printable(getattr(value, one.name)) for one in dataclasses.fields(value) if one.init}
        )
    return value
