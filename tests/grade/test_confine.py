"""The walls around a submission's process: what the system is asked for, by its version, and what it then refuses."""

import ctypes
import json
import os
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.catalog import catalog
from common.grade import confine

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
# landlock(7)
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8


class System:
    """What the C library is called with; Landlock's rules by path."""

    def __init__(self, version=7, created=None, restricted=0, capget=0):
        self.version, self.created, self.restricted, self.got = version, created, restricted, capget
        self.asked, self.rules, self.calls, self.kept = [], {}, [], []

    def syscall(self, number, *given):
        if number == 444:
            attributes, size, flags = given
            if flags:
                assert (attributes, size.value, flags) == (None, 0, 1)
                return self.version
            self.asked.append((attributes, size.value, flags))
            self.rules_handle = os.open(os.devnull, os.O_RDONLY) if self.created is None else self.created
            return self.rules_handle
        if number == 445:
            handle, kind, rule, flags = given
            assert (handle, kind, flags, len(rule)) == (self.rules_handle, 1, 0, 12)
            rights, path = struct.unpack("=Qi", rule)
            import fcntl  # not everywhere

            assert fcntl.fcntl(path, fcntl.F_GETFL) & os.O_PATH  # named, not opened
            assert fcntl.fcntl(path, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
            self.rules[os.readlink(f"/proc/self/fd/{path}")] = rights
            return 0
        assert (number, *given) == (446, self.rules_handle, 0)
        self.calls.append("restrict")
        return self.restricted

    def prctl(self, *given):
        self.calls.append(given)

    def capget(self, header, words):
        assert (header, len(words)) == (struct.pack("=Ii", 0x20080522, 0), 24)
        words.raw = struct.pack("=6I", 0xFFFFFFF7, 0x7, 0x3, 0x1FF, 0x1FF, 0x1FF)
        return self.got

    def capset(self, header, kept):
        self.kept.append((header, struct.unpack("=6I", kept)))


@pytest.fixture
def system(monkeypatch):
    def put(**how):
        made = System(**how)
        monkeypatch.setattr(confine.ctypes, "CDLL", lambda name: made)
        return made

    return put


def handles():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (1, [(1 << 13) - 1]),
        (2, [(1 << 14) - 1]),
        (3, [(1 << 15) - 1]),
        (4, [(1 << 15) - 1, 3]),  # from here on TCP: to bind and to connect
        (5, [(1 << 16) - 1, 3]),
        (6, [(1 << 16) - 1, 3, 3]),  # from here on abstract sockets and signals
        (7, [(1 << 16) - 1, 3, 3]),
        (99, [(1 << 16) - 1, 3, 3]),
    ],
)
@LINUX
def test_the_system_is_asked_for_what_its_version_knows(system, monkeypatch, tmp_path, version, fields):
    archive = tmp_path / "packages.zip"
    archive.write_text("")
    # one that is not there, and a file
    monkeypatch.setattr(confine, "_readable", lambda hidden: iter(["/usr", "/usr", str(archive), "/no/such"]))
    made, before = system(version=version), handles()
    assert confine.enclose(tmp_path) == version
    assert handles() == before
    assert made.asked == [(struct.pack(f"={len(fields)}Q", *fields), 8 * len(fields), 0)]
    assert made.calls == [(38, 1, 0, 0, 0), "restrict"]
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "urandom", "random")]
    assert made.rules == {
        "/usr": EXECUTE | READ_FILE | READ_DIR,
        str(archive): EXECUTE | READ_FILE,
        **dict.fromkeys(devices, READ_FILE | WRITE_FILE),
        str(tmp_path): fields[0],
    }


@LINUX
def test_where_the_system_refuses_there_is_no_wall(system, monkeypatch, tmp_path):
    monkeypatch.setattr(confine, "_readable", lambda hidden: iter(()))
    before = handles()
    for how in ({"version": 0}, {"version": -1}, {"created": -1}, {"restricted": -1}):
        system(**how)
        assert confine.enclose(tmp_path) == 0, how
    assert handles() == before
    made = system(created=os.dup(0))
    assert confine.enclose(tmp_path) == 7
    assert made.calls[-1] == "restrict"


@LINUX
def test_the_first_handle_of_all_is_one(system, monkeypatch, tmp_path):
    monkeypatch.setattr(confine, "_readable", lambda hidden: iter(()))
    monkeypatch.setattr(confine, "_allow", lambda *_: None)
    closed = []
    monkeypatch.setattr(confine.os, "close", closed.append)
    system(created=0)
    assert (confine.enclose(tmp_path), closed) == (7, [0])


def test_the_version_is_none_below_zero_and_elsewhere(system, monkeypatch):
    monkeypatch.setattr(confine.sys, "platform", "linux")
    for found, said in ((7, 7), (1, 1), (0, 0), (-1, 0)):
        system(version=found)
        assert confine.version() == said
    system(version=7)
    monkeypatch.setattr(confine.sys, "platform", "darwin")
    assert confine.version() == 0


def test_of_an_administrators_rights_those_on_files_are_kept(system, monkeypatch):
    monkeypatch.setattr(confine.sys, "platform", "linux")
    made = system()
    confine.give_up_privileges()
    assert made.kept == [(struct.pack("=Ii", 0x20080522, 0), (0b0110, 0b0110, 0, 0, 0, 0))]
    for how, platform in (({"capget": -1}, "linux"), ({"capget": 1}, "linux"), ({}, "darwin")):
        monkeypatch.setattr(confine.sys, "platform", platform)
        made = system(**how)
        confine.give_up_privileges()
        assert made.kept == []


