# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A kubelet that a systemd service starts directly: kubeadm, kubespray, or a unit of the operator's own."""

from __future__ import annotations

import glob
import os
import re
import typing as t

from .._errors import ConfigError
from .arguments import chars_of, split_words
from .editors import Editor, EnvironmentEditor
from .environment_file import Assignment, is_variable_name, parse_environment
from .host import Host, Unit
from .kubelet import Place, Program, Reader, Target

#: Files in which kubeadm's packages let the operator put KUBELET_EXTRA_ARGS (deb, rpm).
KUBEADM_FILES = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")
KUBEADM_VARIABLE = "KUBELET_EXTRA_ARGS"

#: Written by kubeadm at init, join and upgrade.
KUBEADM_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"

#: Written by kubespray from a template on every run.
KUBESPRAY_ENV = "/etc/kubernetes/kubelet.env"

#: Files that other programs rewrite: never edited, even if named in args_file.
NEVER_EDITED = {
    KUBEADM_FLAGS: "kubeadm rewrites it; use nodeRegistration.kubeletExtraArgs in the kubeadm configuration",
    KUBESPRAY_ENV: "kubespray rewrites it on every run; use its variable kubelet_custom_flags",
}

_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CONTAINER_TOOLS = frozenset("docker podman nerdctl ctr crictl runc crun rkt lxc-start systemd-nspawn".split())


