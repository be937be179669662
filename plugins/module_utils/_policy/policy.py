# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator can set: one record per option, and the validated policy that they make together.

Knows nothing of iptables, nftables, files or Ansible. Values come in as plain data (module options, or the mapping
that ``config_file`` read) and leave as one immutable ``Config``. A new option is one record and one field here.
"""

from __future__ import annotations

import difflib
import functools
import typing as t

from .._errors import ConfigError
from .._system import intervals
from .._system.backend_names import NFTABLES, VARIANTS
from .._system.families import BY_VERSION, FAMILIES, IPV4, IPV6, Family
from . import values as grammar
from .snat_and_rules import PolicyRule, Snat, as_written, parse_rules, parse_snat
from .values import LINK_LOCAL, PLACES_BY_CHAIN, AddressRange, Mark, Network, PortRange

#: RFC 1918: what is not masqueraded by default.
RFC1918_CIDRS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")

#: Every reserved IPv4 range, in the order in which ip-masq-agent lists them: RFC 1918, RFC 6598, RFC 6890, RFC 5737
#: (three documentation ranges), RFC 7526, RFC 2544, RFC 1112.
RESERVED_CIDRS = RFC1918_CIDRS + (
    "100.64.0.0/10",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "240.0.0.0/4",
)

BACKENDS = ("auto", *VARIANTS, NFTABLES)
SNAT_MISSING = ("masquerade", "keep", "drop")
EXEMPTIONS = ("return", "accept", "enforce")
FLUSHES = ("none", "changed")
LEAKS = ("ignore", "count", "drop")


class Option(t.NamedTuple):
    """One thing that can be configured."""

    #: of the modules; the role's variable has ``ip_masq_agent_`` before it
    name: str
    #: in a config file
    key: str
    #: of Ansible's argument specification
    type: str
    #: what the operator would write; None if there is no one value
    default: t.Any
    #: plain value to field of ``Config``; raises ConfigError
    parse: t.Callable[[t.Any], t.Any]
    choices: t.Optional[t.Tuple[str, ...]] = None
    #: whether ip-masq-agent reads it from its config file
    in_reference_file: bool = False
    #: whether the module ip_masq, which does one run, has a use for it
    of_module: bool = True
    #: whether it is a list without an order: text is split at commas, and the values of several files are united
    united: bool = False
    #: whether the role writes it to a config file only if it is not at its default
    sparse: bool = False
    #: title of its row in ``ip-masq-agent status``, shown if it is not at its default; empty: it has no such row
    row: str = ""

    @property
    def argument(self) -> t.Dict[str, t.Any]:
        """The option in Ansible's argument specification."""
        spec: t.Dict[str, t.Any] = {"type": self.type}
        if self.type == "list":
            # Raw, so that our own grammar refuses what is no text, with a message that has the remedy.
            spec["elements"] = "raw"
        elif self.default is not None:
            spec["default"] = self.default
        if self.choices:
            spec["choices"] = list(self.choices)
        return spec

    def texts(self, value: t.Any) -> t.List[str]:
        """Return a field of ``Config`` as texts, which are equal for equal policies."""
        texts = list(map(str, value)) if self.type == "list" and isinstance(value, tuple) else [str(value)]
        return sorted(texts) if self.united else texts

    def same(self, one: t.Any, other: t.Any) -> bool:
        """Return whether two plain values mean the same. An invalid value means what no other does."""
        try:
            return bool(one == other or self.parse(one) == self.parse(other))
        except ConfigError:
            return False


def _bool(name: str, key: str, default: bool = False, **more: t.Any) -> Option:
    return Option(name, key, "bool", default, grammar.check_bool, **more)


def _choice(name: str, key: str, choices: t.Tuple[str, ...], **more: t.Any) -> Option:
    parse = functools.partial(grammar.check_choice, choices=choices)
    return Option(name, key, "str", choices[0], parse, choices=choices, **more)


def _list(name: str, key: str, parse: t.Callable[[t.Any], t.Any], row: str, united: bool = True) -> Option:
    return Option(name, key, "list", (), parse, united=united, sparse=True, row=row)


