# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the role ip_masq_agent: their names, and what is wrong with their values. Runs on the controller.

The role's meta/argument_specs.yml is the one list of names, types and defaults; the grammar is that of the node.
"""

from __future__ import annotations

import functools
import re
import typing as t
from pathlib import Path

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ..module_utils._agent.paths import CHOSEN, choose_paths
from ..module_utils._engine.policy_rules import from_config
from ..module_utils._engine.ruleset import exempt_spans
from ..module_utils._errors import ConfigError
from ..module_utils._policy.policy import NULL_REFUSED, POLICY_OPTIONS, Config, build, equivalent, nearest, split_lists
from ..module_utils._policy.values import Network, check_log_size, naming
from ..module_utils._system import intervals
from ..module_utils._system.families import FAMILIES
from ..module_utils._system.printable import first_of
from ._networks import read_networks, uncovered, uncovered_entries

PREFIX = "ip_masq_agent_"
_CIDRS = PREFIX + "non_masquerade_cidrs"
#: Of the role ip_masq_windows, whose variables are beside those of the policy.
WINDOWS_PREFIX = "ip_masq_windows_"

#: What the playbooks read beside the role's variables.
_NAMES = "become confirm_effects confirmed hosts max_fail_percentage report_dir serial tolerate_conflicts"
OF_PLAYBOOKS = tuple(PREFIX + name for name in _NAMES.split())

_ROLES = Path(__file__).resolve().parents[2] / "roles"


@functools.lru_cache(maxsize=2)
def role_options(role: str = "ip_masq_agent") -> t.Dict[str, t.Dict[str, t.Any]]:
    """Return the variables of a role, with the documentation of each."""
    specs = yaml.safe_load((_ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    return t.cast(t.Dict[str, t.Dict[str, t.Any]], specs["argument_specs"]["main"]["options"])


def role_defaults() -> t.Dict[str, t.Any]:
    """Return the documented defaults of the role's variables."""
    return {name: about["default"] for name, about in role_options().items() if "default" in about}


