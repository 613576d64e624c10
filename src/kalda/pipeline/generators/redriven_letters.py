"""Dead letters, given again to the topics that they come from: `kalda pipeline redrive-topic` writes a project with one
flow from the topic of dead letters to those topics, and runs it up to the topic's end.

A dead letter is a record that another program could not process: a connector of Kafka Connect
(`errors.deadletterqueue.topic.name`), or a share group. Its headers say from which partition it comes; without them,
`--into` names the topic. Those headers are taken off; key, value and the other headers stay, or are changed as the user
says. A letter without key and value, and one that names no topic, is put into quarantine.

Exactly once: the offsets of a batch and its records, in transactions with the batch's number, are the checkpoint's and
the sink's. The directory is of one choice of letters: those that it does not choose are passed over, so another choice
has a directory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.engine.engine import RunOptions, RunResult
from kalda.pipeline.engine.runs import FlowReport
from kalda.pipeline.generators.generated import GeneratedDirectory, GeneratedProject, literal, options_of_side
from kalda.pipeline.generators.load import ISOLATION, TIMES
from kalda.pipeline.session import PipelineError
from kalda.pipeline.topics import TopicQuestions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIXES: Final = ("__connect.errors.", "__dlq.errors.")
_MESSAGES: Final = ("exception.message", "message")
_CHANGED: Final = ("key", "value")
_TEXT: Final = """\
\"\"\"Dead letters, each given again once. Written by `kalda pipeline redrive-topic`.\"\"\"

from pyspark import pipelines as dp

from kalda.pipeline import expect_or_drop

SOURCE = {source}
dp.create_sink("topics", "kalda", {sink})


@dp.append_flow(target="topics")
@expect_or_drop("a key or a value", "key IS NOT NULL OR value IS NOT NULL")
@expect_or_drop("a topic to give it to", "topic IS NOT NULL")
def letters():
    rows = spark.readStream.format("kalda").options(**SOURCE).load()
    rows = rows.selectExpr(
        "*",
        {origin},
        {place},
        {message},
    )
    return rows.where({where}).selectExpr(
        {key},
        {value},
        {headers},
        {topic},{partition}
    )
"""


@dataclass(frozen=True, slots=True)
class Letters:
    """Which letters are given again, and how."""

    topic: str
    options: Mapping[str, str]
    """Of the source and the sink: `kafka.bootstrap.servers` and the like."""
    where: str = "true"
    """SQL over the columns of the source, and of the headers `origin` (topic), `place` (partition), `message`."""
    changes: Mapping[str, str] | None = None
    """SQL that makes the new `key` or `value`."""
    into: str | None = None
    """The topic that gets them; None: each its own."""

    def __post_init__(self) -> None:
        others = sorted((self.changes or {}).keys() - set(_CHANGED))
        if others:
            raise PipelineError(f"--set {others[0]}: of a dead letter there are {' and '.join(_CHANGED)}")

    def project(self, name: str) -> GeneratedProject:
        changes, into = self.changes or {}, self.into
        own = " AND ".join(f"NOT startswith(h.key, '{prefix}')" for prefix in _PREFIXES)
        text = _TEXT.format(
            source=literal(
                {
                    **TIMES,
                    **options_of_side(self.options, True),
                    ISOLATION: "read_committed",
                    "subscribe": self.topic,
                    "includeHeaders": "true",
                    "startingOffsets": "earliest",
                }
            ),
            sink=literal(options_of_side(self.options, False)),
            origin=literal(f"{_header('topic')} AS origin"),
            place=literal(f"TRY_CAST({_header('partition')} AS int) AS place"),
            message=literal(f"{_header(*_MESSAGES)} AS message"),
            where=literal(self.where),
            key=literal(f"{changes.get('key', 'key')} AS key"),
            value=literal(f"{changes.get('value', 'value')} AS value"),
            headers=literal(f"filter(headers, h -> {own}) AS headers"),
            topic=literal("origin AS topic" if into is None else "'" + into + "' AS topic"),
            partition="\n        " + literal("place AS partition") + "," if into is None else "",
        )
        return GeneratedProject(name, "redrive", text, {"spark.sql.warehouse.dir": "."})


def _header(*names: str) -> str:
    """The text of the first header of one of these names, as SQL."""
    keys = ", ".join(f"'{prefix}{name}'" for prefix in _PREFIXES for name in names)
    return f"CAST(get(filter(headers, h -> h.key IN ({keys})), 0).value AS string)"


class LettersDirectory(GeneratedDirectory):
    """The state of one choice of letters."""

    def __init__(self, given: Any) -> None:
        super().__init__(given, "redrive", "redrive of dead letters", "")

    def agreed(self, letters: Letters) -> dict[str, Any]:
        """The choice as the directory keeps it. Raises `PipelineError` where it is another one than before, or the
        cluster has no such topics."""
        chosen = {key: value for key, value in asdict(letters).items() if key != "options"}
        before = {key: value for key, value in (self.state() or chosen).items() if key in chosen}
        if before != chosen:
            raise PipelineError(f"{self.path} is of other letters ({before}): name another directory")
        with TopicQuestions(options_of_side(letters.options, True)) as topics:
            topics.partitions([letters.topic, *([letters.into] if letters.into else [])])
        return chosen

    def give(self, spark: SparkSession, letters: Letters, chosen: Mapping[str, Any]) -> tuple[FlowReport, RunResult]:
        """Give the letters up to the topic's end of now again, while `alone`."""
        return self.run(spark, self.write(letters.project(self.path.name or "redrive"), chosen), RunOptions())
