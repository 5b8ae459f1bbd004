"""The temporary files of MariaDB: which session has them, and which are of somebody's sorting.

`#sql-temptable-PID-SESSION-N.MAD` is a table of a session, its number in hexadecimal digits. What is sorted goes to
files without a name, which nothing connects with a session: the one whose statement has taken longest answers for
them. Not the one that sorts: the files stay until the last row was read, and the state of a session says sorting until
they are whole. So who reads slowly, or makes an index (`altering table`), had others ended in its place.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

FILES_BYTES: Final = 4 << 30
"""Of the temporary tables of all sessions of a site, and of all files of sorting."""
_TABLE: Final = re.compile(r"#sql-temptable-[0-9a-f]+-([0-9a-f]+)-[0-9a-f]+\.M..")
_UNNAMED: Final = " (deleted)"


def temporary_files(pid: int, folder: Path) -> tuple[dict[int, int], int]:
    """Bytes by session, and those of sorting, among the files that the process has open there. Blocks."""
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
            continue  # It was closed meanwhile.
        if path.endswith(_UNNAMED):
            sorting += size
        elif table := _TABLE.fullmatch(os.path.basename(path)):
            session = int(table[1], 16)
            tables[session] = tables.get(session, 0) + size
    return tables, sorting
