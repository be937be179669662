# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a kubelet answers healthz, and asking it there."""

from __future__ import annotations

import re
import time
import typing as t

from .arguments import last_value

#: What a kubelet uses unless its arguments or its configuration file say otherwise.
DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 10248

#: Seconds between two questions.
POLL = 0.25

#: Seconds within which a kubelet that runs already answers, also on a busy node.
ANSWERS_WITHIN = 10.0

#: Addresses that mean every address of the node, and one of those to ask at.
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing is bound)

_SETTING = r"(?:^|[\s{,])[\"']?%s[\"']?\s*:\s*[\"']?([0-9A-Fa-f.:]+)"

#: ``healthy(url, timeout)`` returns an empty text once healthz answers 200, else the last answer.
Healthy = t.Callable[[str, float], str]


def url_of(words: t.Sequence[str], read: t.Callable[[str], str]) -> str:
    """Return where a kubelet with these arguments answers; empty if it does not, because the port is 0.

    Flags count more than the file that --config names (Kubernetes, "Set Kubelet parameters via a config file"). Looks
    for the two settings line by line, as YAML or JSON have them, because Python has no parser for YAML of its own.

    :raises ConfigError: the file is not text.
    :raises NodeError: the file cannot be read.
    """
    path = last_value(words, "config")
    text = re.sub(r"(?m)^\s*#.*", "", read(path)) if path else ""

    def setting(flag: str, key: str) -> str:
        found = re.search(_SETTING % key, text, re.MULTILINE)
        return last_value(words, flag) or (found.group(1) if found else "")

    address = setting("healthz-bind-address", "healthzBindAddress") or DEFAULT_ADDRESS
    address = _EVERY_ADDRESS.get(address, address)
    given = setting("healthz-port", "healthzPort")
    port = int(given) if given.isdigit() else DEFAULT_PORT
    return "http://%s:%d/healthz" % ("[%s]" % address if ":" in address else address, port) if port else ""


def wait_healthy(url: str, timeout: float) -> str:
    """Ask until the answer is 200 or the time is up.

    :param timeout: seconds.
    :returns: nothing if it is healthy, else the last thing that went wrong.
    """
    # Not at the top: most nodes need no restart, and the HTTP client takes 19 ms to load, in each task of Ansible.
    import http.client
    import urllib.request

    # The node's own address must not be asked for through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout
    problem = ""
    while True:
        try:
            with opener.open(url, timeout=max(0.1, min(5.0, deadline - time.monotonic()))):
                return ""
        # A URL that is none is a ValueError.
        except (OSError, ValueError, http.client.HTTPException) as exc:
            problem = "%s did not return 200: %s" % (url, exc)
        if time.monotonic() + POLL >= deadline:
            return problem
        time.sleep(POLL)
