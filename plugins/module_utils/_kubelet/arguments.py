# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The flag among the arguments of a kubelet, and whether they make it masquerade."""

from __future__ import annotations

import re
import typing as t

from .._errors import ConfigError

#: The flag of this package, without dashes (deprecated in Kubernetes 1.7, removed in 1.24).
FLAG = "non-masquerade-cidr"

#: The value with which kubenet writes no masquerading rule, and both that it reads so.
NEVER = "0.0.0.0/0"
NEVER_VALUES = (NEVER, "::/0")

#: The argument that sets it.
ARGUMENT = "--%s=%s" % (FLAG, NEVER)

#: What a kubelet does not masquerade with kubenet, unless the flag says otherwise.
DEFAULT_CIDR = "10.0.0.0/8"

_SEARCHED = r"(non[-_]masquerade[-_]cidr|network[-_]plugin|container[-_]runtime)[=\s]+([A-Za-z0-9:./_-]+)"


def take_out(
    words: t.Iterable[str], name: str = FLAG, where: str = "the arguments"
) -> t.Tuple[t.List[str], t.List[str]]:
    """Return the values that arguments give to a flag, and the other arguments.

    pflag takes ``--flag=value`` and ``--flag value``, and underscores for dashes (k8s.io/component-base,
    WordSepNormalizeFunc).

    :param where: what the arguments are, for the message.
    :raises ConfigError: the flag has no value.
    """
    values: t.List[str] = []
    others: t.List[str] = []
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        if word == "--":
            others += [word, *left]
        elif not flag.startswith("--") or flag[2:].replace("_", "-") != name:
            others.append(word)
        else:
            values.append(value if equals else next(left, "-"))
            if not equals and values[-1].startswith("-"):
                said = "%s: %s has no value; nothing was changed; add the value or remove the flag"
                raise ConfigError(said % (where, word))
    return values, others


def last_value(words: t.Iterable[str], name: str = FLAG) -> t.Optional[str]:
    """Return the value of a flag that counts; None if it is not given.

    :raises ConfigError: the flag has no value.
    """
    return ([None, *take_out(words, name)[0]])[-1]


def runs_kubenet(words: t.Sequence[str]) -> bool:
    """Return whether a kubelet with these arguments runs kubenet.

    kubenet is part of dockershim, which a kubelet with --container-runtime=remote does not start; --network-plugin then
    does nothing (seen with Kubernetes 1.20.2: no rule is written).
    """
    return last_value(words, "network-plugin") == "kubenet" and last_value(words, "container-runtime") != "remote"


def masquerades(words: t.Sequence[str]) -> bool:
    """Return whether a kubelet with these arguments writes kubenet's rule."""
    return runs_kubenet(words) and last_value(words) not in NEVER_VALUES


def search(text: str) -> t.Tuple[str, ...]:
    """Return the flags that matter here, from any text without its comments, as ``--flag=value``.

    For files that are never edited, of which some are YAML, for which Python has no parser of its own: a flag seen too
    often costs a message, never a node.
    """
    lines = [line.split(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
    return tuple("--%s=%s" % found for found in re.findall(_SEARCHED, "\n".join(lines)))
