# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kubelets this node runs, and where each one's arguments come from.

Nothing here decides or writes. A :class:`Kubelet` lists the places that give it arguments, in the order in which they
count (the last one wins), and knows which of them may be edited, and by whom the others must be changed.
"""

from __future__ import annotations

import glob
import os
import re
import typing as t

from ..errors import ConfigError, NodeError
from ..runner import Runner
from . import owned_files as files
from .editors import (
    Assignment,
    Editor,
    EnvironmentEditor,
    LinesEditor,
    OwnYamlEditor,
    chars_of,
    parse_environment,
    split_words,
    yaml_arguments,
)

#: Where a unit starts the kubelet itself.
_STARTED_DIRECTLY = ("kubeadm", "kubespray", "plain")

LAYOUTS = _STARTED_DIRECTLY + ("k3s", "rke2", "k0s", "microk8s")

#: Files in which kubeadm's packages let the operator put KUBELET_EXTRA_ARGS (deb, rpm).
KUBEADM_FILES = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")
KUBEADM_VARIABLE = "KUBELET_EXTRA_ARGS"

#: Written by kubeadm at init, join and upgrade.
KUBEADM_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"

#: Written by kubespray from a template on every run.
KUBESPRAY_ENV = "/etc/kubernetes/kubelet.env"

#: Files that other programs write again: never edited, whoever asks.
NEVER_EDITED = {
    KUBEADM_FLAGS: "kubeadm writes it again: use nodeRegistration.kubeletExtraArgs in the kubeadm configuration",
    KUBESPRAY_ENV: "kubespray writes it again on every run: use its variable kubelet_custom_flags",
}

MICROK8S_ARGS = "/var/snap/microk8s/current/args/kubelet"
MICROK8S_SNAP = "/snap/microk8s/current/meta/snap.yaml"

#: The name of our drop-in sorts late, and only ``.yaml`` files are read.
RANCHER_DROPIN = "config.yaml.d/90-ip-masq.yaml"

#: What k3s, RKE2 and k0s give to their kubelet up to Kubernetes 1.23, unless it is to use docker.
_REMOTE_RUNTIME = "--container-runtime=remote"

#: First release that reads drop-ins and lets them append to a list.
RANCHER_DROPINS_SINCE = (1, 21)

_UNITS: t.Dict[str, str] = {
    "kubelet": "",
    "k3s": "k3s",
    "k3s-agent": "k3s",
    "rke2-server": "rke2",
    "rke2-agent": "rke2",
    "k0sworker": "k0s",
    "k0scontroller": "k0s",
    "snap.microk8s.daemon-kubelite": "microk8s",
    "snap.microk8s.daemon-kubelet": "microk8s",
}
_PROPERTIES = (
    "Id LoadState ActiveState UnitFileState MainPID ExecStart Environment EnvironmentFiles FragmentPath DropInPaths"
).split()
_EXEC_START = re.compile(r"path=(?P<path>.*?) ; argv\[\]=(?P<argv>.*?) ; (?:ignore_errors|flags)=")
_ENVIRONMENT_FILE = re.compile(r"(?P<path>/.*?) \(ignore_errors=(?:yes|no)\)\Z")
_SNAP_VERSION = re.compile(r"^version:\s*[\"']?(v?\d+\.\d+\.\d+\S*?)[\"']?\s*$", re.MULTILINE)
_DOCKER_SOCKET = re.compile(r"--cri-socket[= ]docker:")
_DOCKER = re.compile(r"^docker:\s*true\b", re.MULTILINE)
_BRACED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CONTAINER_TOOLS = frozenset("docker podman nerdctl ctr crictl runc crun rkt lxc-start systemd-nspawn".split())


class Unit(t.NamedTuple):
    """One loaded service, from C(systemctl show)."""

    name: str
    active: str
    enabled: str
    pid: int
    #: the program and its arguments, variables not yet replaced
    path: str
    argv: t.Tuple[str, ...]
    environment: t.Tuple[t.Tuple[str, str], ...]
    environment_files: t.Tuple[str, ...]
    #: the unit file and its drop-ins
    sources: t.Tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether it is running, or systemd is trying to make it run."""
        return self.active not in ("inactive", "failed")

    @property
    def in_use(self) -> bool:
        """Whether it is meant to run on this node."""
        return self.active != "inactive" or self.enabled.startswith("enabled")


