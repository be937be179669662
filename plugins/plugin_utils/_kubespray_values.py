# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""kubespray's variables as hosts have them.

kubespray's defaults are those of roles, which no play of another collection sees; kubespray_defaults.yml repeats those
that matter.
"""

from __future__ import annotations

import typing as t
from pathlib import Path

import yaml
from ansible.module_utils.parsing.convert_bool import boolean
from jinja2.exceptions import UndefinedError

from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import naming, show
from ._names import grouped, some_of
from ._networks import read_networks

#: Of each variable, in the file beside this one.
DEFAULTS: t.Dict[str, t.Any] = yaml.safe_load((Path(__file__).parent / "kubespray_defaults.yml").read_text("utf-8"))


def is_template(value: t.Any) -> bool:
    """Return whether a value could not be evaluated: a variable or a fact in it is not known."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


def readable(value: t.Any) -> t.Any:
    """Return a value, or for one that could not be evaluated text that is a template.

    ansible-core 2.18 has the template itself there, later ones an object that raises when it is used.
    """
    try:
        str(value)
    except UndefinedError as exc:
        return "{{ %s }}" % exc
    return value


class Values:
    """Values that all hosts share; one that is not set, or null, is kubespray's default."""

    def __init__(self, hosts: t.Sequence[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> None:
        views = {host: hostvars[host] for host in hosts}
        self._given = {
            name: {host: readable(view[name]) for host, view in views.items() if view.get(name) is not None}
            for name in DEFAULTS
        }
        self._hosts = list(hosts)

    def get(self, name: str) -> t.Any:
        """Return one value.

        :raises ConfigError: hosts do not agree about it.
        """
        values = self._all(name)
        shown = ("not set" if value is None else show(value) for value in values)
        alike = grouped(zip(shown, self._hosts))
        if len(alike) > 1:
            named = ", ".join("%s (%s)" % (value, some_of(hosts)) for value, hosts in alike.items())
            raise ConfigError("%s differs: %s: give all nodes one value, in group_vars/k8s_cluster" % (name, named))
        return values[0]

    def all_set(self, *names: str) -> bool:
        """Return whether each host sets one of the variables to something; hosts need not agree."""
        return all(any(self._given[name].get(host) for name in names) for host in self._hosts)

    def flag(self, *names: str) -> bool:
        """Return a boolean, of the first name that is set.

        :raises ConfigError: it is not a boolean.
        """
        for name in names:
            value = self.get(name)
            if value is not None:
                try:
                    return bool(boolean(value))
                except TypeError:
                    raise ConfigError("%s: %s is not true or false" % (name, show(value))) from None
        return False

    def networks(self, whole: str, *parts: str) -> t.List[str]:
        """Return networks of one variable, or if that is not set, of others.

        :raises ConfigError: one of them is no CIDR.
        """
        found: t.List[str] = []
        for name in parts if self.get(whole) is None else (whole,):
            value = self.get(name)
            with naming(name):
                found += read_networks(value)
        return found

    # What only remarks depend on must not make a run fail: hosts may differ, and what has no meaning counts as no.

    def is_given(self, name: str) -> bool:
        """Return whether each host sets a variable, be it to nothing."""
        return all(self._given[name].get(host) is not None for host in self._hosts)

    def texts(self, name: str) -> t.List[str]:
        """Return what hosts have, as an inventory has it: each value once."""
        values = (str(value).lower() if isinstance(value, bool) else str(value).strip() for value in self._all(name))
        return list(dict.fromkeys("not set" if value == "None" else value for value in values))

    def is_on(self, name: str) -> bool:
        """Return whether a boolean is true on a host."""
        return any(boolean(text, strict=False) for text in self.texts(name))

    def settings(self, *names: str) -> str:
        """Return variables with their values, as an inventory has them."""
        return ", ".join("%s: %s" % (name, " or ".join(self.texts(name))) for name in names)

    def _all(self, name: str) -> t.List[t.Any]:
        return [self._given[name].get(host, DEFAULTS[name]) for host in self._hosts]
