# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node below one directory: its files, its services, and stand-in kubelets that really run.

Only systemd is simulated. What ``systemctl show`` answers has the form that systemd 247 and 257 were seen to print, and
``systemctl restart`` really ends one process and starts the next, with the arguments that the unit and its environment
files give it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import socket
import subprocess
import time
import typing as t
import urllib.request
from pathlib import Path

from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet.options import Options
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import process as runner
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome
from ansible_collections.kubenode.ip_masq.plugins.module_utils._tasks.agent_options import KUBELET

from . import fake_kubelet
from .namespaces import until

_SHOWN = """MainPID={pid}
ExecStart={{ path={path} ; argv[]={argv} ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; \
code=(null) ; status=0/0 }}
Environment={environment}
{files}Id={name}.service
LoadState=loaded
ActiveState={active}
FragmentPath={fragment}
DropInPaths={dropins}
UnitFileState={enabled}
"""
_NOT_FOUND = """MainPID=0
Environment=
Id={name}.service
LoadState=not-found
ActiveState=inactive
FragmentPath=
DropInPaths=
UnitFileState=
"""


#: All that the environment files of these tests need of systemd's grammar.
_ASSIGNMENT = re.compile(r"""^(\w+)=("[^"]*"|'[^']*'|[^\r\n]*)""", re.MULTILINE)


class Service:
    """One unit, and the process of its program."""

    def __init__(
        self,
        command: str,
        environment: t.Sequence[str] = (),
        files: t.Sequence[str] = (),
        active: str = "active",
        fragment: str = "",
        dropins: str = "",
    ) -> None:
        """
        :param command: what stands behind ExecStart=, without quotes.
        :param environment: ``NAME=value`` of Environment=.
        :param files: what stands behind each EnvironmentFile=; all of them may be missing.
        :param active: the state for as long as no program was started.
        """
        self.argv = command.split()
        self.environment = list(environment)
        self.files = list(files)
        self.active = active
        self.enabled = "enabled"
        self.fragment = fragment
        self.dropins = dropins
        self.process: t.Optional[subprocess.Popen[bytes]] = None

    @property
    def state(self) -> str:
        """ActiveState; a program that ended is about to be started again."""
        if self.process is None:
            return self.active
        return "active" if self.process.poll() is None else "activating"

    def show(self, name: str) -> str:
        """Return what systemctl show prints for it."""
        running = self.process is not None and self.process.poll() is None
        return _SHOWN.format(
            name=name,
            pid=self.process.pid if running and self.process else 0,
            path=self.argv[0],
            argv=" ".join(self.argv),
            environment=" ".join('"%s"' % one if " " in one else one for one in self.environment),
            files="".join("EnvironmentFiles=%s (ignore_errors=yes)\n" % path for path in self.files),
            active=self.state,
            enabled=self.enabled,
            fragment=self.fragment or "/lib/systemd/system/%s.service" % name,
            dropins=self.dropins,
        )


