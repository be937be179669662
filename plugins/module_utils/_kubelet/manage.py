# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the kubelet leave masquerading alone, or leave the kubelet alone.

observe (layouts, probe) -> decide -> edit -> restart -> verify, and back to the old file if the kubelet stays down.
Everything is decided, and every edit is rehearsed, before the first byte is written.
"""

from __future__ import annotations

import re
import typing as t

from ..errors import ConfigError, IpMasqError, NodeError
from ..node import Node
from ..runner import Runner
from . import distributions as layouts
from . import kubenet_rules as rules
from . import owned_files as files
from . import probe as probing
from . import restart as service
from .editors import FLAG, NEVER, NEVER_VALUES, Editor, argument, find_flag, flag_name, last_value

POLICIES = ("auto", "present", "absent", "report")

_WORD = re.compile(r"[A-Za-z0-9:_.@\\-]+\Z")


class Options(t.NamedTuple):
    """What the operator asked for; times in seconds."""

    policy: str = "auto"
    unit: str = ""
    binary: str = ""
    layout: str = "auto"
    args_file: str = ""
    args_variable: str = ""
    restart: bool = True
    #: empty: where the kubelet's own arguments and configuration say
    healthz_url: str = ""
    healthz_timeout: float = 120.0
    probe_timeout: float = 10.0


class Seen(t.NamedTuple):
    """One kubelet, as it was found."""

    kubelet: layouts.Kubelet
    probe: probing.Probe
    #: every appearance of the flag: where, and with which value
    configured: t.Tuple[t.Tuple[layouts.Place, str], ...]
    #: the value that counts, configured and in the running process; none where the flag is not given
    value: t.Optional[str]
    running_value: t.Optional[str]
    #: whether kubenet is configured, or running
    kubenet: bool
    running_kubenet: t.Optional[bool]

    @property
    def name(self) -> str:
        """How messages call it."""
        return "%s (%s%s)" % (
            self.kubelet.unit.name + ".service",
            " and ".join(self.kubelet.layouts),
            ", " + self.probe.version if self.probe.version else "",
        )

    @property
    def masquerades(self) -> bool:
        """Whether a kubenet rule may come back: one that is configured, or one that still runs."""
        now = self.running_kubenet and self.running_value not in NEVER_VALUES
        return bool(now) or (self.kubenet and self.value not in NEVER_VALUES)

    @property
    def restart_pending(self) -> bool:
        """Whether the running process has not seen the value that is configured."""
        seen = self.running_kubenet is None or self.running_value in NEVER_VALUES
        return self.value in NEVER_VALUES and not seen


class Decision(t.NamedTuple):
    """What happens to a kubelet. ``action``: C(none), C(set) or C(remove); ``severity``: C(ok), C(warn) or C(fail)."""

    name: str
    action: str
    severity: str
    reason: str


class Change(t.NamedTuple):
    """One file, before and after."""

    seen: Seen
    path: str
    before: files.Snapshot
    after: t.Optional[str]
    #: whether it sets the flag
    sets: bool


class Report(t.NamedTuple):
    """What was found, decided and done. ``failure`` is empty unless the module has to fail."""

    changed: bool
    failure: str
    warnings: t.Tuple[str, ...]
    decision: str
    reason: str
    seen: t.Tuple[t.Tuple[Seen, Decision], ...]
    actions: t.Tuple[str, ...]
    #: files changed, and then files and rules as (name, before, after)
    files: t.Tuple[str, ...]
    diff: t.Tuple[t.Tuple[str, str, str], ...]
    leftovers: t.Tuple[str, ...]
    restart_needed: bool


def look(kubelet: layouts.Kubelet, host: layouts.Host, timeout: float) -> Seen:
    """Find out about one kubelet.

    :param timeout: seconds for each question to the binary.
    :raises ConfigError: one of its argument files cannot be understood.
    """
    places = kubelet.places(host.read)
    words = [word for place in places for word in place.words]
    configured = tuple((place, copy.value) for place in places for copy in find_flag(place.words, where=place.where))
    running = kubelet.running_words()
    return Seen(
        kubelet,
        ask(kubelet, host, timeout),
        configured,
        last_value(words, FLAG),
        last_value(running or [], FLAG),
        _is_kubenet(words),
        None if running is None else _is_kubenet(running),
    )


def ask(kubelet: layouts.Kubelet, host: layouts.Host, timeout: float) -> probing.Probe:
    """Whether the kubelet knows the flag."""
    version = kubelet.version_on_file()
    if version is not None:
        return probing.Probe(probing.known_by_version(version), version)
    if kubelet.command is None:
        return probing.Probe(None, None, kubelet.untouchable)
    return probing.probe(kubelet.command, host.run, timeout, kubelet.asks_help)


def _is_kubenet(words: t.Sequence[str]) -> bool:
    """Whether a kubelet with these arguments runs kubenet.

    kubenet is part of dockershim, which a kubelet with --container-runtime=remote does not start; --network-plugin then
    does nothing (seen with Kubernetes 1.20.2: no rule is written).
    """
    if last_value(words, "container-runtime") == "remote":
        return False
    if last_value(words, "network-plugin") == "kubenet":
        return True
    bridge = [word for word in words if flag_name(word) == "configure-cbr0"]
    return bool(bridge) and bridge[-1].partition("=")[2] in ("", "true")


def decide(policy: str, seen: Seen) -> Decision:
    """The whole table, for one kubelet. C(report) decides as C(auto) does."""
    if seen.probe.known is None:
        return _decide_unknown(policy, seen)
    if not seen.probe.known:
        if policy == "present":
            return Decision(
                "unsupported",
                "none",
                "fail",
                "%s does not know --%s, which Kubernetes 1.24 removed, and would refuse to start with it. Nothing is "
                "needed: this kubelet masquerades nothing. Set policy to auto" % (seen.name, FLAG),
            )
        if not seen.configured:
            reason = "%s does not know --%s and is not given it: it masquerades nothing, so there is nothing to do"
            return Decision("not_applicable", "none", "ok", reason % (seen.name, FLAG))
        why = "%s does not know --%s and cannot start with it" % (seen.name, FLAG)
        return _decide_removal(seen, "remove_stale", why)
    if policy == "absent":
        if not seen.configured:
            return Decision("absent", "none", "ok", "%s is not given --%s" % (seen.name, FLAG))
        return _decide_removal(seen, "remove", "--%s is to be absent from %s" % (FLAG, seen.name))
    if policy == "present" or seen.kubenet:
        return _decide_set(policy, seen)
    if seen.running_kubenet:
        reason = "%s is no longer configured for kubenet, but the running process still has it: restart the kubelet"
        return Decision("not_needed", "none", "warn", reason % seen.name)
    reason = "%s knows --%s, but does not run kubenet, and without kubenet the flag does nothing"
    return Decision("not_needed", "none", "ok", reason % (seen.name, FLAG))


def _decide_unknown(policy: str, seen: Seen) -> Decision:
    wanted = policy == "present" or (policy == "absent" and bool(seen.configured))
    return Decision(
        "unknown",
        "none",
        "fail" if wanted else "warn",
        "it cannot be told whether %s knows --%s: %s. The kubelet was not touched" % (seen.name, FLAG, seen.probe.why),
    )


def _decide_removal(seen: Seen, name: str, why: str) -> Decision:
    owned = [place for place, _value in seen.configured if place.editor is None]
    if owned:
        where = "; ".join("%s: %s" % (place.where, place.advice) for place in owned)
        reason = "%s, but it is set where only you can change it. %s" % (why, where)
        return Decision("managed_elsewhere", "none", "fail", reason)
    places = " and ".join(dict.fromkeys(place.where for place, _value in seen.configured))
    if name == "remove" and seen.kubenet:
        reason = "%s: it has to go from %s. kubenet then masquerades everything outside 10.0.0.0/8" % (why, places)
        return Decision(name, "remove", "warn", reason)
    return Decision(name, "remove", "ok", "%s: it has to go from %s" % (why, places))


def _decide_set(policy: str, seen: Seen) -> Decision:
    later = "Take the flag out before the upgrade to Kubernetes 1.24 (policy absent), or that kubelet will not start"
    if seen.value in NEVER_VALUES:
        reason = "%s already has --%s=%s. %s" % (seen.name, FLAG, seen.value, later)
        return Decision("already_set", "none", "warn", reason)
    target, advice = seen.kubelet.target, seen.kubelet.target_advice
    found = re.match(r"v(\d+)\.(\d+)", seen.probe.version or "")
    if target and found and (int(found.group(1)), int(found.group(2))) < seen.kubelet.target_since:
        target, advice = None, "this release does not read %s: add it to kubelet-arg in config.yaml" % target.path
    why = "--%s is to be given to %s" % (FLAG, seen.name)
    if seen.kubenet:
        why = "%s runs kubenet, which masquerades everything outside %s" % (seen.name, seen.value or "10.0.0.0/8")
    if target is None:
        return Decision(
            "managed_elsewhere",
            "none",
            "fail" if policy == "present" else "warn",
            "%s, and only you can set %s: %s" % (why, argument(NEVER), advice),
        )
    return Decision("set", "set", "warn", "%s: it needs %s in %s. %s" % (why, argument(NEVER), target.path, later))


def rehearse(seen: Seen, decision: Decision, host: layouts.Host) -> t.List[Change]:
    """The edits that a decision needs, tried on the text.

    :raises ConfigError: a file cannot be changed with certainty, or the change would not have the effect wanted.
    """
    editors: t.List[Editor] = []
    if decision.action == "set" and seen.kubelet.target:
        editors = [seen.kubelet.target]
    elif decision.action == "remove":
        editors = [place.editor for place, _value in seen.configured if place.editor]
    wanted = NEVER if decision.action == "set" else None
    found: t.Dict[str, Change] = {}
    for editor in editors:
        before = found[editor.path].before if editor.path in found else host.snapshot(editor.path)
        text = found[editor.path].after if editor.path in found else before.text
        found[editor.path] = Change(seen, editor.path, before, editor.with_value(text, wanted), wanted is not None)
    changes = [change for change in found.values() if change.after != change.before.text]
    for change in changes:
        files.check_replaceable(change.before)

    def read(path: str) -> t.Optional[str]:
        return found[path].after if path in found else host.read(path)

    places = seen.kubelet.places(read) if found else []
    values = [(place.where, copy.value) for place in places for copy in find_flag(place.words, where=place.where)]
    if found and (values[-1][1] if values else None) != wanted:
        raise ConfigError(
            "%s: %s would have no effect there, because %s; nothing was touched"
            % (
                " and ".join(found),
                argument(NEVER) if wanted else "the change",
                "%s sets it to %s after that" % values[-1] if values else "%s does not read it" % seen.name,
            )
        )
    return changes


def converge(
    options: Options,
    run: Runner,
    check: bool = False,
    root: str = "/",
    healthy: service.Healthy = service.wait_healthy,
) -> Report:
    """Bring the node to the policy.

    :param check: look and decide, write nothing.
    :param root: the directory that holds the node's file system.
    :raises ConfigError: the options are refused, or a file is; nothing was touched.
    :raises NodeError: the node cannot be looked at.
    """
    named = _checked(options)
    host = layouts.Host(run, root)
    node = Node(run)
    warnings: t.List[str] = []
    try:
        found = layouts.find_kubelets(host, options.unit, options.binary, options.layout, named)
    except NodeError as exc:
        if options.policy == "present":
            raise
        reason = "the services of this node cannot be looked at (%s). The kubelet was not touched" % exc
        return Report(False, "", (reason,), "unknown", reason, (), (), (), (), (), False)
    every = [look(kubelet, host, options.probe_timeout) for kubelet in found]
    decided = [(seen, decide(options.policy, seen)) for seen in every]
    runtime = _kubenet_in_cri_dockerd(host)
    overall = _overall(options, host, decided, runtime)
    warnings += [decision.reason for _seen, decision in decided if decision.severity == "warn"]
    if overall.severity == "warn" and overall.reason not in warnings:
        warnings.append(overall.reason)
    leftovers = _leftovers(node, warnings)

    def report(
        changed: bool = False,
        failure: str = "",
        actions: t.Sequence[str] = (),
        changes: t.Sequence[Change] = (),
        deleted: t.Sequence[rules.Leftover] = (),
        restart_needed: bool = False,
    ) -> Report:
        texts = [(change.path, change.before.text or "", change.after or "") for change in changes]
        texts += [("POSTROUTING, %s" % rule.command, rule.line + "\n", "") for rule in deleted]
        return Report(
            changed,
            failure,
            tuple(warnings),
            overall.name,
            overall.reason,
            tuple(decided),
            tuple(actions),
            tuple(change.path for change in changes),
            tuple(texts),
            tuple(rule.line for rule in leftovers),
            restart_needed,
        )

    failed = [decision.reason for _seen, decision in decided + [(None, overall)] if decision.severity == "fail"]
    if options.policy == "report":
        return report()
    if failed:
        return report(failure="; ".join(dict.fromkeys(failed)))
    changes = [change for seen, decision in decided for change in rehearse(seen, decision, host)]
    pending = [seen for seen, decision in decided if decision.action == "none" and seen.restart_pending]
    work = _Work(options, host, healthy, check)
    try:
        work.check_verifiable([change.seen for change in changes] + pending)
    except NodeError as exc:
        return report(failure=str(exc))
    work.edit_and_restart(changes, pending)
    if work.failure:
        return report(work.restored is False, work.failure, work.actions, changes if work.restored is False else ())
    quiet = _nothing_puts_it_back(host, decided, overall, runtime, work.restart_needed)
    gone = leftovers if quiet else []
    if leftovers and not quiet:
        left = "the kubenet rule '%s' was left in place, because something on this node may put it back"
        warnings.append(left % leftovers[0].line)
    if gone and not check:
        try:
            rules.delete(node, gone)
        except NodeError as exc:
            return report(bool(changes), str(exc), work.actions, changes, (), work.restart_needed)
    actions = work.actions + ["deleted the kubenet rule '%s' (%s)" % (rule.line, rule.command) for rule in gone]
    return report(bool(changes or gone or work.restarted), "", actions, changes, gone, work.restart_needed)


def _checked(options: Options) -> t.Optional[layouts.EnvironmentEditor]:
    """Refuse options that cannot be meant."""
    if options.policy not in POLICIES:
        raise ConfigError("policy '%s' is not one of %s" % (options.policy, ", ".join(POLICIES)))
    if options.layout not in ("auto",) + layouts.LAYOUTS:
        raise ConfigError("layout '%s' is not one of auto, %s" % (options.layout, ", ".join(layouts.LAYOUTS)))
    if options.unit and (not _WORD.match(options.unit) or options.unit.startswith("-")):
        raise ConfigError("unit '%s' is not the name of a systemd service" % options.unit)
    if options.binary and not options.binary.startswith("/"):
        raise ConfigError("binary '%s' is not an absolute path" % options.binary)
    for name, value in (("healthz_timeout", options.healthz_timeout), ("probe_timeout", options.probe_timeout)):
        if not 0 < value <= 3600:
            raise ConfigError("%s %g is not between 0 and 3600 seconds" % (name, value))
    if options.healthz_url:
        service.check_url(options.healthz_url)
    return layouts.editor_for(options.args_file, options.args_variable)


def _kubenet_in_cri_dockerd(host: layouts.Host) -> bool:
    """cri-dockerd still carries kubenet, with 10.0.0.0/8 built in and no flag for it."""
    return any(
        last_value(host.command_line(pid)[1:], "network-plugin") == "kubenet" for pid in host.processes("cri-dockerd")
    )


def _overall(
    options: Options, host: layouts.Host, decided: t.Sequence[t.Tuple[Seen, Decision]], cri_dockerd: bool
) -> Decision:
    """One decision for the node: the gravest of its kubelets', or what there is to say without any."""
    if cri_dockerd:
        return Decision(
            "cri_dockerd_kubenet",
            "none",
            "fail" if options.policy == "present" else "warn",
            "cri-dockerd runs kubenet, which masquerades everything outside 10.0.0.0/8 and has no flag to stop that: "
            "start it with --network-plugin=cni",
        )
    if decided:
        order = ("ok", "warn", "fail")
        return max((one for _seen, one in decided), key=lambda one: (order.index(one.severity), one.action != "none"))
    stray = host.processes("kubelet")
    if stray:
        reason = (
            "a kubelet runs (process %d), but no service that is known here starts it; perhaps a container does. "
            "It was not touched. If a service does, name that in the option unit" % stray[0]
        )
        return Decision("unknown", "none", "fail" if options.policy == "present" else "warn", reason)
    wanted = "the service %s" % options.unit if options.unit else "a kubelet service"
    wanted += "" if options.layout == "auto" else " of the layout %s" % options.layout
    reason = "%s was not found on this node" % wanted
    return Decision("no_kubelet", "none", "fail" if options.policy == "present" else "warn", reason)


