"""Pythons, virtual environments and chroots that ./scripts/platforms makes, and how programs run in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}  # releases of Debian by their Python
SOURCE = "python3.14_3.14.7.orig.tar.xz"
SOURCE_SHA256 = "3b48dac8fb59f62eaa67ac83c1eb12bda1b7a08406dd286e252c11a66be27f81"
BUILD_PACKAGES = "build-essential libbz2-dev libffi-dev liblzma-dev libsqlite3-dev libssl-dev libzstd-dev zlib1g-dev"
ARM_TORCH = "torch==2.9.1\ntorchvision==0.24.1\n"  # the last for ARM64 that needs no library of NVIDIA's


class Missing(Exception):
    """This machine cannot have a platform; the table has the text."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What runs a platform's programs: the words before them, their folder, variables, and uv's words to install."""

    python: tuple[str, ...]
    folder: Path  # of this system
    inside: str  # the same folder, as the platform's programs see it
    variables: dict[str, str]
    target: tuple[object, ...]
    packages: Path  # where uv installs, of this system
    path_files: Path  # of this system: the folder whose .pth files the platform's Python reads


def run(*command: object, variables: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a program; returns what it writes. Missing, with the last line of its errors, if it fails."""
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env={**os.environ, **(variables or {})}, cwd=cwd
    )
    if done.returncode:
        raise Missing(f"{command[0]}: {(done.stderr.strip() or done.stdout.strip() or '?').splitlines()[-1]}")
    return done.stdout.strip()


def mirror() -> str:
    """Find the address that this system's apt-get takes Debian from."""
    sites = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian").splitlines()
    if not sites:
        raise Missing("apt-get knows no mirror of Debian; needs apt-get update")
    return sites[0]


def uv(work: Path, *arguments: object) -> str:
    """Run uv, which finds the Pythons that were built here or by pyenv too."""
    folders = map(str, [*work.glob("python*/bin"), *Path.home().glob(".pyenv/versions/3.*/bin")])
    return run("uv", *arguments, variables={"PATH": os.pathsep.join([*folders, os.environ["PATH"]])})


def find_python(work: Path, version: str) -> str:
    """Find a Python of this system; Missing if there is none."""
    try:
        return uv(work, "python", "find", "--no-project", "--system", "--no-python-downloads", version)
    except Missing:
        raise Missing("no such Python here") from None


def build_python(work: Path, version: str) -> None:
    """Build Debian's source of Python 3.14 where it is missing; a "t" says that it is free-threaded."""
    with suppress(Missing):
        find_python(work, version)
        return
    if version.removesuffix("t") != "3.14":
        return
    run("apt-get", "install", "-y", *BUILD_PACKAGES.split(), "xz-utils", "curl")
    run("curl", "-sSf", "-o", work / SOURCE, f"{mirror()}/pool/main/p/python3.14/{SOURCE}")
    if run("sha256sum", work / SOURCE).split()[0] != SOURCE_SHA256:
        raise Missing(f"{SOURCE} is not what it was")
    run("tar", "xf", work / SOURCE, "-C", work)
    (source,) = work.glob("Python-3.14*")
    flags = ["--with-ensurepip=no", "--disable-test-modules", *["--disable-gil"] * version.endswith("t")]
    for command in (
        ["./configure", "-q", f"--prefix={work / f'python{version}'}", *flags],
        ["make", "-s", f"-j{os.cpu_count()}"],
        ["make", "-s", "install"],
    ):
        run(*command, cwd=source)
    shutil.rmtree(source)


def in_venv(work: Path, version: str, name: str) -> Environment:
    """Make a new environment of a Python of this system."""
    folder = work / f"venv-{name}"
    uv(work, "venv", "--clear", "--python", find_python(work, version), folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    return Environment((str(python),), folder, str(folder), {}, ("--python", python), packages, packages)


def in_chroot(work: Path, version: str, machine: str) -> Environment:
    """Empty the folder of packages of a new or kept Debian, which qemu runs if it is for another machine."""
    if os.getuid() != 0 or not shutil.which("debootstrap"):
        raise Missing("needs root and debootstrap, and qemu-user-static with binfmt-support for ARM64")
    root = work / f"{SUITES[version]}-{machine}"
    if not (root / "done").exists():
        script = "/usr/share/debootstrap/scripts/sid"  # releases differ by the packages' lists alone
        arguments = ("--variant=minbase", f"--arch={machine}", f"--include=python{version}", SUITES[version], root)
        run("debootstrap", "--foreign", *arguments, mirror(), script)
        unpack_packages(root)
        (root / "done").touch()
    override = work / f"override-{machine}.txt"
    override.write_text(ARM_TORCH if machine == "arm64" else "")
    wheels = {"arm64": "aarch64-manylinux_2_28", "amd64": "x86_64-manylinux_2_28"}[machine]
    packages = root / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    (root / "work").mkdir(exist_ok=True)
    path_files = root / f"usr/local/lib/python{version}/dist-packages"
    path_files.mkdir(parents=True, exist_ok=True)
    (path_files / "packages.pth").write_text("/packages\n")
    variables = {"HOME": "/root", "TMPDIR": "/tmp"}  # noqa: S108 - of the chroot
    chosen = ("--override", override, "--python-platform", wheels, "--python-version", version)
    command = ("chroot", str(root), "env", "-C", "/work", f"python{version}")
    return Environment(
        command, root / "work", "/work", variables, ("--target", packages, *chosen), packages, path_files
    )


def unpack_packages(root: Path) -> None:
    """Unpack all packages of a chroot, without their scripts, which take longest where they are emulated."""
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as archive:
            unpacking = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
            if subprocess.run(unpacking, stdin=archive.stdout).returncode:
                raise Missing(f"{package.name} cannot be unpacked")
    if (root / "proc").is_symlink():  # to this system's, which mounted would cover
        (root / "proc").unlink()
        (root / "proc").mkdir()


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Give a chroot the kernel's file systems."""
    with ExitStack() as stack:
        for name in ("proc", "sys", "dev"):
            run("mount", "--rbind", f"/{name}", root / name)
            stack.callback(run, "umount", "-l", root / name)
        yield


def install(work: Path, environment: Environment, requirements: Sequence[str], *options: object) -> list[str]:
    """Install from wheels; returns the names of the requirements that no wheel meets.

    Each is tried alone where not all can be installed together. Missing if the ones that have wheels cannot.
    """
    command = ("pip", "install", "--only-binary", ":all:", *environment.target, *options)
    with suppress(Missing):
        uv(work, *command, *requirements)
        return []
    lacking = [requirement for requirement in requirements if not has_wheels(work, *command, requirement)]
    uv(work, *command, *(requirement for requirement in requirements if requirement not in lacking))
    return lacking


def has_wheels(work: Path, *command: object) -> bool:
    """Whether uv finds wheels for what it is asked to install."""
    try:
        uv(work, *command, "--dry-run")
    except Missing:
        return False
    return True


def execute(environment: Environment, log: Path, *arguments: str, limit: float) -> tuple[bool, list[str]]:
    """Run a platform's Python in its folder, at most ``limit`` seconds; returns success and lines, which are logged."""
    with log.open("w+") as file:
        command, variables = [*environment.python, *arguments], {**os.environ, **environment.variables}
        options = {"stdout": file, "stderr": subprocess.STDOUT, "env": variables, "cwd": environment.folder}
        process = subprocess.Popen(command, start_new_session=True, **options)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            file.write(f"no end after {limit / 60:.0f} minutes\n")
        finally:
            with suppress(ProcessLookupError):  # its children too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        return process.returncode == 0, file.read().splitlines()
