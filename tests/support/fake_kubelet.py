# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the kubelet, as strict about its flags as the real one. Python 3.8, standard library only.

``fake_kubelet.py install /usr/bin/kubelet --version 1.23.17`` puts three files there: a program in machine code under
that name, which starts Python with the second, this script, compiled; and the third, with version and behaviour.
The program is no script because a script is exactly what the real kubelet is not, and what may not be run to probe it.

It serves healthz where its flags or its configuration file say, or not at all with port 0. With
``--network-plugin=kubenet`` before 1.24, and its own container runtime, it ensures kubenet's rule when it starts and
whenever ``/setup-pod`` is asked for, and never deletes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
import time
import typing as t

# Functions import what only they need: the tests start hundreds of kubelets, most of them to ask for the version.

#: Flags and whether they take a value; a few of those that real nodes use.
FLAGS = {
    "allowed-unsafe-sysctls": True,
    "bootstrap-kubeconfig": True,
    "cgroup-driver": True,
    "cluster-domain": True,
    "config": True,
    "container-runtime-endpoint": True,
    "fail-swap-on": False,
    "healthz-bind-address": True,
    "healthz-port": True,
    "help": False,
    "hostname-override": True,
    "kubeconfig": True,
    "max-pods": True,
    "node-ip": True,
    "node-labels": True,
    "pod-infra-container-image": True,
    "register-with-taints": True,
    "root-dir": True,
    "runtime-cgroups": True,
    "v": True,
    "version": False,
}

#: Flags that went away with dockershim in 1.24.
FLAGS_BEFORE_1_24 = {
    "cni-bin-dir": True,
    "cni-conf-dir": True,
    "container-runtime": True,
    "network-plugin": True,
    "network-plugin-mtu": True,
    "non-masquerade-cidr": True,
}

#: What kubenet appends to POSTROUTING, after ``! -d CIDR``.
KUBENET_RULE = (
    "-m comment --comment".split()
    + ["kubenet: SNAT for outbound traffic from cluster"]
    + "-m addrtype ! --dst-type LOCAL".split()
)

_BASE = 0x400000
_HEADERS = 64 + 56
#: The largest page size that a kernel of any of these machines uses.
_ALIGNMENT = 0x10000


def _aim_x86_64(code: bytearray, at: int, target: int) -> None:
    """Return the operand of lea, which counts from the instruction after it."""
    struct.pack_into("<i", code, at + 3, target - (at + 7))


def _aim_aarch64(code: bytearray, at: int, target: int) -> None:
    """Aim at an address: adr holds the two lowest bits of a distance apart from the others."""
    (word,) = struct.unpack_from("<I", code, at)
    distance = target - at
    struct.pack_into("<I", code, at, word | (distance & 3) << 29 | (distance >> 2) << 5)


class Launcher(t.NamedTuple):
    """A program for one kind of machine. It runs, on the stack that the kernel made,
    execve(PYTHON, [argv[0], SCRIPT, argv[1], ...], environment), and if that fails exit(127).
    """

    #: e_machine of ELF
    number: int
    code: bytes
    #: where the addresses of PYTHON and of SCRIPT are loaded
    python_at: int
    script_at: int
    #: ``aim(code, at, target)`` completes such an instruction
    aim: t.Callable[[bytearray, int, int], None]


#: By what ``uname -m`` calls the machine.
LAUNCHERS = {
    "x86_64": Launcher(
        62,
        bytes.fromhex(
            "488b3c24"  # mov rdi, [rsp]
            "488d54fc10"  # lea rdx, [rsp+rdi*8+16]
            "488d3d00000000"  # lea rdi, [rip+PYTHON]
            "488d0500000000"  # lea rax, [rip+SCRIPT]
            "488b4c2408"  # mov rcx, [rsp+8]
            "48890c24"  # mov [rsp], rcx
            "4889442408"  # mov [rsp+8], rax
            "4889e6"  # mov rsi, rsp
            "b83b000000"  # mov eax, 59
            "0f05"  # syscall
            "bf7f000000"  # mov edi, 127
            "b83c000000"  # mov eax, 60
            "0f05"  # syscall
        ),
        0x09,
        0x10,
        _aim_x86_64,
    ),
    "aarch64": Launcher(
        183,
        bytes.fromhex(
            "e90340f9"  # ldr x9, [sp]
            "e26f298b"  # add x2, sp, x9, lsl #3
            "42400091"  # add x2, x2, #16
            "00000010"  # adr x0, PYTHON
            "0a000010"  # adr x10, SCRIPT
            "eb0740f9"  # ldr x11, [sp, #8]
            "eb0300f9"  # str x11, [sp]
            "ea0700f9"  # str x10, [sp, #8]
            "e1030091"  # mov x1, sp
            "a81b80d2"  # mov x8, #221
            "010000d4"  # svc #0
            "e00f80d2"  # mov x0, #127
            "a80b80d2"  # mov x8, #93
            "010000d4"  # svc #0
        ),
        0x0C,
        0x10,
        _aim_aarch64,
    ),
}