def _leftovers(node: Node, warnings: t.List[str]) -> t.List[rules.Leftover]:
    try:
        return rules.find_leftovers(node)
    except NodeError as exc:
        warnings.append("rules that kubenet left could not be looked for: %s" % exc)
        return []


def _nothing_puts_it_back(
    host: layouts.Host,
    decided: t.Sequence[t.Tuple[Seen, Decision]],
    overall: Decision,
    cri_dockerd: bool,
    restart_needed: bool,
) -> bool:
    """Whether a deleted kubenet rule stays deleted."""
    if cri_dockerd or restart_needed or overall.name == "unknown":
        return False
    for pid in host.processes("kubelet"):
        words = host.command_line(pid)[1:]
        if _is_kubenet(words) and last_value(words, FLAG) not in NEVER_VALUES:
            # In check mode this may be the very process that would be restarted.
            if pid not in [seen.kubelet.unit.pid for seen, _decision in decided]:
                return False
    return not any(_may_masquerade(seen, decision) for seen, decision in decided)


def _may_masquerade(seen: Seen, decision: Decision) -> bool:
    """Whether a kubelet may write its rule again after what was done to it."""
    if decision.name == "unknown":
        return True
    if decision.action == "remove":
        return seen.kubenet and bool(seen.probe.known)
    return decision.action == "none" and seen.masquerades and not seen.restart_pending


