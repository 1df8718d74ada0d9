"""Copy jobs of a destination: states, figures, limits."""

from __future__ import annotations

from regionserver.tablets.copying.jobs import ENDED_MAX, IN_MAX, QUEUED_MAX, CopyJobs
from regionserver.tablets.copying.messages import CopyState


def test_a_job_counts_the_time_in_which_it_receives() -> None:
    jobs = CopyJobs()
    job = jobs.add("t", 2, "s1", 1000)
    assert job.shown(1000).state is CopyState.QUEUED
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


def test_a_job_is_queued_until_another_one_ends() -> None:
    jobs = CopyJobs()
    added = [jobs.add(f"t{number}", 2, "s1", 0) for number in range(IN_MAX + QUEUED_MAX)]
    assert not jobs.has_room()
    for job in added[:IN_MAX]:
        assert jobs.next() is job
        job.enter(CopyState.WAITING, 1)
    assert jobs.next() is None
    assert jobs.count() == IN_MAX
    jobs.end(added[1], CopyState.FAILED, 5, "the source has died")
    assert jobs.has_room()
    assert jobs.next() is added[IN_MAX]
    assert jobs.of("t1") is None
    assert jobs.of("t2") is added[2]
    assert jobs.find(added[2].job) is added[2]
    assert jobs.find(added[1].job) is None


def test_a_job_goes_first_whose_source_serves_the_fewest() -> None:
    jobs = CopyJobs()
    sources = ["s1", "s1", "s1", "s2", "s2", "s3"]
    for number, source in enumerate(sources):
        jobs.add(f"t{number}", 2, source, 0)
    order = []
    while (job := jobs.next()) is not None:
        job.enter(CopyState.ROWS, 1)
        order.append(job.tablet)
    assert order == ["t0", "t3", "t5", "t1"]


def test_the_last_ended_jobs_are_kept() -> None:
    jobs = CopyJobs()
    for number in range(ENDED_MAX + 5):
        jobs.end(jobs.add("t", 2, "s1", number), CopyState.FAILED, number, "why")
    running = jobs.add("u", 2, "s1", 0)
    shown = jobs.shown(0)
    assert len(shown) == ENDED_MAX + 1
    assert [one.job for one in shown] == list(range(running.job, running.job - ENDED_MAX - 1, -1))
