# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is valid in the policies of an inventory and looks like a mistake: ranges listed twice, hosts that differ."""

from __future__ import annotations

import typing as t

from ..module_utils._policy.policy import RFC1918_CIDRS
from ..module_utils._policy.values import Network, parse_cidr
from ..module_utils._system.printable import first_of
from ._names import some_of
from ._networks import MISSING, overlaps, said_twice, uncovered
from ._role_variables import PREFIX, Checked, exempt

_CIDRS = PREFIX + "non_masquerade_cidrs"

#: Options that decide which address a destination sees. Others may differ from host to host, as node and site demand.
_SEEN = ("enable_ipv6", "masq_link_local", "masq_link_local_ipv6")


#: Options that decide which destinations are exempt.
_RANGES = ("non_masquerade_cidrs", "nomasq_all_reserved_ranges", "masquerade_cidrs")


class _Compared(t.NamedTuple):
    """What is compared of the policy of a host."""

    ranges: t.Tuple[Network, ...]
    masqueraded: t.Tuple[Network, ...]
    #: values of _SEEN
    seen: t.Tuple[bool, ...]
    cluster: t.Tuple[str, ...]

    @property
    def exempt(self) -> t.List[str]:
        """What is exempt in the end."""
        return exempt(self.ranges, self.masqueraded)


def advice(
    checked: t.Mapping[str, Checked], groups: t.Mapping[str, t.Sequence[str]]
) -> t.Iterator[t.Tuple[str, t.Sequence[str]]]:
    """Return each remark, and the hosts that it is about.

    :param checked: by host.
    :param groups: names of hosts by group.
    """
    alike: t.Dict[_Compared, t.List[str]] = {}
    for host, one in checked.items():
        if one.policy:
            lists = (one.policy.non_masquerade_cidrs, one.policy.masquerade_cidrs)
            seen = tuple(getattr(one.policy, option) for option in _SEEN)
            alike.setdefault(_Compared(*lists, seen, one.cluster), []).append(host)
    if MISSING:
        if any(tuple(map(str, compared.ranges)) != RFC1918_CIDRS for compared in alike):
            yield "ranges of the policy are not compared: " + MISSING, list(checked)
        return
    for compared, hosts in alike.items():
        for remark in _repeated(compared):
            yield remark, hosts
    # What most hosts have is what the others are compared with.
    most_first = sorted(alike, key=lambda compared: -len(alike[compared]))
    names = {compared: _name(hosts, groups) for compared, hosts in alike.items()}
    for other in most_first[1:]:
        # What the inventory sets for whole groups is intended, such as the policy of a rack.
        intended: t.FrozenSet[str] = frozenset()
        if _consists_of_groups(alike[other], checked, groups):
            intended = frozenset.intersection(*(checked[host].given for host in alike[other]))
        for remark in _differences(most_first[0], names[most_first[0]], other, names[other], intended):
            yield remark, list(checked)


def _repeated(compared: _Compared) -> t.Iterator[str]:
    """Return what the lists of one policy repeat."""
    written = list(map(str, compared.ranges))
    for entries, wide in said_twice(written):
        shorter = [network for network in compared.ranges if str(network) not in entries] + [parse_cidr(wide)]
        # Inside of a range that is masqueraded, an entry is not there in vain.
        if compared.masqueraded and exempt(shorter, compared.masqueraded) != compared.exempt:
            continue
        if wide in written:
            yield "%s: %s can be left out: %s covers it" % (_CIDRS, ", ".join(entries), wide)
        # Networks of pods and of services are often neighbours, and named one by one with reason.
        elif not set(entries) & set(compared.cluster):
            yield "%s: %s can be one entry: %s" % (_CIDRS, ", ".join(entries), wide)
    for inside, wide in overlaps(compared.cluster):
        text = "%scluster_cidrs: %s overlaps %s: no address can be in two networks of a cluster"
        yield text % (PREFIX, inside, wide)


def _consists_of_groups(
    hosts: t.Sequence[str], checked: t.Collection[str], groups: t.Mapping[str, t.Sequence[str]]
) -> bool:
    """Return whether some hosts are all hosts of one or several groups, of those that are checked."""
    left = set(hosts)
    for group, members in groups.items():
        concerned = set(members) & set(checked)
        if group not in ("all", "ungrouped") and concerned <= set(hosts):
            left -= concerned
    return not left


def _differences(
    one: _Compared, here: str, other: _Compared, there: str, intended: t.FrozenSet[str]
) -> t.Iterator[str]:
    """Return what two policies disagree about.

    :param here: the hosts that have the first.
    :param there: the hosts that have the second.
    :param intended: options of the second that differ on purpose.
    """
    for option, ours, theirs in zip(_SEEN, one.seen, other.seen):
        if ours != theirs and option not in intended:
            values = (str(ours).lower(), here, str(theirs).lower(), there)
            yield "%s%s differs: %s on %s, %s on %s" % (PREFIX, option, *values)
    if intended.intersection(_RANGES):
        return
    for more, inside, less, outside in ((one, here, other, there), (other, there, one, here)):
        only = uncovered(more.exempt, less.exempt)
        if only:
            yield "%s differs: %s is exempt on %s, and not on %s" % (_CIDRS, first_of(only), inside, outside)


def _name(hosts: t.Sequence[str], groups: t.Mapping[str, t.Sequence[str]]) -> str:
    """Return the name of a group that consists of these hosts, or some of their names."""
    for group, members in groups.items():
        if set(members) == set(hosts):
            return group
    return some_of(hosts)
