# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the module kubelet_masquerade. It imports nothing of a node: the controller reads them too."""

from __future__ import annotations

import typing as t

from .._errors import ConfigError

KUBESPRAY_ENV = "/etc/kubernetes/kubelet.env"

#: Files that other programs rewrite, and what is changed in their place: never edited, even if named in args_file.
MANAGED = {
    "/var/lib/kubelet/kubeadm-flags.env": "nodeRegistration.kubeletExtraArgs in kubeadm's configuration, and this file",
    KUBESPRAY_ENV: "the kubespray variable kubelet_custom_flags in group_vars or host_vars, and run kubespray",
}


class Spot(t.NamedTuple):
    """A variable in an environment file that may be edited."""

    path: str
    variable: str


class Options(t.NamedTuple):
    """The options of the module kubelet_masquerade; times in seconds."""

    policy: str = "auto"
    unit: str = ""
    binary: str = ""
    args_file: str = ""
    args_variable: str = ""
    restart: bool = True
    #: empty: where the kubelet's own arguments and configuration say
    healthz_url: str = ""
    healthz_timeout: float = 120.0
    probe_timeout: float = 10.0

    @property
    def named(self) -> t.Optional[Spot]:
        """Where the operator said that a unit takes arguments from."""
        return Spot(self.args_file, self.args_variable) if self.args_file else None


def check_options(options: Options) -> None:
    """Refuse options that cannot be meant.

    :raises ConfigError: naming the option, the value, and what is valid.
    """
    for name, value in (("healthz_timeout", options.healthz_timeout), ("probe_timeout", options.probe_timeout)):
        if not 0 < value <= 3600:
            raise ConfigError("%s %g must be greater than 0 and at most 3600 seconds" % (name, value))
    for name, path in (("binary", options.binary), ("args_file", options.args_file)):
        if path and not path.startswith("/"):
            raise ConfigError("%s '%s' must be an absolute path" % (name, path))
    if options.healthz_url and not options.healthz_url.startswith(("http://", "https://")):
        raise ConfigError("healthz_url '%s' must be an http or https URL" % options.healthz_url)
    if bool(options.args_file) != bool(options.args_variable):
        raise ConfigError("args_file and args_variable must be set together")
    if options.args_file in MANAGED:
        said = "args_file %s is never edited, because another program rewrites it; change %s"
        raise ConfigError(said % (options.args_file, MANAGED[options.args_file]))
