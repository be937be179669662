# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Have the programs of Ansible keep what each run of them does again, and ask their workers less often.

A third of a short ansible-playbook is to read two large YAML files of ansible-core, and to parse every source of a
module for what it imports. After :func:`keep`, what was found in the same text before is read from a directory.
"""

import builtins
import sys
import types
from ast import PyCF_ONLY_AST
from importlib.machinery import PathFinder

from compiled_modules import once

#: The release whose search for imports is known. Others do it themselves.
_RELEASE = "2.18."
#: Bytes; reading what is smaller takes no time.
_LARGE = 10000


def keep(folder):
    """Keep results in this directory."""
    after = {
        "ansible.module_utils.common.yaml": lambda module: _keep_yaml(module, folder),
        "ansible.constants": _ask_less_often,
        "ansible.executor.module_common": lambda module: _keep_imports(module, folder),
    }

    class Finder:
        """Finds these modules where Python does, and has them changed as soon as they are loaded."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            change = after.pop(name, None)
            spec = change and PathFinder.find_spec(name, path, target)
            if spec:
                execute = spec.loader.exec_module

                def execute_and_change(module):
                    execute(module)
                    change(module)

                spec.loader.exec_module = execute_and_change
            return spec

    sys.meta_path.insert(0, Finder)


def _ask_less_often(module):
    module.DEFAULT_INTERNAL_POLL_INTERVAL = 0.01  # seconds; every 1 ms, idle processes take what others need


def _keep_yaml(module, folder):
    load = module.yaml_load

    def kept(stream):
        text = stream.read() if hasattr(stream, "read") else stream
        content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
        if len(content) < _LARGE:
            return load(text)
        return once(folder, b"YAML\0" + content, lambda: load(text))

    module.yaml_load = kept


def _keep_imports(module, folder):
    if not module.__version__.startswith(_RELEASE):
        return
    find = module.ModuleDepFinder

    def compile(source, filename, mode, flags=0):  # in place of the builtin one
        return source if flags == PyCF_ONLY_AST else builtins.compile(source, filename, mode, flags)

    def kept(name, source, is_package=False):
        content = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source

        def imports():
            tree = builtins.compile(source, "<unknown>", "exec", PyCF_ONLY_AST)
            module.ModuleDepFinder = find  # it asks for its base class by its own name
            try:
                finder = find(name, tree, is_package)
            finally:
                module.ModuleDepFinder = kept
            return finder.submodules, finder.optional_imports

        key = "imports\0%s\0%d\0" % (name, is_package)
        submodules, optional = once(folder, key.encode() + content, imports)
        return types.SimpleNamespace(submodules=submodules, optional_imports=optional)

    module.compile = compile
    module.ModuleDepFinder = kept
