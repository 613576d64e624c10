"""Frames: every way to cut the stream gives the same frames, and memory is allocated for what has arrived."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kalda.network import frames
from kalda.network.frames import ARENA_BYTES, GROWTH, MIN_ROOM_BYTES, Arena, BadFrameSize, FrameReader


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Read `data` as a transport would: as much as fits the room, then every whole frame."""
    frames = []
    while data:
        room = reader.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        reader.filled(count)
        while (frame := reader.next_frame()) is not None:
            frames.append(bytes(frame))
    return frames


def new_reader(max_bytes: int = 100_000_000, min_bytes: int = 1) -> FrameReader:
    return FrameReader(Arena(), max_bytes, min_bytes)


def own_bytes(reader: FrameReader) -> int:
    """Memory that this reader uses alone, beside the arena that all share."""
    return 0 if reader.in_arena else len(reader._view)


def test_split_at_every_byte() -> None:
    frames = [b"first frame", b"x", b"a third, longer frame " * 4]
    stream = framed(*frames)
    for cut in range(len(stream) + 1):
        reader = new_reader()
        assert feed(reader, stream[:cut]) + feed(reader, stream[cut:]) == frames
        assert reader.waiting_bytes == 0
        assert own_bytes(reader) == 0


def test_one_byte_at_a_time() -> None:
    frames = [b"12345678", b"abc"]
    reader = new_reader()
    got = [frame for byte in framed(*frames) for frame in feed(reader, bytes([byte]))]
    assert got == frames


@given(
    sizes=st.lists(st.sampled_from([1, 8, 100, 5_000, 70_000, 300_000]), max_size=8),
    cuts=st.lists(st.integers(1, 400_000), max_size=30),
)
def test_any_sizes_any_cuts(sizes: list[int], cuts: list[int]) -> None:
    frames = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    stream = framed(*frames)
    arena = Arena()
    readers = [FrameReader(arena, 10**9, 1), FrameReader(arena, 10**9, 1)]  # two peers, reads interleaved
    got: list[list[bytes]] = [[], []]
    pos = 0
    for cut in [*cuts, len(stream)]:
        piece = stream[pos : pos + cut]
        pos += len(piece)
        for reader, into in zip(readers, got, strict=True):
            into += feed(reader, piece)
    assert got == [frames, frames]


def test_frames_are_writable_and_disjoint() -> None:
    reader = new_reader()
    stream = framed(b"aaaa", b"bbbb")
    room = reader.room()
    room[: len(stream)] = stream
    reader.filled(len(stream))
    first, second = reader.next_frame(), reader.next_frame()
    assert first is not None
    assert second is not None
    first[:] = b"ZZZZ"
    assert bytes(second) == b"bbbb"
    feed(reader, framed(b"cccc"))
    assert (bytes(first), bytes(second)) == (b"ZZZZ", b"bbbb")


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, 1001, 2**31 - 1])
def test_sizes_outside_the_bounds(size: int) -> None:
    reader = new_reader(max_bytes=1000, min_bytes=8)
    with pytest.raises(BadFrameSize) as caught:
        feed(reader, size.to_bytes(4, "big", signed=True) + b"tail")
    assert caught.value.size == size
    assert caught.value.seen == size.to_bytes(4, "big", signed=True) + b"tail"


def test_bounds_themselves_pass() -> None:
    reader = new_reader(max_bytes=1000, min_bytes=8)
    assert feed(reader, framed(bytes(8), bytes(1000))) == [bytes(8), bytes(1000)]


def test_an_announced_size_allocates_nothing() -> None:
    reader = new_reader()
    feed(reader, (100_000_000).to_bytes(4, "big"))
    assert reader.announced_bytes == 100_000_004
    assert own_bytes(reader) <= MIN_ROOM_BYTES
    arrived = 4
    for _ in range(40):
        feed(reader, bytes(50_000))
        arrived += 50_000
        assert own_bytes(reader) <= GROWTH * arrived + MIN_ROOM_BYTES


def test_a_frame_of_a_megabyte_gets_its_memory_at_once() -> None:
    """Longer memory may have to be copied, or to be taken from the kernel again."""
    reader = new_reader()
    feed(reader, (1 << 20).to_bytes(4, "big") + bytes(MIN_ROOM_BYTES))
    assert own_bytes(reader) == 4 + (1 << 20)


def test_a_short_partial_frame_is_kept_in_memory_of_its_size() -> None:
    reader = new_reader()
    feed(reader, (100).to_bytes(4, "big") + bytes(10))
    assert own_bytes(reader) == 104


def test_room_while_complete_frames_wait() -> None:
    """A transport that still reads after reading was paused loses nothing."""
    reader = new_reader()
    stream = framed(*(bytes([n]) * 1000 for n in range(1, 9)))
    for start in range(0, len(stream), 3000):
        room = reader.room()
        piece = stream[start : start + 3000]
        room[: len(piece)] = piece
        reader.filled(len(piece))
    got = []
    while (frame := reader.next_frame()) is not None:
        got.append(bytes(frame))
    assert got == [bytes([n]) * 1000 for n in range(1, 9)]


def test_memory_of_the_arena_is_used_once() -> None:
    arena = Arena()
    one, other = FrameReader(arena, 10**9, 1), FrameReader(arena, 10**9, 1)
    kept = []
    for n in range(2 * ARENA_BYTES // 1000):
        for reader in (one, other):
            body = n.to_bytes(4, "big") * 125
            room = reader.room()
            room[: len(body) + 4] = framed(body)
            reader.filled(len(body) + 4)
            kept.append((reader.next_frame(), body))
            assert reader.next_frame() is None
    assert all(bytes(frame or b"") == body for frame, body in kept)


def test_large_memory_is_not_filled_before_it_is_read_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a frame of 8 MB, zeros are written only for its first part and for the arena."""
    filled = 0

    def counted(size: int | bytes) -> bytearray:
        nonlocal filled
        made = bytearray(size)
        filled += len(made)
        return made

    reader = new_reader()
    monkeypatch.setattr(frames, "bytearray", counted, raising=False)
    body = bytes(range(256)) * (8 * 4096)
    assert feed(reader, framed(body)) == [body]
    assert filled <= ARENA_BYTES + 2 * MIN_ROOM_BYTES


def test_the_memory_of_a_frame_grows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived is copied once, out of the arena; a view that is in use has it copied again."""
    copied = []
    move = FrameReader._move

    def counted(reader: FrameReader, capacity: int) -> None:
        copied.append(reader.waiting_bytes)
        move(reader, capacity)

    monkeypatch.setattr(FrameReader, "_move", counted)
    body = bytes(range(256)) * (8 * 4096)
    for in_use in (False, True):
        copied.clear()
        reader, stream = new_reader(), memoryview(framed(body))
        frame = used = None
        while stream:
            room = reader.room()
            count = min(len(room), len(stream), 200_000)
            room[:count] = stream[:count]
            stream = stream[count:]
            if in_use:
                used = room
            del room
            reader.filled(count)
            frame = reader.next_frame()
        assert frame == body
        assert (len(copied) == 1) is not in_use, used
