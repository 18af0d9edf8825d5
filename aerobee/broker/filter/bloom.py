"""The Bloom filter of the extended queue entry: the groups whose SQL92 filters accepted a message, in 14 bytes.

Follows BloomFilter, BloomFilterData and BitsArray of RocketMQ. A group that subscribes to a topic by SQL92 has `k` bits
of `m`; for each of them that takes a message these bits are set in the message's entry. A pull then skips entries
without its bits and needs not read their records; if all bits are set they may belong to other groups, so the record is
read.

    k = ceil(log2(1/f)), m = ceil(n * log2(1/f) * log2(e)) rounded up to 8, for error rate f and n groups
    h = low 64 bits of MurmurHash3_x64_128(group "#" topic); bit i = h1 + i * h2 as a Java int, made positive, mod m
    bit b is bit b % 8 of byte b // 8, lowest first
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_WORD = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomFilter:
    """Sizes for an error rate in percent and an expected number of groups (maxErrorRateOfBloomFilter,
    expectConsumerNumUseFilter). Defaults give 3 of 112 bits.
    """

    error_percent: int = 20
    group_count: int = 32

    @property
    def bits_per_group(self) -> int:
        """How many bits each group sets (k of the literature)."""
        return math.ceil(math.log(self.error_percent / 100, 0.5))

    @property
    def bit_count(self) -> int:
        """How many bits a message's bitmap has (m), a multiple of 8."""
        rate = self.error_percent / 100
        bits = math.ceil(self.group_count * math.log2(1 / rate) * math.log2(math.e))
        return (bits + 7) // 8 * 8

    def positions(self, group: str, topic: str) -> tuple[int, ...]:
        """The bits of a group's filter on a topic."""
        low = murmur3_low(f"{group}#{topic}".encode(errors="replace"))
        first, second = _int32(low), _int32(low >> 32)
        found = []
        for number in range(1, self.bits_per_group + 1):
            value = _int32(first + number * second)
            found.append((value if value >= 0 else ~value) % self.bit_count)
        return tuple(found)


def mask_of(positions: tuple[int, ...]) -> int:
    """Bits as one number: an entry's bitmap read as a little-endian number has bit b at 1 << b."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def murmur3_low(data: bytes) -> int:
    """The low 64 bits of MurmurHash3_x64_128 with seed 0 (Guava's murmur3_128().hash().asLong())."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (_rotated(h1, 27) + h2) & _WORD
        h1 = (h1 * 5 + 0x52DCE729) & _WORD
        h2 ^= _mix2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (_rotated(h2, 31) + h1) & _WORD
        h2 = (h2 * 5 + 0x38495AB5) & _WORD
    h2 ^= _mix2(int.from_bytes(data[whole + 8 :], "little"))
    h1 ^= _mix1(int.from_bytes(data[whole : whole + 8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _WORD
    h2 = (h2 + h1) & _WORD
    return (_final(h1) + _final(h2)) & _WORD


def _mix1(value: int) -> int:
    return _rotated(value * _C1 & _WORD, 31) * _C2 & _WORD


def _mix2(value: int) -> int:
    return _rotated(value * _C2 & _WORD, 33) * _C1 & _WORD


def _rotated(value: int, count: int) -> int:
    return ((value << count) | (value >> (64 - count))) & _WORD


def _final(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _WORD
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _WORD
    return value ^ value >> 33
