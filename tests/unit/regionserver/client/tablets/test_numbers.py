"""Numbers of writes: ascending, within a window that the tablet can keep, with times that do not fall."""

from __future__ import annotations

import random

from regionserver.client.tablets.numbers import FALL_MS_MAX, WINDOW_MAX, WriteNumbers, writer_names
from regionserver.tablets.commands import WRITER_BYTES_MAX
from regionserver.tablets.writers import WRITER_RESULTS_MAX


def numbers(time_ms: int = 1000) -> WriteNumbers:
    made = WriteNumbers(writer_names("c"))
    made.learn(time_ms, 0.0)
    return made


def test_numbers_rise_and_done_below_is_the_oldest_unfinished_write() -> None:
    made = numbers()
    first, second = made.begin(0.0), made.begin(0.5)
    assert (first.number, first.done_below, second.number, second.done_below) == (1, 1, 2, 1)
    assert (first.began_ms, second.began_ms) == (1000, 1500)
    made.finish(first)
    assert made.begin(0.5).done_below == 2
    made.finish(second)
    assert made.begin(0.5).done_below == 3


def test_the_time_is_known_after_the_first_reply() -> None:
    made = WriteNumbers(writer_names("c"))
    assert not made.knows_time
    made.learn(5, 0.0)
    assert made.knows_time


def test_began_ms_never_falls_for_one_writer() -> None:
    rng = random.Random(1)
    made = numbers(10**9)
    latest: dict[str, int] = {}
    for step in range(2000):
        made.learn(10**9 + rng.randint(-2, 2) * FALL_MS_MAX // 2 + step, float(step))
        write = made.begin(step + rng.random())
        assert write.began_ms >= latest.get(write.writer, 0)
        latest[write.writer] = write.began_ms
        made.finish(write)


def test_a_fall_of_the_time_by_minutes_starts_a_new_writer() -> None:
    made = numbers(10 * FALL_MS_MAX)
    first = made.begin(0.0)
    made.learn(9 * FALL_MS_MAX, 0.0)
    assert made.begin(0.0).writer == first.writer
    made.learn(9 * FALL_MS_MAX - 1, 0.0)
    second = made.begin(0.0)
    assert second.writer != first.writer
    assert (second.number, second.began_ms) == (1, 9 * FALL_MS_MAX - 1)


def test_a_write_that_waits_for_long_never_costs_a_result_that_is_needed() -> None:
    made = numbers()
    stuck = made.begin(0.0)
    writers = {stuck.writer}
    for _ in range(3 * WRITER_RESULTS_MAX):
        write = made.begin(0.0)
        writers.add(write.writer)
        if write.writer == stuck.writer:
            assert write.number - stuck.number < WRITER_RESULTS_MAX
            assert write.done_below == stuck.number
        made.finish(write)
    assert len(writers) == 2
    made.finish(stuck)


def test_the_window_is_used_in_full() -> None:
    made = numbers()
    writes = [made.begin(0.0) for _ in range(WINDOW_MAX + 1)]
    assert len({one.writer for one in writes[:-1]}) == 1
    assert writes[-1].writer != writes[0].writer


def test_names_of_writers_fit() -> None:
    name = writer_names("f" * 32)
    assert len({name() for _ in range(100)}) == 100
    assert len(name()) < WRITER_BYTES_MAX
