"""A release that is tried is kept when it proves itself; otherwise, and whatever interrupts it, the one before runs."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from svc_webhost.releases import layout
from svc_webhost.releases.layout import PACKAGE
from svc_webhost.releases.switch import PATIENCE, STEADY_SECONDS
from tests.panel.releases.played_server import GOOD, NEW, Behaviour, PowerCut, Tried, tried


def test_a_release_that_answers_steadily_is_kept(tmp_path: Path) -> None:
    server = tried(tmp_path, Behaviour(starts_after=30))

    server.run()

    outcome = server.releases.outcome()
    assert outcome is not None
    assert (outcome.kept, outcome.job, outcome.silent) == (True, 7, ())
    assert server.releases.current() == server.server.runs == NEW
    assert server.releases.trial() is None
    assert server.server.now >= 30 + STEADY_SECONDS


FAULTS: dict[str, tuple[Behaviour, str]] = {
    "does not start": (Behaviour(refuses=True), "its core does not start: the last words"),
    "is given up by systemd": (Behaviour(fails=True), "its core does not start"),
    "starts and ends after a while": (Behaviour(ends_after=15), "its core answered, and ended after that"),
    "hangs": (Behaviour(starts_after=1e9), f"its core does not answer within {PATIENCE:.0f} s"),
    "has no web tier": (Behaviour(web=False), "its web tier does not answer"),
    "is another one than was ordered": (Behaviour(calls_itself="1.0.5-" + 12 * "c"), "the core that answers is of"),
    "takes sites down": (Behaviour(silent=("b.example.com",)), "1 sites answered before and do not now: b.example.com"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_release_that_fails_the_one_before_runs_again(tmp_path: Path, fault: str) -> None:
    how, reason = FAULTS[fault]
    server = tried(tmp_path, how)

    server.run()

    outcome = server.releases.outcome()
    assert outcome is not None
    assert outcome.kept is False
    assert outcome.reason is not None
    assert reason in outcome.reason
    assert server.releases.current() == server.server.runs == GOOD
    assert server.releases.returned_to(GOOD)
    assert server.releases.trial() is None
    assert server.server.now < PATIENCE + STEADY_SECONDS + 60


def test_who_was_slow_once_is_not_given_up_and_has_to_be_steady_anew(tmp_path: Path) -> None:
    server = tried(tmp_path)
    web = server.server.behaviours[NEW]

    def be_slow_at_ten_seconds(_: str) -> None:
        web.web = not 10 <= server.server.now < 12

    server.server.at_each = be_slow_at_ten_seconds
    server.run()

    outcome = server.releases.outcome()
    assert outcome is not None
    assert outcome.kept
    assert server.server.now >= 12 + STEADY_SECONDS


def test_the_packages_own_release_is_gone_back_to(tmp_path: Path) -> None:
    server = tried(tmp_path, Behaviour(refuses=True), order=False)
    server.releases.switch(PACKAGE)
    server.server.runs = PACKAGE
    server.releases.order(layout.Trial(8, NEW, PACKAGE, "this-boot", "/run/core.sock", layout.Ports(7443, 80)))

    server.run()

    assert server.releases.current() == server.server.runs == PACKAGE


def test_an_order_of_before_a_reboot_is_not_taken_up(tmp_path: Path) -> None:
    server = tried(tmp_path)
    server.boot = "another-boot"

    server.run()

    assert server.releases.current() == server.server.runs == GOOD
    assert not server.releases.ordered()
    assert server.releases.outcome() is None


def test_a_release_that_takes_the_server_down_is_tried_once(tmp_path: Path) -> None:
    server = tried(tmp_path)

    def cut(step: str) -> None:
        if step == "sleep":
            raise PowerCut

    server.server.at_each = cut
    with pytest.raises(PowerCut):
        server.run()
    server.server.at_each = lambda _: None
    reboot(server)
    server.run()

    outcome = server.releases.outcome()
    assert outcome is not None
    assert outcome.reason is not None
    assert "interrupted" in outcome.reason
    assert server.releases.current() == server.server.runs == GOOD


class FullDisk:
    """No file can be written below `root`; links and names can be changed, as on ext4."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.full = True
        open_ = Path.open

        def opened(path: Path, *arguments: Any, **named: Any) -> Any:
            if self.full and path.is_relative_to(root) and arguments == ("w",):
                raise OSError(ENOSPC, "No space left on device")
            return open_(path, *arguments, **named)

        patch.setattr(Path, "open", opened)


