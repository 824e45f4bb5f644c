"""Run picstore on every platform that this machine can have; the program of ./scripts/platforms."""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
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
EPOCHS = 1000  # of the default loader under emulated macOS
TESTS = "httpx2 hypothesis jsonschema packaging pytest pytest-xdist scipy"
EXTRAS = "duckdb huggingface_hub imagehash matplotlib obstore pillow-jxl-plugin pyarrow simplejpeg"  # not free-threaded


class Missing(Exception):
    """This machine cannot have a platform; the table has the text."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A Python of this system, or of a chroot of Debian for a kind of machine, by Debian's name."""

    version: str
    machine: str = ""
    macos: bool = False  # with scripts/macos.py in place of the system's calls
    numba: str = ""  # a release that is not the newest

    @property
    def name(self) -> str:
        if self.machine:
            return f"{self.version} on Debian {SUITES[self.version]}, {self.machine}"
        return self.version + ", macOS emulated" * self.macos + (self.numba and f", numba {self.numba}")


PLATFORMS = (
    *map(Platform, ("3.10", "3.11", "3.12", "3.13", "3.14", "3.14t")),
    Platform("3.11", numba="0.60.0"),
    Platform("3.11", numba="0.65.1"),
    Platform("3.11", macos=True),
    Platform("3.14", macos=True),
    Platform("3.14", "amd64"),
    Platform("3.11", "arm64"),
    Platform("3.13", "arm64"),
)


@dataclass(frozen=True, slots=True)
class Environment:
    """What runs programs of a platform: the words before them, their folder as they see it, and variables."""

    python: tuple[str, ...]
    folder: Path  # of this system
    inside: str  # the same folder, as the platform's programs see it
    variables: dict[str, str]


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


def newest_other(work: Path) -> list[Platform]:
    """The newest Python of this system that is not this one; none if there is no other."""
    for platform in reversed(PLATFORMS):
        if not (platform.machine or platform.macos or sys.version.startswith(f"{platform.version}.")):
            with suppress(Missing):
                find_python(work, platform.version)
                return [platform]
    return []


def in_venv(work: Path, version: str, requirements: Sequence[str]) -> Environment:
    """Install from wheels into a new environment of a Python of this system."""
    folder = work / f"venv-{version}"
    uv(work, "venv", "--clear", "--python", find_python(work, version), folder)
    uv(work, "pip", "install", "--no-build", "--python", folder / "bin" / "python", *requirements)
    return Environment((str(folder / "bin" / "python"),), folder, str(folder), {})


def in_chroot(work: Path, platform: Platform, requirements: Sequence[str]) -> Environment:
    """Install from wheels beside the Python of a new or kept Debian, which qemu runs if it is for another machine."""
    if os.getuid() != 0 or not shutil.which("debootstrap"):
        raise Missing("needs root and debootstrap, and qemu-user-static with binfmt-support for ARM64")
    root = work / f"{SUITES[platform.version]}-{platform.machine}"
    if not (root / "done").exists():
        script = "/usr/share/debootstrap/scripts/sid"  # releases differ by the packages' lists alone
        packages = f"--include=python{platform.version}"
        arguments = ("--variant=minbase", f"--arch={platform.machine}", packages, SUITES[platform.version], root)
        run("debootstrap", "--foreign", *arguments, mirror(), script)
        unpack_packages(root)
        (root / "done").touch()
    override = work / "override.txt"
    override.write_text(ARM_TORCH if platform.machine == "arm64" else "")
    wheels = {"arm64": "aarch64-manylinux_2_28", "amd64": "x86_64-manylinux_2_28"}[platform.machine]
    shutil.rmtree(root / "packages", ignore_errors=True)
    uv(
        *(work, "pip", "install", "--no-build", "--target", root / "packages", "--override", override),
        *("--python-platform", wheels, "--python-version", platform.version, *requirements),
    )
    (root / "work").mkdir(exist_ok=True)
    variables = {"PYTHONPATH": "/packages", "HOME": "/root", "TMPDIR": "/tmp"}  # noqa: S108 - of the chroot
    return Environment(("chroot", str(root), f"python{platform.version}"), root / "work", "/work", variables)


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


