# Copyright (c) 2026, the kubenode.ip_masq maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tools/dist builds: the same bytes each time, and on a node what the module would install."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent import install, units
from ansible_collections.kubenode.ip_masq.plugins.module_utils._agent.paths import PACKAGED, Paths
from ansible_collections.kubenode.ip_masq.plugins.module_utils._version import VERSION
from support.import_collection import ROOT, location
from support.installation import put_files

GALAXY = str(Path(sys.executable).with_name("ansible-galaxy"))
EPOCH = 1_700_000_000
AGENT = "ip-masq-agent-%s" % VERSION
PACKAGE = VERSION.replace("-", "~")
DEB, RPM = "ip-masq-agent_%s_all.deb" % PACKAGE, "ip-masq-agent-%s-1.noarch.rpm" % PACKAGE
COLLECTION = "kubenode-ip_masq-%s.tar.gz" % VERSION
#: Licence texts, which a package has to have.
LICENSES = {"/usr/share/doc/ip-masq-agent/copyright", "/usr/share/licenses/ip-masq-agent/LICENSE"}
#: What else only packages have: the units that they enable, the manual page, and the completion.
UNITS_LIST = "/usr/share/ip-masq-agent/units"
MANUAL = "/usr/share/man/man8/ip-masq-agent.8.gz"
COMPLETION = "/usr/share/bash-completion/completions/ip-masq-agent"
OF_COMMAND_LINE = {MANUAL, COMPLETION}

#: By path: mode with the type, and content; of a link the target.
Tree = t.Dict[str, t.Tuple[int, bytes]]
FOLDER = (stat.S_IFDIR | 0o755, b"")
TARBALL = Paths()