#: The order is that of the documentation.
POLICY_OPTIONS = (
    Option("non_masquerade_cidrs", "nonMasqueradeCIDRs", "list", None, grammar.parse_networks)._replace(
        in_reference_file=True, united=True
    ),
    _bool("nomasq_all_reserved_ranges", "nomasqAllReservedRanges"),
    Option("cidr_limit", "cidrLimit", "int", 64, grammar.check_count, in_reference_file=True),
    _bool("masq_link_local", "masqLinkLocal", in_reference_file=True),
    _bool("masq_link_local_ipv6", "masqLinkLocalIPv6", in_reference_file=True),
    _bool("enable_ipv6", "enableIPv6"),
    Option("masq_chain", "masqChain", "str", "IP-MASQ-AGENT", grammar.check_chain_name),
    _bool("random_fully", "randomFully", default=True),
    Option("to_ports", "toPorts", "list", (), grammar.parse_to_ports),
    Option("node_port_range", "nodePortRange", "str", "30000-32767", grammar.parse_port_range, sparse=True),
    _choice("backend", "backend", BACKENDS),
    _choice("exemption", "exemption", EXEMPTIONS),
    _list("masquerade_cidrs", "masqueradeCIDRs", grammar.parse_networks, "masqueraded"),
    _list("source_cidrs", "sourceCIDRs", grammar.parse_sources, "sources"),
    _list("out_interfaces", "outInterfaces", grammar.parse_interfaces, "interfaces"),
    _list("except_interfaces", "exceptInterfaces", grammar.parse_interfaces, "skipped"),
    _list("skip_marks", "skipMarks", grammar.parse_marks, "skip marks"),
    _list("snat", "snat", parse_snat, "snat", united=False),
    _choice("snat_missing", "snatMissing", SNAT_MISSING, sparse=True),
    _list("rules", "rules", parse_rules, "policy rules", united=False),
    Option("jump_position", "jumpPosition", "str", "keep", grammar.parse_jump_position, sparse=True, row="position"),
    _choice("flush_conntrack", "flushConntrack", FLUSHES, sparse=True, row="flush"),
    _choice("leaks", "leaks", LEAKS, sparse=True, row="leaks"),
    Option("resync_interval", "resyncInterval", "str", "60s", grammar.parse_interval)._replace(
        in_reference_file=True, of_module=False
    ),
    Option("port_metrics", "portMetrics", "int", 0, grammar.check_count, of_module=False, sparse=True),
)

#: The defaults; the default of the exempt ranges depends on another option.
DEFAULTS: t.Dict[str, t.Any] = {
    option.name: option.default for option in POLICY_OPTIONS if option.name != "non_masquerade_cidrs"
}


