"""The documents' links lead somewhere, and every page is found from the architecture's list."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def links(page: Path) -> set[Path]:
    return {(page.parent / target).resolve() for target in LINK.findall(page.read_text())}


def test_every_link_of_a_document_leads_to_a_file() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]

    dead = {(page.name, str(target)) for page in pages for target in links(page) if not target.exists()}

    assert dead == set()


def test_the_architecture_lists_every_page() -> None:
    architecture = ROOT / "docs" / "architecture.md"

    assert {page.name for page in PAGES if page not in links(architecture)} == {architecture.name}
