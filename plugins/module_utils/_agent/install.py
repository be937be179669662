# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the agent on a node: program, configuration, units. L(removal) takes it away again.

Every step compares first, so a second run changes nothing, and check mode is the same way without the writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
import typing as t

from .._engine.reconcile import Result
from .._errors import ConfigError, NodeError
from .._policy.policy import build
from .._policy.values import SHORTEST_INTERVAL_NS
from .._system import files
from .._system.process import Runner
from . import bundle, snapshot
from .paths import METRICS_NAME, RUN_DIR, STATE_DIR, TMPFILES, UNIT_DIR, Paths
from .resync_script import resync_script
from .sync import describe
from .units import (
    ENABLED_UNITS,
    FIREWALL_HOOKS,
    FIREWALL_UNITS,
    SERVICE,
    STARTED_UNITS,
    TIMER,
    interval_drop_in,
    tmpfiles,
    unit_files,
)

#: The last component of a path by which a directory is known to be the agent's alone.
NAME = "ip-masq-agent"

#: Bytes; a program that is larger is described in a diff, not shown.
_LARGE = 16384

_HIDDEN = "where the agent's service sees nothing (ProtectHome=, PrivateTmp=): name another place, such as one in /opt"
#: Where nothing of the agent may lie, and why.
_UNUSABLE = {
    "/home": _HIDDEN,
    "/root": _HIDDEN,
    "/run/user": _HIDDEN,
    "/tmp": _HIDDEN,
    "/var/tmp": _HIDDEN,
    STATE_DIR: "which removal deletes as a whole: name another place",
    RUN_DIR: "which removal deletes as a whole: name another place",
}

#: Seconds for a run of the service that was asked for: the end of one that is under way, then its own time limits.
_SERVICE_PATIENCE = 180.0

#: How the unit says where the program is.
_EXEC_START = re.compile(r"^ExecStart=(/\S+)/ip-masq-agent-resync$", re.MULTILINE)
_VERSION = re.compile(r'^VERSION = "([^"]*)"', re.MULTILINE)


class FileChange(t.NamedTuple):
    """A file that was changed, or would be. None is a file that is not there; a program is described, not shown."""

    path: str
    before: t.Optional[str]
    after: t.Optional[str]


class Installed(t.NamedTuple):
    """What an installation or removal did, or would do."""

    files: t.Tuple[FileChange, ...]
    #: what was done to units and directories, a line each
    services: t.Tuple[str, ...]
    result: t.Optional[Result] = None
    #: what is no change, and worth a warning
    notes: t.Tuple[str, ...] = ()

    @property
    def lines(self) -> t.Tuple[str, ...]:
        """All of it, a line each."""
        written = tuple(
            "file %s: %s" % ("removed" if change.after is None else "written", change.path) for change in self.files
        )
        return written + self.services + (tuple(describe(self.result)) if self.result else ())


def installed(where: Paths) -> t.List[Paths]:
    """The places of the agents that are installed now: where the unit names one, and where ``where`` does."""
    unit = files.read(os.path.join(UNIT_DIR, SERVICE)) or b""
    found = []
    for bin_dir in dict.fromkeys(_EXEC_START.findall(unit.decode("utf-8", "replace")) + [where.bin_dir]):
        with contextlib.suppress(ValueError):
            found.append(bundle.unpack(files.read(where._replace(bin_dir=bin_dir).program) or b"")[0])
    return list(dict.fromkeys(found))


def check_places(where: Paths) -> None:
    """Refuse places that the agent's service could not use, and a config_dir that others use.

    :raises ConfigError: nothing was touched.
    """
    for name, path in where._asdict().items():
        real = os.path.realpath(path or "/")
        for unusable, why in _UNUSABLE.items():
            if any(_is_within(one, other) for one in (path, real) for other in (unusable, os.path.realpath(unusable))):
                by_link = "" if _is_within(path, unusable) else ", a symbolic link to %s," % real
                raise ConfigError("%s: %s%s is within %s, %s" % (name, path, by_link, unusable, why))
    folder = where.config_dir
    if os.path.basename(folder) == NAME or folder in [there.config_dir for there in installed(where)]:
        return
    others = sorted(set(os.listdir(folder)) - {"config", "config.d"}) if os.path.isdir(folder) else []
    if others or os.path.dirname(folder) == "/":
        holds = ", which holds %s," % ", ".join(map(ascii, others[:3])) if others else ""
        raise ConfigError(
            "config_dir: %s%s is not a directory for the agent alone: name one that does not exist yet, or whose name "
            "is %s" % (folder, holds, NAME)
        )


def _is_within(path: str, folder: str) -> bool:
    return (path + "/").startswith(folder + "/")


def check_systemd() -> None:
    """Refuse a node that systemd does not run (sd_booted(3)).

    :raises NodeError: nothing was touched.
    """
    if not os.path.isdir("/run/systemd/system"):
        raise NodeError(
            "this node was not booted with systemd, which the timer needs: use the module ip_masq instead, "
            "which only sets the rules"
        )


