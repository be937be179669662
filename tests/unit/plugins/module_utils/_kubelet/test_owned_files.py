# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the operator or another program: replaced in one step, or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import ConfigError, NodeError
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet import owned_files
from support.import_collection import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "kubelet"
    target.write_bytes(b"old\r\n")
    target.chmod(0o640)
    return target


def test_mode_owner_and_attributes_stay(path: Path) -> None:
    # Not every file system takes attributes from users.
    note = "user.note" if os.geteuid() else "trusted.note"
    if os.geteuid() == 0:
        os.chown(path, 1, 2)
    os.setxattr(path, note, b"mine")
    before = path.stat()
    now = owned_files.replace(owned_files.read_version(str(path)), b"new\n")
    after = path.stat()
    assert path.read_bytes() == b"new\n" == now.data
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert os.getxattr(path, note) == b"mine"
    assert [entry.name for entry in path.parent.iterdir()] == ["kubelet"]


def test_a_file_is_created_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "kubelet"
    nothing = owned_files.read_version(str(path))
    assert nothing.data is None and nothing.text == ""
    made = owned_files.replace(nothing, b"x\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert owned_files.replace(made, None).data is None and not path.exists()


def test_a_symbolic_link_is_refused_with_its_target(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    snapshot = owned_files.read_version(str(link))
    assert snapshot.data == b"old\r\n"
    with pytest.raises(ConfigError, match="is a symlink to %s, a file managed elsewhere; .*; file unchanged" % path):
        owned_files.replace(snapshot, b"new\n")
    assert link.is_symlink() and path.read_bytes() == b"old\r\n"


def test_a_file_with_other_names_is_refused(path: Path) -> None:
    os.link(path, path.with_name("other"))
    with pytest.raises(ConfigError, match="2 hard links"):
        owned_files.replace(owned_files.read_version(str(path)), b"new\n")


def test_a_change_in_between_is_not_overwritten(path: Path) -> None:
    snapshot = owned_files.read_version(str(path))
    path.write_bytes(b"another program\n")
    with pytest.raises(ConfigError, match="changed by another program during this run"):
        owned_files.replace(snapshot, b"new\n")
    assert path.read_bytes() == b"another program\n"


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        owned_files.read_version(str(tmp_path / "fifo"))
    with pytest.raises(ConfigError, match="not a regular file"):
        owned_files.read_version(str(tmp_path))


@pytest.mark.parametrize("data", [b"A=\xff\n", b"A=\0\n"])
def test_what_is_no_text_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="is not UTF-8 text without NUL bytes; file unchanged"):
        assert owned_files.read_version(str(path)).text


_IN_NAMESPACE = """
import sys
sys.path.insert(0, %r)
from support.import_collection import make_importable
make_importable()
from ansible_collections.kubenode.ip_masq.plugins.module_utils._kubelet import owned_files
from ansible_collections.kubenode.ip_masq.plugins.module_utils._errors import IpMasqError
try:
    owned_files.replace(owned_files.read_version(sys.argv[1]), b"new")
except IpMasqError as exc:
    print(exc)
"""


def _in_namespace(script: str, path: Path) -> str:
    """What a replacement says inside a mount namespace of its own, which ``script`` prepares."""
    code = _IN_NAMESPACE % str(ROOT / "tests")
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-ec", script + '; exec "$@"', "sh"]
        + [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_read_only_file_system_changes_nothing(path: Path) -> None:
    said = _in_namespace("mount --bind %s %s; mount -o remount,bind,ro %s" % ((path.parent,) * 3), path)
    assert said == "cannot write %s: Read-only file system\n" % path
    assert path.read_bytes() == b"old\r\n"


def test_a_full_file_system_changes_nothing(path: Path) -> None:
    fill = "mount -t tmpfs -o size=8k none %s; printf old > %s; head -c 4096 /dev/zero > %s"
    said = _in_namespace(fill % (path.parent, path, path.with_name("rest")), path)
    assert said == "cannot write %s: No space left on device\n" % path


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(NodeError, match="cannot read .*: File name too long; file unchanged"):
        owned_files.read_version(str(path))
