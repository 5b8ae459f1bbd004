"""Internationalised domain names as people write them: `müller.example` for `xn--mller-kva.example`.

Invariant: a label is shown in its letters only if they are of one script, or of a combination that Unicode's Technical
Standard 39 (5.2, "highly restrictive") allows, among the scripts in general use (UAX 31, table 5). Of Latin those
letters are taken that today's languages write; the others (phonetic `ɡ` and `ɑ`) pass for ASCII. A Cyrillic or Greek
label whose letters all look like Latin ones stays as it is, as browsers leave it: `xn--80ak6aa92e` is no apple.

The pages have the same rule in http/dashboard/src/shared/idn.ts; tests/support/idn_labels.json is what both show.

Why: docs/decisions/0063-where-names-lead.md.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_HOST: Final = re.compile(r"(?<![\w.-])(?:[\w*-]+\.)*xn--[a-z0-9-]+(?:\.[\w-]+)*", re.ASCII | re.IGNORECASE)
_LATIN: Final = re.compile(
    "[a-z0-9\u00df-\u00f6\u00f8-\u0137\u0139-\u0148\u014a-\u017e\u01a1\u01b0\u0219\u021b\u0259\u1e00-\u1ef9-]+"
)
"""With the letters of Vietnamese, Romanian and Azerbaijani; without kra (U+0138), which is a small k."""
_LIKE_LATIN: Final = {
    "CYRILLIC": frozenset("аысԁеԍһіюјӏорԗԛѕԝхуъьҽпгѵѡ0123456789-"),
    "GREEK": frozenset("αικνρυωηοτγχβ0123456789-"),
}
_LIKE_SIGNS: Final = frozenset("ノソゾンヽ丶丿・ー一〇")
"""They pass for a slash, a dash or a dot next to Latin letters: a name could seem to end within its first label."""
_ALONE: Final = frozenset(
    {
        "ARABIC",
        "ARMENIAN",
        "BENGALI",
        "BOPOMOFO",
        "CYRILLIC",
        "DEVANAGARI",
        "ETHIOPIC",
        "GEORGIAN",
        "GREEK",
        "GUJARATI",
        "GURMUKHI",
        "HAN",
        "HANGUL",
        "HEBREW",
        "HIRAGANA",
        "KANNADA",
        "KATAKANA",
        "KHMER",
        "LAO",
        "MALAYALAM",
        "MYANMAR",
        "ORIYA",
        "SINHALA",
        "TAMIL",
        "TELUGU",
        "THAANA",
        "THAI",
        "TIBETAN",
    }
)
_TOGETHER: Final = (
    frozenset({"ASCII", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"ASCII", "HAN", "BOPOMOFO"}),
    frozenset({"ASCII", "HAN", "HANGUL"}),
)
_OF_NAMES: Final = {"CJK": "HAN", "IDEOGRAPHIC": "HAN", "KATAKANA-HIRAGANA": "KATAKANA", "ARABIC-INDIC": "ARABIC"}
"""Scripts by the first word of a character's name, where it is not the script itself."""


def in_letters(text: str) -> str:
    """The text with every host name in it as people write it, where that is safe."""
    return _HOST.sub(lambda found: ".".join(_spelled(found.group().split("."))), text) if "xn--" in text else text


def in_ascii(name: str) -> str | None:
    """The form that the DNS has of a name in any letters; None if it has none."""
    import idna

    try:
        return idna.encode(name.lower(), std3_rules=True).decode()
    except (idna.IDNAError, UnicodeError):
        return None


def _spelled(labels: list[str]) -> list[str]:
    import idna

    spelled = []
    for label in labels:
        try:
            letters = idna.ulabel(label) if label.startswith("xn--") else label
        except (idna.IDNAError, UnicodeError):
            letters = label
        spelled.append(letters)
    return [
        letters if letters == label or _is_plain(letters, spelled[-1]) else label
        for label, letters in zip(labels, spelled, strict=True)
    ]


def _is_plain(label: str, top: str) -> bool:
    """Whether a label reads as what it is. `top`: the last label of its name."""
    if _LATIN.fullmatch(label):
        return True
    scripts = {_script(letter) for letter in label} - {"COMMON"}
    if not _may_be_together(scripts) or ("ASCII" in scripts and not _LIKE_SIGNS.isdisjoint(label)):
        return False
    like_latin = next((_LIKE_LATIN[script] for script in scripts if script in _LIKE_LATIN), None)
    if like_latin is None or not like_latin.issuperset(label):
        return True
    return scripts == {_script(letter) for letter in top} - {"COMMON"}


def _may_be_together(scripts: set[str]) -> bool:
    return (len(scripts) == 1 and scripts <= _ALONE) or any(scripts <= allowed for allowed in _TOGETHER)


def _script(letter: str) -> str:
    """By the name of the character: Python has no table of scripts. An unknown one is in no combination."""
    if letter.isascii():
        return "ASCII" if letter.isalpha() else "COMMON"
    first = unicodedata.name(letter, "").partition(" ")[0]
    return _OF_NAMES.get(first, first)