def decrypted(value: t.Any) -> t.Any:
    """Return a value with text in place of what ansible-core before 2.19 has for text of a vault: a sequence.

    :raises AnsibleError: it cannot be decrypted.
    """
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, t.Mapping):
        return {key: decrypted(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [decrypted(one) for one in value]
    return str(value) if isinstance(value, t.Sequence) else value


def config_file_keys(values: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Return the keys of the agent's config file for a host, as the role's variables set them.

    :param values: the host's variables by name, templated; what is not there takes its default.
    """
    specification = {PREFIX + option.name: option.argument for option in POLICY_OPTIONS}
    given = {name: values[name] for name in specification if values.get(name) is not None}
    known = ArgumentSpecValidator(specification).validate(given).validated_parameters
    keys = {}
    for option in POLICY_OPTIONS:
        value = known[PREFIX + option.name]
        if option.sparse and (value is None or option.same(value, option.default)):
            continue
        if value is not None or option.default is not None:
            keys[option.key] = list(option.default) if value is None else value
    return keys


def is_public(name: str, prefixes: t.Sequence[str] = (PREFIX,)) -> bool:
    """Return whether operators set a variable: it has our prefix, and is not the role's own (two underscores)."""
    return any(name.startswith(prefix) and not name.startswith(prefix + "_") for prefix in prefixes)


def unknown_names(names: t.Iterable[str]) -> t.List[str]:
    """Return a message for each of the names that has a prefix of ours and that neither a role nor a playbook knows."""
    known = {PREFIX: (*role_options(), *OF_PLAYBOOKS), WINDOWS_PREFIX: tuple(role_options("ip_masq_windows"))}
    prefixes = tuple(known)
    messages = []
    for name in sorted(name for name in names if is_public(name, prefixes)):
        (prefix,) = (prefix for prefix in known if name.startswith(prefix))
        if name not in known[prefix]:
            ending = name[len(prefix) :]
            near = nearest(ending, (one[len(prefix) :] for one in known[prefix]))
            hint = equivalent(ending, _variable) or (near and "the nearest is %s%s" % (prefix, near)) or "remove it"
            messages.append("%s is not a variable of kubenode.ip_masq; %s" % (name, hint))
    return messages


def read_limits(given: t.Any) -> t.List[t.Tuple[t.Any, t.Optional[float], t.Optional[int]]]:
    """Return the entries of ip_masq_agent_confirm_effects, each as it is given, as a share of hosts, and as a number.

    :raises ConfigError: one is neither a share nor a number of open connections.
    """
    found = []
    for one in given if isinstance(given, (list, tuple)) else [] if given in ("", None) else [given]:
        entry = re.match(r"\A([0-9]{1,3}(?:\.[0-9]{1,3})?)%\Z|\A([0-9]{1,12})\Z", str(one).strip())
        if not entry or isinstance(one, bool):
            raise ConfigError(
                "%sconfirm_effects: %r is neither a share of hosts, such as 10%%, nor a number of open connections, "
                "such as 1000, nor a list of them" % (PREFIX, one)
            )
        share, number = entry.groups()
        found.append((one, None if share is None else float(share), None if number is None else int(number)))
    return found


class Checked(t.NamedTuple):
    """What the variables of a host come to."""

    #: a message for what the role would refuse
    errors: t.Tuple[str, ...] = ()
    #: None if it is refused, or if all is to be removed
    policy: t.Optional[Config] = None
    #: ip_masq_agent_cluster_cidrs
    cluster: t.Tuple[str, ...] = ()
    #: the options that are set, without the prefix
    given: t.FrozenSet[str] = frozenset()


def check_values(values: t.Mapping[str, t.Any]) -> Checked:
    """Check one host's variables with the argument specification and the grammar of the node.

    :param values: by name, templated; variables that are not the role's are left alone.
    """
    try:
        read_limits(values.get(PREFIX + "confirm_effects"))
    except ConfigError as exc:
        return Checked((str(exc),))
    given = {name: value for name, value in values.items() if name in role_options()}
    checked = ArgumentSpecValidator(role_options()).validate(given)
    if checked.error_messages:
        return Checked(tuple(checked.error_messages))
    options = {name[len(PREFIX) :]: value for name, value in checked.validated_parameters.items() if value is not None}
    if options["state"] == "absent":
        return Checked()
    try:
        choose_paths(**{name: options[name] for name in CHOSEN if name in options})
        check_log_size(options.get("connection_log", 0))
    except ConfigError as exc:
        return Checked((PREFIX + str(exc),))
    values = split_lists({key.name: options[key.name] for key in POLICY_OPTIONS if key.name in options})
    try:
        # Null is the empty list in a config file, and not set for Ansible.
        if given.get(_CIDRS, ()) is None:
            raise ConfigError(NULL_REFUSED % _CIDRS)
        policy = build(values, label=_variable)
        cluster = tuple(_exempt_cluster(options["cluster_cidrs"], policy))
    except ConfigError as exc:
        return Checked((str(exc),))
    return Checked(policy=policy, cluster=cluster, given=frozenset(name[len(PREFIX) :] for name in given))


def _variable(option: str) -> str:
    return PREFIX + option


def _exempt_cluster(networks: t.Any, policy: Config) -> t.List[str]:
    """Return the cluster's own networks.

    :raises ConfigError: some of them would be masqueraded.
    """
    with naming(PREFIX + "cluster_cidrs"):
        cluster = read_networks(networks)
        # Without any, netaddr is not needed.
        covering = exempt(policy.non_masquerade_cidrs, policy.masquerade_cidrs) if cluster else []
        # As they are written: merged, they would be networks that are in no inventory.
        left = list(uncovered_entries(cluster, covering)) if cluster and uncovered(cluster, covering) else []
    if left:
        it = "it" if len(left) == 1 else "them"
        remedy = "add %s to %snon_masquerade_cidrs" % (it, PREFIX)
        if policy.masquerade_cidrs:
            remedy += ", or remove %s from %smasquerade_cidrs" % (it, PREFIX)
        named = [entry if parts == [entry] else "%s (part of %s)" % (first_of(parts), entry) for entry, parts in left]
        raise ConfigError("%s of %scluster_cidrs would be masqueraded: %s" % (first_of(named), PREFIX, remedy))
    return cluster


def exempt(listed: t.Sequence[Network], masqueraded: t.Sequence[Network]) -> t.List[str]:
    """Return the ranges that are exempt in the end: the longest prefix of both lists decides."""
    config = build({"masq_link_local": True, "masq_link_local_ipv6": True})
    config = config._replace(non_masquerade_cidrs=tuple(listed), masquerade_cidrs=tuple(masqueraded))
    found: t.List[str] = []
    for family in FAMILIES:
        kept = exempt_spans(from_config(config, family).decisions)
        found += map(str, intervals.networks(kept, family))
    return found
