"""A run of `tools/test` on small trees: what it runs, what it repeats, what it reports, and what it leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools.testing.files import ROOT

_UNUSED_PLUGINS = ("anyio", "hypothesispytest", "schemathesis", "trio")
"""They take three quarters of the time in which pytest starts."""
_SETTINGS = (
    f"[pytest]\naddopts = --import-mode=importlib {' '.join(f'-p no:{name}' for name in _UNUSED_PLUGINS)}\n"
    "markers =\n    system\n    isolated\n    own_host\n"
)
_MARKED = {
    "unit": "",
    "host": "pytestmark = pytest.mark.system\n",
    "isolated": "pytestmark = [pytest.mark.system, pytest.mark.isolated]\n",
    "own": "pytestmark = [pytest.mark.system, pytest.mark.own_host]\n",
}
_PASSES_AT_THE_SECOND_ATTEMPT = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_one(number):
    mark = pathlib.Path(f"{{__file__}}.{{number}}")
    there = mark.exists()
    mark.touch()
    print("second" if there else "first", "output of", number)
    assert there
"""
_NO_CHECKS = (
    "import sys; from tools.testing import __main__, checks; checks.CHECKS.clear(); sys.exit(__main__.main({}))"
)

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of its own with the same tools, and no tests yet."""
    # Other tests' Pythons replace what they compile meanwhile.
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tools" / "testing", tmp_path / "tools" / "testing", ignore=compiled)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "times.toml").touch()
    (tmp_path / "tests" / "flaky.toml").touch()
    (tmp_path / "pytest.ini").write_text(_SETTINGS)
    return tmp_path


def _command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-c", _NO_CHECKS.format(arguments)]


def _environment() -> dict[str, str]:
    """Without what pytest and its workers have set for the tests that run now."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SVC_TESTS_"))}


@pytest.fixture
def run(tree: Path) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = _command(*arguments)
        return subprocess.run(command, cwd=tree, env=_environment(), capture_output=True, text=True, timeout=240)

    return run


