# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The paths of an agent, as the options of the modules choose them."""

from __future__ import annotations

import contextlib
import os
import sys
import typing as t

from .._agent import install
from .._agent.paths import CHOSEN, Paths, choose_paths
from .._errors import ConfigError, NodeError
from .._system import shared_directory
from .._system.process import run

SYSTEM_PYTHON = Paths().python


def named_paths(params: t.Mapping[str, t.Any]) -> Paths:
    """Return the paths that the options name. Nothing on the node is read.

    :raises ConfigError: one of them is not a valid path.
    """
    given = {**params, "metrics_dir": params["metrics_dir"] or "", "python": params["python"] or SYSTEM_PYTHON}
    return choose_paths(**{name: given[name] for name in CHOSEN})


def find_paths(params: t.Mapping[str, t.Any]) -> Paths:
    """Return the paths of an agent on this node.

    :raises ConfigError: one of them cannot be used.
    """
    paths = install.adopt_package(named_paths(params))
    if params["python"] and not is_python(paths.python):
        raise ConfigError("python: %s is not Python 3.8 or later; use another interpreter" % paths.python)
    if not params["python"] and not is_python(paths.python):
        paths = choose_paths(**dict(paths.chosen(), python=sys.executable))
    install.check_paths(paths)
    if paths.metrics_dir and not os.path.isdir(paths.metrics_dir):
        raise ConfigError(
            "metrics_dir: %s is not a directory on this node; install node_exporter first, or create it"
            % paths.metrics_dir
        )
    if paths.metrics_dir:
        try:
            # Later resyncs follow no link on the way.
            paths = paths._replace(metrics_dir=shared_directory.resolve(paths.metrics_dir))
        except (OSError, NodeError) as exc:
            raise ConfigError("metrics_dir: %s; use the directory itself" % exc) from None
    return paths


def is_python(path: str) -> bool:
    """Return whether a program is a Python interpreter that can run the agent."""
    with contextlib.suppress(NodeError):
        return run([path, "-I", "-c", "import sys; raise SystemExit(sys.version_info < (3, 8))"]).rc == 0
    return False
