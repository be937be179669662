# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node with the agent on it: a namespace with some directories of its own, and stand-ins for systemd's programs."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import typing as t
from pathlib import Path

from . import modules
from .import_collection import location, make_importable
from .namespaces import Namespace, until

make_importable()

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import (  # noqa: E402
    module_directory,
    program_modules,
    snapshot,
    units,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import choose_paths  # noqa: E402
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run  # noqa: E402

from .private_node import private_paths  # noqa: E402

#: Gives the namespace directories of its own in place of the machine's, for as long as the namespace lives. Of /etc it
#: has what programs of nodes read; the rest is a thousand files, for each of hundreds of nodes.
_MOUNT = """
mkdir -p "$1/run/systemd/system" "$1/var/lib" "$1/usr/local/sbin" "$1/usr/local/lib" "$1/etc/alternatives"
for folder in /usr/local/lib/*/; do
    [ ! -d "$folder" ] || { mkdir "$1$folder"; mount --bind "$folder" "$1$folder"; }
done
find /etc -mindepth 1 -maxdepth 1 '(' ! -type d -o -name apt -o -name iproute2 -o -name systemd ')' \
    -exec cp -a -t "$1/etc" '{}' +
cp -a /etc/alternatives/*awk /etc/alternatives/*tables* "$1/etc/alternatives"
touch "$1/run/xtables.lock"
mount --bind "$1/etc" /etc
mount --bind "$1/var/lib" /var/lib
mount --bind "$1/usr/local/sbin" /usr/local/sbin
mount --rbind "$1/usr/local/lib" /usr/local/lib
mount --bind "$1/run" /run
"""
_WIRED = """link add cni0 type bridge
address add 10.244.1.1/24 dev cni0
link set cni0 up
link add eth0 type veth peer name far
address add 192.0.2.1/24 dev eth0
link set eth0 up
link set far up
route add default via 192.0.2.254
"""
#: Stands before the agent, so that every start of it is seen.
_RECORDER = '#!/bin/sh\nprintf \'%%s\\n\' "$*" >>%s\nexec %s "$@"\n'
#: Remembers which units are enabled and active, as files in a directory, and logs what it was told to do. The agent's
#: service it runs, without a sandbox.
_SYSTEMCTL = """#!/bin/sh
cd %s || exit 1
while [ "${1#-}" != "$1" ]; do
    shift
done
verb=$1
shift
unit_file() {
    for place in /etc /usr/lib; do
        [ ! -e "$place/systemd/system/$1" ] || echo "$place/systemd/system/$1"
    done | head -n 1
}
case $verb in is-failed) exit 1 ;; show | is-active | is-enabled) ;; *) echo "$verb $*" >>log ;; esac
for unit; do
    case $verb,$unit in
    *,-*) ;;
    show,*)
        load=not-found enabled= active=inactive status=0 result=exit-code
        case $unit in *@*) file=${unit%%@*}@.${unit##*.} ;; *) file=$unit ;; esac
        [ -z "$(unit_file "$file")" ] || load=loaded enabled=disabled
        case $unit in ip-masq-agent*) [ ! -e installed ] || load=loaded enabled=disabled ;; esac
        [ -e "$unit.enabled" ] && enabled=enabled
        [ -e "$unit.active" ] && active=active
        [ -e "$unit.inactive" ] && active=inactive
        [ -e "$unit.failed" ] && active=failed
        [ ! -e "$unit.status" ] || read -r status <"$unit.status"
        [ "$status" != 0 ] || result=success
        printf 'LoadState=%%s\nActiveState=%%s\nUnitFileState=%%s\n' "$load" "$active" "$enabled"
        printf 'Result=%%s\nExecMainStatus=%%s\n\n' "$result" "$status"
        ;;
    restart,ip-masq-agent.service)
        "$(sed -n 's/^ExecStart=//p' "$(unit_file "$unit")")" >journal 2>&1
        echo $? >"$unit.status"
        ;;
    is-active,*) [ -e "$unit.active" ] || exit 3 ;;
    is-enabled,*) if [ -e "$unit.enabled" ]; then echo enabled; else echo disabled; fi ;;
    enable,* | reenable,*) touch "$unit.enabled" ;;
    disable,*) rm -f "$unit.enabled" ;;
    start,*) touch "$unit.active" ;;
    stop,*) rm -f "$unit.active" ;;
    esac
done
"""
#: Shows what the service wrote when it was run the last time.
_JOURNALCTL = '#!/bin/sh\n[ "$1" = --sync ] || cat %s/journal\n'


@functools.lru_cache(maxsize=None)
def _compiled(python: str) -> Path:
    """Return the agent's modules as an installation leaves them, compiled once; the same for all paths."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = private_paths(Path(folder), python=python)
    problem = module_directory.put(run, paths)
    assert problem is None, problem
    return Path(program_modules.modules_dir(paths))


class AgentNode:
    """The agent in a namespace. ``root`` has its /etc, /run, /var/lib, /usr/local/sbin and /usr/local/lib.

    :param installed: whether the agent is there already, its units in the simulated systemd alone.
    :param python: its interpreter.
    """

    def __init__(
        self, ns: Namespace, root: Path, metrics: bool = False, installed: bool = True, python: str = sys.executable
    ) -> None:
        self.ns = ns
        self.root = root / "node"
        self.systemd = root / "systemd"
        self.systemd.mkdir()
        self.path = root / "path"
        self.path.mkdir()
        self._write(self.path / "systemctl", (_SYSTEMCTL % self.systemd).encode())
        self._write(self.path / "journalctl", (_JOURNALCTL % self.systemd).encode())
        ns.run("sh", "-euc", _MOUNT, "sh", str(self.root))
        self.config_dir = self.root / "etc/ip-masq-agent"
        self.drop_ins = self.config_dir / "config.d"
        self.run_dir = self.root / "run/ip-masq-agent"
        self.state_file = self.root / "var/lib/ip-masq-agent/state.json"
        self.metrics_dir = self.root / "var/lib/node_exporter"
        self.metrics_dir.mkdir()
        self.paths = choose_paths(python=python, metrics_dir="/var/lib/node_exporter" if metrics else "")
        self._log = root / "agent.log"
        self._log.touch()
        self.agent = self.program = self.at(self.paths.program)
        self.modules_dir = self.at(program_modules.modules_dir(self.paths))
        self.pristine = self.files()
        if installed:
            self._install()

    def at(self, path: str) -> Path:
        """Return where the test finds what the node has at a path."""
        return self.root / path.lstrip("/")

    def _install(self) -> None:
        self.drop_ins.mkdir(parents=True)
        self.agent = self.at(self.paths.program + ".real")
        self._write(self.agent, program_modules.launcher(self.paths))
        shutil.copytree(_compiled(self.paths.python), self.modules_dir)
        self._write(self.program, (_RECORDER % (self._log, self.agent)).encode())
        self._write(self.at(self.paths.resync), snapshot.resync_script(self.paths).encode())
        self.run_dir.mkdir(mode=0o700)
        states = {"enabled": units.ENABLED_UNITS, "active": units.STARTED_UNITS}
        for name in ("installed", *("%s.%s" % (unit, state) for state, names in states.items() for unit in names)):
            (self.systemd / name).touch()

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.chmod(0o755)

    def wire(self) -> None:
        """Give the node pods behind a bridge, and a way out: without them there is nothing to verify."""
        self.ns.run("ip", "-batch", "-", stdin=_WIRED)
        self.ns.run("sysctl", "-q", "net.ipv4.ip_forward=1")

    def configure(self, **keys: t.Any) -> None:
        """Write the config file, by its own keys."""
        (self.config_dir / "config").write_text(json.dumps(keys))

    def drop_in(self, name: str, text: str) -> Path:
        """Write a drop-in."""
        path = self.drop_ins / name
        path.write_text(text)
        return path

    def call(self, *argv: t.Union[str, Path], **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program on the node to its end, whatever its exit status is."""
        plain = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
        done: subprocess.CompletedProcess[t.Any] = self.ns.inside(
            subprocess.run,
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env=dict(plain, **dict({"LC_ALL": "C", "PATH": "%s:%s" % (self.path, os.environ["PATH"])}, **env)),
        )
        # As text of Python a carriage return would be a line's end.
        told = (one.decode("utf-8", "surrogateescape") for one in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, *told)

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the agent with these arguments, not by way of the recorder."""
        return self.call(self.agent, *words, **env)

    def status(self) -> t.Dict[str, t.Any]:
        """Return what ``status --json`` says."""
        return t.cast(t.Dict[str, t.Any], json.loads(self.command("status", "--json").stdout))

    def sync(self) -> subprocess.CompletedProcess[str]:
        """Run ``sync``."""
        return self.command("sync")

    def synced(self, **keys: t.Any) -> AgentNode:
        """Write the config file and sync; return the node, which has the policy."""
        self.configure(**keys)
        done = self.sync()
        assert done.returncode == 0, done.stderr
        return self

    def resync(self) -> t.List[str]:
        """Run the script that the timer starts.

        :returns: the agent's arguments, once for each start of it.
        """
        before = len(self._starts())
        self.resynced = self.call(self.paths.resync)
        return self._starts()[before:]

    def _starts(self) -> t.List[str]:
        return self._log.read_text().splitlines()

    def settle(self) -> None:
        """Resync until there is nothing left to do.

        :raises AssertionError: there is no end to it.
        """
        for _attempt in range(3):
            if not self.resync():
                return
        raise AssertionError("the agent is started by every resync: %s" % self.resynced.stderr)

    def expected(self) -> bytes:
        """Return the snapshot; empty if there is none."""
        path = self.run_dir / "expected"
        return path.read_bytes() if path.exists() else b""

    def files(self) -> t.Set[str]:
        """Return every file that lies on the node, and every directory that is named after us."""
        found: t.Set[str] = set()
        for folder, folders, files in os.walk(self.root):
            named = [name for name in folders if "ip-masq" in name]
            found.update(os.path.relpath(os.path.join(folder, name), self.root) for name in files + named)
        return found

    def module(
        self, name: str, options: t.Mapping[str, t.Any], check: bool = False, diff: bool = False
    ) -> t.Dict[str, t.Any]:
        """Run a module of the collection on the node as Ansible would, failed or not, and return what it returned."""
        (found,) = modules.run_modules(self.ns, [options], check=check, diff=diff, path=self.path, module=name)
        return found

    def ansible(self, module: str, options: t.Mapping[str, t.Any], *flags: str) -> t.Dict[str, t.Any]:
        """Run ``ansible localhost`` on the node, failed or not, and return what it printed about it."""
        env = {
            "HOME": str(self.root.parent),
            "ANSIBLE_COLLECTIONS_PATH": str(modules.collections()),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "LC_ALL": "C.UTF-8",
        }
        program = Path(sys.executable).with_name("ansible")
        done = self.call(program, "localhost", "-c", "local", "-m", module, "-a", json.dumps(options), *flags, **env)
        assert done.returncode in (0, 2), done.stdout + done.stderr
        (task,) = [task for play in json.loads(done.stdout)["plays"] for task in play["tasks"]]
        return t.cast(t.Dict[str, t.Any], task["hosts"]["localhost"])

    def program_modules(self) -> t.Dict[str, bytes]:
        """Return the modules of the installed program, by name."""
        package = self.modules_dir / "ip_masq_agent"
        found = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
        return {".".join(path.relative_to(package).with_suffix("").parts): path.read_bytes() for path in found}

    def collection_modules(self) -> t.Dict[str, bytes]:
        """Return the same modules in the collection."""
        folder = location() / "plugins" / "module_utils"
        return {name: (folder / (name.replace(".", "/") + ".py")).read_bytes() for name in self.program_modules()}


@contextlib.contextmanager
def reference_agent(ns: Namespace) -> t.Iterator[None]:
    """Run a process of the reference agent's name in a namespace."""
    daemon = ns.popen("bash", "-c", "exec -a /ip-masq-agent sleep infinity")
    arguments = Path("/proc/%d/cmdline" % daemon.pid)
    try:
        until(lambda: arguments.read_bytes().startswith(b"/ip-masq-agent\0"), "the process to have its name")
        yield
    finally:
        daemon.kill()
        daemon.communicate()
