# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Have Python keep the compiled code of Ansible's modules.

Ansible sends a module and what it imports as an archive of sources, and Python keeps no compiled code of archives: most
of the processor time of a module's run goes into compiling. After :func:`keep`, code that was compiled before from the
same source is read from a directory. Only archives that Ansible sent are concerned. Python 3.8; every Python of a node
imports this when it starts, so it imports only what is there already.
"""

import marshal
import os
import zipimport
from _frozen_importlib_external import MAGIC_NUMBER
from _imp import source_hash

_VERSION = int.from_bytes(MAGIC_NUMBER, "little")


def keep(folder: str) -> None:
    """Keep compiled code in this directory, which any number of Pythons of any versions may share."""
    compile_source = zipimport._compile_source

    def compiled(path: str, source: bytes) -> object:
        if "_payload" not in path:
            return compile_source(path, source)
        return once(folder, source, lambda: compile_source(path, source))

    zipimport._compile_source = compiled


def once(folder, source, make):
    """What a function returned when it was called before for the same source, else what it returns now.

    :param folder: where it is kept.
    :param source: bytes that determine the value.
    :param make: called without arguments. What marshal cannot write is not kept.
    """
    kept = os.path.join(folder, source_hash(_VERSION, source).hex())
    try:
        with open(kept, "rb") as file:
            return marshal.loads(file.read())  # load() would ask the file for each value
    except OSError:
        value = make()
    own = "%s.%s" % (kept, os.urandom(8).hex())
    try:
        content = marshal.dumps(value)
        with open(own, "xb") as file:
            file.write(content)
        os.replace(own, kept)
    except (OSError, ValueError):  # another user's directory; other values than those of Python itself
        pass
    return value
