"""Bootable qcow2 disks made of plain files: no loop device, no mount, no kernel installed on the host.

A disk is an MBR with two partitions: a FAT one that syslinux reads (kernel, initrd, command line), and an ext4 root,
the last on the disk, so that a guest can grow it. With loaders for a UEFI the FAT one is its system partition as well,
and the disk boots by both. Invariants: an output appears by rename, complete, with its `.sha256`
beside it; an output whose recipe (the hash of everything that made it) is unchanged is not built again; two builds of
one output at the same time are one build, for which the other waits.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
MIB = 1024 * 1024
BOOT_START = 1 * MIB
FAT16_LBA, LINUX, EFI_SYSTEM = 0x0E, 0x83, 0xEF
SYSLINUX_MBR = Path("/usr/lib/syslinux/mbr/mbr.bin")


class BuildError(Exception):
    """The image was not built; whatever stood at the output path still stands there."""


@dataclass(frozen=True)
class EfiLoaders:
    """What a UEFI starts, signed: shim by the key that firmware knows, and what shim knows the keys of."""

    shim: Path
    grub: Path


@dataclass(frozen=True)
class Layout:
    """What goes on a disk. Sizes in MiB; `root` is a directory tree, its owners and modes kept."""

    kernel: Path
    initrd: Path
    root: Path
    root_label: str
    command_line: str
    boot_mib: int
    root_mib: int
    efi: EfiLoaders | None = None


@dataclass
class Progress:
    """Numbered steps on standard error: `[2/5] extracting packages  0.4 s`."""

    steps: int
    done: int = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.done += 1
        print(f"[{self.done}/{self.steps}] {what} ...", end="", file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            yield
        except BaseException:
            print(" failed", file=sys.stderr)
            raise
        print(f" {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)


def run(*arguments: str | Path, cwd: Path | None = None, stdin: bytes | None = None) -> bytes:
    """The program's standard output. A failure becomes a `BuildError` with what the program said."""
    command = [str(argument) for argument in arguments]
    try:
        done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False)
    except FileNotFoundError as missing:
        raise BuildError(
            f"{command[0]} is not installed; apt-get install the packages listed in tools/images/packages.txt"
        ) from missing
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise BuildError(f"{' '.join(command[:3])} ended with {done.returncode}: {said[-2000:]}")
    return done.stdout