@pytest.mark.parametrize("how", [Behaviour(), Behaviour(refuses=True)], ids=["good", "bad"])
def test_on_a_full_disk_a_trial_ends_as_on_another_and_is_written_down_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Behaviour
) -> None:
    server = tried(tmp_path, how)
    disk = FullDisk(server.releases.root, monkeypatch)
    runs = GOOD if how.refuses else NEW
    meanwhile: list[tuple[str | None, bool]] = []

    def give_room_an_hour_later(step: str) -> None:
        if step == "sleep" and server.server.now > 3600:
            meanwhile.append((server.server.runs, server.releases.returned_to(GOOD)))
            disk.full = False

    server.server.at_each = give_room_an_hour_later
    server.run()

    outcome = server.releases.outcome()
    assert meanwhile == [(runs, True)]
    assert outcome is not None
    assert (outcome.kept, server.server.runs, server.releases.current()) == (not how.refuses, runs, runs)
    assert how.refuses is False or "its core does not start" in str(outcome.reason)
    assert server.releases.trial() is None
    assert sum("it is retried" in line for line in server.said) == 1


def reboot(server: Tried) -> None:
    server.boot = "another-boot"
    server.server.boot()


def killed(server: Tried) -> None:
    """The program that switches alone: what runs goes on."""


class Interruption:
    """Interrupts at the step of a number: before anything that is done to the server, and to its files."""

    def __init__(self, number: int, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._left = number
        self.interrupted = False
        for name in ("rename", "unlink", "symlink_to", "open"):
            patch.setattr(Path, name, self._guarded(getattr(Path, name), root))

    def step(self, _: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.interrupted = True
            raise PowerCut

    def _guarded(self, act: Callable[..., object], root: Path) -> Callable[..., object]:
        def guarded(path: Path, *arguments: object, **named: object) -> object:
            if path.is_relative_to(root) and (act.__name__ != "open" or arguments == ("w",)):
                self.step("files")
            return act(path, *arguments, **named)

        return guarded


@pytest.mark.parametrize("after", [killed, reboot])
@pytest.mark.parametrize("how", [Behaviour(), Behaviour(refuses=True)], ids=["good", "bad"])
def test_an_interruption_at_any_step_ends_in_one_release_that_runs_and_an_outcome_that_says_which(
    tmp_path: Path, how: Behaviour, after: Callable[[Tried], None]
) -> None:
    interruptions = kept = 0
    for number in range(1, 500):
        server = tried(tmp_path / str(number), how)
        with pytest.MonkeyPatch.context() as patch:
            interruption = Interruption(number, server.releases.root, patch)
            server.server.at_each = interruption.step
            try:
                server.run()
            except PowerCut:
                after(server)
        server.server.at_each = lambda _: None
        server.run()
        if not interruption.interrupted:
            break
        interruptions += 1

        outcome = server.releases.outcome()
        untouched = outcome is None and after is reboot
        assert server.releases.trial() is None
        assert not server.releases.ordered()
        assert server.releases.current() == server.server.runs
        assert untouched or (outcome is not None and outcome.kept == (server.server.runs == NEW))
        assert server.server.runs == GOOD or (how.refuses is False and server.server.runs == NEW)
        kept += server.server.runs == NEW

    assert interruptions > 12
    assert kept >= (0 if how.refuses else 1)


def test_of_older_releases_the_last_two_are_kept_and_what_was_half_made_is_not(tmp_path: Path) -> None:
    server = tried(tmp_path, order=False)
    others = [f"0.{number}.0-{12 * 'd'}" for number in (8, 9, 10)]
    for name in (*others, f"2.0.0-{12 * 'e'}", f"{NEW}.part"):
        (server.releases.releases / name).mkdir()
    (server.releases.releases / f"{NEW}.tar.gz.part").write_text("half of an archive")

    server.releases.prune()

    assert server.releases.names() == [*others[1:], GOOD]
    assert sorted(each.name for each in server.releases.releases.iterdir()) == sorted([*others[1:], GOOD])
