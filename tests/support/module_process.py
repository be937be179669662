# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a module of the collection inside this process as Ansible would on a node, without a controller.

As a program, with the name of the module: reads its options as JSON from standard input, and prints what it returned.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback
import typing as t
from unittest import mock

from ansible.module_utils import basic

try:
    from ansible.module_utils.testing import patch_module_args
except ImportError:

    def patch_module_args(args: t.Any = None) -> t.ContextManager[t.Any]:
        """Do what ansible-core 2.19 and later do."""
        # Private, but what the guide to unit tests of earlier releases tells authors of modules to set.
        raw = json.dumps({"ANSIBLE_MODULE_ARGS": args}).encode()
        return mock.patch("ansible.module_utils.basic._ANSIBLE_ARGS", raw)


MODULES = "ansible_collections.kubenode.ip_masq.plugins.modules."


class Run(t.NamedTuple):
    """One call of the module."""

    options: t.Dict[str, t.Any]
    check: bool = False
    diff: bool = False
    module: str = "ip_masq"


def run(one: Run) -> t.Dict[str, t.Any]:
    """Return what the module returns. A module that crashed returns its traceback as ``crashed``."""
    arguments = dict(one.options, _ansible_check_mode=one.check, _ansible_diff=one.diff)
    return call(lambda: runpy.run_module(MODULES + one.module, run_name="__main__", alter_sys=True), arguments)


def call(start: t.Callable[[], object], arguments: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Return what a module returns that is started like this; see ``run``.

    :param arguments: its options, and settings of Ansible.
    """
    out = io.StringIO()
    warnings: t.List[str] = []
    # ansible-core 2.19 and later print warnings, in place of returning them, if the controller's code is imported.
    collected = mock.patch.object(basic.AnsibleModule, "warn", lambda _module, text, **_more: warnings.append(text))
    try:
        with contextlib.redirect_stdout(out), patch_module_args(dict(arguments)), collected:
            start()
    except SystemExit:
        pass
    except BaseException:
        return {"failed": True, "crashed": traceback.format_exc()}
    try:
        result: t.Dict[str, t.Any] = json.loads(out.getvalue())
    except ValueError:
        return {"failed": True, "crashed": "not one JSON object on standard output: %r" % out.getvalue()}
    if warnings:
        result["warnings"] = warnings
    return result


if __name__ == "__main__":
    print(json.dumps(run(Run(json.load(sys.stdin), module=sys.argv[1]))))
