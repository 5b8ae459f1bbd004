"""What a change reaches other than by imports: from migrations, pages, documents, tools, and by reading sources.

A test that reads a file by its name needs no line here: a changed file that is no module reaches the tests, and the
support modules, that contain its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final


@dataclass(frozen=True)
class Rule:
    changed: str
    """A pattern of paths; its * matches / as well."""
    tests: tuple[str, ...] = ()
    """Patterns of test files."""
    modules: tuple[str, ...] = ()
    """Modules that stand for what has changed."""


_ALL: Final = "tests/*"
_OF_DOCUMENTS: Final = (
    "tests/registry/test_documents.py",
    "tests/cli/test_documented_commands.py",
    "tests/cli/test_log_events.py",
)
_OF_SOURCES: Final = (
    *_OF_DOCUMENTS,
    "tests/webhost/test_site_commands.py",
    "tests/store/test_marked_services.py",
    "tests/store/test_ownership.py",
)
"""They compare lists in documents and in themselves with the whole product."""
_OF_PAGES: Final = ("tests/http/pages/*", "tests/system/*pages*", "tests/system/panel/pages/*")

RULES: Final = (
    Rule("pyproject.toml", tests=(_ALL,)),
    Rule("requirements.lock", tests=(_ALL,)),
    Rule("actors/svc_actors/store/migrations/*", tests=("tests/store/*",), modules=("svc_actors.store.migrate",)),
    Rule("http/dashboard/*", tests=_OF_PAGES),
    Rule("*.md", tests=_OF_DOCUMENTS),
    Rule("svc/*.py", tests=_OF_SOURCES),
    Rule("actors/*.py", tests=_OF_SOURCES),
    Rule("http/*.py", tests=_OF_SOURCES),
    Rule("console/*.py", tests=_OF_SOURCES),
    Rule("nodeagent/*.py", tests=_OF_SOURCES),
    Rule("tools/*", tests=("tests/tools/*",)),
    Rule("tools/billing/*", tests=("tests/billing/*",)),
    Rule("tools/monitoring/*", tests=("tests/service/controller/test_monitoring.py",)),
    Rule("tests/times.toml", tests=("tests/tools/test_dealing.py",)),
    Rule("tests/words.toml", tests=("tests/tools/test_words.py",)),
    Rule("tests/flaky.toml", tests=("tests/tools/test_dealing.py",)),
)

_SERVICES: Final = (
    # The sources of one service, and the folders of tests of the other one alone. lint-imports proves that neither
    # imports the other. The import graph connects them, since some modules serve both: the command line, and the tests'
    # support.
    (
        (
            *("svc/controller/", "svc/service/controller/", "actors/svc_actors/controller/"),
            "actors/svc_actors/store/migrations/controller/",
        ),
        ("tests/panel/", "tests/service/panel/", "tests/webhost/", "tests/system/panel/"),
    ),
    (
        (
            *("svc/panel/", "svc/cli/panel/", "svc/service/panel/"),
            *("actors/svc_actors/panel/", "nodeagent/svc_webhost/"),
            "actors/svc_actors/store/migrations/panel/",
        ),
        (
            "tests/controller/",
            "tests/service/controller/",
            "tests/nodeagent/",
            "tests/system/network/",
            "tests/system/live/",
        ),
    ),
)


def rules_for(path: str) -> Iterator[Rule]:
    return (rule for rule in RULES if fnmatchcase(path, rule.changed))


def of_the_other_service(path: str) -> tuple[str, ...]:
    """Folders of tests that a change of this file does not reach, whatever the import graph says."""
    return next((tests for product, tests in _SERVICES if path.startswith(product)), ())
