# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible.windows.slurp for files of this host: what the role uses of it."""

from __future__ import annotations

import base64
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

OPTIONS = {"src": {"type": "path", "required": True}}


def main() -> None:
    """Read a file."""
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    content = base64.b64encode(Path(module.params["src"]).read_bytes()).decode()
    module.exit_json(changed=False, content=content, encoding="base64")


if __name__ == "__main__":
    main()
