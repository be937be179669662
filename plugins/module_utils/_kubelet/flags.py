# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet's flags, as words of a command line or as text of a YAML file."""

from __future__ import annotations

import re
import typing as t

from .._errors import ConfigError

#: The flag of this package, without dashes (deprecated in Kubernetes 1.7, removed in 1.24).
FLAG = "non-masquerade-cidr"

#: The value with which kubenet writes no masquerading rule.
NEVER = "0.0.0.0/0"

#: Both values that kubenet reads as "no rule".
NEVER_VALUES = (NEVER, "::/0")

#: What a kubelet does not masquerade with kubenet, unless the flag says otherwise.
DEFAULT_CIDR = "10.0.0.0/8"

_SEARCHED = re.compile(
    r"(?:^|[\s\"'\[,=-])"
    r"(non[-_]masquerade[-_]cidr|network[-_]plugin|container[-_]runtime|healthz[-_](?:port|bind[-_]address))"
    r"[=\s]+([A-Za-z0-9:./_-]+)"
)


class Occurrence(t.NamedTuple):
    """One appearance of a flag: the first and the last word it takes, and its value."""

    first: int
    last: int
    value: str


def argument(value: str) -> str:
    """Return the one word that sets the flag."""
    return "--%s=%s" % (FLAG, value)


def flag_name(word: str) -> str:
    """Return the name of the flag that a word sets, in the kubelet's spelling; empty if the word is no flag.

    pflag takes underscores for dashes (k8s.io/component-base, WordSepNormalizeFunc).
    """
    if not word.startswith("--") or word == "--":
        return ""
    return word[2:].partition("=")[0].replace("_", "-")


def find_flag(words: t.Sequence[str], name: str = FLAG, where: str = "the arguments") -> t.List[Occurrence]:
    """Find every appearance of a flag that takes a value, as ``--flag=value`` or ``--flag value``.

    :param where: what the words are, for the message.
    :raises ConfigError: the flag has no value.
    """
    found: t.List[Occurrence] = []
    position = 0
    while position < len(words) and words[position] != "--":
        last = position
        if flag_name(words[position]) == name:
            value = words[position].partition("=")[2]
            if "=" not in words[position]:
                last = position + 1
                if last >= len(words) or words[last].startswith("-"):
                    raise ConfigError(
                        "%s: %s has no value; nothing was changed; add the value or remove the flag"
                        % (where, words[position])
                    )
                value = words[last]
            found.append(Occurrence(position, last, value))
        position = last + 1
    return found


def without(words: t.Sequence[str], occurrences: t.Sequence[Occurrence]) -> t.List[str]:
    """Return the words that do not belong to these appearances of a flag."""
    gone = {position for one in occurrences for position in range(one.first, one.last + 1)}
    return [word for position, word in enumerate(words) if position not in gone]


def last_value(words: t.Sequence[str], name: str) -> t.Optional[str]:
    """Return the value of a flag that counts; None if it is not given.

    :raises ConfigError: the flag has no value.
    """
    found = find_flag(words, name)
    return found[-1].value if found else None


def runs_kubenet(words: t.Sequence[str]) -> bool:
    """Return whether a kubelet with these arguments runs kubenet.

    kubenet is part of dockershim, which a kubelet with --container-runtime=remote does not start; --network-plugin then
    does nothing (seen with Kubernetes 1.20.2: no rule is written).
    """
    if last_value(words, "container-runtime") == "remote":
        return False
    if last_value(words, "network-plugin") == "kubenet":
        return True
    bridge = [word for word in words if flag_name(word) == "configure-cbr0"]
    return bool(bridge) and bridge[-1].partition("=")[2] in ("", "true")


def search_yaml(text: str) -> t.List[str]:
    """Return the flags that matter here, from a configuration file of k3s or RKE2, as ``--flag=value``.

    Looks for them line by line instead of reading YAML, for which Python has no parser of its own: these files are
    never changed, only searched, and a flag seen too often costs a message, never a node.
    """
    found = []
    for line in text.splitlines():
        code = "" if line.lstrip().startswith("#") else line.split(" #")[0]
        found += ["--%s=%s" % match for match in _SEARCHED.findall(code)]
    return found
