"""Generations of the configuration on disk: `generations/<number>/{nginx.conf,sites/s<number>.conf}`, and `current`.

Invariants:
- a generation that `current` names, or has named, is complete and is never written to again; files of unchanged sites
  are hard links, so that a generation costs only its changes;
- `current` is a symbolic link that is replaced by rename(2): after a crash it names the old generation or the new one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from svc_common.durable import sync_folder, write_whole
from svc_webhost.tree_removal import remove_tree

KEPT: Final = 5
FLUSHES: Final = 16
_SITE: Final = re.compile(r"s([0-9]+)\.conf")
_NAMES: Final = re.compile(r"^ *server_name (.+);$", re.MULTILINE)


class Tree:
    """Blocks: use it in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generations = folder / "generations"
        self._trial = folder / "trial"

    @property
    def main(self) -> Path:
        """The configuration file that nginx starts with."""
        return self._folder / "current" / "nginx.conf"

    def main_of(self, generation: int) -> Path:
        return self._generations / str(generation) / "nginx.conf"

    def prepare(self) -> None:
        """Create the folders, for root alone: the files in them have the usual modes."""
        for folder in (self._generations, self._trial):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)

    def current(self) -> int | None:
        try:
            return int((self._folder / "current").readlink().name)
        except FileNotFoundError:
            return None

    def generations(self) -> list[int]:
        """The generations on disk, in order, including one that was being written when the process ended."""
        if not self._generations.is_dir():
            return []
        return sorted(int(each.name) for each in self._generations.iterdir() if each.name.isdecimal())

    def sites(self, generation: int | None) -> dict[int, str]:
        """The text of every site's file, by the site's number."""
        if generation is None:
            return {}
        return {number: path.read_text() for number, path in self._files(generation).items()}

    def site(self, generation: int, number: int) -> str | None:
        """The text of one site's file; None if it has none."""
        path = self._generations / str(generation) / "sites" / _name(number)
        return path.read_text(errors="replace") if path.exists() else None

    def names(self, generation: int, *, without: Collection[int]) -> frozenset[str]:
        """The names that a generation serves, except those of some sites."""
        kept = (path.read_text() for number, path in self._files(generation).items() if number not in without)
        return frozenset(name for text in kept for line in _NAMES.findall(text) for name in line.split())

    def read_main(self, generation: int | None) -> str | None:
        return None if generation is None else self.main_of(generation).read_text()

    def write(self, generation: int, base: int | None, changes: Mapping[int, str | None], main: str) -> list[int]:
        """Write a new generation: the files of `base`, some of them replaced or (None) left out. It is on disk when
        this returns. Returns the numbers of its sites."""
        folder = self._generations / str(generation)
        self._write(folder, {} if base is None else self._files(base), changes, main)
        sync_folder(self._generations)
        return sorted(self._files(generation))

    def write_trial(self, sites: Mapping[int, str], main: str) -> Path:
        """Write a tree of some sites, only for a test; returns its main file. It replaces the previous one."""
        remove_tree(self._trial, ignore_errors=True)
        self._trial.mkdir(mode=0o700)
        (self._trial / "sites").mkdir()
        for number, text in sites.items():
            (self._trial / "sites" / _name(number)).write_text(text)
        (self._trial / "nginx.conf").write_text(main)
        return self._trial / "nginx.conf"

    def switch(self, generation: int) -> None:
        """Make a generation the current one; durable when this returns."""
        new = self._folder / "current.new"
        new.unlink(missing_ok=True)
        new.symlink_to(Path("generations") / str(generation))
        new.replace(self._folder / "current")
        sync_folder(self._folder)

    def withdraw(self, generation: int) -> None:
        """Remove the first generation, which is current but failed."""
        (self._folder / "current").unlink()
        self.discard(generation)

    def discard(self, generation: int) -> None:
        remove_tree(self._generations / str(generation), ignore_errors=True)

    def prune(self, *kept: int | None) -> None:
        """Remove all but the last generations, and the given ones."""
        for generation in self.generations()[:-KEPT]:
            if generation not in kept:
                self.discard(generation)

    def _files(self, generation: int) -> dict[int, Path]:
        folder = self._generations / str(generation) / "sites"
        found = ((_SITE.fullmatch(path.name), path) for path in folder.iterdir())
        return {int(match[1]): path for match, path in found if match is not None}

    def _write(self, folder: Path, unchanged: Mapping[int, Path], changes: Mapping[int, str | None], main: str) -> None:
        sites = folder / "sites"
        sites.mkdir(parents=True)
        for number, path in unchanged.items():
            if number not in changes:
                os.link(path, sites / path.name)
        written = [(sites / _name(number), text) for number, text in changes.items() if text is not None]
        # Flushed in parallel, because concurrent flushes share one commit of the file system's journal.
        with ThreadPoolExecutor(FLUSHES) as flushing:
            for _ in flushing.map(_write_flushed, written):
                pass  # The loop raises exceptions of the threads here.
        sync_folder(sites)
        write_whole(folder / "nginx.conf", main.encode(), mode=0o600)


def _write_flushed(file: tuple[Path, str]) -> None:
    """Write a file and flush it. The caller syncs the folder once, after all files."""
    path, text = file
    with path.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _name(number: int) -> str:
    return f"s{number}.conf"