def put_files(where: Paths, config_text: t.Optional[str], check: bool = False) -> Installed:
    """Put the program, the configuration and the units in place.

    :param config_text: text of the config file; none leaves the one on the node alone.
    :raises NodeError: a file cannot be written; the message names it.
    """
    before = installed(where)
    made = []
    for path in (where.config_dir, os.path.join(where.config_dir, "config.d")):
        if not os.path.isdir(path):
            made.append("directory made: " + path)
            if not check:
                files.make_directory(path, 0o755)
    wanted = _wanted_files(where, config_text)
    changes = [change for path, (content, mode) in wanted.items() for change in _put(path, content, mode, check)]
    # Left where they are, old metrics would go on being collected, and an old program would bring back an old policy.
    for path in existing(path for old in before for path in (old.metrics_file, old.resync, old.program)):
        if path not in (where.metrics_file, where.resync, where.program):
            changes.append(going(path))
            if not check:
                files.remove(path)
    if changes and not check:
        snapshot.discard()
    notes = [
        "config_dir was %s: what is there stays, and is not read any more" % old.config_dir
        for old in before
        if old.config_dir != where.config_dir
    ]
    return Installed(tuple(changes), tuple(made), notes=tuple(notes))


def _wanted_files(where: Paths, config_text: t.Optional[str]) -> t.Dict[str, t.Tuple[bytes, int]]:
    wanted = {}
    if config_text is not None:
        wanted[os.path.join(where.config_dir, "config")] = (config_text.encode("utf-8"), 0o644)
    wanted[where.program] = (bundle.program(where), 0o755)
    wanted[where.resync] = (resync_script(where).encode("utf-8"), 0o755)
    wanted[TMPFILES] = (tmpfiles().encode("utf-8"), 0o644)
    for name, text in unit_files(where).items():
        wanted[os.path.join(UNIT_DIR, name)] = (text.encode("utf-8"), 0o644)
    return wanted


def _put(path: str, content: bytes, mode: int, check: bool) -> t.Iterator[FileChange]:
    before = files.read(path)
    if before == content and os.stat(path).st_mode & 0o7777 == mode:
        return
    if not check:
        files.make_directory(os.path.dirname(path), 0o755)
        files.write(path, content, mode)
    yield FileChange(path, _shown(before), _shown(content))


def existing(paths: t.Iterable[str]) -> t.List[str]:
    """Those of some files that are there, each once; a directory in a file's place is not one."""
    return [path for path in dict.fromkeys(paths) if _mode(path) and not stat.S_ISDIR(_mode(path))]


def _mode(path: str) -> int:
    """What kind of file it is, and its permission bits; 0 where there is none. Symbolic links are not followed."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def going(path: str) -> FileChange:
    """The removal of a file. Only what no other user can have put there is shown: metrics_dir may be another user's."""
    if stat.S_ISLNK(_mode(path)):
        return FileChange(path, "symbolic link to %s\n" % os.readlink(path), None)
    if os.path.basename(path) == METRICS_NAME or not stat.S_ISREG(_mode(path)):
        return FileChange(path, "not shown\n", None)
    return FileChange(path, _shown(files.read(path)), None)


def _shown(content: t.Optional[bytes]) -> t.Optional[str]:
    """A file in a diff: its text, or what it is where it is a long program or no text."""
    if content is None:
        return None
    if len(content) <= _LARGE or not content.startswith(b"#!"):
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode("utf-8")
    about = ["%d bytes, sha256 %s" % (len(content), hashlib.sha256(content).hexdigest())]
    with contextlib.suppress(ValueError):
        where, modules = bundle.unpack(content)
        about += ["version: %s" % version for version in _VERSION.findall(modules.get("_version", b"").decode("utf-8"))]
        about += ["%s: %s" % place for place in where._asdict().items()]
    return "".join(line + "\n" for line in about)


def settle_units(run: Runner, put: Installed, enabled: bool = True, check: bool = False) -> t.List[str]:
    """Have systemd know the units, and run them or not.

    :param put: what :func:`put_files` changed.
    :param enabled: whether the timer runs; if not, everything is there, and stopped.
    :returns: what was done, a line each.
    :raises NodeError: systemd refused a step.
    """
    changed = {os.path.basename(change.path) for change in put.files if os.path.dirname(change.path) == UNIT_DIR}
    if changed and not check:
        systemctl(run, "daemon-reload")
    units = show(run, ENABLED_UNITS + tuple(unit + ".service" for unit in FIREWALL_UNITS))
    done = []
    if enabled:
        to_enable = [unit for unit in ENABLED_UNITS if units[unit]["UnitFileState"] != "enabled"]
        to_start = [unit for unit in STARTED_UNITS if units[unit]["ActiveState"] != "active"]
        to_start += [
            hook
            for hook, firewall in zip(FIREWALL_HOOKS, FIREWALL_UNITS)
            if units[firewall + ".service"]["ActiveState"] == "active" and units[hook]["ActiveState"] != "active"
        ]
        to_restart = [unit for unit in STARTED_UNITS if unit in changed and unit not in to_start]
        steps = [("enable", to_enable), ("start", to_start), ("restart", to_restart)]
    else:
        steps = [
            ("disable", [unit for unit in ENABLED_UNITS if units[unit]["UnitFileState"] == "enabled"]),
            ("stop", [unit for unit in ENABLED_UNITS if units[unit]["ActiveState"] == "active"]),
        ]
    for verb, names in steps:
        if names:
            if not check:
                systemctl(run, verb, *names)
            done.append("%s: %s" % (verb, ", ".join(names)))
    return done