class Place(t.NamedTuple):
    """One place that gives arguments to a kubelet."""

    #: the file or unit, as people name it
    where: str
    words: t.Tuple[str, ...]
    #: how to change it here; none where somebody else owns it
    editor: t.Optional[Editor]
    #: what the operator changes in that case
    advice: str


#: ``read(path)`` returns the text of a file on the node, or none.
Reader = t.Callable[[str], t.Optional[str]]


class Kubelet:
    """One kubelet, and how it gets its arguments. What differs between distributions is in the subclasses."""

    layouts: t.Tuple[str, ...] = ()
    #: the binary to ask, with a subcommand if needed; none with ``untouchable`` saying why
    command: t.Optional[t.Tuple[str, ...]] = None
    untouchable = ""
    #: whether ``--help`` of that binary lists the kubelet's flags
    asks_help = True
    #: where the flag would be set; none with ``target_advice`` saying what to do instead
    target: t.Optional[Editor] = None
    target_advice = ""
    #: first release that reads the target
    target_since = (0, 0)

    def __init__(self, unit: Unit, host: Host) -> None:
        self.unit = unit
        self.host = host

    def places(self, read: Reader) -> t.List[Place]:
        """Every place that gives it arguments; the last one wins.

        :raises ConfigError: a place cannot be understood with certainty.
        """
        raise NotImplementedError

    def words(self, read: Reader) -> t.List[str]:
        """All its arguments, in order."""
        return [word for place in self.places(read) for word in place.words]

    def version_on_file(self) -> t.Optional[str]:
        """The version, where a file tells it and no program can be asked."""
        return None

    def running_words(self) -> t.Optional[t.List[str]]:
        """The arguments that the running process was started with; none where it cannot be told."""
        argv = self.host.command_line(self.unit.pid) if self.unit.pid else []
        if not argv or not os.path.basename(argv[0]).startswith(("kubelet", "hyperkube")):
            return None
        return argv[1:]


class Host:
    """The node's files and services.

    :param run: starts programs.
    :param root: the directory that holds the node's file system.
    """

    def __init__(self, run: Runner, root: str = "/") -> None:
        self.run = run
        self.root = root

    def path(self, path: str) -> str:
        """Where a file of the node is found."""
        return os.path.join(self.root, path.lstrip("/"))

    def snapshot(self, path: str) -> files.Snapshot:
        """See :func:`.owned_files.read`."""
        return files.read(self.path(path))

    def read(self, path: str) -> t.Optional[str]:
        """The text of a file; none if there is none.

        :raises ConfigError: it is not a text file.
        :raises NodeError: it cannot be read.
        """
        return self.snapshot(path).text

    def glob(self, pattern: str) -> t.List[str]:
        """The files that match, as paths on the node, in the order of their names."""
        found = glob.glob(os.path.join(glob.escape(self.root), pattern.lstrip("/")))
        return sorted("/" + os.path.relpath(path, self.root) for path in found)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return os.path.exists(self.path(path))

    def command_line(self, pid: int) -> t.List[str]:
        """What a process was started with; empty if it is gone."""
        try:
            with open(self.path("/proc/%d/cmdline" % pid), "rb") as handle:
                return handle.read().decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
        except OSError:
            return []

    def processes(self, name: str) -> t.List[int]:
        """The processes of that name."""
        found = []
        for path in glob.glob(os.path.join(glob.escape(self.root), "proc/[0-9]*/comm")):
            try:
                with open(path, encoding="utf-8", errors="replace") as handle:
                    if handle.read().rstrip("\n") == name:
                        found.append(int(path.split(os.sep)[-2]))
            except OSError:
                continue  # it ended meanwhile
        return sorted(found)

    def units(self, names: t.Sequence[str]) -> t.List[Unit]:
        """Those of the named services that systemd knows.

        :raises NodeError: there is no systemd to ask.
        """
        done = self.run(["systemctl", "show", "--property=" + ",".join(_PROPERTIES), "--"] + list(names))
        if done.rc != 0:
            raise NodeError("systemctl show: %s" % (" ".join(done.stderr.split()) or "exit status %d" % done.rc))
        found = [_parse_unit(block) for block in done.stdout.split("\n\n")]
        return [unit for unit in found if unit is not None]


