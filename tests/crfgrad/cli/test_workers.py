"""Several images at a time."""

import os
import time
from pathlib import Path

import pytest
import torch

from crfgrad.cli.errors import CommandError
from crfgrad.cli.workers import each


def _inverse(number: int) -> tuple[float, int]:
    return 1 / number, os.getpid()


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_items_come_back_with_what_was_returned_or_raised(jobs: int) -> None:
    found = dict(each(_inverse, [4, 0, 2, 1, 5], jobs))
    assert isinstance(found.pop(0), ZeroDivisionError)
    assert {number: value for number, (value, _) in found.items()} == {4: 0.25, 2: 0.5, 1: 1, 5: 0.2}
    assert (os.getpid() in {process for _, process in found.values()}) == (jobs == 1)


def test_a_process_that_is_ended_from_outside() -> None:
    with pytest.raises(CommandError, match=r"ended from outside, .* fewer --jobs; the same command goes on"):
        list(each(os._exit, [1, 1, 1], 2))


def _end_at_three(number: int) -> None:
    if number == 3:
        time.sleep(0.3)  # the first two are finished by then
        os._exit(1)


def test_what_was_at_work_is_named() -> None:
    with pytest.raises(CommandError, match=r"at work on (2 or )?3( or \d+)?: give fewer"):
        list(each(_end_at_three, [1, 2, 3, *range(4, 50)], 2))


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_process_keeps_its_threads(jobs: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert len(list(each(_inverse, [4, 2], jobs))) == 2
        assert torch.get_num_threads() == 2
        results = each(_inverse, [4, 2], jobs)
        next(results)
        assert torch.get_num_threads() == 1
        results.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def _touch(path: Path) -> None:
    time.sleep(0.05)
    path.touch()


def test_who_stops_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    items = [tmp_path / str(number) for number in range(60)]
    results = each(_touch, items, 2)
    assert next(results)[1] is None
    results.close()
    finished = len(list(tmp_path.iterdir()))
    assert 1 <= finished < 30
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == finished
