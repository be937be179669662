# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a file is that has no key of a policy, where the policy is in it, and what to write instead.

Operators copy whole ConfigMaps, lists of objects, values of Helm charts, and variables of the role.
"""

from __future__ import annotations

import collections
import itertools
import re
import typing as t

from .._system.printable import first_of
from .policy import file_key_hint, is_policy_key
from .values import show

#: Values that are searched for a policy, characters of a text, and those of a key that make up a place.
_SEARCHED, _READ, _NAMED = 1000, 20000, 40

# A pattern is text, as in config_file.
_KEY_IN_TEXT = r"(?m)(?:^|[{,])[ \t\"']*([A-Za-z0-9_-]{3,40})[\"']?[ \t]*:"

#: Unknown keys that a message has hints for.
_SHOWN = 2


def refusal(data: t.Mapping[str, t.Any]) -> str:
    """Return what is wrong with a file of which no key is known, and the remedy."""
    found = _described(data)
    if found:
        return found
    hints = [(show(key), file_key_hint(key)) for key in itertools.islice(data, _SHOWN)]
    keys = first_of(["%s (%s)" % pair if pair[1] else pair[0] for pair in hints], _SHOWN, len(data) - len(hints))
    return "no key of it is known: %s; write keys such as nonMasqueradeCIDRs, or {} for the defaults" % keys


def several_documents(documents: t.Sequence[t.Any]) -> str:
    """Return what is wrong with a file of several YAML documents, and the remedy."""
    for number, data in enumerate(documents, 1):
        found = _described(data) if isinstance(data, dict) and _place(data) else ""
        if found:
            return "%d YAML documents; number %d %s" % (len(documents), number, found)
    return "%d YAML documents, and none can be preferred: keep one" % len(documents)


def advice(key: str, value: t.Any) -> str:
    """Return what to do about an unknown key."""
    place = _place({key: value})
    return "the policy in %s belongs at the top level" % place if place else file_key_hint(key) or "remove it"


def _described(data: t.Mapping[str, t.Any]) -> str:
    """Return what an object of Kubernetes, or a mapping with a policy inside, is; empty if it is neither."""
    place, kind = _place(data), data.get("kind")
    if kind == "ConfigMap":
        only = "the text of %s" % place if place else "the policy, which is a text in data"
        return "is a ConfigMap and not a policy: write only %s to the file" % only
    remedy = "write only what is in %s to the file" % place
    if isinstance(kind, str) and "apiVersion" in data:
        return "is a Kubernetes object of kind %s and not a policy: %s" % (
            show(kind),
            remedy if place else "write keys such as nonMasqueradeCIDRs",
        )
    return "has its policy in %s: %s" % (place, remedy) if place else ""


def _place(data: t.Mapping[str, t.Any]) -> str:
    """Return where in a mapping a policy is, such as ``data.config`` or ``items[0].data.config``; empty if nowhere."""
    queue = collections.deque((key[:_NAMED], value) for key, value in data.items())
    for _count in range(_SEARCHED):
        if not queue:
            break
        place, value = queue.popleft()
        if isinstance(value, dict):
            if any(map(is_policy_key, value)):
                return _shown(place)
            inside = (("%s.%s" % (place, key[:_NAMED]), one) for key, one in value.items())
        elif isinstance(value, list):
            inside = (("%s[%d]" % (place, number), one) for number, one in enumerate(value))
        else:
            if isinstance(value, str) and any(map(is_policy_key, re.findall(_KEY_IN_TEXT, value[:_READ]))):
                return _shown(place)
            continue
        queue.extend(itertools.islice(inside, _SEARCHED))
    return ""


def _shown(place: str) -> str:
    return place if place.isprintable() and place.isascii() and len(place) <= 80 else show(place)
