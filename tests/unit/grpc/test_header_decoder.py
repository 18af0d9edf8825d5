"""The decoder of header blocks compared with the package hpack, and what a peer can make it keep."""

from __future__ import annotations

import random

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from aerobee.grpc import huffman, request_headers
from aerobee.grpc.frame_scanner import DATA, PREFACE, FrameScanner
from aerobee.grpc.header_decoder import HeaderBlockMalformed, HeaderDecoder, HeaderListTooLarge
from aerobee.grpc.huffman import decode_huffman
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.request_headers import HeaderField
from tests.unit.grpc.raw_peer import frame

LIST_BYTES_MAX = 16_384


def decoded(decoder: HeaderDecoder, block: bytes) -> list[tuple[bytes, bytes]] | type[Exception]:
    """The headers of a block, or why there are none."""
    try:
        return [(field.name, field.value) for field in decoder.decode(block)]
    except (HeaderBlockMalformed, HeaderListTooLarge) as error:
        return type(error)


def test_blocks_of_another_encoder_are_decoded() -> None:
    pick = random.Random(7)
    for _ in range(50):
        encoder, decoder = Encoder(), HeaderDecoder(4_096, LIST_BYTES_MAX)
        for _ in range(20):
            if pick.random() < 0.1:
                encoder.header_table_size = pick.choice((0, 60, 500, 4_096))
            headers = [
                (pick.choice((b":path", b"te", b"x-a", b"x-" + pick.randbytes(3))), pick.randbytes(pick.choice((0, 1, 9, 300))))
                for _ in range(pick.randint(0, 12))
            ]  # fmt: skip
            assert decoded(decoder, bytes(encoder.encode(headers, huffman=pick.random() < 0.7))) == headers


def test_damaged_blocks_are_refused_where_another_decoder_refuses_them() -> None:
    pick = random.Random(8)
    refused = 0
    for _ in range(3_000):
        block = bytearray(
            Encoder().encode([(b":path", b"/a"), (b"x-name", pick.randbytes(8)), (b"te", b"trailers")])
        )
        for _ in range(pick.randint(1, 3)):
            block[pick.randrange(len(block))] = pick.randrange(256)
        other = Decoder(max_header_list_size=LIST_BYTES_MAX)
        try:
            expected = [(bytes(name), bytes(value)) for name, value in other.decode(bytes(block), raw=True)]
        except HPACKError:
            refused += 1
            assert isinstance(decoded(HeaderDecoder(4_096, LIST_BYTES_MAX), bytes(block)), type)
        else:
            assert decoded(HeaderDecoder(4_096, LIST_BYTES_MAX), bytes(block)) == expected
    assert refused > 100


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x1f\xff", b"\x00", b"\x1c"])
def test_a_text_that_is_no_huffman_code_is_refused(data: bytes) -> None:
    """The end of a text, too much padding, and padding with zeros."""
    with pytest.raises(ValueError, match="Huffman"):
        decode_huffman(data)


def test_a_list_is_refused_before_an_index_behind_its_limit() -> None:
    decoder = HeaderDecoder(4_096, 100)
    assert decoded(decoder, b"\x83\x83\x83\xfe") is HeaderListTooLarge
    assert decoded(decoder, b"\x83\xfe") is HeaderBlockMalformed


class CountedTable(list[HeaderField]):
    """A table that counts how often a header is looked up."""

    lookups = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
        self.lookups += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("field", [b"\x83", b"\xbe"], ids=["static", "empty header of the table"])
def test_a_wrong_index_behind_many_headers_costs_no_more_than_its_bytes(field: bytes) -> None:
    """Each header before the limit had the whole rest of the block looked up again: 16 KiB took 90 ms."""
    decoder = HeaderDecoder(4_096, LIST_BYTES_MAX)
    assert decoded(decoder, b"\x40\0\0") == [(b"", b"")]
    decoder._table = table = CountedTable(decoder._table)
    assert decoded(decoder, field * 16_000 + b"\xfe") is HeaderListTooLarge
    assert table.lookups < 2 * 16_000


def test_the_table_for_requests_stays_below_its_size() -> None:
    decoder, encoder = HeaderDecoder(4_096, LIST_BYTES_MAX), Encoder()
    for number in range(500):
        decoder.decode(bytes(encoder.encode([(f"x-{number}", "v" * (number % 200))])))
        assert sum(field.size for field in decoder._table[62:]) == decoder._entries_bytes <= 4_096


def test_what_is_remembered_of_texts_and_names_is_bounded() -> None:
    pick = random.Random(9)
    for _ in range(20_000):
        decoded(HeaderDecoder(4_096, LIST_BYTES_MAX), b"\x00\x88" + pick.randbytes(8) + b"\x00")
    assert len(huffman._steps) <= huffman._STEPS_MAX
    assert len(request_headers._names) <= request_headers._NAMES_MAX


def test_a_peer_cannot_displace_what_others_send() -> None:
    """A peer that sent thousands of odd names and texts made all others slow until the server's next start."""
    pick = random.Random(10)
    for _ in range(20_000):
        decoded(HeaderDecoder(4_096, LIST_BYTES_MAX), b"\x00\x88" + pick.randbytes(8) + b"\x00")
    block = bytes(Encoder().encode([("x-mq-client-id", "host@1")]))
    assert decoded(HeaderDecoder(4_096, LIST_BYTES_MAX), block) == [(b"x-mq-client-id", b"host@1")]
    assert b"x-mq-client-id" in request_headers._names
    node, steps = 0, []
    for byte in HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(b"host@1"):
        steps.append(node << 8 | byte)
        node = huffman._steps.get(steps[-1], (0, b""))[0]
    assert all(step in huffman._steps for step in steps)


def test_the_scanner_forgets_frames_that_were_taken() -> None:
    scanner = FrameScanner(Http2Limits(), 0.0)
    scanner.feed(PREFACE + frame(DATA, bytes(10_000), stream=1) * 20 + b"\0")
    scanner.take_preface()
    while scanner.next_frame(0.0):
        pass
    assert (scanner.kept_bytes, len(scanner._data)) == (1, 1)
