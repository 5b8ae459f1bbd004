"""Plain English: a list of words, each with its plain form, held over texts, documents and exported names.

Texts are docstrings, comments and string literals of the product, and all of its pages and documents. The ledger
tests/words.toml has the number of remaining hits by part of the tree and word: one hit more fails the check, and one
fewer fails it until `tools/test --words` has lowered the number. That command never raises one. The ledger counts by
part of the tree and not by file, so that a module may move.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.testing.files import ROOT, WORDS

PLAIN: Final[Mapping[str, str]] = {
    "beside": "next to, or besides",
    "whoever": "the noun: the caller, the customer, the process",
    "that which": "the noun, or what",
    "what there is of": "the noun",
    "no more": "no longer",
    "any more": "no longer, or any longer",
    "shall": "must, or is",
    "is told": "is notified, or gets",
    "begin": "start",
    "by which": "with which, or a sentence of its own",
    "the one that": "the noun",
    "in the place of": "instead of",
    "lately": "recently",
    "peculiar to": "specific to",
    "worked out": "computed",
}
NAMES: Final[Mapping[str, str]] = {
    "wanted": "desired, or the noun",
    "found": "matches, or the noun",
    "made": "created, or the noun",
    "kept": "retained, or the noun",
    "told": "notify, notice, or the noun",
    "asked": "requested, or the noun",
}
"""These are no names by themselves. As a part of one they may be right: `kept_copies`."""
_FORMS: Final = {
    "what there is of": "what there (?:is|are|was|were) of",
    "no more": "no more(?! than)",
    "any more": "any ?more(?! than)",
    "is told": "(?:is|are|was|were|be|been|being) told",
    "begin": "begins?|began|begun",
    "the one that": "the ones? that",
}

EXCEPTIONS: Final[Mapping[str, str]] = {
    "allowance beside usage": "the specification's, of GET /traffic",
    "upload begin": "a command, named in scripts of users",
    "begun: started": "a field of the API, of an import by SSH",
    "Import Begin Request": "ImportBeginRequest, a model of the OpenAPI document",
    "no more available": "libvirt's, which a refusal is told by",
}
"""Phrases that may stay, each with its reason. A string without a space needs none: it is a key, column, state or name
on the wire. Nor does SQL in capitals."""

_PARTS: Final = {
    "svc": ("svc", "*.py"),
    "actors": ("actors", "*.py"),
    "http": ("http/svc_http", "*.py"),
    "console": ("console", "*.py"),
    "nodeagent": ("nodeagent", "*.py"),
    "pages": ("http/dashboard/src", "*.ts"),
    "docs": ("docs", "*.md"),
    "README.md": (".", "README.md"),
    "CONTRIBUTING.md": (".", "CONTRIBUTING.md"),
}
_BREAK: Final = r"(?:\s|[#*/])+"
"""Between two words of a phrase, which may continue on the next line, within comments too."""
_LISTED: Final = re.compile(
    rf"(?<![\w{{])(?:{'|'.join(f'({_FORMS.get(word, word)})' for word in PLAIN)})\b".replace(" ", _BREAK),
    re.IGNORECASE,
)
_EXCEPTED: Final = re.compile("|".join(re.escape(phrase).replace(r"\ ", _BREAK) for phrase in EXCEPTIONS))
_TEXTS: Final = re.compile(r"""("{3}|'{3})(?:\\.|.)*?\1|(["'])(?:\\.|[^\\\n])*?\2|#[^\n]*(?:\n *#[^\n]*)*""", re.DOTALL)
"""Comments and string literals of Python. A tokenizer would take ten times as long."""

Ledger = Mapping[str, Mapping[str, int]]
"""The number of hits of each word, by part of the tree."""


@dataclass(frozen=True, order=True)
class Hit:
    part: str
    word: str
    path: str
    line: int
    plain: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word}: write {self.plain}"


def hits(root: Path) -> Iterator[Hit]:
    for part, (folder, pattern) in _PARTS.items():
        top = root / folder
        for file in sorted(top.glob(pattern) if folder == "." else top.rglob(pattern)):
            if file.name == "generated.ts":
                continue
            text = file.read_text()
            found = hits_of_python(text) if file.suffix == ".py" else hits_of_text(text)
            for line, word, plain in found:
                yield Hit(part, word, str(file.relative_to(root)), line, plain)


