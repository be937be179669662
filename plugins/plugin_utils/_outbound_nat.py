# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The OutBoundNAT policy in CNI configurations of Windows nodes, and its list of exceptions.

A policy is an element of ``policies`` or ``AdditionalArgs`` of a plugin:
``{Name: EndpointPolicy, Value: {Type: OutBoundNAT, ...}}``. The list is ``ExceptionList`` or ``Exceptions``, beside the
type or in ``Settings``; the plugins take names in any case. The host networking service (HNS) wants a
policy for each IP family. A policy with ``Destinations`` is loopbackDSR's, and is not for exceptions.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import typing as t

from ..module_utils._errors import ConfigError
from ..module_utils._policy.values import Network, show
from ..module_utils._system.families import BY_VERSION, FAMILIES, Family
from ._json_text import Node, comma, insert, read, remove

_TYPE = "outboundnat"
_LISTS = ("ExceptionList", "Exceptions")
_ARRAYS = ("policies", "AdditionalArgs")


class Edited(t.NamedTuple):
    """A configuration after an edit."""

    text: str
    #: what became different, and what an operator should know
    lines: t.Tuple[str, ...]


class _Policy(t.NamedTuple):
    """One OutBoundNAT policy that is for exceptions."""

    #: The object with the list, or where it would be.
    holder: Node
    exceptions: t.Optional[Node]
    #: Of the elements that there are, in their order.
    networks: t.Tuple[Network, ...]

    @property
    def path(self) -> str:
        """Where the list is, or would be."""
        return self.exceptions.path if self.exceptions else self.holder.path

    def has(self, family: Family) -> bool:
        """Return whether it has exceptions of a family."""
        return any(network.version == family.version for network in self.networks)


class _Plugin(t.NamedTuple):
    """One plugin of a configuration: its arrays of policies, and those that are OutBoundNAT."""

    node: Node
    arrays: t.Tuple[Node, ...]
    policies: t.Tuple[_Policy, ...]


def edit(
    text: str, wanted: t.Sequence[Network], unwanted: t.Sequence[Network] = (), add_policy: bool = False
) -> Edited:
    """Add ranges to the exceptions of a configuration, and remove others. All else stays as it is.

    :param text: the file.
    :param wanted: what must be exempt; a range that a wider exception covers is not added.
    :param unwanted: exceptions to remove.
    :param add_policy: add an OutBoundNAT policy for a family of ``wanted`` that has none.
    :raises ConfigError: not JSON, a shape that is not known, or a range that is both wanted and unwanted.
    """
    both = [network for network in unwanted if network in wanted]
    if both:
        raise ConfigError("%s is to be added and to be removed: list it once" % both[0])
    before = _lists(text)
    text = _remove(text, unwanted)
    notes: t.List[str] = []
    for family in FAMILIES:
        ranges = [network for network in wanted if network.version == family.version]
        if not ranges:
            continue
        for number in range(len(_plugins(text))):
            text = _add(text, number, ranges)
        if not any(_for_family(plugin, family) for plugin in _plugins(text)):
            if add_policy:
                text = _add_policy(text, ranges)
            else:
                notes.append("no OutBoundNAT policy for IPv%d, so nothing is added" % family.version)
    after = _lists(text)
    changes = list(_changes(before, after)) or ["unchanged"]
    return Edited(text, (*changes, *notes, *_notes(text, after)))


def _plugins(text: str) -> t.List[_Plugin]:
    """Find the plugins of a configuration, or of a list of them, with those that they delegate to.

    :raises ConfigError: no JSON, or an OutBoundNAT policy is where none is expected.
    """
    top = read(text)
    if not isinstance(top.value, dict):
        raise ConfigError("the document is %s: expected an object, a CNI configuration" % show(top.value))
    chain = top.find("plugins")
    nodes = [top, *(_array(chain, "plugins") if chain else ())]
    nodes += [inner for node in nodes for inner in [node.find("delegate")] if inner]
    plugins = [_plugin(node) for node in nodes]
    known = {policy.holder.way for plugin in plugins for policy in plugin.policies}
    for node in top.walk():
        if _is_nat(node) and known.isdisjoint(holder.way for holder in _holders(node)):
            raise ConfigError(
                "%s: an OutBoundNAT policy in a place that is not known: expected it as Value of an EndpointPolicy in "
                "policies or AdditionalArgs of a plugin or its delegate" % node.path
            )
    return plugins


