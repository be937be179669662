# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent on a node of our own: installed, synced, ready for resyncs with nothing to do. Runs inside a namespace."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import typing as t

from . import meter, rules

DIRECTORY = "/run/bench"


def setup(backend: str, size: int) -> t.Dict[str, str]:
    """Install the agent as the role does, give it a policy of so many ranges, and sync.

    :returns: paths of the agent (``program``) and of the script that the timer starts (``resync``).
    """
    from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import (
        module_directory,
        program_modules,
        snapshot,
    )
    from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import choose_paths
    from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import run

    paths = choose_paths(config_dir=DIRECTORY + "/etc", bin_dir=DIRECTORY + "/bin")
    os.makedirs(paths.config_dir + "/config.d", exist_ok=True)
    os.makedirs(paths.bin_dir, exist_ok=True)
    if not module_directory.is_there(paths):
        module_directory.put(run, paths)
    policy = {"nonMasqueradeCIDRs": rules.cidrs(size), "cidrLimit": max(size, 64), "backend": backend}
    for path, content in (
        (paths.program, program_modules.launcher(paths)),
        (paths.resync, snapshot.resync_script(paths).encode()),
        (paths.config_dir + "/config", json.dumps(policy, indent=2).encode() + b"\n"),
    ):
        with open(path, "wb") as handle:
            handle.write(content)
        os.chmod(path, 0o755)
    subprocess.run([paths.program, "sync"], env=meter.ENV, stdout=subprocess.DEVNULL, check=True)
    if not os.path.exists(paths.expected):
        raise RuntimeError("%s: after a sync with %d ranges there is no snapshot" % (backend, size))
    return {"program": paths.program, "resync": paths.resync}


def without_agent(paths: t.Dict[str, str], away: bool) -> None:
    """Put a program that always fails in the agent's place, or the agent back: a resync that ends well then has done
    without it."""
    program, aside = paths["program"], paths["program"] + ".aside"
    if away and not os.path.exists(aside):
        os.rename(program, aside)
        with open(program, "w", encoding="ascii") as handle:
            handle.write("#!/bin/sh\nexit 99\n")
        os.chmod(program, stat.S_IRWXU)
    elif not away and os.path.exists(aside):
        os.replace(aside, program)


def read_alone(backend: str) -> meter.Command:
    """Return what it takes to see our chain (or table), and nothing more."""
    if backend == rules.NFTABLES:
        argv = (rules.program("nft"), "-n", "-s", "list", "table", "ip", rules.TABLE)
    else:
        argv = (rules.iptables(backend), "-w", "5", "-t", "nat", "-S", rules.CHAIN)
    return (meter.Step(argv),)


def read_whole_table(backend: str) -> meter.Command:
    """Return what it takes to see all nat rules."""
    if backend == rules.NFTABLES:
        return (meter.Step((rules.program("nft"), "-n", "-s", "list", "ruleset")),)
    return (meter.Step((rules.iptables(backend, "-save"), "-t", "nat")),)


def rewrite(backend: str) -> meter.Command:
    """Resync as the reference daemon does: make the chain if it is not there, check the jump, and write the chain anew.

    What is written is what stands there, so that a resync still finds nothing to do.
    """
    program = rules.iptables(backend)
    base = (program, "-w", "5", "-t", "nat")
    listed = subprocess.run([*base, "-S", rules.CHAIN], env=meter.ENV, stdout=subprocess.PIPE, check=True, text=True)
    lines = [line for line in listed.stdout.splitlines() if line.startswith("-A ")]
    os.makedirs(DIRECTORY, exist_ok=True)
    path = DIRECTORY + "/rewrite"
    with open(path, "w", encoding="utf-8") as handle:
        handle.write("\n".join(["*nat", ":%s - [0:0]" % rules.CHAIN, *lines, "COMMIT", ""]))
    listed = subprocess.run([*base, "-S", "POSTROUTING"], env=meter.ENV, stdout=subprocess.PIPE, check=True, text=True)
    (jump,) = [line for line in listed.stdout.splitlines() if line.endswith("-j " + rules.CHAIN)]
    words = tuple(shlex.split(jump)[2:])
    return (
        meter.Step((*base, "-N", rules.CHAIN), expected=(1,)),
        meter.Step((*base, "-C", "POSTROUTING", *words)),
        meter.Step((program + "-restore", "-w", "5", "--noflush"), stdin=path),
    )


def load_same(backend: str) -> meter.Command:
    """Load the rules that are there once more, in place of what is there."""
    if backend != rules.NFTABLES:
        return rewrite(backend)[-1:]
    os.makedirs(DIRECTORY, exist_ok=True)
    path = DIRECTORY + "/rewrite"
    argv = (rules.program("nft"), "-f", "-")
    table = "ip " + rules.TABLE
    listed = subprocess.run([argv[0], "-n", "list", "table", *table.split()], env=meter.ENV, stdout=subprocess.PIPE,
                            check=True, text=True).stdout  # fmt: skip
    with open(path, "w", encoding="utf-8") as handle:
        handle.write("delete table %s\n%s" % (table, listed))
    return (meter.Step(argv, stdin=path),)


def load_others(backend: str, count: int) -> None:
    """Load so many rules of other programs."""
    argv = [rules.iptables(backend, "-restore"), "-w", "5", "--noflush"]
    subprocess.run(argv, env=meter.ENV, input=rules.services(count), text=True, check=True)


def state(backend: str) -> t.Union[int, str]:
    """Return what differs after any write: the generation of nf_tables, or of iptables-legacy, which counts none, the
    table with its counters, which a rewritten chain starts anew."""
    if backend != rules.LEGACY:
        return meter.generation()
    argv = [rules.iptables(backend, "-save"), "-c", "-t", "nat"]
    text = subprocess.run(argv, env=meter.ENV, stdout=subprocess.PIPE, check=True, text=True).stdout
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def count_something(backend: str) -> None:
    """Give the chain's counters something to lose."""
    path = DIRECTORY + "/rewrite"
    with open(path, encoding="utf-8") as handle:
        text = handle.read()
    counted = text.replace("\n-A ", "\n[7:700] -A ")
    argv = [rules.iptables(backend, "-restore"), "-w", "5", "--noflush", "--counters"]
    subprocess.run(argv, env=meter.ENV, input=counted, text=True, check=True)
