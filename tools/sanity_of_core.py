# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-test sanity of one ansible-core. For tools/test and tools/versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pythons import node_pythons
from runner import CACHE, ENV, INSTALLED, Job, Tally

#: Brings pip into the environment that runs this.
BRING_PIP = """
import ensurepip, os, shutil, sys, sysconfig
here = sysconfig.get_path("purelib")
kept = os.path.join(%r, sys.version.split()[0])
if not os.path.isdir(kept):
    shutil.rmtree(kept + ".new", ignore_errors=True)
    ensurepip.bootstrap(root=kept + ".new", upgrade=True)
    os.rename(kept + ".new" + here, kept)
    shutil.rmtree(kept + ".new")
shutil.copytree(kept, here, copy_function=os.link, dirs_exist_ok=True)
"""


async def test(core: Path, job: Job) -> None:
    """Run all of its tests on the artefact, nothing ignored.

    :param core: the virtual environment with that ansible-core.
    """
    home = CACHE / "home"
    _bootstrap_without_download(core, home)
    # A repository of its own: in ours the tree is ignored, and ansible-test asks git what there is to test.
    tree = CACHE / "sanity" / core.name / "ansible_collections/kubenode/ip_masq"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(INSTALLED, tree)
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", tree], check=True)
    path = os.pathsep.join([str(core / "bin"), ENV["PATH"], *(str(path.parent) for path in node_pythons().values())])
    status = await job.run(core / "bin/ansible-test", "sanity", "--color", "no", cwd=tree, HOME=str(home), PATH=path)
    output = job.output()
    started = re.findall(r"^Running sanity test .*$", output, re.MULTILINE)
    summary = re.search(r"The (\d+) sanity test\(s\) listed below \(out of \d+\) failed", output)
    failed = int(summary.group(1)) if summary else int(status != 0 or not started)
    job.add("ansible-test sanity", Tally(max(len(started) - failed, 0), failed), "exit status %d" % status)


def _bootstrap_without_download(core: Path, home: Path) -> None:
    """ansible-test fetches a script that brings pip into an empty virtual environment. Python carries pip itself.

    It makes a dozen of these environments: each Python installs pip once, and the others get links to the files.
    """
    folder = home / ".ansible/test/cache"
    folder.mkdir(parents=True, exist_ok=True)
    (source,) = core.glob("lib/python3*/site-packages/ansible_test/_internal/python_requirements.py")
    for version in set(re.findall(r"pip='([0-9.]+)'", source.read_text(encoding="utf-8"))):
        script = folder / ("get_pip_%s.py" % version.replace(".", "_"))
        script.write_text(BRING_PIP % str(CACHE / "pip"), encoding="utf-8")
    for relative in (".config/pip", ".pip"):  # where the user told pip of an index
        there = Path.home() / relative
        here = home / relative
        if there.is_dir() and not here.is_symlink():
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(there)
