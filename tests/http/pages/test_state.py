"""What the pages keep about a request is put back however the request ends, and what went wrong is shown."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "http" / "dashboard"
NODE = ROOT / ".venv" / "bin" / "node"


def test_an_answer_that_breaks_off_is_a_failure_that_is_shown_and_the_next_change_loads_again() -> None:
    script = Path(__file__).with_name("state.mjs")
    ran = subprocess.run([str(NODE), str(script)], cwd=DASHBOARD, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-4000:]
    told = json.loads(ran.stdout)

    assert told == {
        "failureShown": True,
        "message": "The service cannot be reached.",
        "readAgain": 3,
        "shownAgain": True,
        "faultShown": True,
        "faultOver": True,
        "uploadStopped": True,
        "uploadMessage": "The service cannot be reached.",
        "orders": 1,
        "uploadDone": True,
    }


def test_no_page_throws_on_what_it_does_not_know_before_it_puts_its_state_back() -> None:
    """`failureOf` makes something of it that can be shown."""
    rethrown = re.compile(r"if \(!\((\w+) instanceof ApiError\)\) throw \1")
    found = [str(path) for path in (DASHBOARD / "src").rglob("*.ts") if rethrown.search(path.read_text())]

    assert found == []


def test_answers_are_read_in_one_place() -> None:
    """What breaks off there becomes an `ApiError`; elsewhere it would be whatever the browser throws."""
    read = re.compile(r"(?<![.\w])fetch\(|\.json\(\)|response\.text\(\)")
    found = {path.name for path in (DASHBOARD / "src").rglob("*.ts") if read.search(path.read_text())}

    assert found == {"api.ts"}
