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

from ansible.module_utils import basic

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
    basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), _as_on_a_node():
            start()
    except SystemExit:
        pass
    except BaseException:
        return {"failed": True, "crashed": traceback.format_exc()}
    try:
        result: t.Dict[str, t.Any] = json.loads(out.getvalue())
    except ValueError:
        return {"failed": True, "crashed": "not one JSON object on standard output: %r" % out.getvalue()}
    if "warnings" in result:  # ansible-core 2.19 and later: objects, of which the controller takes the text
        result["warnings"] = [one["event"]["msg"] if isinstance(one, dict) else one for one in result["warnings"]]
    return result


@contextlib.contextmanager
def _as_on_a_node() -> t.Iterator[None]:
    """Have ansible-core 2.19 and later return warnings, which it prints where the controller's code is imported."""
    if not hasattr(basic, "_ANSIBLE_PROFILE"):
        yield
        return
    from ansible.module_utils import _internal

    basic._ANSIBLE_PROFILE = "legacy"
    before = _internal.is_controller
    _internal.is_controller = False
    try:
        yield
    finally:
        _internal.is_controller = before


if __name__ == "__main__":
    print(json.dumps(run(Run(json.load(sys.stdin), module=sys.argv[1]))))