def dist(output: Path, *arguments: str, umask: int = 0o022, **env: str) -> subprocess.CompletedProcess[str]:
    """Run tools/dist."""
    command = [sys.executable, ROOT / "tools/dist", "--output", output, *arguments]
    environment = dict(os.environ, SOURCE_DATE_EPOCH=str(EPOCH), **env)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, umask=umask)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build."""
    output = tmp_path_factory.mktemp("dist")
    done = dist(output)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def tree(root: Path) -> Tree:
    """All below a directory, but for directories that are not ours."""
    found: Tree = {}
    for path in root.rglob("*"):
        about, name = path.lstat(), "/" + str(path.relative_to(root))
        if stat.S_ISLNK(about.st_mode):
            found[name] = (about.st_mode, os.readlink(path).encode())
        elif stat.S_ISREG(about.st_mode):
            found[name] = (about.st_mode, path.read_bytes())
        elif "ip-masq-agent" in name and "/usr/share/" not in name:
            found[name] = (about.st_mode, b"")
    return found


def expected(paths: Paths = TARBALL) -> Tree:
    """What the module writes on a node."""
    found = {path: (stat.S_IFREG | mode, content) for path, (content, mode) in install.node_files(paths).items()}
    return {**found, **dict.fromkeys(install.node_directories(paths), (stat.S_IFDIR | 0o755, b""))}


def expected_in_package() -> Tree:
    """The same of a package, and what else it has."""
    listed = "".join(unit + "\n" for unit in units.ENABLED_UNITS).encode()
    return {**expected(PACKAGED), UNITS_LIST: (stat.S_IFREG | 0o644, listed)}


def test_node_files_are_those_that_the_installer_writes(tmp_path: Path) -> None:
    root = Paths(
        config_dir="%s/etc/ip-masq-agent" % tmp_path, bin_dir="%s/usr/local/sbin" % tmp_path, root=str(tmp_path)
    )
    put_files(root, None)
    found = {path: about for path, about in tree(tmp_path).items() if "__pycache__" not in path}
    assert set(found) == set(expected())
    for path, (mode, content) in found.items():
        assert mode == expected()[path][0], path
        # The root of this test is in some of the texts.
        plain = content.replace(b"'root': '%s'" % str(tmp_path).encode(), b"'root': ''")
        assert plain.replace(str(tmp_path).encode(), b"") == expected()[path][1], path


def test_tarball_has_what_the_module_installs_and_enables(built: Path, tmp_path: Path) -> None:
    with tarfile.open(built / (AGENT + ".tar.gz")) as archive:
        assert {(about.uid, about.gid, about.mtime) for about in archive} == {(0, 0, EPOCH)}
    unpacked = tmp_path / "tarball"
    unpacked.mkdir()
    subprocess.run(["tar", "-xpf", built / (AGENT + ".tar.gz"), "-C", unpacked], check=True)
    found = tree(unpacked)
    links = {path: about for path, about in found.items() if stat.S_ISLNK(about[0])}
    assert {path: about for path, about in found.items() if path not in links} == expected()
    # systemctl needs no systemd for this
    for path, (mode, content) in expected().items():
        place = tmp_path / "systemctl" / path.lstrip("/")
        if stat.S_ISREG(mode):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    subprocess.run(
        ["systemctl", "--quiet", "--root=%s" % (tmp_path / "systemctl"), "enable", *units.ENABLED_UNITS], check=True
    )
    wanted = {path: about for path, about in tree(tmp_path / "systemctl").items() if stat.S_ISLNK(about[0])}
    assert links and links.keys() == wanted.keys()
    assert {path: os.path.basename(about[1]) for path, about in links.items()} == {
        path: os.path.basename(about[1]) for path, about in wanted.items()
    }


def test_deb_has_what_the_module_installs(built: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", built / DEB, tmp_path], check=True)
    found = tree(tmp_path)
    assert {path: about for path, about in found.items() if path not in LICENSES | OF_COMMAND_LINE} == (
        expected_in_package()
    )
    assert LICENSES & set(found) and set(found) >= OF_COMMAND_LINE
    listed = subprocess.check_output(["dpkg-deb", "--contents", built / DEB], text=True)
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    # dpkg removes empty directories of a package, also those that an administrator made.
    assert not re.findall(r"\./(?:usr/local|etc/systemd).*", listed)
    fields = ["dpkg-deb", "--field", built / DEB, "Version", "Architecture", "Depends"]
    assert subprocess.check_output(fields, text=True).splitlines() == [
        "Version: " + PACKAGE,
        "Architecture: all",
        "Depends: python3 (>= 3.8), iptables | nftables, systemd",
    ]


def test_the_manual_page_and_the_completion_have_what_help_lists(built: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", built / DEB, tmp_path], check=True)
    page = gzip.decompress((tmp_path / MANUAL[1:]).read_bytes()).decode().replace("\\-", "-")
    program = tmp_path / "usr/sbin/ip-masq-agent"
    assert program.exists()
    sections = re.findall(r"(?m)^\.SS (\S+)", page)
    assert sections == ["sync", "status", "explain", "verify", "who", "ports", "remove"]
    for text in ("--lock-timeout", "--proposed", "--if-changed", ".SH EXIT STATUS", " 78  the configuration is broken"):
        assert text in page

    def completed(*words: str) -> t.List[str]:
        line = " ".join("'%s'" % word for word in ("ip-masq-agent", *words))
        script = 'source %s; COMP_WORDS=(%s); COMP_CWORD=%d; _ip_masq_agent; echo "${COMPREPLY[@]}"'
        command = script % (tmp_path / COMPLETION[1:], line, len(words))
        return subprocess.check_output(["bash", "-euc", command], text=True).split()

    assert completed("") == [*sections, "--help", "--version", "--lock-timeout"]
    assert completed("s") == ["sync", "status"]
    assert completed("--lock-timeout", "5", "who", "--p") == ["--protocol"]
    assert completed("explain", "192.0.2.1", "--protocol", "") == ["tcp", "udp", "sctp", "icmp"]
    assert completed("explain", "--proposed", "") == completed("resync", "--x") == completed("--lock-timeout", "") == []


def test_scripts_of_the_packages_are_sound(built: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--control", built / DEB, tmp_path], check=True)
    scripts = [tmp_path / "preinst", tmp_path / "postinst", tmp_path / "prerm"]
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, *scripts], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert {script.stat().st_mode & 0o777 for script in scripts} == {0o755}
    # The same commands in both formats, after a line or two about their arguments.
    rpm = subprocess.check_output(["rpm", "--dbpath", tmp_path, "-qp", "--scripts", built / RPM], text=True)
    for script in scripts:
        commands = script.read_text()
        assert commands[re.search(r"(?m)^(mkdir -p|if \[ -f )", commands).start() :].strip() in rpm


def test_rpm_has_what_the_module_installs(built: Path, tmp_path: Path) -> None:
    query = ["rpm", "--dbpath", tmp_path, "-qp", "--dump", built / RPM]
    lines = subprocess.check_output(query, text=True).splitlines()
    found = {}
    for line in lines:
        path, _size, mtime, digest, mode, owner, group = line.split()[:7]
        assert (int(mtime), owner, group) == (EPOCH, "root", "root"), line
        found[path] = (int(mode, 8), digest.strip("0"))
    wanted = {
        path: (mode, hashlib.sha256(content).hexdigest().strip("0") if stat.S_ISREG(mode) else "")
        for path, (mode, content) in {**expected_in_package(), os.path.dirname(UNITS_LIST): FOLDER}.items()
    }
    license_files = {path for path in found if path.startswith("/usr/share/licenses/ip-masq-agent")}
    others = license_files | OF_COMMAND_LINE
    assert {path: about for path, about in found.items() if path not in others} == wanted
    assert LICENSES & license_files and set(found) >= OF_COMMAND_LINE


def test_a_second_build_has_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again, home = tmp_path / "again", tmp_path / "home"
    done = dist(again, umask=0o077, TZ="Asia/Tokyo", HOME=str(home), LC_ALL="C.UTF-8")
    assert done.returncode == 0, done.stderr
    assert not home.exists()
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (built, again))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_checksums_are_of_all_files(built: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=built, check=True)
    listed = {line.split()[1] for line in (built / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in built.iterdir()} - {"SHA256SUMS"}
    assert listed == {COLLECTION, AGENT + ".tar.gz", DEB, RPM, AGENT + ".cdx.json"}


def test_collection_can_be_installed_and_verified(built: Path, tmp_path: Path) -> None:
    env = dict(os.environ, ANSIBLE_HOME=str(tmp_path / "home"), LC_ALL="C.UTF-8")
    into = ("--force", "--offline", "--no-deps", "--collections-path", str(tmp_path))
    done = subprocess.run(
        [GALAXY, "collection", "install", *into, built / COLLECTION],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    here = tmp_path / "ansible_collections/kubenode/ip_masq"
    plain = {path for path in tree(location()) if path not in ("/MANIFEST.json", "/FILES.json")}
    assert set(tree(here)) - {"/MANIFEST.json", "/FILES.json"} == plain
    assert not any(path.startswith(("/dist", "/tests", "/tools")) for path in plain)


def test_sbom_names_every_file_and_nothing_from_elsewhere(built: Path) -> None:
    document = json.loads((built / (AGENT + ".cdx.json")).read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert document["metadata"]["component"]["version"] == VERSION
    assert {part["type"] for part in document["components"]} == {"file"}
    digests = {part["name"]: part["hashes"][0]["content"] for part in document["components"]}
    files = {**expected(), **expected_in_package()}
    files = {path: content for path, (mode, content) in files.items() if stat.S_ISREG(mode)}
    assert digests.keys() == files.keys() | OF_COMMAND_LINE
    assert {path: digests[path] for path in files} == {
        path: hashlib.sha256(content).hexdigest() for path, content in files.items()
    }


def test_paths_can_be_chosen(tmp_path: Path) -> None:
    done = dist(tmp_path, "bin_dir=/opt/ip-masq-agent/sbin", "metrics_dir=/var/lib/node_exporter")
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / (AGENT + ".tar.gz")) as archive:
        assert not any(name.startswith("usr") for name in archive.getnames())
        program = archive.extractfile("opt/ip-masq-agent/sbin/ip-masq-agent")
        assert program and b"'metrics_dir': '/var/lib/node_exporter'" in program.read(2000)
    listed = subprocess.check_output(["dpkg-deb", "--contents", tmp_path / DEB], text=True)
    assert "./opt/ip-masq-agent/sbin/ip-masq-agent\n" in listed and "./usr/sbin" not in listed
    assert "./usr/lib/systemd/system/ip-masq-agent.timer\n" in listed


@pytest.mark.parametrize(
    "argument, message",
    [
        ("bin_dir", "bin_dir: must be NAME=PATH, with one of the names config_dir, bin_dir, metrics_dir, python"),
        ("root=/x", "root=/x: must be NAME=PATH"),
        ("bin_dir=sbin", "bin_dir: invalid path 'sbin'"),
        ("bin_dir=/home/x", "bin_dir: /home/x is within /home"),
    ],
)
def test_bad_paths_are_refused(tmp_path: Path, argument: str, message: str) -> None:
    done = dist(tmp_path / "dist", argument)
    assert done.returncode == 2 and message in done.stderr
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    "name, place",
    [
        *((name, 200) for name in (COLLECTION, AGENT + ".tar.gz", AGENT + ".cdx.json", DEB, "SHA256SUMS")),
        (RPM, -200),
        (RPM, b"systemctl daemon-reload"),
    ],
)
def test_the_release_workflow_compares_each_file_of_two_builds(
    built: Path, tmp_path: Path, name: str, place: t.Union[int, bytes]
) -> None:
    """In an .rpm its files and scripts: the rest of the header of two builds may differ."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    (step,) = (step["run"] for step in workflow["jobs"]["draft"]["steps"] if step["name"] == "Compare the builds")
    for release in workflow["jobs"]["build"]["strategy"]["matrix"]["release"]:
        shutil.copytree(built, tmp_path / ("dist-" + release))

    def compared() -> int:
        return subprocess.run(["bash", "-e", "-c", step], cwd=tmp_path, capture_output=True, check=False).returncode

    assert compared() == 0
    changed = tmp_path / "dist-trixie" / name
    content = bytearray(changed.read_bytes())
    content[place if isinstance(place, int) else content.index(place)] ^= 1
    changed.write_bytes(content)
    assert compared() != 0


