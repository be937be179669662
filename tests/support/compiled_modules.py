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


def keep(folder: str) -> None:
    """Keep compiled code in this directory, which any number of Pythons of any versions may share."""
    version = int.from_bytes(MAGIC_NUMBER, "little")
    compile_source = zipimport._compile_source

    def compiled(path: str, source: bytes) -> object:
        if "_payload" not in path:
            return compile_source(path, source)
        kept = os.path.join(folder, source_hash(version, source).hex())
        try:
            with open(kept, "rb") as file:
                return marshal.loads(file.read())  # load() would ask the file for each value
        except OSError:
            code = compile_source(path, source)
        own = "%s.%s" % (kept, os.urandom(8).hex())
        try:
            with open(own, "xb") as file:
                marshal.dump(code, file)
            os.replace(own, kept)
        except OSError:  # another user's directory
            pass
        return code

    zipimport._compile_source = compiled
