"""Which tests `tools/test --changed` runs: of this tree, and since which revision."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.testing.changed import Selection, Tree, changed_files
from tools.testing.files import ROOT


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


def _below(folder: str, files: set[str]) -> set[str]:
    return {file for file in files if file.startswith(f"tests/{folder}/")}


def _all(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / folder).rglob("test_*.py")}


def _every(selection: Selection) -> set[str]:
    return selection.run | selection.system | selection.left_out


def test_a_part_of_the_panel_reaches_its_tests_and_none_of_the_controller(tree: Tree) -> None:
    selection = tree.reached(["svc/panel/sites/denied_paths.py"])

    assert "tests/panel/sites/test_visitors.py" in selection.run
    assert _below("system/panel", selection.system)
    for folder in ("controller", "nodeagent", "runtime"):
        assert not _below(folder, selection.run | selection.system)
        assert _below(folder, selection.left_out)


def test_the_store_reaches_both_services(tree: Tree) -> None:
    selection = tree.reached(["actors/svc_actors/store/database.py"])

    for folder in ("store", "panel", "controller"):
        assert _all(folder) <= selection.run | selection.system


def test_a_migration_reaches_the_tests_of_its_service(tree: Tree) -> None:
    migrations = "actors/svc_actors/store/migrations"
    panel = tree.reached([f"{migrations}/panel/0001_any.sql"])
    controller = tree.reached([f"{migrations}/controller/0001_any.sql"])
    shared = tree.reached([f"{migrations}/shared/0001_any.sql"])

    assert _all("store") | _all("panel") <= panel.run | panel.system
    assert not _below("controller", panel.run | panel.system)
    assert _all("store") | _all("controller") <= controller.run | controller.system
    assert not _below("panel", controller.run | controller.system)
    assert _all("panel") | _all("controller") <= shared.run | shared.system


def test_a_document_reaches_those_that_read_it(tree: Tree) -> None:
    selection = tree.reached(["docs/actors.md"])

    assert {"tests/registry/test_documents.py", "tests/store/test_ownership.py"} <= selection.run
    assert len(selection.run) < 12


def test_a_test_reaches_itself(tree: Tree) -> None:
    assert tree.reached(["tests/store/test_marks.py"]).run == {"tests/store/test_marks.py"}


def test_a_system_test_is_recommended_and_not_run(tree: Tree) -> None:
    file = "tests/system/network/test_rates.py"

    selection = tree.reached([file])

    assert selection.run == set()
    assert selection.nearest == {file}
    assert f"of these, the nearest: tools/test {file}" in selection.text()


def test_support_reaches_those_that_stand_on_it(tree: Tree) -> None:
    smtp = tree.reached(["tests/support/smtp.py"])

    assert _below("mail", smtp.run)
    assert not _below("store", smtp.run)


def test_a_conftest_reaches_all_below_it(tree: Tree) -> None:
    assert tree.reached(["tests/runtime/conftest.py"]).run == _all("runtime")


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("http/dashboard/src/panel/any.ts", "tests/http/pages/test_pages.py"),
        ("nodeagent/svc_webhost/wordpress/php/any.php", "tests/webhost/wordpress/test_bounds.py"),
        ("tests/store/release_before.json", "tests/store/test_release_before.py"),
        ("tools/run", "tests/tools/test_runs.py"),
        ("tools/billing/lib/any.php", "tests/billing/test_whmcs.py"),
    ],
)
def test_what_is_no_module_reaches_its_tests(tree: Tree, file: str, test: str) -> None:
    selection = tree.reached([file])

    assert test in selection.run | selection.system
    assert selection.left_out


def test_what_everything_stands_on_reaches_everything(tree: Tree) -> None:
    for file in ("requirements.lock", "pyproject.toml", "tests/conftest.py"):
        selection = tree.reached([file])
        assert selection.left_out == set()
        assert _every(selection) >= _all("panel")


def test_uncommitted_and_new_files_have_changed_since_main_too(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str) -> None:
        (tmp_path / name).write_text("text")
        git("add", name)

    git("init", "--initial-branch=main")
    for name in ("first", "second"):
        write(name)
        git("commit", "-m", name)
    assert changed_files(tmp_path, "") == ("HEAD~1", ["second"])

    git("checkout", "-b", "branch")
    write("on the branch")
    git("commit", "-m", "branch")
    write("uncommitted")
    (tmp_path / "new").touch()
    (tmp_path / "first").unlink()

    revision, files = changed_files(tmp_path, "")
    assert files == ["first", "new", "on the branch", "uncommitted"]
    assert revision != "HEAD~1"
    assert changed_files(tmp_path, "HEAD")[1] == ["first", "new", "uncommitted"]
