"""Decodes texts of header blocks in HPACK's Huffman code. Core. Source: RFC 7541, 5.2 and appendix B.

The code is canonical: codes of one length count up in the order of their symbols, so that the lengths alone define it.
"""

from __future__ import annotations

# Bits of each symbol's code; the last one is the end of a text, which must not occur in a text.
_CODE_BITS = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
)  # fmt: skip
_END_OF_TEXT = 256
_PADDING_BITS_MAX = 7
_STEPS_MAX = 4_096  # remembered; clients send few of the 65,536. What a hostile peer had remembered is forgotten in between.


def _make_tree() -> list[list[int]]:
    """The inner nodes, the root first: for each bit the next node, or a symbol as ~symbol."""
    nodes = [[0, 0]]
    code = previous_bits = 0
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(_CODE_BITS)):
        code <<= bits - previous_bits
        previous_bits = bits
        at = 0
        for shift in range(bits - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[at][bit]:
                nodes[at][bit] = len(nodes)
                nodes.append([0, 0])
            at = nodes[at][bit]
        nodes[at][code & 1] = ~symbol
        code += 1
    return nodes


_NODES = _make_tree()


def _padding_nodes() -> frozenset[int]:
    """Where a text may end: at the root, and behind at most seven ones."""
    found = [0]
    for _ in range(_PADDING_BITS_MAX):
        found.append(_NODES[found[-1]][1])
    return frozenset(found)


_ENDS = _padding_nodes()
_steps: dict[
    int, tuple[int, bytes]
] = {}  # (node, byte) -> the next node, and the symbols that end on the way


def decode_huffman(data: bytes) -> bytes:
    """The text of `data`, at most 8 / 5 as long. Raises ValueError where it is none."""
    node = 0
    found = []
    for byte in data:
        step = _steps.get(node << 8 | byte)
        node, symbols = step if step is not None else _step(node, byte)
        found.append(symbols)
    if node not in _ENDS:
        raise ValueError("a text in Huffman's code does not end with padding of ones")
    return b"".join(found)


def _step(node: int, byte: int) -> tuple[int, bytes]:
    """What one byte does at a node. Raises ValueError."""
    at, symbols = node, []
    for shift in range(7, -1, -1):
        at = _NODES[at][byte >> shift & 1]
        if at < 0:
            if ~at == _END_OF_TEXT:
                raise ValueError("a text in Huffman's code holds the end of a text")
            symbols.append(~at)
            at = 0
    step = (at, bytes(symbols))
    if len(_steps) >= _STEPS_MAX:
        _steps.clear()
    _steps[node << 8 | byte] = step
    return step
