"""Errors that cross the border of a process, or are copied, say the same there."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from kinds_of_errors import EXAMPLES, fail_in_a_worker, raised_by_kalda

from kalda.base.errors import ErrorCode, KafkaError

WAYS: dict[str, Callable[[Any], Any]] = {
    **{
        f"pickle {protocol}": lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def said(error: BaseException) -> tuple[object, ...]:
    state = {name: value if isinstance(value, int | str) else str(value) for name, value in vars(error).items()}
    return type(error), str(error), error.args, state


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_the_same(error: KafkaError, way: Callable[[Any], Any]) -> None:
    error.add_note("seen in a test")
    assert said(way(error)) == said(error)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_errors_of_all_kinds_do(way: Callable[[Any], Any]) -> None:
    kinds = set(raised_by_kalda())
    assert {type(error) for error in EXAMPLES} < kinds
    for kind in kinds:
        error = kind.__new__(kind)
        error.args = ("INVALID_REQUEST: the third field",)
        vars(error).update(message="the third field", code=ErrorCode.INVALID_REQUEST, extra=[1])
        again = way(error)
        assert said(again) == said(error), kind


def test_errors_of_the_workers_of_a_pool_come_back() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        for index, error in enumerate(EXAMPLES):
            with pytest.raises(type(error)) as caught:
                pool.submit(fail_in_a_worker, index).result(60)
            assert str(caught.value) == str(error)
