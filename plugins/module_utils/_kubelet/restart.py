# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a kubelet answers healthz; restart its service, and wait until it answers there."""

from __future__ import annotations

import http.client
import re
import time
import typing as t
import urllib.error
import urllib.parse
import urllib.request

from ..errors import ConfigError, NodeError
from ..runner import Runner
from .editors import last_value

#: Seconds between two questions to healthz.
POLL = 0.25

#: Seconds within which a kubelet that runs already answers, also on a busy node.
ANSWERS_WITHIN = 10.0

#: Stopping may take as long as the unit allows (90 s unless it says otherwise), and starting comes after that.
SYSTEMCTL_TIMEOUT = 240.0

#: What a kubelet uses unless its arguments or its configuration file say otherwise.
DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 10248

#: Addresses that mean every address of the node, and one of those to ask at.
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

_SETTING = r"(?:^|[\s{,])[\"']?%s[\"']?\s*:\s*[\"']?([0-9A-Fa-f.:]+)"

#: ``healthy(url, timeout)`` returns an empty text once healthz answers, else the last answer.
Healthy = t.Callable[[str, float], str]


def check_url(url: str) -> None:
    """
    :raises ConfigError: this is no http or https URL.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigError("healthz_url '%s' is not a URL such as http://127.0.0.1:10248/healthz" % url)


def healthz_url(words: t.Sequence[str], read: t.Callable[[str], t.Optional[str]]) -> t.Optional[str]:
    """Where a kubelet with these arguments answers healthz; none where it does not, because the port is 0.

    Flags count more than the file that --config names (Kubernetes, "Set Kubelet parameters via a config file"). Looks
    for the two settings line by line, as YAML or JSON have them, because Python has no parser for YAML of its own.

    :param read: the text of a file, or none.
    """
    path = last_value(words, "config")
    lines = (read(path) or "").splitlines() if path else []
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    found = {}
    for flag, key in (("healthz-bind-address", "healthzBindAddress"), ("healthz-port", "healthzPort")):
        match = re.search(_SETTING % key, text, re.MULTILINE)
        found[flag] = last_value(words, flag) or (match.group(1) if match else "")
    address = found["healthz-bind-address"] or DEFAULT_ADDRESS
    address = _EVERY_ADDRESS.get(address, address)
    port = int(found["healthz-port"]) if found["healthz-port"].isdigit() else DEFAULT_PORT
    return "http://%s:%d/healthz" % ("[%s]" % address if ":" in address else address, port) if port else None


def wait_healthy(url: str, timeout: float) -> str:
    """Ask until the answer is 200 or the time is up.

    :param timeout: seconds.
    :returns: nothing if it is healthy, else the last thing that went wrong.
    """
    # The node's own address must not be asked for through a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout
    while True:
        problem = _ask(opener, url, max(0.1, min(5.0, deadline - time.monotonic())))
        if not problem or time.monotonic() + POLL >= deadline:
            return problem
        time.sleep(POLL)


def _ask(opener: urllib.request.OpenerDirector, url: str, timeout: float) -> str:
    """Ask once; see :func:`wait_healthy`."""
    try:
        with opener.open(url, timeout=timeout):
            return ""
    except urllib.error.HTTPError as exc:
        exc.close()
        return "%s answers %d" % (url, exc.code)
    except (OSError, http.client.HTTPException) as exc:
        return "%s does not answer: %s" % (url, getattr(exc, "reason", exc))


def restart(run: Runner, unit: str, url: str, timeout: float, healthy: Healthy) -> None:
    """Restart a service and wait until it is healthy.

    :param timeout: seconds to wait for healthz after systemd has started it.
    :raises NodeError: it did not start, or did not become healthy.
    """
    service = unit + ".service"
    # A kubelet that kept failing may have used up its starts; systemd would then refuse this one.
    run(["systemctl", "reset-failed", service])
    done = run(["systemctl", "restart", service], timeout=SYSTEMCTL_TIMEOUT)
    if done.rc != 0:
        said = " ".join(done.stderr.split()) or "exit status %d" % done.rc
        raise NodeError("systemctl restart %s: %s" % (service, said))
    problem = healthy(url, timeout)
    state = run(["systemctl", "show", "--property=ActiveState", "--", service]).stdout.strip().partition("=")[2]
    if problem:
        raise NodeError(
            "%s did not become healthy within %g seconds (%s; the service is %s): see journalctl -u %s"
            % (service, timeout, problem, state or "in an unknown state", service)
        )
    if state != "active":
        raise NodeError("%s answers, but %s is %s: another program listens there" % (url, service, state))
