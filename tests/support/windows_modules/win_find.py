# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible.windows.win_find for files of this host: what the role uses of it."""

from __future__ import annotations

import fnmatch
import os

from ansible.module_utils.basic import AnsibleModule

OPTIONS = {
    "paths": {"type": "list", "elements": "str", "required": True},
    "patterns": {"type": "list", "elements": "str"},
    "get_checksum": {"type": "bool", "default": True},
}


def main() -> None:
    """List files."""
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    files = [
        {"path": os.path.join(folder, name)}
        for folder in module.params["paths"]
        for name in os.listdir(folder)
        if any(fnmatch.fnmatch(name, pattern) for pattern in module.params["patterns"])
    ]
    module.exit_json(changed=False, files=files)


if __name__ == "__main__":
    main()
