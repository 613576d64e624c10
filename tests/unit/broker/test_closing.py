"""Parts of a node are closed in their order, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kalda.base.scheduling import Pending
from kalda.broker.process.closing import Closing, Ending, Part
from kalda.broker.process.shell import wait_settled

CLEAN = Ending(is_clean=True, has_failed=False)


class Parts:
    """Parts that note that they were closed."""

    def __init__(self) -> None:
        self.closing = Closing()
        self.closed: list[Part] = []

    def add(self, part: Part, error: BaseException | None = None) -> None:
        def close(ending: Ending) -> None:
            assert ending is CLEAN
            self.closed.append(part)
            if error is not None:
                raise error

        async def close_later(ending: Ending) -> None:
            await asyncio.sleep(0)
            close(ending)

        kinds: tuple[Callable[[Ending], Awaitable[None] | None], ...] = (close, close_later)
        self.closing.add(part, kinds[part % 2])


def test_the_order_is_that_of_the_parts_and_not_of_the_start() -> None:
    parts = Parts()
    made = [Part.TIMERS, Part.SERVER, Part.QUORUM, Part.CHANNELS, Part.CHANNELS, Part.LOGS, Part.MODULES]
    for part in made:
        parts.add(part)
    asyncio.run(parts.closing.run(CLEAN))
    assert parts.closed == sorted(made)


def test_a_start_that_has_failed_leaves_nothing_else_to_close() -> None:
    asyncio.run(Closing().run(CLEAN))


@pytest.mark.parametrize("error", [OSError("no disk"), asyncio.CancelledError()])
def test_the_others_are_closed_where_one_fails(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts()
    parts.add(Part.SERVER, error)
    parts.add(Part.LOGS, ZeroDivisionError("another"))
    parts.add(Part.QUORUM)
    with pytest.raises(type(error)):
        asyncio.run(parts.closing.run(CLEAN))
    assert parts.closed == [Part.SERVER, Part.LOGS, Part.QUORUM]
    assert caplog.messages == ["the logs of this node could not be closed, too"]


def test_a_process_that_ends_in_the_middle_closes_nothing_more() -> None:
    """As the simulator ends one: its coroutines are dropped."""
    parts = Parts()
    never: Pending[None] = Pending()
    parts.closing.add(Part.SERVER, lambda _: wait_settled(never))
    parts.add(Part.LOGS)

    async def begin_and_drop() -> None:
        running = parts.closing.run(CLEAN)
        running.send(None)
        running.close()

    asyncio.run(begin_and_drop())
    assert parts.closed == []
