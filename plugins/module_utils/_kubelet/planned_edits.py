# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The edits that a decision needs, tried on the text before the first byte is written."""

from __future__ import annotations

import typing as t

from .._errors import ConfigError
from . import owned_files
from .decide import Decision
from .editors import Editor
from .flags import NEVER, argument, find_flag
from .host import Host
from .observe import Observation


class Edit(t.NamedTuple):
    """One file, before and after."""

    seen: Observation
    path: str
    before: owned_files.FileVersion
    after: t.Optional[str]
    #: whether it sets the flag
    sets: bool


def rehearse(seen: Observation, decision: Decision, host: Host) -> t.List[Edit]:
    """Return the edits that a decision needs.

    :raises ConfigError: a file cannot be changed with certainty, or the change would not have the effect wanted.
    """
    wanted = NEVER if decision.action == "set" else None
    found: t.Dict[str, Edit] = {}
    for editor in _editors(seen, decision):
        before = found[editor.path].before if editor.path in found else host.file_version(editor.path)
        text = found[editor.path].after if editor.path in found else before.text
        found[editor.path] = Edit(seen, editor.path, before, editor.with_value(text, wanted), wanted is not None)
    edits = [edit for edit in found.values() if edit.after != edit.before.text]
    for edit in edits:
        owned_files.check_replaceable(edit.before)
    if found:
        _check_effect(seen, found, wanted, host)
    return edits


def _editors(seen: Observation, decision: Decision) -> t.List[Editor]:
    if decision.action == "set" and seen.target.editor:
        return [seen.target.editor]
    if decision.action == "remove":
        return [place.editor for place, _value in seen.configured if place.editor]
    return []


def _check_effect(seen: Observation, edits: t.Mapping[str, Edit], wanted: t.Optional[str], host: Host) -> None:
    """Refuse edits after which the kubelet would still have another value."""

    def read(path: str) -> t.Optional[str]:
        return edits[path].after if path in edits else host.read(path)

    places = seen.kubelet.places(read)
    values = [(place.where, one.value) for place in places for one in find_flag(place.words, where=place.where)]
    if (values[-1][1] if values else None) == wanted:
        return
    raise ConfigError(
        "%s: %s would have no effect, because %s; nothing was changed"
        % (
            " and ".join(edits),
            argument(NEVER) if wanted else "the removal",
            "%s sets it to %s after that" % values[-1] if values else "%s does not read it" % seen.name,
        )
    )
