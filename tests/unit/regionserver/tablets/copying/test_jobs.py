"""Copy jobs of a destination: states, figures, limits."""

from __future__ import annotations

from regionserver.tablets.copying.jobs import ENDED_MAX, IN_MAX, CopyJobs
from regionserver.tablets.copying.messages import CopyState


def test_a_job_counts_the_time_in_which_it_receives() -> None:
    jobs = CopyJobs()
    job = jobs.begin("t", 2, "s1", 1000)
    assert job.shown(1000).state is CopyState.WAITING
    job.enter(CopyState.WAITING, 2000, "the source is busy")
    assert job.shown(2000).reason == "the source is busy"
    job.expected = 5000
    job.enter(CopyState.ROWS, 10_000)
    job.received = 2000
    shown = job.shown(12_000)
    assert (shown.rate, shown.received, shown.expected, shown.reason) == (1000, 2000, 5000, "")
    job.enter(CopyState.CHECKING, 14_000)
    assert job.shown(99_000).rate == 500
    job.enter(CopyState.LOG, 100_000)
    job.received = 6000
    assert job.shown(102_000).rate == 1000
    # The log has grown meanwhile.
    assert job.shown(102_000).expected == 6000
    jobs.end(job, CopyState.DONE, 103_000)
    (shown,) = jobs.shown(200_000)
    assert (shown.state, shown.began_ms, shown.ended_ms) == (CopyState.DONE, 1000, 103_000)
    assert (jobs.counts[CopyState.DONE], jobs.received) == (1, 6000)


def test_the_limit_of_running_jobs() -> None:
    jobs = CopyJobs()
    running = [jobs.begin(f"t{number}", 2, "s1", 0) for number in range(IN_MAX)]
    assert not jobs.has_slot()
    jobs.end(running[1], CopyState.FAILED, 5, "the source has died")
    assert jobs.has_slot()
    assert jobs.of("t1") is None
    assert jobs.of("t2") is running[2]
    assert jobs.find(running[2].job) is running[2]
    assert jobs.find(running[1].job) is None
    assert len(list(jobs.running())) == IN_MAX - 1


def test_the_last_ended_jobs_are_kept() -> None:
    jobs = CopyJobs()
    for number in range(ENDED_MAX + 5):
        jobs.end(jobs.begin("t", 2, "s1", number), CopyState.FAILED, number, "why")
    running = jobs.begin("u", 2, "s1", 0)
    shown = jobs.shown(0)
    assert len(shown) == ENDED_MAX + 1
    assert [one.job for one in shown] == list(range(running.job, running.job - ENDED_MAX - 1, -1))
