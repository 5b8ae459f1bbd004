"""Compression by brotli, if Debian's package libnginx-mod-http-brotli-filter is installed. nginx does without it.

nginx refuses a configuration that names a module which it cannot load, and would then serve no site. So the module is
used only after a configuration test with it, which is repeated when the module or nginx was replaced or removed, and
with each change until it has said something of the module.

At level 2 a script of 358 KB has 89 % of its size by nginx's gzip, in the same time. Level 4 saves 4 % more and takes
twice as long, for each visitor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

MODULE: Final = Path("/usr/lib/nginx/modules/ngx_http_brotli_filter_module.so")
_LEVEL: Final = 2

_PASSES: Final = ("annot allocate memory", "failed to map segment", "Too many open files")
"""What dlopen says of a module when memory or descriptors are short."""

Replaced = tuple[tuple[int, int, int] | None, ...]
"""Of each file its inode, its size and when it was changed, or None without it."""


def load_brotli(module: Path) -> Iterator[str]:
    """Directives before all blocks."""
    yield f'load_module "{module}";'


def brotli_directives(types: str, least: int) -> Iterator[str]:
    """Directives of the http block. `least`: the fewest bytes of an answer that is compressed."""
    yield "brotli on;"
    yield f"brotli_comp_level {_LEVEL};"
    yield f"brotli_min_length {least};"
    yield f"brotli_types {types};"


def is_unusable(module: Path, refused: str) -> bool:
    """Whether nginx refuses a configuration because of the module itself, which it then names (nginx 1.22): it cannot
    load the file, or the file was built for another nginx. Otherwise the disk may be full, or memory short."""
    return module.name in refused and not any(words in refused for words in _PASSES)


def state_of(*files: Path) -> Replaced:
    """Differs if one of the files was replaced, removed or installed. Blocks."""
    return tuple(_state(file) for file in files)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
