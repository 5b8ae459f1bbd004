"""Which test files a change can reach: by the imports of product and tests, by the table in `reach`, and by name.

A test depends on every conftest.py above it, as if it imported them. Programs that tests start are mostly imported by
them as well; for the rest there is CI, which runs everything.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

import grimp

from tools.testing.reach import of_the_other_service, rules_for

_PACKAGES: Final = {
    "svc": "svc",
    "svc_actors": "actors/svc_actors",
    "svc_http": "http/svc_http",
    "svc_console": "console/svc_console",
    "svc_nodeagent": "nodeagent/svc_nodeagent",
    "svc_common": "nodeagent/svc_common",
    "svc_webhost": "nodeagent/svc_webhost",
    "tests": "tests",
}
_SYSTEM: Final = re.compile(r"^pytestmark\b.*\bmark\.system\b", re.MULTILINE)
"""Every test of such a file is a system test."""
_NEAREST: Final = 8


@dataclass
class Selection:
    """Files of tests."""

    run: set[str] = field(default_factory=set)
    system: set[str] = field(default_factory=set)
    """Reached, but left out: they need the host for themselves."""
    nearest: set[str] = field(default_factory=set)
    """Of `system`, those that the change touches or that import from it directly."""
    left_out: set[str] = field(default_factory=set)
    """Not reached."""

    def text(self) -> Iterator[str]:
        yield f"runs {_by_folder(self.run)}"
        yield f"leaves out what the change does not reach: {_by_folder(self.left_out)}"
        if self.system:
            yield f"leaves out system tests that it reaches: {_by_folder(self.system)}"
        if nearest := sorted(self.nearest)[:_NEAREST]:
            yield "of these, the nearest: tools/test " + " ".join(nearest)


def changed_files(root: Path, revision: str) -> tuple[str, list[str]]:
    """The revision compared with (where this branch left main, or the one before, if none is given), and the files that
    differ from it, including uncommitted and new ones."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
        return done.stdout.split("\0" if "-z" in arguments else None)

    if not revision:
        try:
            [left], [head] = git("merge-base", "main", "HEAD"), git("rev-parse", "HEAD")
        except subprocess.CalledProcessError:  # a clone without main
            left = head = ""
        revision = left if left != head else "HEAD~1"
    differing = git("diff", "--name-only", "--no-renames", "-z", revision)
    new = git("ls-files", "--others", "--exclude-standard", "-z")
    return revision, sorted({*differing, *new} - {""})


class Tree:
    """The modules and the test files of a checkout."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._graph = grimp.build_graph(*_PACKAGES, cache_dir=None)
        self._tests = {module: file for module in self._graph.modules if (file := self._test_file(module))}

    def reached(self, changed: Iterable[str]) -> Selection:
        near: set[str] = set()
        far: set[str] = set()
        for path in changed:
            other = of_the_other_service(path)
            touched, reached = self._reached_by(path)
            near |= {file for file in touched if not file.startswith(other)}
            far |= {file for file in reached if not file.startswith(other)}
        files = near | far
        system = {file for file in files if _SYSTEM.search((self._root / file).read_text())}
        return Selection(files - system, system, near & system, set(self._tests.values()) - files)

    def _reached_by(self, path: str) -> tuple[set[str], set[str]]:
        """What a changed file touches directly, and everything that it reaches."""
        rules = list(rules_for(path))
        touched = self._files(lambda file: any(fnmatchcase(file, tests) for rule in rules for tests in rule.tests))
        modules = {module for rule in rules for module in rule.modules}
        if path.endswith(".py") and (module := _module(path)):
            modules |= self._changed_module(module)
        elif not modules:
            modules |= self._that_name(Path(path).name)
            if path.startswith("tests/"):
                touched |= self._beside(path)
            elif package := self._package_around(path):
                modules |= {package, *self._graph.find_descendants(package)}
        importers = {each for module in modules for each in self._graph.find_modules_that_directly_import(module)}
        downstream = {each for module in modules for each in self._graph.find_downstream_modules(module)}
        touched |= self._of_modules(modules | importers)
        return touched, touched | self._of_modules(modules | downstream)

    def _changed_module(self, module: str) -> set[str]:
        if module not in self._graph.modules:
            # It was deleted: the modules that imported it have changed too.
            return set()
        # Importing a module runs the __init__ of each package above it.
        return {module, *self._graph.find_descendants(module)}

    def _that_name(self, name: str) -> set[str]:
        """Modules of the tests that contain a file's name; a name that may be any word counts only as a string."""
        written = name if "." in name else f'"{name}"'
        return {module for module, text in self._texts.items() if written in text}

    @cached_property
    def _texts(self) -> dict[str, str]:
        modules = (module for module in self._graph.modules if module.startswith("tests."))
        paths = ((module, self._root / f"{module.replace('.', '/')}.py") for module in modules)
        return {module: path.read_text() for module, path in paths if path.is_file()}

    def _beside(self, path: str) -> set[str]:
        """The test files of the nearest folder above that has any."""
        for folder in Path(path).parents:
            if found := self._files(lambda file, folder=folder: Path(file).parent == folder):  # type: ignore[misc]
                return found
        return set()

    def _package_around(self, path: str) -> str | None:
        for folder in Path(path).parents:
            if (module := _module(f"{folder}/__init__.py")) and module in self._graph.modules:
                return module
        return None

    def _of_modules(self, modules: set[str]) -> set[str]:
        folders = tuple(f"{module[: -len('conftest')].replace('.', '/')}" for module in modules if _is_conftest(module))
        found = {self._tests[module] for module in modules if module in self._tests}
        return found | (self._files(lambda file: file.startswith(folders)) if folders else set())

    def _files(self, wanted: Callable[[str], bool]) -> set[str]:
        return {file for file in self._tests.values() if wanted(file)}

    def _test_file(self, module: str) -> str | None:
        if module.startswith("tests.") and module.rpartition(".")[2].startswith("test_"):
            return f"{module.replace('.', '/')}.py"
        return None


def _is_conftest(module: str) -> bool:
    return module.startswith("tests.") and module.endswith(".conftest")


def _module(path: str) -> str | None:
    for package, folder in _PACKAGES.items():
        if path.startswith(f"{folder}/"):
            inside = path.removeprefix(f"{folder}/").removesuffix(".py").removesuffix("__init__").strip("/")
            return ".".join((package, *inside.split("/"))) if inside else package
    return None


def _by_folder(files: set[str]) -> str:
    counted = Counter("/".join(Path(file).parts[:2]) for file in files)
    return f"{len(files)} files: " + ", ".join(f"{folder} {count}" for folder, count in sorted(counted.items()))