def launcher(python: str, script: str, machine: str = "") -> bytes:
    """Return an ELF program that runs ``python script`` with the arguments that it gets itself.

    :param machine: what it is for; this one if not given.
    """
    import platform

    machine = machine or platform.machine()
    if machine not in LAUNCHERS:
        raise RuntimeError("the stand-in kubelet is made for %s, not for %s" % (" and ".join(LAUNCHERS), machine))
    made = LAUNCHERS[machine]
    code = bytearray(made.code)
    strings = os.fsencode(python) + b"\0" + os.fsencode(script) + b"\0"
    made.aim(code, made.python_at, len(code))
    made.aim(code, made.script_at, len(code) + len(os.fsencode(python)) + 1)
    body = bytes(code) + strings
    size = _HEADERS + len(body)
    ident = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    entry = _BASE + _HEADERS
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, made.number, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, _ALIGNMENT)
    return header + segment + body


def install(path: str, version: str, **behaviour: t.Any) -> None:
    """Put a stand-in at ``path``.

    :param version: of Kubernetes, without ``v``.
    :param behaviour: ``port`` of healthz unless flags or configuration name one; ``root``, the directory below which
        the configuration file of ``--config`` is; ``iptables``, the program for kubenet's rule, without which it writes
        none, so that no rule gets into a network namespace by accident; ``hang``, whether --help and --version never
        end; ``refuse``, words with which it exits at once; ``unhealthy``, words with which healthz says 500;
        ``process``, the process's name; ``inside``, the program that a kubelet is inside of: it has a version, and
        whatever else is asked it starts and stays.
    """
    import py_compile
    import sysconfig

    script = path + ".pyc"
    for stale in (path, script):
        # A running program cannot be written to, but its name can be given to another file.
        if os.path.lexists(stale):
            os.unlink(stale)
    py_compile.compile(os.path.abspath(__file__), cfile=script, doraise=True)
    configure(path, version=version, **behaviour)
    python = os.path.realpath(sys.executable)
    if os.path.dirname(os.__file__) != sysconfig.get_config_var("LIBDEST"):
        # Under the name of another program, a Python that is not where it was built for finds its library by this file.
        with open(os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg"), "w", encoding="utf-8") as handle:
            handle.write("home = %s\n" % os.path.dirname(python))
    with open(path, "wb") as handle:
        handle.write(launcher(python, script))
    os.chmod(path, 0o755)


def configure(path: str, **behaviour: t.Any) -> None:
    """Change the behaviour of the stand-in at ``path``; see ``install``."""
    with open(path + ".json", "w", encoding="utf-8") as handle:
        json.dump(behaviour, handle)


class FlagError(Exception):
    """What the real one calls a failure to parse its flags."""


def parse_flags(argv: t.Sequence[str], known: t.Mapping[str, bool]) -> t.Tuple[t.Dict[str, str], t.List[str]]:
    """Parse as pflag does with the kubelet's normalisation: the last value wins, underscores are dashes.

    :raises FlagError: an unknown flag, or a flag without its value.
    """
    values: t.Dict[str, str] = {}
    rest: t.List[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return values, rest + words
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and word != "-":
            # Shorthands: -h, and -v with its value behind it in any form.
            name, equals, value = {"h": "help"}.get(word[1], word[1]), word[2:], word[2:].lstrip("=")
        else:
            rest.append(word)
            continue
        flag = name.replace("_", "-")
        if flag not in known:
            raise FlagError("unknown flag: --%s" % name)
        if not equals and known[flag]:
            if not words:
                raise FlagError("flag needs an argument: --%s" % name)
            value = words.pop(0)
        elif not equals:
            value = "true"
        values[flag] = value
    return values, rest


def describe(known: t.Mapping[str, bool]) -> str:
    """Return the help text, in the shape of the real one."""
    lines = [
        "The kubelet runs on every node and looks after its pods.",
        "",
        "Usage:",
        "  kubelet [flags]",
        "",
        "Flags:",
    ]
    for name in sorted(known):
        short = {"help": "-h, ", "v": "-v, "}.get(name, "    ")
        late = " (DEPRECATED: will be removed in a future version)" if name == "non-masquerade-cidr" else ""
        lines.append("  %s--%-50s what it says%s" % (short, name + (" string" if known[name] else ""), late))
    return "\n".join(lines) + "\n"


def health_endpoint(flags: t.Mapping[str, str], root: str, port: int) -> t.Tuple[str, int]:
    """Return the address and port of healthz: flags count more than the configuration file, and it more than defaults.

    :param port: the default.
    """
    found = {"healthzBindAddress": "127.0.0.1", "healthzPort": str(port)}
    if "config" in flags:
        with contextlib.suppress(FileNotFoundError), open(root + flags["config"], encoding="utf-8") as lines:
            for line in lines:
                name, _colon, value = line.partition(":")
                if name in found:
                    found[name] = value.strip()
    address = flags.get("healthz-bind-address", found["healthzBindAddress"])
    return address, int(flags.get("healthz-port", found["healthzPort"]))


def ensure_rule(iptables: str, cidr: str) -> None:
    """Append kubenet's rule unless it is there; never delete one."""
    import subprocess

    rule = ["POSTROUTING"] + KUBENET_RULE + ["!", "-d", cidr, "-j", "MASQUERADE"]
    there = subprocess.run([iptables, "-w", "-t", "nat", "-C"] + rule, stderr=subprocess.DEVNULL, check=False)
    if there.returncode:
        subprocess.run([iptables, "-w", "-t", "nat", "-A"] + rule, check=True)


def serve(address: str, port: int, healthy: bool, set_up_pod: t.Callable[[], None]) -> None:
    """Answer healthz until a signal ends the process; with port 0, only wait for that signal."""
    if port == 0:
        while True:
            signal.pause()
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        """healthz, and the event that makes kubenet act."""

        def do_GET(self) -> None:
            """Answer."""
            code = {"/healthz": 200 if healthy else 500, "/setup-pod": 200}.get(self.path, 404)
            if self.path == "/setup-pod":
                set_up_pod()
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b"ok" if code == 200 else b"not ok")

        def log_message(self, *_args: t.Any) -> None:
            """Say nothing."""

    http.server.ThreadingHTTPServer((address, port), Handler).serve_forever()


def main(argv: t.List[str], behaviour: t.Mapping[str, t.Any]) -> int:
    """Be a kubelet."""
    version = str(behaviour["version"])
    old = [int(part) for part in version.split(".")[:2]] < [1, 24]
    known = dict(FLAGS, **(FLAGS_BEFORE_1_24 if old else {}))
    inside = str(behaviour.get("inside", ""))
    try:
        flags, rest = parse_flags(argv, known)
    except FlagError as exc:
        print("Error: failed to parse kubelet flag: %s" % exc, file=sys.stderr)
        return 1
    if ("help" in flags or "version" in flags) and behaviour.get("hang") or (inside and "version" not in flags):
        while True:
            time.sleep(60)
    if "help" in flags:
        print(describe(known), end="")
        return 0
    if "version" in flags:
        about = "%s version v%s (0123abcd)\ngo version go1.22.5"
        print(about % (inside, version) if inside else "Kubernetes v" + version)
        return 0
    if rest:
        print("Error: unknown command %r" % rest[0], file=sys.stderr)
        return 1
    if set(behaviour.get("refuse", ())) & set(argv):
        print("Error: refused as it was told to", file=sys.stderr)
        return 1
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(str(behaviour.get("process", "kubelet")))
    signal.signal(signal.SIGTERM, lambda *_args: os._exit(0))
    cidr = flags.get("non-masquerade-cidr", "10.0.0.0/8")

    iptables = str(behaviour.get("iptables", ""))

    def set_up_pod() -> None:
        # kubenet is a part of the kubelet's own runtime, which "remote" replaces.
        kubenet = flags.get("network-plugin") == "kubenet" and flags.get("container-runtime") != "remote"
        if iptables and kubenet and cidr not in ("0.0.0.0/0", "::/0"):
            ensure_rule(iptables, cidr)

    set_up_pod()
    address, port = health_endpoint(flags, str(behaviour.get("root", "")), int(behaviour.get("port", 10248)))
    serve(address, port, not set(behaviour.get("unhealthy", ())) & set(argv), set_up_pod)
    return 0


def install_main(argv: t.Sequence[str]) -> int:
    """Run the command line of the installer."""
    import argparse

    parser = argparse.ArgumentParser(description="Install a stand-in for the kubelet.")
    parser.add_argument("command", choices=["install"])
    parser.add_argument("path")
    parser.add_argument("--version", required=True)
    parser.add_argument("--port", type=int, default=10248)
    parser.add_argument("--iptables", default="")
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--refuse", action="append", default=[])
    parser.add_argument("--unhealthy", action="append", default=[])
    parser.add_argument("--process", default="kubelet")
    given = vars(parser.parse_args(list(argv)))
    given.pop("command")
    install(given.pop("path"), given.pop("version"), **given)
    return 0


if __name__ == "__main__":
    _BEHAVIOUR = os.path.splitext(os.path.abspath(__file__))[0] + ".json"
    if os.path.exists(_BEHAVIOUR):
        with open(_BEHAVIOUR, encoding="utf-8") as _handle:
            sys.exit(main(sys.argv[1:], json.load(_handle)))
    sys.exit(install_main(sys.argv[1:]))