def test_memory_is_private_where_the_system_can(system, monkeypatch):
    for platform, calls in (("linux", [(4, 0, 0, 0, 0)]), ("darwin", [])):
        monkeypatch.setattr(confine.sys, "platform", platform)
        made = system()
        confine.keep_private()
        assert made.calls == calls


# --- what may be read ---


@pytest.fixture
def python(monkeypatch):
    """A Python in /python whose path and environment a test names."""

    def put(*path, **variables):
        folders = {"prefix": "/python", "exec_prefix": "/exec", "base_prefix": "/base", "base_exec_prefix": "/more"}
        monkeypatch.setattr(confine, "sys", SimpleNamespace(path=list(path), **folders))
        for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return set(confine._readable(None))

    return put


def test_python_and_the_systems_folders_are_read(python):
    found = python()
    assert {"/python", "/exec", "/base", "/more", *sysconfig.get_paths().values()} <= found
    system = {"/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc", "/opt", "/proc", "/sys", "/dev", "/nix"}
    assert {*system, "/run/current-system"} <= found
    assert not found & {"", "/", "/home", "/root", "/tmp", "/var", "/run"}


def test_packages_and_the_compiler_are_read_by_absolute_names(python):
    always = python()
    found = python(
        "", ".", "/packages", "/", "here",
        CUDA_HOME="/cuda/home", CUDA_PATH="/cuda/path", LD_LIBRARY_PATH="/libraries:beside:",
        PYTHONPATH="/first:/:/second",
    )  # fmt: skip
    assert found - always == {"/packages", "/cuda/home", "/cuda/path", "/libraries", "/first", "/second"}


def test_nothing_is_opened_that_holds_the_hidden_folder_or_lies_in_it(python):
    python("/home", "/home/checkout", "/home/checkout/common", "/home/other", "/home/checkouts")
    open_ = set(confine._readable(Path("/home/checkout")))
    assert {"/home/other", "/home/checkouts"} <= open_
    assert not open_ & {"/home", "/home/checkout", "/home/checkout/common"}
    python("/python/lib/packages", "/pythons")
    open_ = set(confine._readable(Path("/")))
    assert "/python/lib/packages" in open_  # of the Python that runs, which may lie in it
    assert "/pythons" not in open_


# --- what the system then refuses ---


def child(code):
    """What a process prints as JSON, with the folder's modules at hand."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json\nfrom pathlib import Path\nfrom common.grade import confine\n{code}"],
        cwd=catalog.ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@LINUX
def test_limits_are_the_systems():
    found = child("""
import resource, threading
confine.limit(1 << 33, 77, 12345)
names = ("AS", "CPU", "FSIZE", "CORE")
limits = [resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names]
print(json.dumps([*limits, threading.stack_size()]))
""")
    assert found == [[1 << 33] * 2, [77] * 2, [12345] * 2, [0, 0], 1 << 20]


def test_where_there_are_no_limits_stacks_are_small_nevertheless(monkeypatch):
    sizes = []
    monkeypatch.setattr(confine.threading, "stack_size", sizes.append)
    monkeypatch.setitem(sys.modules, "resource", None)  # its import fails
    monkeypatch.setattr(confine, "os", SimpleNamespace(name="nt"))
    confine.limit(1, 1, 1)
    assert sizes == [1 << 20]


@LINUX
def test_a_limit_that_the_system_does_not_know_is_left_out(monkeypatch):
    tried = []

    def setrlimit(name, limits):
        tried.append((name, limits))
        raise ValueError if len(tried) == 1 else OSError

    monkeypatch.setattr(confine.threading, "stack_size", lambda size: None)
    names = {f"RLIMIT_{name}": name for name in ("AS", "CPU", "FSIZE", "CORE")}
    monkeypatch.setitem(sys.modules, "resource", SimpleNamespace(setrlimit=setrlimit, **names))
    confine.limit(3, 2, 1)
    assert tried == [("AS", (3, 3)), ("CPU", (2, 2)), ("FSIZE", (1, 1)), ("CORE", (0, 0))]


@LINUX
def test_a_process_that_gave_up_its_rights_has_them_no_more():
    before, after, dumpable = child("""
import ctypes
def words():
    text = Path("/proc/self/status").read_text()
    return [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("CapInh", "CapPrm", "CapEff"))]
before = words()
confine.keep_private()
confine.give_up_privileges()
print(json.dumps([before, words(), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)]))
""")
    assert dumpable == 0
    assert after == [0, before[1] & 0b1110, before[2] & 0b1110]


@LINUX
@pytest.mark.skipif(confine.version() < 1, reason="needs Landlock")
def test_an_enclosed_process_writes_in_its_folder_and_reads_little_else(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "other.txt").write_text("other")
    found = child(f"""
own, other = Path({str(tmp_path)!r}, "own"), Path({str(tmp_path)!r}, "other.txt")
version = confine.enclose(own, Path({str(catalog.ROOT)!r}))
def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__
print(json.dumps([
    version,
    attempt(lambda: (own / "mine").write_text("x")),
    attempt(lambda: (own / "mine").read_text()),
    attempt(other.read_text),
    attempt(lambda: other.write_text("x")),
    attempt(lambda: Path({str(catalog.ROOT)!r}, "README.md").read_text()),
    attempt(lambda: len(Path("/etc/passwd").read_bytes()) > 0),
    attempt(lambda: Path("/dev/null").write_text("x")),
    attempt(lambda: Path("/dev/zero").open("rb").read(1)),
]))
""")
    refused = "PermissionError"
    assert found == [confine.version(), "1", "x", refused, refused, refused, "True", "1", r"b'\x00'"]
    assert ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) in (0, 1)  # this process is as it was
    assert (tmp_path / "other.txt").read_text() == "other"