def _array(node: Node, what: str) -> t.List[Node]:
    """Return what is in an array.

    :raises ConfigError: it is none.
    """
    if not isinstance(node.value, list):
        raise ConfigError("%s: expected an array of %s, found %s" % (node.path, what, show(node.value)))
    return node.inside


def _plugin(node: Node) -> _Plugin:
    found = [array for array in map(node.find, _ARRAYS) if array and array.value is not None]
    policies = []
    for item in [item for array in found for item in _array(array, "policies")]:
        value = item.find("value")
        if value and item.word("name") == "endpointpolicy" and _is_nat(value):
            policies.append(_policy(value))
    return _Plugin(node, tuple(found), tuple(policies))


def _policy(value: Node) -> _Policy:
    holders = _holders(value)
    lists = [(holder, found) for holder in holders for name in _LISTS for found in [holder.find(name)] if found]
    if len(lists) > 1:
        named = " and ".join(found.path for _holder, found in lists)
        raise ConfigError("%s: two lists of exceptions, %s: keep one" % (value.path, named))
    if not lists:
        return _Policy(holders[-1], None, ())
    holder, exceptions = lists[0]
    return _Policy(holder, exceptions, tuple(map(_network, _array(exceptions, "CIDRs"))))


def _network(item: Node) -> Network:
    """Parse an exception, which is not ours: host bits and addresses without a prefix are taken as HNS takes them."""
    with contextlib.suppress(ValueError):
        if isinstance(item.value, str):
            return ipaddress.ip_network(item.value, strict=False)
    raise ConfigError("%s: %s is not a CIDR: correct it or remove it" % (item.path, show(item.value)))


def _settings(value: Node) -> t.Optional[Node]:
    settings = value.find("Settings")
    return settings if settings and isinstance(settings.value, dict) else None


def _holders(value: Node) -> t.List[Node]:
    """Return the objects in which the list of a policy can be."""
    return [holder for holder in (value, _settings(value)) if holder]


def _is_nat(node: Node) -> bool:
    """Return whether this is the value of an OutBoundNAT policy for exceptions."""
    return node.word("Type") == _TYPE and not any(holder.find("Destinations") for holder in _holders(node))


def _remove(text: str, unwanted: t.Sequence[Network]) -> str:
    """Remove the exceptions that equal an unwanted range."""
    for policy in [policy for plugin in _plugins(text) for policy in plugin.policies]:
        if policy.exceptions:
            gone = [position for position, network in enumerate(policy.networks) if network in unwanted]
            text = remove(text, policy.exceptions.way, gone)
    return text


def _add(text: str, number: int, ranges: t.Sequence[Network]) -> str:
    """Add ranges of one family to the policy that one plugin has for it."""
    policy = _for_family(_plugins(text)[number], BY_VERSION[ranges[0].version])
    new = _missing(policy.networks, ranges) if policy else []
    if not policy or not new:
        return text
    if policy.exceptions:
        return insert(text, policy.exceptions.way, new)
    name = _LISTS[1] if policy.holder.path.lower().endswith(".settings") else _LISTS[0]
    return insert(text, policy.holder.way, [_text(name, "[%s]" % comma(text).join(new), text)])


def _wider(one: Network, other: Network) -> bool:
    """Return whether a network is a larger one that contains the other."""
    if one.version != other.version or one.prefixlen >= other.prefixlen:
        return False
    return other.subnet_of(one)  # type: ignore[arg-type]


def _for_family(plugin: _Plugin, family: Family) -> t.Optional[_Policy]:
    """Find the policy of a plugin that takes exceptions of a family.

    :raises ConfigError: it cannot be told which of several.
    """
    holders = [policy for policy in plugin.policies if policy.has(family)]
    if len(holders) > 1:
        raise ConfigError(
            "IPv%d exceptions in %s: keep one OutBoundNAT policy for each family"
            % (family.version, " and ".join(policy.path for policy in holders))
        )
    # One without any is for the family that has none yet.
    return next(iter(holders or [policy for policy in plugin.policies if not policy.networks]), None)


