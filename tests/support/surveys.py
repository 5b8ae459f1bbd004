"""Archives read as the panel reads them: by the confined process, as an account that owns nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from svc_webhost import confined

READER: Final = 1_990_000_001


def read_archive(archive: Path) -> tuple[int, str, dict[str, Any] | None]:
    """The exit status, what was said, and what was found."""
    program = Path(confined.__file__).with_name("survey.py")
    with archive.open("rb") as opened:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-X", "utf8", str(program), json.dumps({"uid": READER, "gid": READER})],
            stdin=opened,
            capture_output=True,
            timeout=300,
            check=False,
        )
    lines = ended.stdout.decode().splitlines()
    found = "".join(line.removeprefix("part ") for line in lines if line.startswith("part "))
    said = "\n".join(line for line in lines if not line.startswith("part ")) + ended.stderr.decode()
    return ended.returncode, said, json.loads(found) if found else None
