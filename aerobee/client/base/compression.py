"""Body compression, encoded in bits of sys_flag (message.py). Pure.

ZLIB is a zlib stream, LZ4 the LZ4 frame format, ZSTD a zstd frame. Source: CompressorFactory (RocketMQ 5).
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

from aerobee.client.base.config import Compression
from aerobee.errors import MalformedRecord
from aerobee.message import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

DECOMPRESSED_BYTES_MAX = (
    64 * 1024 * 1024
)  # bodies have 4 MiB at most; a larger result is a decompression bomb

SYS_FLAG = {
    Compression.ZLIB: COMPRESSED | COMPRESSION_ZLIB,
    Compression.LZ4: COMPRESSED | COMPRESSION_LZ4,
    Compression.ZSTD: COMPRESSED | COMPRESSION_ZSTD,
}


def compress(body: bytes, kind: Compression, level: int) -> tuple[bytes, int]:
    """Return the bytes to store and their compression bits for sys_flag: uncompressed where compression saves
    nothing."""
    if kind is Compression.NONE:
        return body, 0
    if kind is Compression.ZLIB:
        packed = zlib.compress(body, level)
    elif kind is Compression.LZ4:
        packed = lz4.frame.compress(body, compression_level=level if level > 3 else 0)
    else:
        packed = zstandard.ZstdCompressor(level=level).compress(body)
    return (packed, SYS_FLAG[kind]) if len(packed) < len(body) else (body, 0)


def decompress(body: bytes, sys_flag: int, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the plain body. Raises MalformedRecord when the bytes do not match sys_flag's algorithm, or decompress
    to more than `limit`."""
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind in (0, COMPRESSION_ZLIB):
            zlib_stream = zlib.decompressobj()
            plain = zlib_stream.decompress(body, limit)
            whole = zlib_stream.eof
        elif kind == COMPRESSION_LZ4:
            lz4_stream = lz4.frame.LZ4FrameDecompressor()
            plain = lz4_stream.decompress(body, limit)
            whole = lz4_stream.eof
        elif kind == COMPRESSION_ZSTD:
            with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                plain = reader.read(limit)
                whole = not reader.read(1)
        else:
            raise MalformedRecord(f"compression type {kind >> 8} of sys_flag {sys_flag:#x} is not known")
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise MalformedRecord(f"a body of {len(body)} bytes does not decompress: {error}") from error
    if not whole:
        raise MalformedRecord(
            f"a body of {len(body)} bytes is cut off or decompresses to more bytes than {limit}"
        )
    return plain
