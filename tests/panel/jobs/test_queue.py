"""Slots and turns: how many run at a time, of whom, and who is next."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from svc_actors.panel.jobs import JobClass, JobQueue, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.jobs.queue import RunningJob, WaitingJob, pick
from svc_actors.panel.jobs.records import running_jobs
from svc_actors.store import Database, Transaction
from tests.panel.jobs.work import Held, Steps, ended, nothing, open_jobs, queue

SITES = [UUID(int=number) for number in range(1, 7)]
PEOPLE = [UUID(int=number) for number in range(101, 105)]


class Sampled:
    """Work that looks, while it runs, at what else does."""

    def __init__(self) -> None:
        self.now: list[tuple[JobClass, UUID | None]] = []
        self.most = dict.fromkeys(JobClass, 0)
        self.shared_a_site = False

    async def work(self, run: JobRun) -> None:
        mine = (run.job.job_class, run.job.site_id)
        self.now.append(mine)
        for _ in range(20):
            for job_class in JobClass:
                self.most[job_class] = max(self.most[job_class], sum(of is job_class for of, _ in self.now))
            sites = [site for _, site in self.now if site is not None]
            self.shared_a_site |= len(sites) > len(set(sites))
            await trio.lowlevel.checkpoint()
        self.now.remove(mine)


async def test_no_class_has_more_running_than_its_slots_and_no_site_two(panel_database: Database) -> None:
    sampled = Sampled()
    async with open_jobs(panel_database, work=Steps(work=sampled.work)) as jobs:
        queued = [
            # Of sites that several classes work at, and enough of others to fill the slots.
            await queue(
                panel_database,
                "work",
                "work",
                job_class=job_class,
                site=SITES[number % (6 if job_class is JobClass.SITES else 2)],
            )
            for number in range(12)
            for job_class in JobClass
        ]
        for job_id in queued:
            assert (await ended(jobs, panel_database, job_id)).status is JobStatus.SUCCEEDED

    # That three of the sites' do run side by side is seen below, where they are held.
    slots = {JobClass.BACKUPS: 1, JobClass.MIGRATIONS: 1, JobClass.SYSTEM: 1, JobClass.SITES: 3}
    assert {of: most for of, most in sampled.most.items() if not 1 <= most <= slots[of]} == {}
    assert not sampled.shared_a_site


async def test_any_number_of_long_jobs_of_one_person_leave_the_next_person_a_slot_at_once(
    panel_database: Database,
) -> None:
    """Deployments may build for a quarter of an hour each, and a repair of somebody else does not wait for them."""
    held = Held()
    [ada, eve] = [await person(panel_database, name) for name in ("ada", "eve")]
    async with open_jobs(panel_database, work=Steps(hold=held.hold)):
        hers = [
            await queue(panel_database, "work", "hold", job_class=JobClass.SITES, site=SITES[number % 4], owner=ada)
            for number in range(100)
        ]
        await held.until(lambda: len(held.now) == 2)
        late = await queue(panel_database, "work", "hold", job_class=JobClass.SITES, site=SITES[4], owner=eve)
        await held.until(lambda: len(held.now) == 3)
        # The two slots are filled at once, in either order.
        assert sorted(held.begun) == sorted([*hers[:2], late])

        held.release(late)
        await held.until(lambda: len(held.now) == 2)
        held.release(hers[0])
        await held.until(lambda: len(held.begun) == 4)

    assert held.begun[3] in hers


@pytest.mark.parametrize("job_class", [JobClass.BACKUPS, JobClass.MIGRATIONS, JobClass.SYSTEM])
async def test_where_one_runs_at_a_time_people_take_turns(panel_database: Database, job_class: JobClass) -> None:
    held = Held()
    [ada, eve] = [await person(panel_database, name) for name in ("ada", "eve")]
    async with open_jobs(panel_database, work=Steps(hold=held.hold)):
        hers = [await queue(panel_database, "work", "hold", job_class=job_class, owner=ada) for _ in range(3)]
        await held.until(lambda: held.begun == hers[:1])
        theirs = [await queue(panel_database, "work", "hold", job_class=job_class, owner=eve) for _ in range(2)]

        held.release(*hers, *theirs)
        await held.until(lambda: len(held.begun) == 5)

    assert held.begun == [hers[0], theirs[0], hers[1], theirs[1], hers[2]]


async def test_a_site_that_another_class_works_at_is_waited_for(panel_database: Database) -> None:
    held = Held()
    async with open_jobs(panel_database, work=Steps(hold=held.hold)):
        backup = await queue(panel_database, "work", "hold", job_class=JobClass.BACKUPS, site=SITES[0])
        await held.until(lambda: held.begun == [backup])
        deletion = await queue(panel_database, "work", "hold", job_class=JobClass.SITES, site=SITES[0])
        elsewhere = await queue(panel_database, "work", "hold", job_class=JobClass.SITES, site=SITES[1])
        await held.until(lambda: held.begun == [backup, elsewhere])

        held.release(backup)
        await held.until(lambda: held.begun == [backup, elsewhere, deletion])


async def test_of_two_classes_that_reach_for_a_site_at_the_same_moment_one_gets_it(panel_database: Database) -> None:
    held = Held()
    classes = list(JobClass)
    for number in range(5):
        site = UUID(int=number + 1)
        queued = [await queue(panel_database, "work", "hold", job_class=of, site=site) for of in classes]
        async with open_jobs(panel_database, work=Steps(hold=held.hold)) as jobs:
            for _ in classes:
                await held.until(lambda: len(held.now) == 1)
                held.release(*held.now)
                await held.until(lambda: not held.now or held.most > 1)
            for job_id in queued:
                assert (await ended(jobs, panel_database, job_id)).status is JobStatus.SUCCEEDED

    assert held.most == 1


async def test_a_job_whose_beginning_was_stored_though_nobody_heard_so_is_begun(panel_database: Database) -> None:
    """The answer to the commit is lost with its connection."""
    async with open_jobs(panel_database, work=Steps(work=nothing)) as jobs:
        job_id = await queue(panel_database, "late", "work", job_class=JobClass.SYSTEM)
        failed = await ended(jobs, panel_database, job_id)
        await panel_database.execute(
            "UPDATE jobs SET kind = 'work', status = 'running', error = NULL, ended_at = NULL WHERE id = $1", failed.id
        )
        await panel_database.execute(
            "UPDATE job_steps SET status = 'running', error = NULL WHERE job_id = $1", failed.id
        )

        await jobs.queue_of(JobClass.SYSTEM).ask(JobQueue.start_next)

        assert (await ended(jobs, panel_database, job_id)).status is JobStatus.SUCCEEDED


async def test_a_job_that_was_rolled_back_never_begins(panel_database: Database) -> None:
    async def change_that_fails(tx: Transaction) -> None:
        await enqueue(tx, NewJob("work", "Never", JobClass.SYSTEM, ("hold",)))
        raise ZeroDivisionError

    held = Held()
    async with open_jobs(panel_database, work=Steps(hold=held.hold)) as jobs:
        with pytest.raises(ZeroDivisionError):
            await panel_database.transact(change_that_fails)
        after = await queue(panel_database, "work", "hold")
        held.release(after)
        await ended(jobs, panel_database, after)

    assert held.begun == [after]


async def person(database: Database, name: str) -> UUID:
    user_id: UUID = await database.fetchval(
        "INSERT INTO users (email, name, role, password_hash) VALUES ($1, $1, 'customer', 'x') RETURNING id",
        f"{name}@example.com",
    )
    return user_id


waiting = st.lists(
    st.builds(
        WaitingJob,
        id=st.integers(1, 1000),
        site_id=st.sampled_from([None, *SITES]),
        owner_id=st.sampled_from([None, *PEOPLE]),
        owner_turn=st.integers(0, 5),
        flow_turn=st.integers(0, 5),
    ),
    max_size=12,
    unique_by=lambda job: job.id,
)
running = st.lists(
    st.builds(
        RunningJob,
        id=st.integers(1001, 2000),
        job_class=st.sampled_from(JobClass),
        site_id=st.sampled_from([None, *SITES]),
        owner_id=st.sampled_from([None, *PEOPLE]),
    ),
    max_size=6,
)


@given(st.sampled_from(JobClass), waiting, running)
def test_what_is_picked_fits_the_slots_and_the_sites_and_keeps_one_for_somebody_else(
    job_class: JobClass, jobs: list[WaitingJob], held: list[RunningJob]
) -> None:
    chosen = [next(job for job in jobs if job.id == job_id) for job_id in pick(job_class, jobs, held)]

    busy = {job.site_id for job in held if job.site_id is not None}
    sites = [job.site_id for job in chosen if job.site_id is not None]
    used = sum(job.job_class is job_class for job in held)
    left = [job for job in jobs if job not in chosen and job.site_id not in busy | set(sites)]
    assert len(set(chosen)) == len(chosen)
    assert not busy & set(sites)
    assert len(set(sites)) == len(sites)
    assert used + len(chosen) <= max(job_class.slots, used)
    free = job_class.slots - used - len(chosen)
    holders = {job.owner_id for job in held if job.job_class is job_class} | {job.owner_id for job in chosen}
    keeps_the_last = job_class.slots > 1 and free == 1 and all(job.owner_id in holders - {None} for job in left)
    assert free <= 0 or left == [] or keeps_the_last
    assert job_class.slots == 1 or not chosen or free > 0 or len(holders) > 1 or None in holders


@given(st.integers(1, 4), st.integers(0, 20), st.data())
def test_whoever_comes_is_begun_within_a_job_of_each_other_person(
    others: int, before: int, data: st.DataObject
) -> None:
    """The others have jobs without end, of as many sites as they like."""
    people, late = PEOPLE[:others], uuid4()
    turns: dict[object, int] = {}
    begun: list[UUID] = []
    for turn in range(1, before + others + 2):
        coming = [*people, late] if turn > before else people
        waits = [
            WaitingJob(number * 10 + site, None, owner, turns.get(owner, 0), turns.get((owner, site), 0))
            for number, owner in enumerate(coming)
            for site in range(1 if owner == late else 3)
        ]
        heads: list[WaitingJob] = data.draw(st.permutations(waits))

        [chosen] = pick(JobClass.SYSTEM, heads, [])

        owner = coming[chosen // 10]
        turns[owner] = turns[owner, chosen % 10] = turn
        begun.append(owner)

    assert late in begun[before:]
    # Their own sites take turns as well.
    for owner in people:
        sites = [site for site in range(3) if (owner, site) in turns]
        assert len(sites) == min(begun.count(owner), 3)


async def test_a_job_that_is_being_done_is_not_begun_a_second_time(panel_database: Database) -> None:
    held = Held()
    async with open_jobs(panel_database, work=Steps(hold=held.hold)) as jobs:
        job_id = await queue(panel_database, "work", "hold")
        await held.until(lambda: held.begun == [job_id])
        [begun] = await running_jobs(panel_database)

        with capture_logs() as lines:
            jobs.host(begun)
            await trio.testing.wait_all_tasks_blocked()
        held.release(job_id)
        job = await ended(jobs, panel_database, job_id)

    assert job.status is JobStatus.SUCCEEDED
    assert held.begun == [job_id]
    told = [(line["event"], line["log_level"], line["job_id"]) for line in lines if line["event"] == "job.begun_twice"]
    assert told == [("job.begun_twice", "error", job_id)]