def execute(environment: Environment, log: Path, *arguments: str) -> tuple[bool, list[str]]:
    """Run a platform's Python in its folder, where no source of picstore lies; returns success and lines, logged."""
    with log.open("w+") as file:
        command, variables = [*environment.python, *arguments], {**os.environ, **environment.variables}
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=variables, cwd=environment.folder)
        file.seek(0)
        return done.returncode == 0, file.read().splitlines()


def run_smoke(environment: Environment, log: Path, *flags: str) -> str:
    """Run the smoke script; returns what the table says of it."""
    for name in ("smoke.py", "smoke.json"):
        shutil.copy(ROOT / "scripts" / name, environment.folder)
    succeeded, lines = execute(environment, log, f"{environment.inside}/smoke.py", *flags)
    failed = [line for line in lines if ": ok, " not in line]
    return f"all {len(lines) - len(failed)} steps" if succeeded else f"{failed[-1] if failed else '?'} ({log})"


def run_tests(environment: Environment, log: Path, source: Path) -> str:
    """Run the default tests of the source package; returns pytest's last line."""
    tests = environment.folder / "source"
    shutil.rmtree(tests, ignore_errors=True)
    tests.mkdir()
    run("tar", "xf", source, "--strip-components=1", "-C", tests)
    options = ("-n2", "-mnot slow", "-rfEs", "--ignore-glob=*/test_docs*", f"{environment.inside}/source/tests")
    succeeded, lines = execute(environment, log, "-m", "pytest", *options)
    said = lines[-1] if lines else "?"
    return said if succeeded else f"{said} ({log})"


def check(work: Path, platform: Platform, options: argparse.Namespace) -> tuple[str, str]:
    """Install the wheel on a platform; returns what the smoke script and the tests say."""
    (wheel,) = (work / "dist").glob("*.whl")
    extra = "" if options.fast else "[torch,view]"
    requirements = [f"picstore{extra} @ {wheel.as_uri()}", *("" if options.fast else TESTS).split()]
    if not (options.fast or options.no_tests or platform.version.endswith("t")):
        requirements += EXTRAS.split()
    requirements += [f"numba=={platform.numba}"] if platform.numba else []
    log = f"{work}/{platform.name.replace(', ', '-').replace(' ', '-')}"
    with ExitStack() as stack:
        if platform.machine:
            environment = in_chroot(work, platform, requirements)
            stack.enter_context(mounted(environment.folder.parent))
        else:
            environment = in_venv(work, platform.version, requirements)
        if platform.macos:
            shutil.copy(ROOT / "scripts" / "macos.py", environment.folder / "sitecustomize.py")
            environment.variables["PYTHONPATH"] = str(environment.folder)
        flags = ["--no-torch"] if options.fast else ["--epochs", str(EPOCHS)] if platform.macos else []
        smoke = run_smoke(environment, Path(f"{log}.smoke.log"), *flags)
        smoke_alone = platform.macos or platform.numba or platform.machine == "arm64"
        if options.fast or options.no_tests or smoke_alone:
            return smoke, "–"
        (source,) = (work / "dist").glob("*.tar.gz")
        return smoke, run_tests(environment, Path(f"{log}.tests.log"), source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="platforms of the table, all by default")
    parser.add_argument("--fast", action="store_true", help="the newest other Python that is there, without PyTorch")
    parser.add_argument("--no-tests", action="store_true", help="run the smoke script alone")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "picstore-platforms")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(work / "dist", ignore_errors=True)
    uv(work, "build", "--quiet", *["--wheel"] * options.fast, "--out-dir", work / "dist", ROOT)
    failed = False
    print(f"{datetime.date.today()}\n\n| platform | smoke script | default tests |\n|---|---|---|", flush=True)
    for platform in newest_other(work) if options.fast else PLATFORMS:
        if options.names and platform.name not in options.names:
            continue
        try:
            if not (platform.machine or options.fast):
                build_python(work, platform.version)
            smoke, tests = check(work, platform, options)
        except Missing as error:
            smoke, tests = f"not here: {error}", "–"
        failed |= not smoke.startswith("all")
        print(f"| {platform.name} | {smoke} | {tests} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