class KubeletNode:
    """The node. Use ``run`` for what starts programs, and ``root`` for its file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._claim = _claimed_port()
        self.port: int = self._claim.getsockname()[1]
        self.healthz = "http://127.0.0.1:%d/healthz" % self.port
        self.services: t.Dict[str, Service] = {}
        #: command lines so far
        self.calls: t.List[t.List[str]] = []
        #: what else may be run for real, by the name of the program; by default nothing outside of the root
        self.passes: t.Callable[[str], bool] = lambda program: program.startswith(str(root) + "/")
        #: POSTROUTING, for as long as iptables is not run for real
        self.postrouting: t.List[str] = []
        #: what happens before a service is started; a place to interfere
        self.before_start: t.Callable[[], None] = lambda: None
        #: every process that was started, also of services that a test described anew
        self.spawned: t.List[subprocess.Popen[bytes]] = []
        (root / "proc").mkdir(parents=True, exist_ok=True)
        if not (root / "proc" / "self").is_symlink():
            (root / "proc" / "self").symlink_to("/proc/self")

    def path(self, path: str) -> Path:
        """Return where a file of the node is."""
        return self.root / path.lstrip("/")

    def write(self, path: str, content: t.Union[str, bytes], mode: int = 0o644) -> Path:
        """Put a file on the node."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)
        return target

    def read(self, path: str) -> bytes:
        """Return the content of a file on the node."""
        return self.path(path).read_bytes()

    def program(self, path: str, version: str, **behaviour: t.Any) -> None:
        """Put a stand-in kubelet on the node; see ``fake_kubelet.install``."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        fake_kubelet.install(str(self.path(path)), version, **{"port": self.port, "root": str(self.root), **behaviour})

    def start(self, name: str) -> None:
        """Start or restart a service; if its program is not on the node, it only counts as running."""
        service = self.services[name]
        self.stop(name)
        self.before_start()
        if not self.path(service.argv[0]).exists():
            service.active = "active"
            return
        service.process = self._spawn([str(self.path(service.argv[0]))] + self._expand(service))

    def start_stray(self, path: str, *words: str, process: str = "kubelet") -> None:
        """Start a program that no service knows, and wait until it is the ``process`` that it was told to be.

        On its way there it is an interpreter; and before that, a launcher whose name may be the same.
        """
        program = self.path(path)
        started = self._spawn([str(program), *words])
        proc = Path("/proc", str(started.pid))

        def is_itself() -> bool:
            assert started.poll() is None, "%s ended" % path
            return os.readlink(proc / "exe") != str(program) and (proc / "comm").read_text() == process + "\n"

        until(is_itself, "%s to start" % path)

    def _spawn(self, argv: t.Sequence[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.spawned.append(process)
        (self.root / "proc" / str(process.pid)).symlink_to("/proc/%d" % process.pid)
        return process

    def _expand(self, service: Service) -> t.List[str]:
        environment = dict(one.split("=", 1) for one in service.environment)
        for path in service.files:
            if self.path(path).exists():
                text = self.path(path).read_text().replace("\\\n", "")
                environment.update((name, value.strip("\"'")) for name, value in _ASSIGNMENT.findall(text))
        words: t.List[str] = []
        for word in service.argv[1:]:
            words += shlex.split(environment.get(word[1:], "")) if re.match(r"\$\w", word) else [word]
        return words

    def stop(self, name: str) -> None:
        """End the process of a service."""
        process, self.services[name].process = self.services[name].process, None
        if process is not None:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        link = self.root / "proc" / str(process.pid)
        if link.is_symlink():
            link.unlink()

    def close(self) -> None:
        """End every process, and give the port back."""
        for process in self.spawned:
            self._end(process)
        self._claim.close()

    def wait_healthy(self) -> None:
        """Return when healthz answers 200.

        :raises AssertionError: the process ended instead.
        """
        while True:
            for name, service in self.services.items():
                assert service.state == "active", "%s did not come up" % name
            try:
                urllib.request.urlopen(self.healthz, timeout=5).close()
                return
            except OSError:
                time.sleep(0.01)

    def restarts(self) -> t.List[str]:
        """Return which services were restarted, in order."""
        return [call[-1] for call in self.calls if call[:2] == ["systemctl", "restart"]]

    def run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        """Run a program for the code under test."""
        words = list(argv)
        self.calls.append(words)
        program = os.path.basename(words[0])
        if words[0] == "systemctl":
            return self._systemctl(words[1:])
        if self.passes(words[0]):
            return runner.run(words, stdin, timeout)
        if re.match(r"ip6?tables", program):
            return self._iptables(program, words[1:])
        raise AssertionError("the code under test ran %r" % words)

    def _systemctl(self, words: t.Sequence[str]) -> Outcome:
        names = [word[: -len(".service")] if word.endswith(".service") else word for word in words]
        if words[0] == "show" and words[1] == "--property=ActiveState":
            return Outcome(0, "ActiveState=%s\n" % self.services[names[-1]].state, "")
        if words[0] == "show":
            listed = names[names.index("--") + 1 :]
            blocks = [
                self.services[name].show(name) if name in self.services else _NOT_FOUND.format(name=name)
                for name in listed
            ]
            return Outcome(0, "\n".join(blocks), "")
        if words[0] == "restart":
            self.start(names[-1])
        elif words[0] != "reset-failed":
            raise AssertionError("the code under test ran systemctl %r" % list(words))
        return Outcome(0, "", "")

    def _iptables(self, program: str, words: t.Sequence[str]) -> Outcome:
        """Answer as a nat table of the nft variant and IPv4 only; everything else is empty."""
        if list(words) == ["--version"]:
            return Outcome(0, "%s v1.8.9 (%s)\n" % (program, "legacy" if "legacy" in program else "nf_tables"), "")
        mine = self.postrouting if program in ("iptables", "iptables-nft") else []
        arguments = list(words)[list(words).index("nat") + 1 :]
        if arguments == ["-S", "POSTROUTING"]:
            return Outcome(0, "\n".join(["-P POSTROUTING ACCEPT"] + mine) + "\n", "")
        if arguments[0] == "-D":
            rule = next((one for one in mine if shlex.split(one)[1:] == arguments[1:]), None)
            if rule is None:
                return Outcome(1, "", "iptables: Bad rule (does a matching rule exist in that chain?).\n")
            mine.remove(rule)
            return Outcome(0, "", "")
        raise AssertionError("the code under test ran %s %r" % (program, list(words)))


def make_options(**given: t.Any) -> Options:
    """Return the options of the module: these, and its defaults."""
    return Options(**{**{name: about["default"] for name, about in KUBELET.items()}, **given})


def make_node(folder: Path, monkeypatch: t.Any) -> KubeletNode:
    """Make a node below a directory, and put the programs of iptables that it simulates before PATH."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("iptables-nft", "iptables-nft-restore", "ip6tables-nft", "ip6tables-nft-restore"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", "%s:%s" % (programs, os.environ["PATH"]))
    return KubeletNode(folder / "root")


def _claimed_port() -> socket.socket:
    """Claim an unused port for as long as the socket is open, below those that the kernel gives to clients.

    It is a socket of UDP: no other node of a test gets the port, even while no kubelet listens on it with TCP.
    """
    while True:
        address = ("127.0.0.1", random.randrange(20000, 32000))
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket() as probe, contextlib.suppress(OSError):
            claim.bind(address)
            probe.bind(address)
            return claim
        claim.close()
