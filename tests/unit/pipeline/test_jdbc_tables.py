"""Tables that a JDBC sink makes in a database: two flows may make the same one at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from kalda.pipeline.jdbc import _Connection


class _Database:
    """A connection's Java side: knows which tables there are, and refuses as PostgreSQL does."""

    def __init__(self) -> None:
        self.tables: set[str] = set()
        self.before_making: Callable[[], None] = lambda: None

    def createStatement(self) -> _Database:  # noqa: N802 - Java's name
        return self

    def execute(self, sql: str) -> None:
        words = sql.split()
        if words[0] == "SELECT":
            if words[3] not in self.tables:
                raise self._refused("42P01")
        else:
            self.before_making()
            if words[2] in self.tables:
                raise self._refused("42P07")
            self.tables.add(words[2])

    def _refused(self, state: str) -> Py4JJavaError:
        return Py4JJavaError("", SimpleNamespace(_target_id="o1", getSQLState=lambda: state))

    def close(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


def test_a_table_that_another_flow_makes_first_is_taken_as_it_is() -> None:
    database = _Database()
    connection = _Connection(database, str)

    def make() -> None:
        connection.execute("CREATE TABLE batches (app VARCHAR(100))")

    assert connection.make("batches", make)
    assert not connection.make("batches", make)
    database.tables.clear()
    database.before_making = lambda: database.tables.add("batches")
    assert not connection.make("batches", make)


def test_a_table_that_cannot_be_made_is_an_error() -> None:
    connection = _Connection(_Database(), str)

    def make() -> None:
        raise ValueError("no right to make tables")

    with pytest.raises(ValueError, match="no right"):
        connection.make("batches", make)