def _parse_unit(block: str) -> t.Optional[Unit]:
    values: t.Dict[str, t.List[str]] = {}
    for line in block.splitlines():
        name, _equals, value = line.partition("=")
        if value:
            values.setdefault(name, []).append(value)

    def one(name: str) -> str:
        return values.get(name, [""])[0]

    if one("LoadState") != "loaded":
        return None
    started = [found for found in map(_EXEC_START.search, values.get("ExecStart", [])) if found]
    matched = [_ENVIRONMENT_FILE.match(value) for value in values.get("EnvironmentFiles", [])]
    return Unit(
        name=one("Id")[: -len(".service")] if one("Id").endswith(".service") else one("Id"),
        active=one("ActiveState"),
        enabled=one("UnitFileState"),
        pid=int(one("MainPID")) if one("MainPID").isdigit() else 0,
        path=started[-1].group("path") if started else "",
        # systemctl joins the arguments with blanks and adds no quotes, so words are all there is to go by.
        argv=tuple(started[-1].group("argv").split()) if started else (),
        environment=tuple(_parse_shown_environment(one("Environment"))),
        environment_files=tuple(found.group("path") for found in matched if found),
        sources=tuple(path for path in [one("FragmentPath")] + one("DropInPaths").split() if path),
    )


def _parse_shown_environment(shown: str) -> t.Iterator[t.Tuple[str, str]]:
    for word in split_words(chars_of(shown), "the unit's Environment="):
        name, equals, value = word.text.partition("=")
        if equals:
            yield name, value


