# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's program: one executable file that contains the modules that Ansible runs, byte for byte."""

from __future__ import annotations

import ast
import binascii
import contextlib
import functools
import hashlib
import json
import os
import re
import typing as t
import zlib

from .paths import Paths

#: The module in which the program begins, and the name of the package that holds all modules in the program.
ENTRY = "_entry.program"
PACKAGE = "ip_masq_agent"

#: An import from this collection, on one line or in parentheses. A syntax tree of every module would take a quarter of
#: the time of a run that has nothing to do.
_IMPORT = re.compile(r"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)

#: What reading a file raises that is not a program of this collection, or a damaged one.
_BROKEN = (
    *(ArithmeticError, AttributeError, KeyError, MemoryError),
    *(RecursionError, SyntaxError, TypeError, ValueError, zlib.error),
)

# Python reads a script once, as a whole; it would open an archive again for each module, and after an upgrade in
# between load modules of two releases. -I: neither the environment nor the current directory decides what root imports.
# Compiling takes longer than a sync, so the code is kept until the next boot, in a directory that only root may open:
# for exactly this program and this Python, and with a checksum, because marshal may crash on damaged data. The sources
# are compressed because Python parses the whole script at each start, and has no use for them then.
# PyPy's JIT aborts the process where memory cannot be made executable, as in the units (MemoryDenyWriteExecute=), and
# has hardly warmed up when a run ends.
_PROGRAM = """\
#!%s -I
# Managed by the Ansible collection kubenode.ip_masq, whose modules it holds.

import _imp
import marshal
import os
import sys
from importlib.machinery import ModuleSpec
from stat import S_ISREG

if "pypyjit" in sys.builtin_module_names:
    import pypyjit

    pypyjit.set_param("off")

PACKAGE = %r
WHERE = %r
PACKED = %r
SOURCES = {}
COMPILED = %r
RELEASE = %r


def sources():
    import binascii
    import json
    import zlib

    if not SOURCES:
        SOURCES.update(json.loads(zlib.decompress(binascii.a2b_base64(PACKED)).decode()))
    return SOURCES


def compiled():
    key = (RELEASE, sys.version)
    try:
        with open(COMPILED, "rb", opener=without_waiting) as kept:
            regular = S_ISREG(os.fstat(kept.fileno()).st_mode)
            checksum, content = (kept.read(8), kept.read()) if regular else (b"", b"")
        if regular and checksum == _imp.source_hash(0, content):
            made_by, code = marshal.loads(content)
            if made_by == key:
                return code
    except OSError:
        pass
    code = {name: marshal.dumps(compile(source, PACKAGE + "." + name, "exec")) for name, source in sources().items()}
    keep(marshal.dumps((key, code)))
    return code


def without_waiting(path, flags):
    return os.open(path, flags | os.O_NONBLOCK)


def keep(content):
    draft = "%%s.%%d" %% (COMPILED, os.getpid())
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(_imp.source_hash(0, content) + content)
        os.rename(draft, COMPILED)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass


CODE = compiled()
PACKAGES = {PACKAGE} | {PACKAGE + "." + name.rpartition(".")[0] for name in CODE if "." in name}


class Modules:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in PACKAGES or name.startswith(PACKAGE + ".") and name[len(PACKAGE) + 1 :] in CODE:
            return ModuleSpec(name, Modules, origin=__file__, is_package=name in PACKAGES)
        return None

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        module.__file__ = __file__ + "/" + module.__name__.replace(".", "/") + ".py"
        if module.__name__ not in PACKAGES:
            exec(marshal.loads(CODE[module.__name__[len(PACKAGE) + 1 :]]), module.__dict__)

    @staticmethod
    def get_data(path):
        name = path[len(__file__) + len(PACKAGE) + 2 : -len(".py")].replace("/", ".")
        if name not in CODE:
            raise OSError(2, "no such module", path)
        return sources()[name].encode()


sys.meta_path.insert(0, Modules)

from ip_masq_agent._entry.program import entry  # noqa: E402

entry(WHERE)
"""


def program(where: Paths, installed: bytes = b"") -> bytes:
    """The agent as one executable file. Its modules are read through their own loaders.

    :param installed: the file that this one replaces. If both have the same modules, its compressed text is taken over,
        since releases of zlib compress differently: then the two differ only if something else does.
    """
    places = dict(where._asdict())
    if where.units == Paths().units:
        del places["units"]  # earlier releases do not know it
    packed = _packed(installed)
    return (_PROGRAM % (where.python, PACKAGE, places, packed, where.compiled, release())).encode("utf-8")


def _packed(installed: bytes) -> str:
    with contextlib.suppress(*_BROKEN):
        packed = _assigned(installed)["PACKED"]
        if _unpacked(packed) == _texts():
            return t.cast(str, packed)
    return _compressed()


@functools.lru_cache(maxsize=None)
def _compressed() -> str:
    content = zlib.compress(json.dumps(_texts()).encode("ascii"), zlib.Z_BEST_SPEED)
    return binascii.b2a_base64(content, newline=False).decode("ascii")


def _unpacked(packed: str) -> t.Any:
    return json.loads(zlib.decompress(binascii.a2b_base64(packed)).decode("ascii"))


@functools.lru_cache(maxsize=None)
def release() -> str:
    """What two programs have in common if they hold the same modules, whatever their paths are: a checksum."""
    return hashlib.sha256(repr(_texts()).encode("utf-8")).hexdigest()


def release_line() -> str:
    """The line of a program that tells its L(release)."""
    return "RELEASE = %r" % release()


def _texts() -> t.Dict[str, str]:
    return {name: content.decode("utf-8") for name, content in sorted(sources().items())}


def places(raw: bytes) -> Paths:
    """The paths that an installed program was built for. Its sources may be damaged, or packed by another release.

    :raises ValueError: it is not a program of this collection.
    """
    try:
        return _places(_assigned(raw))
    except _BROKEN as exc:
        raise ValueError("not a program of this collection: %s" % exc) from None


def unpack(raw: bytes) -> t.Tuple[Paths, t.Dict[str, bytes]]:
    """What an installed program was built from: its paths, and its modules.

    :raises ValueError: it is not a program of this collection.
    """
    try:
        found = _assigned(raw)
        # Up to 1.0.0-rc1 they were not packed.
        texts = _unpacked(found["PACKED"]) if "PACKED" in found else found["SOURCES"]
        return _places(found), {name: text.encode("utf-8") for name, text in texts.items()}
    except _BROKEN as exc:
        raise ValueError("not a program of this collection: %s" % exc) from None


def _places(found: t.Mapping[str, t.Any]) -> Paths:
    if "SOURCES" not in found:
        raise ValueError("it has no sources")
    return Paths(**found["WHERE"])


# One task asks for the paths and for the sources of the same file, several times.
@functools.lru_cache(maxsize=2)
def _assigned(raw: bytes) -> t.Mapping[str, t.Any]:
    """The values that a program gives to its variables for paths and sources."""
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(raw).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("WHERE", "SOURCES", "PACKED")
    }


