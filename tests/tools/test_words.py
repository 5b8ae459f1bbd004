"""The list of words that `tools/test` holds texts and names to, and its ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.testing import words
from tools.testing.files import WORDS
from tools.testing.words import Hit, counted, hits, lowered, problems, read, written

ONCE = {"svc": {"beside": 1}}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A product with one module, whose docstring has one listed word."""
    (tmp_path / "svc").mkdir()
    write(tmp_path, '"""Runs beside the service."""\n')
    return tmp_path


def write(tree: Path, source: str) -> None:
    (tree / "svc" / "module.py").write_text(source)


def found(tree: Path) -> list[str]:
    return [hit.word for hit in hits(tree)]


def test_words_that_the_ledger_has_may_stand(tree: Path) -> None:
    assert list(problems(list(hits(tree)), ONCE)) == []


def test_a_new_one_fails_with_its_place_and_its_plain_form(tree: Path) -> None:
    write(tree, '"""Runs beside the service."""\n\n# It shall end.\n')

    assert list(problems(list(hits(tree)), ONCE)) == [
        "svc: shall: 1, and the ledger allows 0",
        "  svc/module.py:3: shall: write must, or is",
    ]


def test_of_many_places_those_that_the_branch_changed_are_named(tree: Path) -> None:
    write(tree, '"""Runs beside the service."""\n\n# Beside it.\n')

    _, *named = problems(list(hits(tree)), ONCE, {"svc/module.py": {3}})

    assert named == ["  svc/module.py:3: beside: write next to, or besides"]


def test_one_fewer_fails_until_the_ledger_is_lowered(tree: Path) -> None:
    write(tree, '"""Runs next to the service."""\n')
    stand = list(hits(tree))

    [problem] = problems(stand, ONCE)

    assert problem == "svc: beside: 0, and the ledger says 1; lower it with tools/test --words"
    assert list(problems(stand, lowered(ONCE, counted(stand)))) == []


def test_the_ledger_is_never_raised() -> None:
    stand = counted([Hit("svc", word, "svc/module.py", line, "") for word in ("beside", "shall") for line in (1, 2)])

    assert lowered(ONCE, stand) == ONCE


def test_a_phrase_goes_over_the_end_of_a_line(tree: Path) -> None:
    write(tree, "# It runs no\n# more, and costs no more than before.\n")

    assert found(tree) == ["no more"]


def test_names_that_others_use_are_held_to_it_too(tree: Path) -> None:
    write(
        tree,
        "class Kept:\n    def begin_end(self, wanted: int) -> None:\n        told = 1\n\n"
        "def kept_copies(_found: int, found: int) -> None: ...\n\ndef _told(made: int) -> None: ...\n",
    )

    assert found(tree) == ["the name kept", "begin", "the name wanted", "the name found"]


@pytest.mark.parametrize(
    "source",
    [
        'row["begun"]\n',
        '"""BEGIN; SELECT 1"""\n',
        'text = f"run {begun.name} now"\n',
        '"""It shows the allowance beside usage."""\n',
        "begun = beside = 1\n",
    ],
    ids=["key", "sql", "put in", "exception", "local"],
)
def test_what_is_no_text_and_what_is_excepted_may_stand(tree: Path, source: str) -> None:
    write(tree, source)

    assert found(tree) == []


def test_pages_and_documents_are_held_to_it(tree: Path) -> None:
    for name, text in {"docs/page.md": "Whoever\nasks.\n", "http/dashboard/src/view.ts": "// worked out\n"}.items():
        (tree / name).parent.mkdir(parents=True)
        (tree / name).write_text(text)

    assert [str(hit) for hit in hits(tree)][1:] == [
        "http/dashboard/src/view.ts:1: worked out: write computed",
        "docs/page.md:1: whoever: write the noun: the caller, the customer, the process",
    ]


def test_each_exception_has_a_reason_and_a_listed_word() -> None:
    assert all(words.EXCEPTIONS.values())
    assert [phrase for phrase in words.EXCEPTIONS if not words._LISTED.search(phrase)] == []


def test_the_ledger_in_the_tree_is_as_it_is_written() -> None:
    assert written(read(WORDS)) == WORDS.read_text()