def systemctl(run: Runner, *arguments: str) -> str:
    """Run systemctl.

    :returns: its output.
    :raises NodeError: with what it said, where it failed.
    """
    done = run(["systemctl"] + list(arguments), timeout=120.0)
    if done.rc != 0:
        raise NodeError("systemctl %s failed: %s" % (" ".join(arguments), " ".join(done.stderr.split())))
    return done.stdout


def show(run: Runner, units: t.Sequence[str]) -> t.Dict[str, t.Dict[str, str]]:
    """The state of units (systemctl(1), show); one that systemd does not know has empty values."""
    shown = systemctl(run, "show", "--property=LoadState,UnitFileState,ActiveState", *units)
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in shown.strip().split("\n\n")]
    empty = {"LoadState": "", "UnitFileState": "", "ActiveState": ""}
    return {unit: dict(empty, **block) for unit, block in zip(units, blocks)}


def parse_interval(raw: bytes) -> int:
    """Read the interval that the sandboxed service asks for: nanoseconds, nothing else.

    :raises NodeError: it is no number, or out of bounds.
    """
    text = raw.decode("ascii", "replace").strip()
    if not (text.isdigit() and len(text) < 20 and SHORTEST_INTERVAL_NS <= int(text) < 2**63):
        raise NodeError("%s is no interval in nanoseconds" % ascii(text[:40]))
    return int(text)


def set_timer(run: Runner, interval: int, check: bool = False) -> bool:
    """Have the timer fire at ``interval`` (nanoseconds).

    :returns: whether that changed anything.
    :raises NodeError: systemd refused.
    """
    path, text = interval_drop_in(interval)
    if interval == build({}).resync_interval:
        if files.read(path) is None:
            return False
        if not check:
            files.remove(path)
    else:
        if files.read(path) == text.encode("utf-8"):
            return False
        if not check:
            files.make_directory(os.path.dirname(path), 0o755)
            files.write(path, text.encode("utf-8"), 0o644)
    if not check:
        systemctl(run, "daemon-reload")
        systemctl(run, "try-restart", TIMER)
    return True


def last_failure(run: Runner) -> str:
    """How the last run of the agent's service failed; empty where it did not.

    :raises NodeError: systemd cannot be asked.
    """
    shown = systemctl(run, "show", "--property=Result,ExecMainStatus", SERVICE)
    about = dict(line.partition("=")[::2] for line in shown.splitlines())
    if about.get("Result", "success") == "success":
        return ""
    return "result %s, exit status %s" % (about["Result"], about.get("ExecMainStatus", "unknown"))


def try_service(run: Runner, where: Paths) -> None:
    """Have systemd run the agent's service once, in its sandbox, and see that it did what it should.

    :raises NodeError: it did not; with what the journal has about that.
    """
    # Without the snapshot the program itself runs, and not only the comparison before it.
    snapshot.discard()
    before, started = _stamp(where.metrics_file), time.time()
    run(["systemctl", "restart", SERVICE], timeout=_SERVICE_PATIENCE)
    problem = last_failure(run)
    if not problem and where.metrics_file and _stamp(where.metrics_file) == before:
        problem = "it did not write %s" % where.metrics_file
    if problem:
        raise NodeError(
            "the agent is installed, and %s does not work: %s%s. Repair that and run this again; see also "
            "'systemctl status %s'" % (SERVICE, problem, _journal(run, started), SERVICE)
        )


def _stamp(path: str) -> t.Optional[t.Tuple[int, int]]:
    """What is another value whenever a file was replaced."""
    try:
        about = os.lstat(path)
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


def _journal(run: Runner, since: float) -> str:
    """What the journal has about the service, as the continuation of a message; empty where it has nothing."""
    options = ["--since=@%d" % since, "--priority=notice", "--lines=8", "--output=cat", "--no-pager", "--quiet"]
    try:
        run(["journalctl", "--sync"])
        lines = run(["journalctl", "--unit=" + SERVICE] + options).stdout.splitlines()
    except NodeError:
        return ""
    return ": " + "; ".join(lines) if lines else ""