class ServiceKubelet:
    """A kubelet that a unit starts directly: kubeadm, kubespray, or an operator's own unit. See ``Kubelet``.

    :param binary: the program to ask instead of the unit's.
    :param distribution: what to take the unit for; empty if the unit itself has to tell.
    :param named: where the operator said that the unit takes arguments from.
    """

    def __init__(
        self,
        unit: Unit,
        host: Host,
        binary: str = "",
        distribution: str = "",
        named: t.Optional[EnvironmentEditor] = None,
    ) -> None:
        self.unit = unit
        self._host = host
        self._binary = binary
        self._distribution = distribution
        self._named = named

    @property
    def distributions(self) -> t.Tuple[str, ...]:
        if self._distribution:
            return (self._distribution,)
        found = []
        if "$" + KUBEADM_VARIABLE in self.unit.argv or "$KUBELET_KUBEADM_ARGS" in self.unit.argv:
            found.append("kubeadm")
        if KUBESPRAY_ENV in self.unit.environment_files:
            found.append("kubespray")
        return tuple(found) or ("plain",)

    @property
    def _subcommand(self) -> t.Tuple[str, ...]:
        """``kubelet``, where the unit starts the program of all components."""
        hyperkube = os.path.basename(self.unit.path).startswith("hyperkube")
        return self.unit.argv[1:2] if hyperkube and self.unit.argv[1:2] == ("kubelet",) else ()

    def program(self) -> Program:
        name = os.path.basename(self.unit.path)
        if self._binary:
            return Program((self._host.path(self._binary),))
        if name.startswith("kubelet") or self._subcommand:
            return Program((self._host.path(self.unit.path),) + self._subcommand)
        if name in _CONTAINER_TOOLS:
            return Program(None, "%s.service runs the kubelet in a container (%s)" % (self.unit.name, self.unit.path))
        return Program(
            None,
            "%s.service starts %s, which may be a wrapper around the kubelet; set the option binary to the path of the "
            "kubelet" % (self.unit.name, self.unit.path or "no program"),
        )

    def target(self) -> Target:
        if self._named is not None:
            return Target(self._named)
        if "kubeadm" in self.distributions:
            return self._kubeadm_target()
        if "kubespray" in self.distributions:
            return Target(None, "add it to the kubespray variable kubelet_custom_flags, and run kubespray")
        return Target(None, "set args_file and args_variable to the file and the variable that its unit reads")

    def _kubeadm_target(self) -> Target:
        candidates = [path for path in self.unit.environment_files if path in KUBEADM_FILES]
        origin = self._environment(self._host.read).get(KUBEADM_VARIABLE, (None, ""))[1]
        if not candidates:
            return Target(
                None,
                "%s.service reads neither %s nor %s: set it in nodeRegistration.kubeletExtraArgs of the kubeadm "
                "configuration" % ((self.unit.name,) + KUBEADM_FILES),
            )
        if origin and origin not in candidates:
            # A second assignment would replace this one, with everything else in it.
            return Target(None, "%s is set in %s: add it there" % (KUBEADM_VARIABLE, origin))
        existing = [path for path in candidates if self._host.exists(path)]
        return Target(EnvironmentEditor(origin or (existing or candidates)[-1], KUBEADM_VARIABLE))

    def _environment(self, read: Reader) -> t.Dict[str, t.Tuple[t.Optional[Assignment], str]]:
        """Return each variable's effective assignment and its place: files override Environment= (systemd.exec(5))."""
        found: t.Dict[str, t.Tuple[t.Optional[Assignment], str]] = {}
        in_unit = "Environment= of %s.service (%s)" % (self.unit.name, ", ".join(self.unit.sources))
        for name, value in self.unit.environment:
            found[name] = Assignment(name, chars_of(value), 0), in_unit
        for pattern in self.unit.environment_files:
            paths = self._host.glob(pattern) if glob.has_magic(pattern) else [pattern]
            for path in paths:
                for assignment in parse_environment(read(path) or "", path):
                    found[assignment.name] = assignment, path
        return found

    def places(self, read: Reader) -> t.List[Place]:
        environment = self._environment(read)
        found: t.List[Place] = []
        literal: t.List[str] = []

        def replaced(match: t.Match[str]) -> str:
            assignment = environment.get(match.group(1), (None, ""))[0]
            return assignment.value if assignment else ""

        def flush() -> None:
            if literal:
                where = "ExecStart= of %s.service" % self.unit.name
                found.append(Place(where, tuple(literal), None, self._unit_advice))
                literal.clear()

        for word in self.unit.argv[1 + len(self._subcommand) :]:
            if not re.match(r"\$[A-Za-z_]", word):
                literal.append(_BRACED.sub(replaced, word).replace("$$", "$"))
                continue
            assignment, path = environment.get(word[1:], (None, ""))
            if assignment is not None:
                flush()
                found.append(self._variable(assignment, path))
        flush()
        return found

    def _variable(self, assignment: Assignment, path: str) -> Place:
        """Return the place that a variable is."""
        where = "%s, %s" % (path, assignment.name)
        words = tuple(word.text for word in split_words(assignment.chars, where))
        return Place(where, words, self._editor(path, assignment.name), self._advice(path, assignment.name))

    def _editor(self, path: str, variable: str) -> t.Optional[Editor]:
        named = self._named is not None and (self._named.path, self._named.variable) == (path, variable)
        if named or ("kubeadm" in self.distributions and path in KUBEADM_FILES):
            return EnvironmentEditor(path, variable)
        return None

    @property
    def _unit_advice(self) -> str:
        return "edit %s, then run systemctl daemon-reload" % self.unit.source_names

    def _advice(self, path: str, variable: str) -> str:
        if path == KUBEADM_FLAGS:
            return "remove it from nodeRegistration.kubeletExtraArgs in the kubeadm configuration, and from %s" % path
        if path == KUBESPRAY_ENV:
            return (
                "remove it from the kubespray variable kubelet_custom_flags in group_vars or host_vars, and run "
                "kubespray"
            )
        if not path.startswith("/"):
            return self._unit_advice
        return "edit the file, or set args_file to it and args_variable to %s" % variable


def named_editor(path: str, variable: str) -> t.Optional[EnvironmentEditor]:
    """Return what the operator named as the place of the arguments; None if nothing was named.

    :raises ConfigError: only half of it was named, the path is not absolute, or the file is another program's.
    """
    if not path and not variable:
        return None
    if not path or not variable:
        raise ConfigError("args_file and args_variable must be set together")
    if not path.startswith("/"):
        raise ConfigError("args_file '%s' must be an absolute path" % path)
    if not is_variable_name(variable):
        raise ConfigError("args_variable '%s' is not a valid name of an environment variable" % variable)
    if os.path.normpath(path) in NEVER_EDITED:
        raise ConfigError("args_file %s is never edited: %s" % (path, NEVER_EDITED[os.path.normpath(path)]))
    return EnvironmentEditor(os.path.normpath(path), variable)
