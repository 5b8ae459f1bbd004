"""Finds MariaDB's temporary files: those of sessions, and those of sorting.

`#sql-temptable-PID-SESSION-N.MAD` is a table of a session, its number in hexadecimal digits. Sorting uses files without
a name, which nothing connects with a session: the session with the longest running statement is held responsible.
Rejected: holding the session in the state `sorting` responsible. This state ends once the files are complete, but the
files stay until the last row was read. So other sessions were ended instead of one that read slowly or created an index
(`altering table`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

FILES_BYTES: Final = 4 << 30
"""The most bytes of temporary tables of all sessions of a site, and of all files for sorting."""
_TABLE: Final = re.compile(r"#sql-temptable-[0-9a-f]+-([0-9a-f]+)-[0-9a-f]+\.M..")
_UNNAMED: Final = " (deleted)"


def temporary_files(pid: int, folder: Path) -> tuple[dict[int, int], int]:
    """Bytes by session, and bytes of sorting, among the files that the process has open there. Blocks."""
    tables: dict[int, int] = {}
    sorting = 0
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return {}, 0
    for descriptor in descriptors:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            if os.path.dirname(path) != str(folder):
                continue
            size = os.stat(f"/proc/{pid}/fd/{descriptor}").st_blocks * 512
        except OSError:
            continue  # The file was closed meanwhile.
        if path.endswith(_UNNAMED):
            sorting += size
        elif table := _TABLE.fullmatch(os.path.basename(path)):
            session = int(table[1], 16)
            tables[session] = tables.get(session, 0) + size
    return tables, sorting