def hits_of_python(source: str) -> Iterator[tuple[int, str, str]]:
    """Each hit with its line and its plain form."""
    for literal in _TEXTS.finditer(source):
        if " " in literal[0]:
            for position, word in _listed(literal[0]):
                yield source.count("\n", 0, literal.start() + position) + 1, word, PLAIN[word]
    for line, name in exported(ast.parse(source).body):
        if name.lower() in NAMES:
            yield line, f"the name {name.lower()}", NAMES[name.lower()]
        for _, word in _listed(" ".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name))):
            yield line, word, PLAIN[word]


def hits_of_text(text: str) -> Iterator[tuple[int, str, str]]:
    return ((text.count("\n", 0, position) + 1, word, PLAIN[word]) for position, word in _listed(text))


def _listed(text: str) -> Iterator[tuple[int, str]]:
    words = tuple(PLAIN)
    for match in _LISTED.finditer(text):
        # Capitals are SQL, or the head of a certificate.
        if match[0].isupper() or any(span.start() <= match.start() < span.end() for span in _EXCEPTED.finditer(text)):
            continue
        assert match.lastindex is not None
        yield match.start(), words[match.lastindex - 1]


def exported(body: Iterable[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Public classes, functions and their parameters, of a module and of its classes, with their lines."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        special = node.name.startswith("__")
        if node.name.startswith("_") and not special:
            continue
        if not special:
            yield node.lineno, node.name
        if isinstance(node, ast.ClassDef):
            yield from exported(node.body)
        else:
            given = node.args
            for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                if not argument.arg.startswith("_"):
                    yield argument.lineno, argument.arg


def counted(stand: Iterable[Hit]) -> Ledger:
    counts = Counter((hit.part, hit.word) for hit in stand)
    return {part: {word: n for (of, word), n in sorted(counts.items()) if of == part} for part in _PARTS}


def read(path: Path) -> Ledger:
    return tomllib.loads(path.read_text())


def written(ledger: Ledger) -> str:
    head = (
        "# How often the words listed in tools/testing/words.py still stand, by part of the tree. "
        "`tools/test --words` lowers\n# the numbers to what the tree has; nothing raises them.\n"
    )
    tables = (
        f'\n["{part}"]\n' + "".join(f'"{word}" = {n}\n' for word, n in words.items())
        for part, words in ledger.items()
        if words
    )
    return head + "".join(tables)


def lowered(ledger: Ledger, stand: Ledger) -> Ledger:
    """With the numbers lowered to those of `stand` where these are less."""
    return {
        part: {word: least for word, n in words.items() if (least := min(n, stand.get(part, {}).get(word, 0)))}
        for part, words in ledger.items()
    }


def problems(
    stand: Collection[Hit], ledger: Ledger, changed: Mapping[str, Collection[int]] | None = None
) -> Iterator[str]:
    """Each word with more or fewer hits than the ledger says. `changed`: lines of this branch by file; hits in them are
    listed, or all hits if there are none in them."""
    counts = counted(stand)
    for part in sorted({*counts, *ledger}):
        for word in sorted({*counts.get(part, {}), *ledger.get(part, {})}):
            n, allowed = counts.get(part, {}).get(word, 0), ledger.get(part, {}).get(word, 0)
            if n < allowed:
                yield f"{part}: {word}: {n}, and the ledger says {allowed}; lower it with tools/test --words"
            elif n > allowed:
                yield f"{part}: {word}: {n}, and the ledger allows {allowed}"
                those = sorted(hit for hit in stand if (hit.part, hit.word) == (part, word))
                new = [hit for hit in those if hit.line in (changed or {}).get(hit.path, ())]
                yield from (f"  {hit}" for hit in new or those)


def changed_lines(root: Path) -> dict[str, set[int]]:
    """The lines of each file that differ from where this branch left main; nothing if git cannot tell."""
    from tools.testing.changed import changed_files  # takes longer than everything else here

    lines: dict[str, set[int]] = {}
    try:
        revision, files = changed_files(root, "")
        command = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", revision]
        text = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return lines
    path = ""
    for line in text.splitlines():
        if line.startswith("+++ b/"):
            path = line[len("+++ b/") :]
        elif hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line):
            first, number = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + number))
    for file in files:
        if file not in lines and (root / file).suffix in (".py", ".ts", ".md") and (root / file).exists():
            lines[file] = set(range(1, (root / file).read_text().count("\n") + 2))
    return lines


def main(*, lower: bool) -> int:
    stand = list(hits(ROOT))
    ledger = read(WORDS)
    if lower:
        ledger = lowered(ledger, counted(stand))
        WORDS.write_text(written(ledger))
    wrong = list(problems(stand, ledger))
    if any("allows" in line for line in wrong):
        wrong = list(problems(stand, ledger, changed_lines(ROOT)))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(lower=False))
