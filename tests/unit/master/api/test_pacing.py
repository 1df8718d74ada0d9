"""An answer that took long is given again for some time."""

from __future__ import annotations

from master.api.pacing import REPEATED_FOR, SPARED_MS, Paced


class Clock:
    """Time that passes while a walk runs."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def test_walks_take_a_small_part_of_the_time() -> None:
    clock = Clock()
    walks: list[int] = []

    def walk() -> int:
        walks.append(clock.now_ms)
        clock.now_ms += 1_000
        return len(walks)

    paced: Paced[int] = Paced(clock)
    master = object()
    for _ in range(1000):
        paced.get(master, walk)
        clock.now_ms += 125
    passed = clock.now_ms
    assert len(walks) == -(-passed // (1_000 * (1 + REPEATED_FOR)))
    assert paced.get(master, walk) == len(walks)


def test_an_answer_that_took_little_time_is_never_repeated() -> None:
    clock = Clock()
    walks: list[int] = []

    def walk() -> int:
        walks.append(clock.now_ms)
        clock.now_ms += SPARED_MS - 1
        return len(walks)

    paced: Paced[int] = Paced(clock)
    assert [paced.get(paced, walk) for _ in range(10)] == list(range(1, 11))


def test_an_answer_is_about_one_tenure() -> None:
    clock = Clock()

    def slow() -> int:
        clock.now_ms += 1_000
        return clock.now_ms

    paced: Paced[int] = Paced(clock)
    first, second = object(), object()
    assert paced.get(first, slow) == paced.get(first, slow) == 1_000
    assert paced.get(second, slow) == 2_000