class _Work:
    """Edits, restarts, and the way back."""

    def __init__(self, options: Options, host: layouts.Host, healthy: service.Healthy, check: bool) -> None:
        self._options = options
        self._host = host
        self._healthy = healthy
        self._check = check
        self.actions: t.List[str] = []
        self.failure = ""
        #: after a failure: whether the files are as they were
        self.restored: t.Optional[bool] = None
        self.restarted = False
        self.restart_needed = False

    def check_verifiable(self, every: t.Sequence[Seen]) -> None:
        """Ask healthz of the kubelets that would be restarted, before anything is written.

        Where it does not answer now, a restart could not be verified: each run would edit, restart, wait, and undo. A
        kubelet that keeps failing is not asked: the change may be what it needs.

        :raises NodeError: a kubelet that runs does not answer.
        """
        for seen in {seen.kubelet.unit.name: seen for seen in every}.values():
            unit = seen.kubelet.unit
            if not self._restarts(unit):
                continue
            url = self._url(seen)
            problem = "its healthz is off (port 0)"
            if url is not None:
                if unit.active != "active":
                    continue
                problem = self._healthy(url, min(self._options.healthz_timeout, service.ANSWERS_WITHIN))
                now = self._host.units([unit.name])
                if not problem or [(one.active, one.pid) for one in now] != [(unit.active, unit.pid)]:
                    continue
            raise NodeError(
                "a restart of %s.service could not be verified: %s; no file was touched; set healthz_url to a URL at "
                "which this kubelet answers 200, or restart: false to restart it yourself" % (unit.name, problem)
            )

    def _restarts(self, unit: layouts.Unit) -> bool:
        return self._options.restart and unit.active != "inactive"

    def _url(self, seen: Seen) -> t.Optional[str]:
        return self._options.healthz_url or service.healthz_url(seen.kubelet.words(self._host.read), self._host.read)

    def edit_and_restart(self, changes: t.Sequence[Change], pending: t.Sequence[Seen]) -> None:
        """Do one kubelet after the other, and stop at the first that fails."""
        todo: t.Dict[str, t.Tuple[Seen, t.List[Change]]] = {seen.kubelet.unit.name: (seen, []) for seen in pending}
        for change in changes:
            todo.setdefault(change.seen.kubelet.unit.name, (change.seen, []))[1].append(change)
        for seen, mine in todo.values():
            self._one(seen, mine)
            if self.failure:
                return

    def _one(self, seen: Seen, changes: t.Sequence[Change]) -> None:
        unit = seen.kubelet.unit
        written: t.List[t.Tuple[files.Snapshot, files.Snapshot]] = []
        restarting = self._restarts(unit)
        disturbed = False
        try:
            for change in changes:
                if not self._check:
                    after = None if change.after is None else change.after.encode("utf-8")
                    written.append((change.before, files.replace(change.before, after)))
                self.actions.append("%s %s" % ("removed" if change.after is None else "edited", change.path))
            if not restarting:
                self.restart_needed = self.restart_needed or unit.active != "inactive"
                return
            if not self._check:
                self._still_known(seen, changes)
                disturbed = True
                self._restart(seen)
            self.actions.append("restarted %s.service" % unit.name)
            self.restarted = True
        except IpMasqError as exc:
            self._undo(seen, written, str(exc), disturbed)

    def _still_known(self, seen: Seen, changes: t.Sequence[Change]) -> None:
        """An upgrade may have replaced the binary meanwhile; the new one would not start with the flag."""
        sets = any(change.sets for change in changes)
        if sets and ask(seen.kubelet, self._host, self._options.probe_timeout).known is not True:
            raise NodeError("the kubelet's binary was replaced while this module ran, and may not know the flag now")

    def _restart(self, seen: Seen) -> None:
        url = self._url(seen) or ""
        service.restart(self._host.run, seen.kubelet.unit.name, url, self._options.healthz_timeout, self._healthy)

    def _undo(
        self, seen: Seen, written: t.Sequence[t.Tuple[files.Snapshot, files.Snapshot]], error: str, disturbed: bool
    ) -> None:
        """Put the files back, and restart a kubelet that was restarted before."""
        self.actions = []
        self.restored = True
        trouble = []
        for before, now in reversed(written):
            try:
                files.replace(now._replace(mode=before.mode, uid=before.uid, gid=before.gid), before.data)
            except IpMasqError as exc:
                self.restored = False
                trouble.append("putting %s back failed too: %s" % (before.path, exc))
        if written and disturbed and self.restored:
            try:
                self._restart(seen)
            except IpMasqError as exc:
                trouble.append("the restart with the old file failed too: %s" % exc)
        if not written:
            end = "no file was touched"
        elif trouble:
            end = "; ".join(trouble)
        else:
            end = "the old file is back"
            end += " and the kubelet runs with it" if disturbed else ", and the kubelet was not restarted"
        self.failure = "%s; %s" % (error, end)
