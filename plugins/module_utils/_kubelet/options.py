# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operator wants."""

from __future__ import annotations

import re
import typing as t

from .._errors import ConfigError
from . import healthz
from .editors import EnvironmentEditor
from .service_kubelet import named_editor

_UNIT_NAME = re.compile(r"(?!-)[A-Za-z0-9:_.@\\-]+\Z")


class Options(t.NamedTuple):
    """The options of the module kubelet_masquerade; times in seconds."""

    policy: str = "auto"
    unit: str = ""
    binary: str = ""
    distribution: str = "auto"
    args_file: str = ""
    args_variable: str = ""
    restart: bool = True
    #: empty: where the kubelet's own arguments and configuration say
    healthz_url: str = ""
    healthz_timeout: float = 120.0
    probe_timeout: float = 10.0


def check_options(options: Options) -> t.Optional[EnvironmentEditor]:
    """Refuse options that cannot be meant.

    :returns: where the operator said that a unit takes arguments from.
    :raises ConfigError: naming the option, the value, and what is valid.
    """
    if options.unit and not _UNIT_NAME.match(options.unit):
        raise ConfigError("unit '%s' is not a valid name of a systemd service" % options.unit)
    if options.binary and not options.binary.startswith("/"):
        raise ConfigError("binary '%s' must be an absolute path" % options.binary)
    for name, value in (("healthz_timeout", options.healthz_timeout), ("probe_timeout", options.probe_timeout)):
        if not 0 < value <= 3600:
            raise ConfigError("%s %g must be greater than 0 and at most 3600 seconds" % (name, value))
    if options.healthz_url:
        healthz.check_url(options.healthz_url)
    return named_editor(options.args_file, options.args_variable)
