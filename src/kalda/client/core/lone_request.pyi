class LoneRequest:
    batch_size: int
    record_bound: int
    def __init__(self, prefix: bytes, memory: bytearray) -> None: ...
    def encode(
        self,
        correlation_id: int,
        producer_id: int,
        epoch: int,
        sequence: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
    ) -> bytes | None: ...