class ServiceKubelet(Kubelet):
    """A kubelet that a unit starts directly: kubeadm, kubespray, or a unit of the operator's own."""

    def __init__(
        self, unit: Unit, host: Host, binary: str = "", layout: str = "", args: t.Optional[EnvironmentEditor] = None
    ) -> None:
        super().__init__(unit, host)
        self._args = args
        self._extra = "$" + KUBEADM_VARIABLE
        self._skip = 1
        self.layouts = (layout,) if layout else self._detect()
        self._find_command(binary)
        self._find_target()

    def _detect(self) -> t.Tuple[str, ...]:
        found = []
        if self._extra in self.unit.argv or "$KUBELET_KUBEADM_ARGS" in self.unit.argv:
            found.append("kubeadm")
        if KUBESPRAY_ENV in self.unit.environment_files:
            found.append("kubespray")
        return tuple(found) or ("plain",)

    def _find_command(self, binary: str) -> None:
        name = os.path.basename(self.unit.path)
        subcommand = self.unit.argv[1:2] if name.startswith("hyperkube") else ()
        if subcommand == ("kubelet",):
            self._skip = 2
        if binary:
            self.command = (self.host.path(binary),)
        elif name.startswith("kubelet") or subcommand == ("kubelet",):
            self.command = (self.host.path(self.unit.path),) + subcommand
        elif name in _CONTAINER_TOOLS:
            self.untouchable = "%s.service runs the kubelet in a container (%s)" % (self.unit.name, self.unit.path)
        else:
            self.untouchable = (
                "%s.service starts %s, which is not a kubelet but perhaps a wrapper around one; name the real binary "
                "in the option binary to have it asked" % (self.unit.name, self.unit.path or "nothing")
            )

    def _find_target(self) -> None:
        if self._args is not None:
            self.target = self._args
            return
        if "kubeadm" not in self.layouts:
            self.target_advice = (
                "set kubespray's variable kubelet_custom_flags to contain it, and run kubespray"
                if "kubespray" in self.layouts
                else "name the file and the variable that its unit takes arguments from in args_file and args_variable"
            )
            return
        candidates = [path for path in self.unit.environment_files if path in KUBEADM_FILES]
        origin = self._environment(self.host.read).get(KUBEADM_VARIABLE, (None, ""))[1]
        if not candidates:
            self.target_advice = "%s.service reads neither %s nor %s: set it in nodeRegistration.kubeletExtraArgs" % (
                (self.unit.name,) + KUBEADM_FILES
            )
        elif origin and origin not in candidates:
            # A second assignment would replace this one, with everything else in it.
            self.target_advice = "%s is set in %s: add it there" % (KUBEADM_VARIABLE, origin)
        else:
            existing = [path for path in candidates if self.host.exists(path)]
            self.target = EnvironmentEditor(origin or (existing or candidates)[-1], KUBEADM_VARIABLE)

    def _environment(self, read: Reader) -> t.Dict[str, t.Tuple[t.Optional[Assignment], str]]:
        """Each variable's assignment that counts, and where it is (systemd.exec(5): files override Environment=)."""
        found: t.Dict[str, t.Tuple[t.Optional[Assignment], str]] = {}
        in_unit = "Environment= of %s.service (%s)" % (self.unit.name, ", ".join(self.unit.sources))
        for name, value in self.unit.environment:
            found[name] = Assignment(name, chars_of(value), 0), in_unit
        for pattern in self.unit.environment_files:
            paths = self.host.glob(pattern) if glob.has_magic(pattern) else [pattern]
            for path in paths:
                for assignment in parse_environment(read(path) or "", path):
                    found[assignment.name] = assignment, path
        return found

    def places(self, read: Reader) -> t.List[Place]:
        """See :meth:`Kubelet.places`."""
        environment = self._environment(read)
        unit_advice = "edit %s, then run systemctl daemon-reload" % (" or ".join(self.unit.sources) or "the unit")
        found: t.List[Place] = []
        literal: t.List[str] = []

        def replaced(match: t.Match[str]) -> str:
            assignment = environment.get(match.group(1), (None, ""))[0]
            return assignment.value if assignment else ""

        def flush() -> None:
            if literal:
                found.append(Place("ExecStart= of %s.service" % self.unit.name, tuple(literal), None, unit_advice))
                literal.clear()

        for word in self.unit.argv[self._skip :]:
            if not re.match(r"\$[A-Za-z_]", word):
                literal.append(_BRACED.sub(replaced, word).replace("$$", "$"))
                continue
            assignment, path = environment.get(word[1:], (None, ""))
            if assignment is not None:
                flush()
                words = split_words(assignment.chars, "%s, %s" % (path, assignment.name))
                found.append(
                    Place(
                        "%s, %s" % (path, assignment.name),
                        tuple(one.text for one in words),
                        self._editor(path, assignment.name),
                        self._advice(path, assignment.name, unit_advice),
                    )
                )
        flush()
        return found

    def _editor(self, path: str, variable: str) -> t.Optional[Editor]:
        named = self._args is not None and (self._args.path, self._args.variable) == (path, variable)
        if named or ("kubeadm" in self.layouts and path in KUBEADM_FILES):
            return EnvironmentEditor(path, variable)
        return None

    @staticmethod
    def _advice(path: str, variable: str, unit_advice: str) -> str:
        if path == KUBEADM_FLAGS:
            return (
                "kubeadm wrote it: take it out of nodeRegistration.kubeletExtraArgs in the kubeadm configuration, and "
                "out of %s" % path
            )
        if path == KUBESPRAY_ENV:
            return (
                "kubespray writes this file: take it out of the variable kubelet_custom_flags in group_vars or "
                "host_vars, and run kubespray"
            )
        if not path.startswith("/"):
            return unit_advice
        return "edit the file, or name it in args_file and %s in args_variable" % variable


