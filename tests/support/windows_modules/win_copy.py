# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible.windows.win_copy for files of this host, as its action plugin calls it: a question first, then the copy."""

from __future__ import annotations

import hashlib
import os
import shutil
import typing as t

from ansible.module_utils.basic import AnsibleModule

#: What the module documents.
OPTIONS = {
    "dest": {"type": "path", "required": True},
    "src": {"type": "path"},
    "backup": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": True},
}
#: What the action plugin adds.
PRIVATE = {
    "_copy_mode": {"type": "str", "choices": ["query", "single"]},
    "_original_basename": {"type": "str"},
    "files": {"type": "list", "elements": "dict"},
    "directories": {"type": "list", "elements": "dict"},
    "symlinks": {"type": "list", "elements": "dict"},
}


def main() -> None:
    """Say which files differ, or copy one."""
    module = AnsibleModule({**OPTIONS, **PRIVATE}, supports_check_mode=True)
    if module.params["_copy_mode"] == "query":
        files = [file for file in module.params["files"] if _differs(module.params["dest"], file)]
        module.exit_json(changed=False, files=files, directories=[], symlinks=[])
    dest = module.params["dest"]
    result: t.Dict[str, t.Any] = {"changed": True}
    if module.params["backup"]:
        result["backup_file"] = dest + ".20261122-100000.bak"
        shutil.copyfile(dest, result["backup_file"])
    shutil.copyfile(module.params["src"], dest)
    module.exit_json(**result)


def _differs(folder: str, file: t.Dict[str, str]) -> bool:
    path = os.path.join(folder, file["dest"])
    with open(path, "rb") as content:
        return hashlib.sha1(content.read()).hexdigest() != file["checksum"]


if __name__ == "__main__":
    main()
