from array import array

from kalda.records.batch import Buffer

COMPILED: bool

class RecordScan:
    def __init__(
        self,
        count: int,
        base_timestamp: int,
        earliest: int,
        latest: int,
        keys_required: bool,
        faults: array[int],
    ) -> None: ...
    def feed(self, piece: Buffer) -> None: ...
    def finish(self) -> None: ...
    def result(self) -> tuple[int, int, int, int]: ...
