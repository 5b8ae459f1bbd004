"""Jobs: slow work in steps, a few jobs at a time. Jobs end with the core that runs them (docs/jobs.md).

Why: docs/decisions/0047-jobs-and-schedules.md.
"""

from svc_actors.panel.jobs.jobs import Jobs
from svc_actors.panel.jobs.queue import JobQueue, require_turn
from svc_actors.panel.jobs.records import (
    INTERRUPTED,
    Job,
    JobClass,
    JobError,
    JobStatus,
    Line,
    NewJob,
    Step,
    enqueue,
    get_job,
    hand_over_jobs,
    read_lines,
    steps_of,
    wake_queues,
)
from svc_actors.panel.jobs.run import JobRun, ProgramFailed, Read

__all__ = [
    "INTERRUPTED",
    "Job",
    "JobClass",
    "JobError",
    "JobQueue",
    "JobRun",
    "JobStatus",
    "Jobs",
    "Line",
    "NewJob",
    "ProgramFailed",
    "Read",
    "Step",
    "enqueue",
    "get_job",
    "hand_over_jobs",
    "read_lines",
    "require_turn",
    "steps_of",
    "wake_queues",
]
