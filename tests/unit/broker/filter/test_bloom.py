"""The Bloom filter, against positions that a broker of RocketMQ wrote into consumerFilter.json."""

import pytest

from aerobee.broker.filter.bloom import BloomFilter, mask_of, murmur3_low


def test_the_defaults_are_3_of_112_bits():
    assert (BloomFilter().bits_per_group, BloomFilter().bit_count) == (3, 112)


@pytest.mark.parametrize(
    ("group", "positions"),
    [("CG_one", (28, 31, 52)), ("CG_two", (38, 103, 56)), ("CG_dead", (16, 21, 26))],
)
def test_positions_are_rocketmqs(group, positions):
    assert BloomFilter().positions(group, "FilterTopic") == positions


def test_bits_count_from_the_lowest_of_the_first_byte():
    assert mask_of((28, 31, 52)).to_bytes(14, "little").hex() == "00000090000010" + "00" * 7


def test_murmur3_of_whole_blocks_and_tails():
    # Reference values of MurmurHash3_x64_128, seed 0.
    assert murmur3_low(b"") == 0
    assert murmur3_low(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3_low(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C
