# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every path that a unit or the program touches, and its parents."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import typing as t

from .node import AGENT, Node
from .plants import FAULTS, Fault, Place
from .scenario import Scenario

METRICS = "/var/lib/prometheus/node-exporter"
CONFIG, STATE, RUN = "/etc/ip-masq-agent", "/var/lib/ip-masq-agent", "/run/ip-masq-agent"
LIB = "/usr/local/lib/ip-masq-agent"
TIMER_DROP_INS = "/run/systemd/system/ip-masq-agent.timer.d"

_DIRECTORIES = (
    CONFIG,
    CONFIG + "/config.d",
    "/var",
    "/var/lib",
    STATE,
    RUN,
    os.path.dirname(METRICS),
    METRICS,
    TIMER_DROP_INS,
    "/var/log",
    "/var/log/ip-masq-agent",
    "/tmp",
    "/var/tmp",
    "/home",
    "/root",
    "/run/user",
)
#: Files that may be there; those that are found beside them are added.
_FILES = (
    CONFIG + "/config",
    METRICS + "/ip_masq_agent.prom",
    "/run/xtables.lock",
    STATE + "/state.json",
    STATE + "/verification.json",
    STATE + "/applied.json",
    STATE + "/files.json",
    *(
        "%s/%s" % (RUN, name)
        for name in ("expected", "commands", "due", "last-sync", "interval", "port-share", "state.json")
    ),
)
_FOUND_IN = (CONFIG, CONFIG + "/config.d", STATE, RUN, METRICS, TIMER_DROP_INS)

_MODULES = "the modules of the program: Python reads them to start"
_START = "PID 1, the dynamic linker or the interpreter needs it to start any process"
#: Paths for which the faults cannot be had, and why.
CANNOT: t.Dict[str, str] = {
    "/": _START,
    "/etc": "%s; units and links of enabled units are there" % _START,
    "/etc/systemd/system": "PID 1 has its units there",
    "/run": "PID 1 has its sockets and units there",
    "/run/systemd/system": "PID 1 has its units there",
    "/usr": _START,
    "/usr/local": "the program is there",
    "/usr/local/sbin": "the program is there",
    AGENT: "the program itself",
    AGENT + "-resync": "the program itself",
    LIB: _MODULES,
    LIB + "/DIGEST": _MODULES,
    "/usr/bin/python3": "the interpreter",
    "/bin/sh": "the interpreter of the script",
    "/proc": _START,
    "/sys": "PID 1 has its control groups there",
    "/dev": "%s (/dev/null)" % _START,
}


def known() -> t.List[Place]:
    """Return the paths of this node, with those that the agent was found to have."""
    files = {path for folder in _FOUND_IN for path in glob.glob(folder + "/*") if os.path.isfile(path)}
    (packages,) = glob.glob("/usr/local/lib/python3.*/dist-packages")
    caches = sorted(glob.glob(LIB + "/*/ip_masq_agent/_agent/__pycache__"))[:1]
    compiled = sorted(glob.glob(caches[0] + "/sync*.pyc"))[:1] if caches else []
    places = [Place(path, directory=True) for path in (*_DIRECTORIES, *caches, packages)]
    places += [Place(path) for path in sorted(files.union(_FILES))]
    places += [Place(path) for path in (*compiled, packages + "/yaml.py")]
    modules = "/usr/lib/python3/dist-packages/yaml"
    return places + [Place(modules, directory=True)] * os.path.isdir(modules)


def label(place: Place) -> str:
    """Return a path in words that are the same on all nodes."""
    parts = place.path.split("/")
    if place.path.startswith(LIB + "/"):
        parts[5] = "DIGEST"
        parts[-1] = parts[-1].replace(parts[-1].partition(".")[2], "pyc") if "." in parts[-1] else parts[-1]
    return "/".join("python3.X" if part.startswith("python3.") else part for part in parts)


def scenarios() -> t.Iterator[Scenario]:
    """All paths with all faults."""
    for place in known():
        for name, fault in FAULTS.items():
            planted = functools.partial(_planted, place, fault)
            or_default = name == "missing" and place.path.startswith(CONFIG)
            yield Scenario("path", "%s: %s" % (label(place), name), planted, or_default=or_default)


def _planted(place: Place, fault: Fault, _node: Node) -> t.ContextManager[None]:
    return fault(place)


#: What may come in the place of PyYAML.
_MODULES_THAT_LIE = {
    "ends the process with 0": "raise SystemExit(0)\n",
    "ends the process at once": "import os\nos._exit(0)\n",
    "fails": "raise RuntimeError('no')\n",
    "never ends": "while True:\n    pass\n",
    "sleeps": "import time\ntime.sleep(3600)\n",
    "is recursive": "def again():\n    again()\nagain()\n",
    "eats memory": "kept = []\nwhile len(kept) < 3000:\n    kept.append(bytearray(1 << 20))\n",
    "is no Python": "\x00\x01",
}


@contextlib.contextmanager
def _yaml(text: str, _node: Node) -> t.Iterator[None]:
    (packages,) = glob.glob("/usr/local/lib/python3.*/dist-packages")
    with open(packages + "/yaml.py", "w", encoding="utf-8") as module:
        module.write(text)
    try:
        yield
    finally:
        os.unlink(packages + "/yaml.py")


def yaml_modules() -> t.Iterator[Scenario]:
    """Modules of others that are found first."""
    for what, text in _MODULES_THAT_LIE.items():
        yield Scenario("module", "a yaml.py that %s" % what, functools.partial(_yaml, text))