class RancherKubelet(Kubelet):
    """k3s and RKE2: one program, configured by a YAML file and drop-ins."""

    target_since = RANCHER_DROPINS_SINCE

    def __init__(self, unit: Unit, host: Host, layout: str, binary: str = "") -> None:
        super().__init__(unit, host)
        self.layouts = (layout,)
        self._directory = "/etc/rancher/" + layout
        own_binary = host.path("/var/lib/rancher/rke2/bin/kubelet")
        if binary:
            self.command = (host.path(binary),)
        elif layout == "rke2" and os.path.exists(own_binary):
            self.command = (own_binary,)
        else:
            # The kubelet is inside this program, which has no command to list the kubelet's flags.
            self.command, self.asks_help = (host.path(unit.path),), False
        self._own = "%s/%s" % (self._directory, RANCHER_DROPIN)
        self.target = OwnYamlEditor(self._own)
        for path in self._files():
            if path > self._own and re.search(r"^[\"']?kubelet-arg[\"']?\s*:", host.read(path) or "", re.MULTILINE):
                self.target = None
                self.target_advice = "%s replaces the whole list kubelet-arg: write kubelet-arg+ there" % path

    def _files(self) -> t.List[str]:
        return ["%s/config.yaml" % self._directory] + self.host.glob("%s/config.yaml.d/*.yaml" % self._directory)

    def places(self, read: Reader) -> t.List[Place]:
        """See :meth:`Kubelet.places`."""
        argv = " ".join(self.unit.argv)
        docker = "--docker" in self.unit.argv or any(_DOCKER.search(read(path) or "") for path in self._files())
        found = [] if docker else [Place("%s itself" % self.layouts[0], (_REMOTE_RUNTIME,), None, "")]
        # The drop-in may be about to be made, so it is asked for whether it is there or not.
        for path in sorted(set(self._files()) | {self._own}, key=lambda one: (one.count("/"), one)):
            words = tuple(yaml_arguments(read(path) or ""))
            editor = OwnYamlEditor(path) if path == self._own else None
            found.append(Place("%s, kubelet-arg" % path, words, editor, "take it out of kubelet-arg in %s" % path))
        advice = "take --kubelet-arg out of %s" % (" or ".join(self.unit.sources) or "the unit")
        words = tuple(yaml_arguments(argv))
        found.append(Place("ExecStart= of %s.service" % self.unit.name, words, None, advice))
        return [place for place in found if place.words or place.editor]


class K0sKubelet(Kubelet):
    """k0s: the kubelet's arguments are one argument of k0s, in the unit."""

    def __init__(self, unit: Unit, host: Host, binary: str = "") -> None:
        super().__init__(unit, host)
        self.layouts = ("k0s",)
        data = next((word.partition("=")[2] for word in unit.argv if word.startswith("--data-dir=")), "/var/lib/k0s")
        self.command = (host.path(binary or data + "/bin/kubelet"),)
        self._role = "controller" if unit.name == "k0scontroller" else "worker"
        self.target_advice = "add it to --kubelet-extra-args in %s" % (" or ".join(unit.sources) or "the unit")

    def places(self, read: Reader) -> t.List[Place]:
        """See :meth:`Kubelet.places`."""
        argv = " ".join(self.unit.argv)
        runtime = () if _DOCKER_SOCKET.search(argv) else (_REMOTE_RUNTIME,)
        words = tuple(yaml_arguments(argv))
        advice = "take it out of --kubelet-extra-args in %s (k0s install %s --force --kubelet-extra-args=...)" % (
            " or ".join(self.unit.sources) or "the unit",
            self._role,
        )
        return [
            Place("k0s itself", runtime, None, ""),
            Place("--kubelet-extra-args in %s.service" % self.unit.name, words, None, advice),
        ]


