"""An answer that took long is given again for some time."""

from __future__ import annotations

from master.api.pacing import REPEATED_FOR, SPARED_S, Paced


class Clock:
    """Time that passes while a walk runs."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_walks_take_a_tenth_of_the_time() -> None:
    clock = Clock()
    walks: list[float] = []

    def walk() -> int:
        walks.append(clock.now_s)
        clock.now_s += 1.0
        return len(walks)

    paced: Paced[int] = Paced(clock)
    master = object()
    for _ in range(1000):
        paced.get(master, walk)
        clock.now_s += 0.125
    passed = clock.now_s
    assert len(walks) == -(-passed // (1 + REPEATED_FOR))
    assert paced.get(master, walk) == len(walks)


def test_an_answer_that_took_little_time_is_never_repeated() -> None:
    clock = Clock()
    walks: list[float] = []

    def walk() -> int:
        walks.append(clock.now_s)
        clock.now_s += SPARED_S * 0.999
        return len(walks)

    paced: Paced[int] = Paced(clock)
    assert [paced.get(paced, walk) for _ in range(10)] == list(range(1, 11))


def test_an_answer_is_about_one_tenure() -> None:
    clock = Clock()

    def slow() -> float:
        clock.now_s += 1.0
        return clock.now_s

    paced: Paced[float] = Paced(clock)
    first, second = object(), object()
    assert paced.get(first, slow) == paced.get(first, slow) == 1.0
    assert paced.get(second, slow) == 2.0