@functools.lru_cache(maxsize=None)
def sources() -> t.Mapping[str, bytes]:
    """The sources of the agent and of all that it imports from this collection, by module, byte for byte as loaded."""
    found: t.Dict[str, bytes] = {}
    ahead = [ENTRY]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = _source(name)
            ahead += imported(name, found[name])
    return found


def imported(name: str, source: bytes) -> t.List[str]:
    """The modules that a module of this collection imports from it."""
    names = []
    for dots, stem, what in _IMPORT.findall(source.decode("utf-8")):
        base = name.split(".")[: -len(dots)] + (stem.split(".") if stem else [])
        if _read(".".join(base)) is not None:
            names.append(".".join(base))
        else:  # a package
            names += [".".join([*base, each.split()[0]]) for each in what.strip("()\n ").split(",") if each.strip()]
    return names


def _source(name: str) -> bytes:
    content = _read(name)
    if content is None:
        raise ImportError("%s is not a module of this collection" % name)
    return content


@functools.lru_cache(maxsize=None)
def _read(name: str) -> t.Optional[bytes]:
    """A module as this one's loader reads it, from a directory or an archive. It is not run, which takes long."""
    loader: t.Any = __spec__.loader
    folder = os.path.dirname(os.path.dirname(__file__))
    try:
        return t.cast(t.Optional[bytes], loader.get_data(os.path.join(folder, *name.split(".")) + ".py"))
    except OSError:
        return None
