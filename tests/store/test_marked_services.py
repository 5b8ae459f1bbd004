"""What a service gives out is marked in the database, so that its loss is noticed: none is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors/svc_actors", "svc")
UNMARKED = {"svc/cli/backup.py": "`rewound` forgets the marks, after a step back that was ordered"}
INSERTED = re.compile(r"\bINSERT INTO ([a-z_]+)")
STATEMENTS = {"execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchone", "change"}
ALONE = {
    "authority": "made at the first start, before anybody could be told of it",
    "console_tickets": "last seconds",
    "event": "moved from the inbox, where a transaction wrote it",
    "idempotency_keys": "remembered outside the database (CommitMarks.note_key)",
    "job_lines": "what a job said: the job itself is marked",
    "node_images": "said again by the node",
    **dict.fromkeys(("list_changes", "list_counts", "sign_in_attempts"), "counts"),
}
"""Tables whose rows are added without a transaction, and why the loss of one harms nobody."""

HARMLESS = {
    "actors/svc_actors/controller/machines/observing.py": "what hosts say is said again",
    "actors/svc_actors/controller/nodes/live_figures.py": "figures of a minute",
    "actors/svc_actors/controller/tasks/records.py": "lines of a task's log; its start and its end are marked",
    "actors/svc_actors/controller/traffic/readings.py": "the node's own counts, which only grow",
    "actors/svc_actors/panel/accounts/disk_use.py": "measured again",
    "actors/svc_actors/panel/accounts/traffic.py": "read again from the log, with its cursor",
    "actors/svc_actors/panel/health/records.py": "checked again",
}
"""Where transactions write what leaves no mark, and why its loss harms nobody."""


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield path.relative_to(ROOT), node


def test_whoever_is_the_only_service_on_a_database_marks_what_it_commits() -> None:
    using: dict[str, set[str]] = {"exclusive": set(), "marked": set()}
    for path, call in calls():
        if isinstance(call.func, ast.Name) and call.func.id in using:
            using[call.func.id].add(str(path))

    assert len(using["marked"]) == 2
    assert using["exclusive"] - using["marked"] == set(UNMARKED)


def test_what_is_given_out_is_written_in_transactions() -> None:
    """Which leave a mark; a statement on the pool alone leaves none."""
    alone = set()
    for _, call in calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in STATEMENTS and call.args:
            receiver = ast.unparse(call.func.value)
            if receiver not in ("tx", "transaction"):
                alone |= set(INSERTED.findall(ast.unparse(call.args[0])))

    assert alone == set(ALONE)


def test_what_leaves_no_mark_is_known() -> None:
    unmarked = {
        str(path) for path, call in calls() if isinstance(call.func, ast.Attribute) and call.func.attr == "unmarked"
    }

    assert unmarked == set(HARMLESS)
