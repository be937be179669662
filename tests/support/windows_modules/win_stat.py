# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible.windows.win_stat for files of this host: what the role uses of it."""

from __future__ import annotations

import os

from ansible.module_utils.basic import AnsibleModule

OPTIONS = {
    "path": {"type": "path", "required": True},
    "follow": {"type": "bool", "default": False},
    "get_checksum": {"type": "bool", "default": True},
    "get_size": {"type": "bool", "default": True},
}


def main() -> None:
    """Ask for a path."""
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    path = module.params["path"]
    exists = os.path.exists(path)
    module.exit_json(changed=False, stat={"exists": exists, **({"isdir": os.path.isdir(path)} if exists else {})})


if __name__ == "__main__":
    main()