class MicroK8sKubelet(Kubelet):
    """MicroK8s: a snap, with one file of arguments. Its programs cannot be asked without starting them."""

    def __init__(self, unit: Unit, host: Host) -> None:
        super().__init__(unit, host)
        self.layouts = ("microk8s",)
        self.untouchable = "%s names no version" % MICROK8S_SNAP
        self.target = LinesEditor(MICROK8S_ARGS)

    def version_on_file(self) -> t.Optional[str]:
        """See :meth:`Kubelet.version_on_file`."""
        found = _SNAP_VERSION.search(self.host.read(MICROK8S_SNAP) or "")
        return None if not found else "v" + found.group(1).lstrip("v")

    def places(self, read: Reader) -> t.List[Place]:
        """See :meth:`Kubelet.places`."""
        editor = LinesEditor(MICROK8S_ARGS)
        return [Place(MICROK8S_ARGS, tuple(editor.words(read(MICROK8S_ARGS))), editor, "")]


def find_kubelets(
    host: Host, unit: str = "", binary: str = "", layout: str = "auto", args: t.Optional[EnvironmentEditor] = None
) -> t.List[Kubelet]:
    """The kubelets that this node is meant to run; stopped and disabled ones only where there is no other.

    :param unit: look at this service only.
    :param binary: ask this program, not the one that the unit starts.
    :param layout: look only for this layout, or take the unit for it.
    :param args: where a unit of the operator's own takes arguments from.
    :raises ConfigError: an argument file cannot be understood.
    :raises NodeError: systemd cannot be asked.
    """
    names = [unit[: -len(".service")] if unit.endswith(".service") else unit] if unit else list(_UNITS)
    units = [one for one in host.units(names) if _runs_kubelet(one)]
    units = [one for one in units if one.in_use] or units
    kubelets = [_kubelet(one, host, binary, _kind(one, layout, bool(unit)), args) for one in units]
    return [one for one in kubelets if layout == "auto" or layout in one.layouts]


def _runs_kubelet(unit: Unit) -> bool:
    """k3s servers without an agent and k0s controllers without a worker run no kubelet."""
    if unit.name == "k0scontroller":
        return any(word.startswith(("--enable-worker", "--single")) for word in unit.argv)
    return not any(word in ("--disable-agent", "--disable-agent=true") for word in unit.argv)


def _kind(unit: Unit, layout: str, named: bool) -> str:
    """What to take a unit for; empty where the unit itself has to tell."""
    usual = _UNITS.get(unit.name, "")
    # A unit that the operator names may be anything; of the others only the plain kubelet.service.
    return layout if layout != "auto" and (named or (not usual and layout in _STARTED_DIRECTLY)) else usual


def _kubelet(unit: Unit, host: Host, binary: str, kind: str, args: t.Optional[EnvironmentEditor]) -> Kubelet:
    if kind in ("k3s", "rke2"):
        return RancherKubelet(unit, host, kind, binary)
    if kind == "k0s":
        return K0sKubelet(unit, host, binary)
    if kind == "microk8s":
        return MicroK8sKubelet(unit, host)
    return ServiceKubelet(unit, host, binary, kind, args)


def editor_for(path: str, variable: str) -> t.Optional[EnvironmentEditor]:
    """What the operator named as the place of the arguments; none if nothing was named.

    :raises ConfigError: only half of it was named, the path is not absolute, or the file is another program's.
    """
    if not path and not variable:
        return None
    if not path or not variable:
        raise ConfigError("args_file and args_variable belong together: give both, or neither")
    if not path.startswith("/"):
        raise ConfigError("args_file '%s' is not an absolute path" % path)
    if not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", variable):
        raise ConfigError("args_variable '%s' cannot be the name of an environment variable" % variable)
    if os.path.normpath(path) in NEVER_EDITED:
        raise ConfigError("args_file %s is never edited: %s" % (path, NEVER_EDITED[os.path.normpath(path)]))
    return EnvironmentEditor(os.path.normpath(path), variable)
