"""The checksum of checkpoints is zlib's, whoever computes it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dslaunch.engine.ops import artifacts, build, crc32
from dslaunch.engine.ops.crc32 import Library

SIZES = [*range(700), (1 << 16) - 1, 1 << 16, (1 << 20) + 77]


@pytest.fixture(autouse=True)
def look_anew(cache: Path) -> Iterator[None]:
    crc32._library.cache_clear()
    yield
    crc32._library.cache_clear()


@pytest.mark.parametrize("width", [0, 16, 64])
def test_every_width_agrees_with_zlib(width: int, seed: int) -> None:
    library = Library(build.build_cpu())
    if width > library.width:
        pytest.skip(f"this processor multiplies {library.width} bytes at once")
    library.width = width
    bits = random.Random(seed)
    for size in SIZES if width else SIZES[:100]:
        data, before = bytearray(bits.randbytes(size + 1)), bits.getrandbits(32)
        part = memoryview(data)[1:]  # not aligned
        if size:
            assert library.crc32(part, before) == zlib.crc32(part, before), f"seed {seed}, {size} bytes"


def test_a_flipped_bit_anywhere_is_another_checksum(seed: int) -> None:
    build.build_cpu()
    bits = random.Random(seed)
    data = bytearray(bits.randbytes(100_000))
    whole = crc32.crc32(memoryview(data))
    for _ in range(50):
        bit = bits.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        assert crc32.crc32(memoryview(data)) != whole, f"seed {seed}, bit {bit}"
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("lacking", ["nothing", "library", "function", "wanted"])
def test_without_the_library_it_is_zlib_that_sums(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build.build_cpu()
    if lacking == "wanted":
        monkeypatch.setenv("DSLAUNCH_OPS", "torch")
    elif lacking != "nothing":
        monkeypatch.setenv("DSLAUNCH_CACHE", str(tmp_path))
        if lacking == "function":
            artifacts.publish(built.name, b"of another machine")
    data = bytearray(random.randbytes(1 << 16))
    assert (crc32._library() is None) == (lacking != "nothing" or Library(built).width == 0)
    for content in (memoryview(data), memoryview(bytes(data)), bytes(data), b""):
        assert crc32.crc32(content, 7) == zlib.crc32(content, 7)
