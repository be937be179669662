# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the policy changes in CNI configurations of a Windows node."""

from __future__ import annotations

import base64
import difflib
import typing as t

from ansible.utils.unsafe_proxy import wrap_var

from ..module_utils._errors import ConfigError
from ..module_utils._policy.config_file import config_text, parse
from ..module_utils._policy.policy import build, file_key
from ..module_utils._policy.values import Network, parse_networks, split_entries
from ..plugin_utils import _filters
from ..plugin_utils._outbound_nat import edit
from ..plugin_utils._shown_result import printable

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def outbound_nat_plan(
    files: t.Sequence[t.Mapping[str, t.Any]],
    policy: t.Mapping[str, t.Any],
    remove: t.Any = (),
    add_policy: bool = False,
) -> t.List[t.Dict[str, t.Any]]:
    """See above.

    :raises ConfigError: the policy is refused.
    """
    wanted, unwanted = _ranges(policy), parse_networks(split_entries(remove))
    plans = [_plan(file["item"], base64.b64decode(file["content"]), wanted, unwanted, add_policy) for file in files]
    printed = [dict(one, **{name: printable(one[name]) for name in ("lines", "diff", "error")}) for one in plans]
    # Text of a node's file is never a template.
    return t.cast(t.List[t.Dict[str, t.Any]], wrap_var(printed))


def _ranges(policy: t.Mapping[str, t.Any]) -> t.Tuple[Network, ...]:
    """Return the exempt ranges of a policy, by the keys of the config file."""
    return build(parse(config_text(policy), "config").values, label=file_key).non_masquerade_cidrs


def _plan(
    path: str, before: bytes, wanted: t.Sequence[Network], unwanted: t.Sequence[Network], add_policy: bool
) -> t.Dict[str, t.Any]:
    """Return what to do with one file."""
    try:
        edited = edit(_text(before), wanted, unwanted, add_policy)
    except ConfigError as exc:
        return {
            "path": path, "changed": False, "content": _base64(before), "diff": [], "lines": [],
            "error": "%s: %s. The file is unchanged" % (path, exc),
        }  # fmt: skip
    after = edited.text.encode("utf-8")
    return {
        "path": path,
        "changed": after != before,
        "content": _base64(after),
        "lines": ["%s: %s" % (path, line) for line in edited.lines],
        "diff": list(_diff(path, before.decode("utf-8"), edited.text)),
        "error": "",
    }


def _text(content: bytes) -> str:
    """Decode a file.

    :raises ConfigError: another encoding.
    """
    if content.startswith(_UTF16):
        raise ConfigError(
            "the file is UTF-16, which no network plugin reads: write it as UTF-8 (Set-Content -Encoding)"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError("byte %d is not UTF-8: write the file as UTF-8" % exc.start) from None


def _diff(path: str, before: str, after: str) -> t.Iterator[str]:
    old, new = ([line.rstrip("\r") for line in text.split("\n")] for text in (before, after))
    return difflib.unified_diff(old, new, path, path, lineterm="", n=1)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


FilterModule = _filters.plugin(outbound_nat_plan)