def _write(tree: Path, file: str, text: str) -> None:
    path = tree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _report(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.rpartition("= report =")[2]


def test_each_test_runs_once_whatever_it_needs(tree: Path, run: Run) -> None:
    for kind, marks in _MARKED.items():
        for letter in "ab":
            _write(
                tree,
                f"tests/test_{kind}_{letter}.py",
                f"import pytest\n{marks}\ndef test_one():\n    open('ran', 'a').write('{kind}_{letter}\\n')\n",
            )
    _write(tree, "tests/times.toml", '[unit]\n"tests/test_unit_a.py" = 40\n[host]\n"tests/test_gone.py" = 9\n')

    done = run()

    assert done.returncode == 0, done.stdout + done.stderr
    ran = (tree / "ran").read_text().split()
    assert sorted(ran) == sorted(f"{kind}_{letter}" for kind in _MARKED for letter in "ab")
    assert ran[0] == "unit_b", "the slow file waits beside the lanes of system tests"
    report = _report(done)
    assert "8 passed, 0 failed, 0 skipped" in report
    assert re.findall(r"^  ([a-z0-9-]+) +[0-9.]+ min", report, re.MULTILINE) == [
        "unit",
        "system-1",
        "system-2",
        "system-3",
    ]


def test_the_fast_part_has_everything_without_hosts(tree: Path, run: Run) -> None:
    for name, marks in (("slow", ""), ("fast", ""), ("host", _MARKED["host"])):
        _write(tree, f"tests/test_{name}.py", f"import pytest\n{marks}\ndef test_one():\n    pass\n")
    _write(tree, "tests/times.toml", '[unit]\n"tests/test_slow.py" = 40\n')

    done = run("--fast")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 0 failed, 0 skipped" in _report(done)


def test_what_passes_at_the_second_attempt_fails_the_run_and_is_named_with_both_outputs(tree: Path, run: Run) -> None:
    _write(tree, "tests/test_a.py", _PASSES_AT_THE_SECOND_ATTEMPT.format(tests=2))

    done = run("--fast")

    assert done.returncode == 1
    report = (tree / "build" / "tests" / "report.txt").read_text()
    assert report.startswith("=" * 40 + " report")
    assert "FLAKY  tests/test_a.py::test_one[0]: passed at the second attempt only; not in tests/flaky.toml" in report
    assert re.search(r"SVC_FAULT_SEED=\w+", report)
    for number in (0, 1):
        assert f"first output of {number}" in report
        assert f"second output of {number}" in report


def test_what_the_ledger_knows_may_pass_at_the_second_attempt(tree: Path, run: Run) -> None:
    entries = ("tests/test_a.py", "tests/test_b.py::test_one", "tests/test_c.py::test_one[0]")
    for entry in entries:
        _write(tree, entry.partition("::")[0], _PASSES_AT_THE_SECOND_ATTEMPT.format(tests=1))
    listed = (f'[[flaky]]\ntest = "{entry}"\nseen = 2026-01-31\nwhy = "It waits."\n' for entry in entries)
    _write(tree, "tests/flaky.toml", "\n".join(listed))

    done = run("--fast")

    assert done.returncode == 0, done.stdout + done.stderr
    assert _report(done).count("passed at the second attempt only; in tests/flaky.toml") == 3


def test_what_must_hold_under_any_timing_gets_no_second_attempt(tree: Path, run: Run) -> None:
    for folder in ("runtime", "store", "faults"):
        _write(tree, f"tests/{folder}/test_{folder}.py", _PASSES_AT_THE_SECOND_ATTEMPT.format(tests=1))

    done = run("--fast")

    assert done.returncode == 1
    assert "second attempt" not in done.stdout
    assert "0 passed, 3 failed, 0 skipped" in _report(done)


def test_failures_in_many_files_are_no_accident(tree: Path, run: Run) -> None:
    for letter in "abcdefg":
        _write(tree, f"tests/test_{letter}.py", _PASSES_AT_THE_SECOND_ATTEMPT.format(tests=1))

    done = run("--fast")

    assert done.returncode == 1
    assert "second attempt" not in done.stdout
    assert "0 passed, 7 failed" in _report(done)


@pytest.mark.parametrize("how", ["os._exit(1)", "pytest.skip('not now')"])
def test_a_second_attempt_that_does_not_pass_fails_the_run(tree: Path, run: Run, how: str) -> None:
    again = f"import os, pathlib, pytest\ndef test_one():\n    if pathlib.Path('ran').exists():\n        {how}\n"
    _write(tree, "tests/test_a.py", again + "    pathlib.Path('ran').touch()\n    assert False\n")

    done = run("--fast")

    assert done.returncode == 1
    assert "tests/test_a.py::test_one" in _report(done)


def test_what_fails_twice_fails_the_run_which_tells_why_and_all_else_that_fails(tree: Path, run: Run) -> None:
    _write(tree, "tests/test_a.py", "def test_one():\n    assert 1 + 1 == 3\n")
    host_test = f"import pytest\n{_MARKED['host']}def test_one():\n    assert 2 + 2 == 5\n"
    _write(tree, "tests/test_b.py", host_test)

    done = run()

    assert done.returncode == 1
    assert "second attempt" in done.stdout
    report = _report(done)
    assert "FLAKY" not in report
    for file, reason in (("a", "(1 + 1) == 3"), ("b", "(2 + 2) == 5")):
        assert f"FAILED tests/test_{file}.py::test_one\n    E       assert {reason}" in report


def test_a_file_that_cannot_be_read_fails_the_run_alone(tree: Path, run: Run) -> None:
    _write(tree, "tests/test_a.py", "import nothing_of_that_name\n")
    _write(tree, "tests/test_b.py", "def test_one():\n    pass\n")
    _write(tree, "tests/test_c.py", f"import pytest\n{_MARKED['host']}def test_one():\n    pass\n")

    done = run()

    assert done.returncode == 1
    report = _report(done)
    assert "FAILED tests/test_a.py\n    E   ModuleNotFoundError: No module named 'nothing_of_that_name'" in report
    assert "2 passed, 1 failed, 0 skipped" in report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_cut_off_reports_and_leaves_no_process(tree: Path, number: signal.Signals) -> None:
    """The test that it cuts off has started a daemon, in a session of its own, that takes no notice of signals."""
    daemon = "trap '' INT TERM HUP; echo $$ >ready; while :; do sleep 1000; done"
    _write(
        tree,
        "tests/test_waits.py",
        "import pathlib, subprocess, threading\n"
        "def test_first():\n    pass\n"
        "def test_waits():\n"
        "    results = pathlib.Path('build/tests/unit/results-1.jsonl')\n"
        "    while not results.exists() or results.read_text().count('test_first') < 3:\n"
        "        threading.Event().wait(0.05)\n"
        f"    subprocess.Popen(['sh', '-c', {daemon!r}], start_new_session=True)\n"
        "    threading.Event().wait()\n",
    )
    os.mkfifo(tree / "ready")
    run = subprocess.Popen(_command("--fast"), cwd=tree, env=_environment(), stdout=subprocess.PIPE, text=True)
    daemon_pid = int((tree / "ready").read_text())

    run.send_signal(number)
    output, _ = run.communicate(timeout=120)

    assert run.returncode == 1
    report = output.rpartition("= report =")[2]
    assert f"CUT OFF by {number.name}" in report
    assert "1 passed" in report
    assert "killed: sh -c trap" in report
    assert not Path(f"/proc/{daemon_pid}").exists()


def test_times_are_refreshed_from_what_a_run_measured(tree: Path, run: Run) -> None:
    _write(tree, "tests/test_new.py", "import pytest\npytestmark = pytest.mark.system\ndef test_one():\n    pass\n")
    _write(tree, "tests/test_old.py", "def test_one():\n    pass\n")
    _write(tree, "tests/times.toml", '[unit]\n"tests/test_gone.py" = 50\n"tests/test_old.py" = 50\n')
    assert run().returncode == 0

    done = run("--times")

    assert done.returncode == 0, done.stderr
    written = (tree / "tests" / "times.toml").read_text()
    assert written.startswith("# ")
    assert written.endswith('\n[host]\n"tests/test_new.py" = 1\n')
    assert "test_old" not in written, "a unit test of less than a second is as good as unlisted"


def test_help_installs_nothing(tree: Path) -> None:
    """On a machine that has a shell and nothing else."""
    shutil.copy(ROOT / "tools" / "test", tree / "tools" / "test")
    (tree / "bin").mkdir()
    for program in ("cat", "dirname", "sh"):
        found = shutil.which(program)
        assert found
        (tree / "bin" / program).symlink_to(found)

    done = subprocess.run(
        [tree / "tools" / "test", "--help"], env={"PATH": str(tree / "bin")}, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tools/test  ")
    assert not (tree / ".venv").exists()