def verified(output: Path, artefact: Path, home: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Install a collection and verify it with the signature of that output, as docs/releases.md does.

    ansible-core 2.18 cannot do both at once: with --keyring, installing a file ends with a TypeError.
    """
    signature = output / ("kubenode-ip_masq-%s-MANIFEST.json.asc" % VERSION)
    command = [GALAXY, "collection", "install", "--offline", "--no-deps", "--force"]
    subprocess.run([*command, "--collections-path", target, artefact], check=True)
    command = [GALAXY, "collection", "verify", "--offline", "--collections-path", str(target)]
    command += ["--keyring", str(home / "pubring.kbx"), "--signature", signature.as_uri(), "kubenode.ip_masq"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_signatures_are_of_the_checksums_and_of_the_collection(built: Path, tmp_path: Path) -> None:
    """In a clone: a signature of what is not committed is refused. The clone has another path, and builds the same.

    ansible-galaxy accepts the collection with its signature.
    """
    clone, home = tmp_path / "clone", tmp_path / "gnupg"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), clone], check=True)
    shutil.copytree(ROOT / "tools", clone / "tools", dirs_exist_ok=True)
    (clone / ".cache").symlink_to(ROOT / ".cache")
    (clone / ".git/info/exclude").write_text("/.cache\n")
    git = ["git", "-C", str(clone), "-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run([*git, "add", "--all", "tools"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=test"], check=True)
    home.mkdir(mode=0o700)
    env = dict(os.environ, GNUPGHOME=str(home), SIGNING_KEY="release@example.com", SOURCE_DATE_EPOCH=str(EPOCH))
    gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode=loopback", "--passphrase="]
    try:
        subprocess.run([*gpg, "--quick-generate-key", "release@example.com", "ed25519"], env=env, check=True)
        output = tmp_path / "dist"
        command = [sys.executable, clone / "tools/dist", "--output", output]
        (clone / "README.md").write_text("edited")
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "has uncommitted changes" in done.stderr and not output.exists()
        subprocess.run([*git, "checkout", "--quiet", "README.md"], check=True)
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (output / "SHA256SUMS").read_bytes() == (built / "SHA256SUMS").read_bytes()
        subprocess.run(["gpg", "--verify", output / "SHA256SUMS.asc", output / "SHA256SUMS"], env=env, check=True)
        accepted = verified(output, output / COLLECTION, home, tmp_path / "signed")
        assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=env, check=False)