def _add_policy(text: str, ranges: t.Sequence[Network]) -> str:
    """Add an OutBoundNAT policy for the ranges to the one array of policies that there is.

    :raises ConfigError: there is none, or more than one.
    """
    plugins = _plugins(text)
    arrays = [(plugin, array) for plugin in plugins if plugin.policies for array in plugin.arrays]
    arrays = arrays or [(plugin, array) for plugin in plugins for array in plugin.arrays]
    if len(arrays) != 1:
        raise ConfigError(
            "no OutBoundNAT policy, and %s to add one to: add it by hand, as Value of an EndpointPolicy in policies "
            "(win-bridge, win-overlay) or AdditionalArgs (sdnbridge, sdnoverlay, azure-vnet)"
            % (" and ".join(array.path for _plugin, array in arrays) or "no array of policies")
        )
    plugin, array = arrays[0]
    exceptions = "[%s]" % comma(text).join(_missing((), ranges))
    lower = any("name" in item.value for item in array.inside if isinstance(item.value, dict))
    kind = _text("Type", '"OutBoundNAT"', text)
    inside = [kind, _text(_LISTS[0], exceptions, text)]
    if _has_settings(plugin, array):
        inside = [kind, _text("Settings", "{%s}" % _text(_LISTS[1], exceptions, text), text)]
    value = _text("value" if lower else "Value", "{%s}" % comma(text).join(inside), text)
    name = _text("name" if lower else "Name", '"EndpointPolicy"', text)
    return insert(text, array.way, ["{%s}" % comma(text).join((name, value))])


def _missing(there: t.Sequence[Network], ranges: t.Sequence[Network]) -> t.List[str]:
    """Return JSON text of the ranges that are not there, without those inside of a wider one."""
    every = [*there, *ranges]
    return [
        json.dumps(str(network))
        for position, network in enumerate(ranges, len(there))
        if network not in every[:position] and not any(_wider(other, network) for other in every)
    ]


def _has_settings(plugin: _Plugin, array: Node) -> bool:
    """Return whether policies of a plugin are those of HCN, version 2 of the interface: it keeps them in Settings."""
    values = [value for item in array.inside for value in [item.find("value")] if value]
    if values:
        return any(_settings(value) for value in values)
    return plugin.node.word("apiVersion") == "2" or plugin.node.word("type").startswith("sdn")


def _text(name: str, value: str, text: str) -> str:
    """Return a member of an object."""
    return '"%s":%s%s' % (name, " " if '": ' in text else "", value)


def _lists(text: str) -> t.Dict[str, t.Tuple[str, ...]]:
    """Return the exceptions of each policy, by the path of the policy."""
    return {
        policy.path: tuple(policy.exceptions.value) if policy.exceptions else ()
        for plugin in _plugins(text)
        for policy in plugin.policies
    }


def _changes(before: t.Mapping[str, t.Sequence[str]], after: t.Mapping[str, t.Sequence[str]]) -> t.Iterator[str]:
    for path, entries in after.items():
        # A list that was made has a longer path than its policy had.
        old = before.get(path, ())
        for word, changed in (
            ("add", [entry for entry in entries if entry not in old]),
            ("remove", [entry for entry in old if entry not in entries]),
        ):
            if changed:
                yield "%s: %s %s" % (path, word, ", ".join(changed))


def _notes(text: str, lists: t.Mapping[str, t.Tuple[str, ...]]) -> t.Iterator[str]:
    """Return who else writes this configuration, and what Windows Server 2019 makes of a list."""
    types = {plugin.node.word("type") for plugin in _plugins(text)}
    for kind, owner in _OWNERS.items():
        if kind in types:
            yield owner
    for path, entries in lists.items():
        addresses: t.Dict[str, str] = {}
        for entry in entries:
            other = addresses.setdefault(entry.partition("/")[0], entry)
            if other != entry:
                yield (
                    "%s: Windows Server 2019 (build 17763) drops prefix lengths when it compares exceptions and may "
                    "keep only one of %s and %s: keep the wider one" % (path, other, entry)
                )


#: type of a plugin -> who writes its configuration. Sources: start scripts of flannel in
#: kubernetes-sigs/sig-windows-tools; CalculateEndpointPolicies in projectcalico/calico.
_OWNERS = {
    "flannel": (
        "flannel's start script sets this list whenever its pod starts, to the service and pod networks: change the "
        "script in the ConfigMap (kube-flannel-windows-cfg), or the file is overwritten"
    ),
    "calico": (
        "Calico adds its IP pools to this list for each pod, and its install script writes this file: exempt a range "
        "with an IPPool that has disabled: true"
    ),
    "azure-vnet": "the provisioning of the node writes this file: change the network profile of the cluster too",
}
