# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run by every Python whose PYTHONPATH names this directory."""

import os
import sys

_SUPPORT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_KEPT = os.path.join(_SUPPORT, "../../.cache/compiled/modules")

os.makedirs(_KEPT, exist_ok=True)
sys.path.append(_SUPPORT)
__import__("compiled_modules").keep(_KEPT)
if os.path.basename((getattr(sys, "argv", None) or [""])[0]).startswith("ansible"):
    __import__("controller_work").keep(_KEPT)
sys.path.pop()