class Config(t.NamedTuple):
    """One validated policy. Build it with ``build``; every field has passed its grammar."""

    non_masquerade_cidrs: t.Tuple[Network, ...]
    masq_link_local: bool
    masq_link_local_ipv6: bool
    enable_ipv6: bool
    masq_chain: str
    random_fully: bool
    #: AUTO_PORTS until auto_ports has found them
    to_ports: t.Union[str, t.Tuple[PortRange, ...]]
    backend: str
    exemption: str
    #: nanoseconds, as Go's time.Duration counts
    resync_interval: int
    #: remarks for the operator that are no errors
    notes: t.Tuple[str, ...]
    masquerade_cidrs: t.Tuple[Network, ...]
    source_cidrs: t.Tuple[Network, ...]
    out_interfaces: t.Tuple[str, ...]
    except_interfaces: t.Tuple[str, ...]
    skip_marks: t.Tuple[Mark, ...]
    snat: t.Tuple[Snat, ...]
    snat_missing: str
    rules: t.Tuple[PolicyRule, ...]
    jump_position: str
    flush_conntrack: str
    leaks: str
    node_port_range: PortRange
    #: resyncs between two measurements; 0: none
    port_metrics: int

    @property
    def families(self) -> t.Tuple[Family, ...]:
        """The IP families that have rules."""
        return FAMILIES if self.enable_ipv6 else (IPV4,)

    @property
    def protects_all_interfaces(self) -> bool:
        """Whether other rules cannot masquerade exempt traffic on any interface, also on those of pods.

        IPVS needs that they can there: for a pod that reaches itself through a Service.
        """
        return self.exemption == "enforce" and not self.except_interfaces and not self.out_interfaces

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits: the same on all nodes whose policies have the same values."""
        default = build({})._texts()
        values = sorted((name, texts) for name, texts in self._texts().items() if texts != default[name])
        # Imported here: hashlib loads OpenSSL, which takes 3 of 70 ms of a sync, and most runs need no digest.
        import hashlib

        return hashlib.sha256(repr(values).encode("utf-8")).hexdigest()[:12]

    def _texts(self) -> t.Dict[str, t.List[str]]:
        return {one.name: one.texts(getattr(self, one.name)) for one in POLICY_OPTIONS if one.name in self._fields}


#: Options that are lists of networks.
NETWORK_LISTS = ("non_masquerade_cidrs", "masquerade_cidrs", "source_cidrs")

#: Options that are lists without an order.
UNITED = frozenset(option.name for option in POLICY_OPTIONS if option.united)

#: Null as the list of exempt ranges, in what Ansible reads: an option that is null is not set there, and a key that is
#: null is the empty list in a config file.
NULL_REFUSED = "%s: null could mean two things: write [] to exempt no range, or remove it for the default"

#: Characters of a mistyped key that are compared: the time grows with the square of it.
_LONGEST_TYPO = 100

#: How like a known name a mistyped one is, from 0 to 1, and one that is a part of several, such as ``masquerade``.
#: With less, ``exemptCIDRs`` would be ``exemption``.
_NEAR, _NEARER = 0.72, 0.9

#: Characters of a part of a name that stands for the whole.
_SHORTEST_PART = 5

#: How the role's variables begin, as ``_folded`` has it.
_ROLE = "ipmasqagent"

#: Our option, its value where that is not obvious, and what agents with the same purpose call it: Tencent's, forks and
#: proposals, Amazon's and Cilium's. Their keys are folded.
_RELATIVES = (
    (
        "rules",
        ', with an entry {"action": "exempt", "sources": [...]}',
        "nonmasqueradesrccidrs nonmasqueradesourcecidrs",
    ),
    ("masquerade_cidrs", "", "except forcemasqueradecidrs masqueradeexceptioncidrs masqueradeexceptions"),
    ("snat", ', with an entry {"address": ...}', "snattarget snataddress snatip outputaddress"),
    ("snat", ', with an entry {"address": ..., "outInterface": ...}', "outputinterface"),
    ("non_masquerade_cidrs", "", "exemptcidrs excludecidrs excludesnatcidrs ipv4nativeroutingcidr"),
    ("out_interfaces", "", "egressmasqueradeinterfaces"),
)

_BY_NAME = {option.name: option for option in POLICY_OPTIONS}
_BY_KEY = {option.key.lower(): option for option in POLICY_OPTIONS}
_TELLING = {option.key.lower() for option in POLICY_OPTIONS if option.in_reference_file or option.name in NETWORK_LISTS}


def file_key(option: str) -> str:
    """Return the config file's name of a module option, for messages about a file."""
    return _BY_NAME[option].key


def find_file_key(name: str) -> t.Optional[Option]:
    """Find the option that a config file means by ``name``; upper and lower case of ASCII are one.

    ip-masq-agent folds U+017F to s and U+212A to k too, which nobody types who means a key.
    """
    return _BY_KEY.get(name.lower()) if name.isascii() else None


def _folded(name: str) -> str:
    """Return a name without what differs between files, variables and flags."""
    folded = name[:_LONGEST_TYPO].lower().replace("_", "").replace("-", "")
    return folded[len(_ROLE) :] if folded.startswith(_ROLE) else folded


