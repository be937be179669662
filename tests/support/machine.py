# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole node, simulated: which programs it has, what is in its nat tables, what the kubelet left in mangle."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import state_files, sync
from ansible_collections.kubenode.ip_masq.plugins.module_utils._engine import (
    backend_choice,
    iptables_nft,
    listed_chains,
    reconcile,
    run_lock,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import (
    conntrack,
    iptables_tool,
    nfnetlink,
    xtables,
)
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system import process as runner
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.node import Node
from ansible_collections.kubenode.ip_masq.plugins.module_utils._system.process import Outcome

from .nat import Nat
from .nat_rules import target
from .random_policies import others

NFT, LEGACY = "iptables_nft", "iptables_legacy"
WORDS = {NFT: "v1.8.9 (nf_tables)", LEGACY: "v1.8.9 (legacy)"}
FAMILIES = ("ipv4", "ipv6")
COMMANDS = {"ipv4": "iptables", "ipv6": "ip6tables"}


class Machine:
    """Programs are empty files in a directory of their own; ``run`` does what they would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        #: command name -> variant that it is, what it reports as its version
        self.programs: t.Dict[str, t.Tuple[str, str]] = {}
        self.nat = {(variant, family): Nat(variant) for variant in (NFT, LEGACY) for family in FAMILIES}
        #: the legacy tables that exist
        self.legacy_tables: t.Dict[str, t.List[str]] = {family: [] for family in FAMILIES}
        #: rules of tables other than nat: (variant, family, table, chain) -> rules
        self.elsewhere: t.Dict[t.Tuple[str, str, str, str], t.List[str]] = {}
        #: (variant, family) whose programs all fail
        self.broken: t.Set[t.Tuple[str, str]] = set()
        self.asked: t.List[t.List[str]] = []
        for variant, suffix in ((NFT, "-nft"), (LEGACY, "-legacy")):
            for command in COMMANDS.values():
                self.add(command + suffix, variant)

    def add(self, name: str, variant: str, version: str = "") -> None:
        """Install a command and its -restore."""
        self.programs[name] = (variant, version or WORDS[variant])
        for program in (name, name + "-restore"):
            (self.bin / program).touch(mode=0o755)

    def remove(self, *suffixes: str) -> None:
        """Uninstall the commands that end in one of these."""
        for name in [name for name in self.programs if name.endswith(suffixes)]:
            del self.programs[name]
            for program in (name, name + "-restore"):
                (self.bin / program).unlink()

    def install(self, monkeypatch: t.Any) -> None:
        """Put this node in place of the one that the tests run on."""
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setattr(runner, "SYSTEM_PATH", str(self.bin))
        monkeypatch.setattr(runner, "run", self.run)
        monkeypatch.setattr(iptables_tool, "legacy_tables", lambda family: list(self.legacy_tables[family]))
        monkeypatch.setattr(iptables_nft, "NftNat", self._table)
        monkeypatch.setattr(listed_chains, "NftNat", lambda family: self.nat[NFT, family])
        monkeypatch.setattr(nfnetlink, "chains", lambda _family, base_only: [])
        monkeypatch.setattr(nfnetlink, "has_chain", lambda family, _table, name: name in self.nat[NFT, family].chains)
        monkeypatch.setattr(xtables, "read", self._legacy)
        monkeypatch.setattr(xtables, "used_chains", lambda nat: [name for name, rules in nat.chains.items() if rules])
        monkeypatch.setattr(xtables, "chain_names", lambda nat: set(nat.chains))
        monkeypatch.setattr(xtables, "jumps", lambda nat, chain: list(filter(None, map(target, nat.chains[chain]))))
        # No connection is open.
        monkeypatch.setattr(conntrack, "read", lambda _version: iter(()))
        monkeypatch.setattr(conntrack, "read_ports", lambda _version: iter(()))
        monkeypatch.setattr(reconcile, "has_ipv6", lambda: True)
        monkeypatch.setattr(run_lock, "LOCK_PATH", str(self.folder / "lock"))
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        for one in (state_files, sync):  # where tests run side by side, a disk may take its time
            monkeypatch.setattr(one, "PATIENCE", 120.0)

    def _table(self, family: str, table: str = "nat") -> t.Optional[Nat]:
        """Return what the kernel says of a table of iptables-nft."""
        return self.nat[NFT, family] if table == "nat" else self.nat[NFT, family].mangle

    def _legacy(self, family: str, table: str) -> Nat:
        """Return what the kernel says of a table of iptables-legacy."""
        nat = self.nat[LEGACY, family]
        if table != "nat":
            placed = self.elsewhere.items()
            nat = nat.mangle if table == "mangle" and nat.mangle else Nat(LEGACY, table=table)
            nat = Nat(LEGACY, {**nat.chains, **{at[3]: one for at, one in placed if at[:3] == (LEGACY, family, table)}})
        return nat

    def node(self) -> Node:
        """Return what the collection sees of it."""
        return Node(self.run, has_extension=lambda *_extension: True)

    def choose(self, requested: str, used_before: t.Optional[str] = None) -> str:
        """Return the name of the backend that the collection chooses here."""
        return backend_choice.choose(self.node(), requested, used_before=used_before).name

    def run(self, argv: t.Sequence[str], stdin: t.Optional[str] = None, timeout: float = 60.0) -> Outcome:
        """Answer in place of the collection's runner."""
        self.asked.append(list(argv))
        name = os.path.basename(argv[0])
        variant, version = self.programs[name[: -len("-restore")] if name.endswith("-restore") else name]
        if argv[1:] == ["--version"]:
            return Outcome(0, "%s %s\n" % (name.split("-")[0], version), "")
        family = "ipv6" if name.startswith("ip6") else "ipv4"
        if (variant, family) in self.broken:
            return Outcome(4, "", "%s: Could not fetch rule set generation id: Operation not supported\n" % name)
        if "-restore" in name:
            self._make_legacy_table(variant, family, (stdin or "").partition("\n")[0].lstrip("*"))
            return self.nat[variant, family].run(argv, stdin, timeout)
        table = argv[argv.index("-t") + 1]
        if variant == LEGACY:
            assert table in self.legacy_tables[family], "asking for it creates the table %s: %r" % (table, argv)
        if table == "nat":
            return self.nat[variant, family].run(argv, stdin, timeout)
        mangle = self.nat[variant, family].mangle
        if table == "mangle" and mangle and any(mangle.chains.values()):
            return self.nat[variant, family].run(argv, stdin, timeout)
        assert argv[-2] == "-S", "not simulated: %r" % (argv,)
        rules = self.elsewhere.get((variant, family, table, argv[-1]))
        if rules is None and argv[-1] not in ("INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"):
            return Outcome(1, "", "%s: No chain/target/match by that name.\n" % name)
        return Outcome(0, "".join("-A %s %s\n" % (argv[-1], rule) for rule in rules or ()), "")

    def _make_legacy_table(self, variant: str, family: str, table: str) -> None:
        if variant == LEGACY and table not in self.legacy_tables[family]:
            self.legacy_tables[family].append(table)

    def put(self, variant: str, family: str, **chains: t.Sequence[str]) -> Nat:
        """Fill a nat table; underscores in chain names stand for dashes."""
        self._make_legacy_table(variant, family, "nat")
        nat = self.nat[variant, family]
        nat.chains.update((name.replace("_", "-"), list(rules)) for name, rules in chains.items())
        return nat

    def writes(self) -> t.List[t.Tuple[str, str]]:
        """Return the tables that were written to, in order."""
        programs = [os.path.basename(argv[0]) for argv in self.asked]
        return [
            (self.programs[name[: -len("-restore")]][0], "ipv6" if name.startswith("ip6") else "ipv4")
            for name in programs
            if name.endswith("-restore")
        ]

    def foreign(self) -> t.Dict[t.Tuple[str, str], t.Any]:
        """Return all rules that are not ours."""
        return {key: others(nat.chains) for key, nat in self.nat.items()}