def recipe_of(*sources: Path) -> str:
    """A hash of the files and trees that decide an image's content: names, modes and bytes."""
    digest = hashlib.sha256()
    for source in sources:
        files = sorted(path for path in source.rglob("*") if not path.is_dir()) if source.is_dir() else [source]
        for path in files:
            name = path.relative_to(source.parent)
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            digest.update(f"{name} {path.lstat().st_mode:o} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def build(output: Path, recipe: str, steps: int, make: Callable[[Path, Progress], Layout], *, force: bool) -> None:
    """Makes `output` unless it stands with this recipe. `make` fills a work folder and says what goes on the disk."""
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.with_name(f".{output.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_alone(output, recipe, steps, make, force=force)


def build_alone(
    output: Path, recipe: str, steps: int, make: Callable[[Path, Progress], Layout], *, force: bool
) -> None:
    checksum, mark = output.with_name(output.name + ".sha256"), output.with_name(output.name + ".recipe")
    if not force and output.exists() and checksum.exists() and mark.exists() and mark.read_text().strip() == recipe:
        print(f"{output} is up to date", file=sys.stderr)
        return
    if os.geteuid() != 0:
        raise BuildError("run this as root: the files of the image belong to root; nothing was changed")
    progress = Progress(steps + 2)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as name:
        work = Path(name)
        layout = make(work, progress)
        with progress.step("writing the disk"):
            raw = work / "disk.raw"
            write_raw(raw, layout, work)
        with progress.step("compressing to qcow2"):
            image = work / "disk.qcow2"
            run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-W", raw, image)
            with image.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            (work / "sha256").write_text(f"{digest}  {output.name}\n")
            (work / "recipe").write_text(f"{recipe}\n")
        mark.unlink(missing_ok=True)
        image.replace(output)
        (work / "sha256").replace(checksum)
        (work / "recipe").replace(mark)
    print(f"{output}  {output.stat().st_size / 1e6:.1f} MB  sha256 {digest}", file=sys.stderr)


def write_raw(raw: Path, layout: Layout, work: Path) -> None:
    root_start = BOOT_START + layout.boot_mib * MIB
    with raw.open("wb") as disk:
        disk.truncate(root_start + layout.root_mib * MIB)
        disk.write(SYSLINUX_MBR.read_bytes().ljust(440, b"\0")[:440])
        disk.seek(446)
        kind = EFI_SYSTEM if layout.efi is not None else FAT16_LBA
        disk.write(partition(kind, BOOT_START, layout.boot_mib, active=True))
        disk.write(partition(LINUX, root_start, layout.root_mib, active=False))
        disk.seek(510)
        disk.write(b"\x55\xaa")
    configuration = work / "syslinux.cfg"
    configuration.write_text(
        f"SERIAL 0 115200\nDEFAULT linux\nLABEL linux\n LINUX vmlinuz\n INITRD initrd\n APPEND {layout.command_line}\n"
    )
    first = BOOT_START // SECTOR
    run(
        "mkfs.fat",
        "-F",
        "16",
        "-n",
        "SVCBOOT",
        "-h",
        str(first),
        "--offset",
        str(first),
        raw,
        str(layout.boot_mib * 1024),
    )
    for source, name in ((layout.kernel, "vmlinuz"), (layout.initrd, "initrd"), (configuration, "syslinux.cfg")):
        run("mcopy", "-i", f"{raw}@@{BOOT_START}", source, f"::{name}")
    if layout.efi is not None:
        write_efi(raw, layout.efi, layout.command_line, work)
    run("syslinux", "--offset", str(BOOT_START), "--install", raw)
    options = f"offset={root_start},lazy_itable_init=0,lazy_journal_init=0"
    run(
        *("mke2fs", "-q", "-t", "ext4", "-b", "4096", "-m", "0", "-L", layout.root_label, "-d", layout.root),
        *("-E", options, raw, f"{layout.root_mib}M"),
    )


def write_efi(raw: Path, loaders: EfiLoaders, command_line: str, work: Path) -> None:
    """By the names that a UEFI looks for on any disk; Debian's GRUB reads its configuration from EFI/debian."""
    configuration = work / "grub.cfg"
    configuration.write_text(
        f"serial --speed=115200\nterminal_output serial console\nset timeout=0\n"
        f"linux /vmlinuz {command_line}\ninitrd /initrd\nboot\n"
    )
    run("mmd", "-i", f"{raw}@@{BOOT_START}", "::EFI", "::EFI/BOOT", "::EFI/debian")
    for source, name in (
        (loaders.shim, "EFI/BOOT/BOOTX64.EFI"),
        (loaders.grub, "EFI/BOOT/grubx64.efi"),
        (configuration, "EFI/debian/grub.cfg"),
    ):
        run("mcopy", "-i", f"{raw}@@{BOOT_START}", source, f"::{name}")


def partition(kind: int, start: int, size_mib: int, *, active: bool) -> bytes:
    """An MBR entry; cylinder, head and sector are the "too large, use the LBA" mark that every BIOS of ours accepts."""
    flag = 0x80 if active else 0
    beyond = b"\xfe\xff\xff"
    return struct.pack("<B3sB3sII", flag, beyond, kind, beyond, start // SECTOR, size_mib * MIB // SECTOR)


def download(packages: Sequence[str], into: Path) -> list[Path]:
    """The Debian packages as files. The lists of apt are refreshed only when they do not know a package."""
    into.mkdir(parents=True, exist_ok=True)
    fetch = ("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages)
    try:
        run(*fetch, cwd=into)
    except BuildError:
        run("apt-get", "-q", "update")
        run(*fetch, cwd=into)
    return sorted(into.glob("*.deb"))


def main_guard(main: Callable[[], None]) -> None:
    try:
        main()
    except BuildError as error:
        sys.exit(f"error: {error}")


def copy_tree(source: Path, target: Path) -> None:
    """The files of `source` over those of `target`, symlinks kept, owned by root."""
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    for path in target.rglob("*"):
        os.chown(path, 0, 0, follow_symlinks=False)