def nearest(name: str, known: t.Iterable[str]) -> t.Optional[str]:
    """Return the name that an operator meant who mistyped or shortened it; None if no name is near."""
    folded = {_folded(one): one for one in known}
    typed = _folded(name)
    longer = [one for one in folded if len(typed) >= _SHORTEST_PART and typed in one]
    cutoff = _NEARER if len(longer) > 1 else _NEAR
    close = longer if len(longer) == 1 else difflib.get_close_matches(typed, list(folded), n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def equivalent(name: str, label: t.Callable[[str], str]) -> str:
    """Return what does here as a key of a relative of ip-masq-agent does there; empty if it is not one.

    :param label: as of ``build``.
    """
    for option, entry, keys in _RELATIVES:
        if _folded(name) in keys.split():
            return "the equivalent is %s%s" % (label(option), entry)
    return ""


def file_key_hint(name: str) -> str:
    """Return what an operator may have meant by an unknown key of a config file; empty if nothing is near."""
    near = nearest(name, (option.key for option in POLICY_OPTIONS))
    return equivalent(name, file_key) or (near and "the nearest known key is %s" % near) or ""


def is_policy_key(name: str) -> bool:
    """Return whether only a policy has such a key, in whichever way it is written: not ``rules`` or ``backend``."""
    return _folded(name) in _TELLING


def split_lists(values: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Return values as Ansible hands them over, with the entries of lists that may be text.

    :param values: by option name.
    """
    return {name: grammar.split_entries(value) if name in UNITED else value for name, value in values.items()}


def build(values: t.Mapping[str, t.Any], label: t.Callable[[str], str] = str) -> Config:
    """Validate plain values, fill in the defaults, and give the policy.

    :param values: by option name; a key that is absent takes its default.
    :param label: turns an option name into what the operator wrote (``file_key`` for a config file).
    :raises ConfigError: naming the option, the value and the remedy.
    """
    merged = dict(DEFAULTS, **values)
    if "non_masquerade_cidrs" not in merged:
        reserved = merged["nomasq_all_reserved_ranges"] is True
        merged["non_masquerade_cidrs"] = RESERVED_CIDRS if reserved else RFC1918_CIDRS
    fields: t.Dict[str, t.Any] = {}
    for option in POLICY_OPTIONS:
        with grammar.naming(label(option.name)):
            fields[option.name] = option.parse(merged[option.name])
    limit = fields.pop("cidr_limit")
    del fields["nomasq_all_reserved_ranges"]
    config = Config(**fields, notes=())
    labels = {option.name: label(option.name) for option in POLICY_OPTIONS}
    refusal = next(_refusals(config, limit), "")
    if refusal:
        raise ConfigError(refusal.format_map(labels))
    return config._replace(notes=tuple(note.format_map(labels) for note in _notes(config)))


# In the following texts the name of an option in braces stands for what the operator wrote.


def _refusals(config: Config, limit: int) -> t.Iterator[str]:
    """Return which options do not go together."""
    for where, networks, addresses in _networks_and_addresses(config):
        if len(networks) > limit:
            text = "%s: %d entries are more than {cidr_limit} (%d) allows: shorten the list or raise {cidr_limit}"
            yield text % (where, len(networks), limit) + "; the backend nftables is best for many"
        for one in (*networks, *addresses):
            if one.version == 6 and not config.enable_ipv6:
                text = "%s: %s is IPv6, and IPv6 is off: set {enable_ipv6} to true or remove the entry"
                yield text % (where, one)
    for option, other in (("masquerade_cidrs", "non_masquerade_cidrs"), ("except_interfaces", "out_interfaces")):
        known = set(getattr(config, other))
        for value in getattr(config, option):
            if value in known:
                text = "{%s}: %s is in {%s} as well: remove it from one of them"
                yield text % (option, as_written(value), other)
    for family, option in ((IPV4, "masq_link_local"), (IPV6, "masq_link_local_ipv6")):
        if not getattr(config, option) and LINK_LOCAL[family] in config.masquerade_cidrs:
            text = "{masquerade_cidrs}: %s is exempt as long as {%s} is false: set {%s} to true"
            yield text % (LINK_LOCAL[family], option, option)
    yield from _about_position(config)
    yield from _about_leaks(config)
    yield from _about_missing(config)
    if config.exemption == "enforce" and config.backend not in ("auto", NFTABLES):
        yield "{exemption}: enforce needs nftables, not %s: set {backend} to nftables or auto" % config.backend


def _about_position(config: Config) -> t.Iterator[str]:
    kind, _colon, chain = config.jump_position.partition(":")
    if kind not in PLACES_BY_CHAIN:
        return
    if chain == config.masq_chain:
        yield "{jump_position}: %s is the chain whose jump is to be placed: give another program's chain" % chain
    needs = "{jump_position}: %s needs a backend iptables_nft or iptables_legacy" % config.jump_position
    if config.backend == NFTABLES:
        yield needs + ": set {backend} to one of these, or {jump_position} to first or last"
    if config.exemption == "enforce":
        remedy = "set {jump_position} to first or last, or {exemption} to accept"
        yield needs + ", and exemption enforce needs nftables: " + remedy


def _about_leaks(config: Config) -> t.Iterator[str]:
    """Refuse to guard against leaks where it is not known which addresses are those of pods."""
    if config.leaks == "ignore":
        return
    needs = "{leaks}: %s needs the networks of the pods" % config.leaks
    if not config.source_cidrs:
        yield needs + ": set {source_cidrs} to them, or {leaks} to ignore"
    for version, family in BY_VERSION.items():
        if has_every_address(config.source_cidrs, family):
            yield needs + ", and {source_cidrs} has every IPv%d address: set it to them, or {leaks} to ignore" % version


def has_every_address(networks: t.Iterable[Network], family: Family) -> bool:
    """Return whether networks have every address of a family."""
    ranges = intervals.of_networks(one for one in networks if one.version == family.version)
    return ranges == ((0, family.highest),)


def _about_missing(config: Config) -> t.Iterator[str]:
    """Refuse to drop connections of all sources, which would be those of the node as well."""
    if config.snat_missing != "drop":
        return
    snat = [("snat", "source_cidrs", number, entry.source_cidrs) for number, entry in enumerate(config.snat, 1)]
    rules = [("rules", "sources", number, rule.sources) for number, rule in enumerate(config.rules, 1) if rule.address]
    before: t.List[Network] = []
    for option, key, number, sources in snat + rules:
        alone = not sources or any(has_every_address(sources, family) for family in FAMILIES)
        before += sources
        if alone or any(has_every_address(before, family) for family in FAMILIES):
            who = "the entry is" if alone else "the entry and those before it are"
            yield (
                "{%s}: entry %d: {snat_missing} is drop, and %s about all sources, so the node itself would be cut "
                "off while the address is missing: give it %s, or set {snat_missing} to keep"
                % (option, number, who, key if alone else "fewer " + key)
            )


def _networks_and_addresses(
    config: Config,
) -> t.Iterator[t.Tuple[str, t.Sequence[Network], t.Sequence[AddressRange]]]:
    """Return each list of networks, and the fixed address beside it, with its place for messages."""
    for name in NETWORK_LISTS:
        yield "{%s}" % name, getattr(config, name), ()
    for position, entry in enumerate(config.snat, 1):
        yield "{snat}: entry %d" % position, entry.source_cidrs, (entry.address,)
    for position, rule in enumerate(config.rules, 1):
        where = "{rules}: entry %d" % position
        yield where, rule.sources, ()
        yield where, rule.destinations, () if rule.address is None else (rule.address,)


def _notes(config: Config) -> t.Iterator[str]:
    masqueraded = {network.version for network in config.masquerade_cidrs}
    for network in config.non_masquerade_cidrs:
        if network.prefixlen == 0 and network.version not in masqueraded:
            text = "{non_masquerade_cidrs}: %s exempts every destination: nothing of IPv%d will be masqueraded"
            yield text % (network, network.version)
    managed = {network.version for network in config.source_cidrs}
    for version in [family.version for family in config.families]:
        if managed and version not in managed:
            text = "{source_cidrs}: no network is IPv%d, so all IPv%d traffic is left to other rules"
            yield text % (version, version)
