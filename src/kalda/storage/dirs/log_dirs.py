"""The log directories of a node: which there are, which of them are online, and where a new log goes.

A directory goes offline with the first error of its disk, and the node goes on with the others. The error may come up
in a job, in a log, or in the directory's own files: each way ends in `fail`, which acts once. A file that could merely
not be opened (`NoHandleLeft`) is no error of the disk where the same is done again later, as checkpoints are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from kalda.base.disk import Disk, NoHandleLeft
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid, is_reserved
from kalda.storage.checkpoints import mark_failed
from kalda.storage.dirs.log_dir import LogDir, LogDirDescription
from kalda.storage.job import Job
from kalda.storage.log.state import LogState

logger = logging.getLogger("kalda.logs")

T = TypeVar("T")
LogT = TypeVar("LogT", bound=LogState)


def _nothing(_: object) -> None:
    pass


class LogDirs:
    """In the order of `log.dirs`."""

    def __init__(
        self,
        disks: Mapping[str, Disk],
        on_failed: Callable[[LogDir, OSError], None],
        *,
        locks: bool,
        corrupt_bytes: int,
    ) -> None:
        """`disks`: by the directories' paths; `on_failed`: called when a directory has just been taken offline;
        `corrupt_bytes`: of what recoveries have cut off, so much is kept in each."""
        self._dirs = [LogDir(disk, path, locks=locks, corrupt_bytes=corrupt_bytes) for path, disk in disks.items()]
        self._on_failed = on_failed

    def __iter__(self) -> Iterator[LogDir]:
        return iter(self._dirs)

    def __getitem__(self, at: int) -> LogDir:
        return self._dirs[at]

    def __len__(self) -> int:
        return len(self._dirs)

    @property
    def all_online(self) -> bool:
        """Whether no directory has failed: where one has, a log that is not found may be in it."""
        return all(directory.online for directory in self._dirs)

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last clean stop; -1 where it was not clean everywhere."""
        epochs = {directory.previous_broker_epoch for directory in self._dirs if directory.online}
        return epochs.pop() if len(epochs) == 1 else -1

    def holder(self, log: LogState) -> LogDir | None:
        """The directory that holds the files of `log`, by their path."""
        return next((each for each in self._dirs if log.directory.startswith(each.path + "/")), None)

    def choose(self, directory_id: Uuid | None, planned: Mapping[str, int] = MappingProxyType({})) -> LogDir:
        """Where a new log goes: to the directory of that id; where the id is none or reserved, to the one with the
        fewest logs of those that are not cordoned. `planned`: how many more logs each path is about to get.

        Raises KAFKA_STORAGE_ERROR where that directory is offline, or all are.
        """
        online = [directory for directory in self._dirs if directory.online]
        if directory_id is not None and not is_reserved(directory_id):
            for directory in online:
                if directory.directory_id == directory_id:
                    return directory
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory with id {directory_id.hex()} is online")
        if not online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        # The controller gives no replica to a broker whose directories are all cordoned; a replica that it gave before
        # that has to be somewhere.
        free = [directory for directory in online if not directory.cordoned] or online
        return min(free, key=lambda directory: len(directory.logs) + planned.get(directory.path, 0))

    # Failures

    def fail(self, directory: LogDir, error: OSError) -> None:
        """The disk failed: the directory is offline from now on."""
        if directory.online:
            directory.take_offline()
            mark_failed(directory.disk, directory.path)
            self._on_failed(directory, error)

    def fail_of(self, log: LogState, error: OSError) -> None:
        """The disk failed under `log`."""
        directory = self.holder(log)
        if directory is not None:
            self.fail(directory, error)

    def guard(self, log: LogT, visit: Callable[[LogT], object]) -> None:
        """Call `visit`. A disk that fails under one log takes its directory offline, and raises nothing: the other logs
        are still to be visited. Where no file can be opened, the next visit is to do what this one could not."""
        try:
            visit(log)
        except NoHandleLeft as error:
            logger.warning("%s: %s", log.topic_partition, error)
        except OSError as error:
            self.fail_of(log, error)  # raised where a visit reads files itself, as retention does
        except ApiError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise

    def job(
        self, directory: LogDir, description: str, work: Callable[[], T], finish: Callable[[T], None] = _nothing
    ) -> Job[None]:
        """A job whose `OSError` takes the directory offline, and raises nothing."""
        return Job(description, work, finish).on_failure(lambda error: self.fail(directory, error))

    def whole_job(self, directory: LogDir, job: Job[None]) -> Job[None]:
        """`job`, of that directory, whose `OSError` in either half takes the directory offline, and raises nothing."""

        def finish(_: None) -> None:
            try:
                job.finish()
            except OSError as error:
                self.fail(directory, error)

        return self.job(directory, job.description, job.run, finish)

    def checkpoint_job(self, directory: LogDir, job: Job[None]) -> Job[None]:
        """`job`, of that directory, likewise; and what its `finish` raises. Where no file can be opened, the next one
        writes the checkpoint."""

        def failed(error: OSError) -> None:
            if isinstance(error, NoHandleLeft):
                logger.warning("%s: %s", job.description, error)
            else:
                self.fail(directory, error)

        def finish(_: None) -> None:
            if directory.online:
                try:
                    job.finish()
                except OSError as error:
                    failed(error)

        return Job(job.description, job.run, finish).on_failure(failed)

    def describe_job(self) -> Job[list[LogDirDescription]]:
        """A job that asks the file systems for space, and describes every directory."""
        asked = [directory for directory in self._dirs if directory.online]
        return Job(
            "describe the log directories",
            lambda: {directory.path: directory.space() for directory in asked},
            lambda spaces: [each.describe(spaces.get(each.path, (-1, -1))) for each in self._dirs],
        )
