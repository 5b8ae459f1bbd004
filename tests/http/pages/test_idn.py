"""The pages and the command line show the same domain names in their own letters, and leave the same as they are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from svc.cli.idn import in_ascii, in_letters

ROOT = Path(__file__).resolve().parents[3]
LABELS: Final[dict[str, str]] = json.loads((ROOT / "tests" / "support" / "idn_labels.json").read_text())
"""Names in the form of the DNS, and as they are shown: the same where they would pass for other names."""
SENTENCE = "Delete xn--mller-shop-9db.example.net? Of *.xn--bcher-kva.example, or not."
READ = "Delete müller-shop.example.net? Of *.bücher.example, or not."


def test_the_command_line_shows_a_name_in_its_letters_unless_it_passes_for_another() -> None:
    assert {name: in_letters(name) for name in LABELS} == LABELS
    assert in_letters(SENTENCE) == READ
    assert {in_ascii(shown) for name, shown in LABELS.items() if name != shown} == {
        name for name, shown in LABELS.items() if name != shown
    }


def test_the_pages_show_the_same() -> None:
    ran = subprocess.run(
        [str(ROOT / ".venv" / "bin" / "node"), str(Path(__file__).with_name("idn.mjs"))],
        cwd=ROOT / "http" / "dashboard",
        input=json.dumps([*LABELS, SENTENCE]),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]

    assert json.loads(ran.stdout) == [*LABELS.values(), READ]
