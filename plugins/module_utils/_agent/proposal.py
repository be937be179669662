# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a sync would change for packets, by the configuration of the node or a proposed one. Nothing is written."""

from __future__ import annotations

import ipaddress
import typing as t

from .._engine.auto_ports import or_any_ports
from .._engine.effects import Effect, as_returns
from .._engine.reconcile import Result
from .._engine.ruleset import service_number
from .._errors import ConfigError, NodeError
from .._policy import effect_words
from .._policy.policy import Config
from .._system import files, spans
from .._system.families import BY_VERSION, Family
from .._system.node import Node
from .effective_policy import read_policy
from .memory import read_memory
from .paths import Paths
from .sync import dry_run

#: Of a verification of proposed rules.
_TESTED = ("verified", "summary", "questions", "questions_left_out", "conflicts", "untested", "limits", "health")


class Proposal(t.NamedTuple):
    """What a proposed configuration changes for packets to one destination."""

    path: str
    effects: t.Tuple[Effect, ...]
    #: whether the rules change their place among those of other programs, which is not compared
    moved: bool
    notes: t.Tuple[str, ...]

    def lines(self, destination: str) -> t.Iterator[str]:
        """Return it for people."""
        for effect in as_returns(self.effects):
            yield "proposed: " + effect_words.line(effect)
        if self.moved:
            yield "proposed: " + effect_words.MOVED
        elif not self.effects:
            yield "proposed: nothing changes for packets to " + destination
        for note in self.notes:
            yield "note: " + note

    def as_data(self) -> t.Dict[str, t.Any]:
        """Return it for programs."""
        notes = [effect_words.MOVED, *self.notes] if self.moved else list(self.notes)
        return {"file": self.path, "effects": as_returns(self.effects), "notes": notes}


def propose(
    node: Node, paths: Paths, path: str, to: str, sender: t.Optional[str], protocol: str, port: int
) -> Proposal:
    """Return what a proposed configuration changes for packets to one destination.

    :param path: of a file with the text of the config file; drop-ins stay.
    :param sender: the address of the pod; None: any.
    :raises ConfigError: it is not valid. NodeError: the rules cannot be read.
    """
    text = files.read(path)
    if text is None:
        raise ConfigError("%s: there is no such file" % path)
    remembered = read_memory(paths)
    try:
        policy, config = read_policy(paths, remembered, text.decode("utf-8", "replace"))
    except ConfigError as exc:
        raise ConfigError(str(exc).replace(paths.config, path)) from None
    result = dry_run(node, paths, config, remembered, effects=True)
    if result.errors:
        raise NodeError("; ".join(result.errors))
    family = BY_VERSION[ipaddress.ip_address(to).version]
    effects = tuple(_concerned(result, family, to, sender, protocol, port))
    moved = any(one.moved for one in result.compared if one.family == family)
    notes = tuple(note.replace(paths.config, path) for note in policy.notes)
    return Proposal(path, effects, moved, notes + result.notes + result.effect_notes)


def verify_proposed(node: Node, config: Config, used_before: t.Optional[str]) -> t.Dict[str, t.Any]:
    """Send packets through a copy of the node that has the rules of a policy in place of the active ones.

    :param used_before: the backend that the agent used, if it is remembered.
    :returns: what ``ip-masq-agent verify --json`` prints, with ``undone``: a line for each conflict.
    """
    # Imported here: to load it takes time, and most runs change nothing.
    from .._verify import explanations, inspection

    # The copy's settings of ports are not those of the node.
    config, _errors = or_any_ports(config)
    policy = inspection.ComparedPolicy(inspection.FROM_OPTIONS, config, used_before=used_before, proposed=True)
    found = inspection.inspect(node, policy, inspection.request((), verify=True))
    return {**{name: found[name] for name in _TESTED}, "undone": explanations.undone(found["conflicts"])}


def _concerned(
    result: Result, family: Family, to: str, sender: t.Optional[str], protocol: str, port: int
) -> t.Iterator[Effect]:
    service = service_number(protocol, port, family)
    destination = int(ipaddress.ip_address(to))
    source = None if sender is None else int(ipaddress.ip_address(sender))
    for effect in (effect for one in result.compared for effect in one.effects):
        if (
            effect.family == family
            and spans.contains(effect.destinations, destination)
            and (effect.services is None or spans.contains(effect.services, service))
            and (effect.sources is None or source is None or spans.contains(effect.sources, source))
        ):
            yield effect
