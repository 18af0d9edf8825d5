"""A table's items in blocks of some hundred, so that a reader of 100,000 items rereads only changed blocks. Core.

An item belongs to one block for its whole lifetime and keeps its index: a removed item's index is reused, so that items
never move. Code that changes an item must increment `item.block.version`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

BLOCK_ITEMS = 256

Item = TypeVar("Item")


class Block(Generic[Item]):
    """A block of items. `version` grows with every change in the block, `items_version` when items are added or
    removed."""

    __slots__ = ("items", "items_version", "version")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.version = self.items_version = 0


class ItemBlocks(Generic[Item]):
    """The blocks of one table. Their number never shrinks."""

    def __init__(self) -> None:
        self._blocks: list[Block[Item]] = []
        self._with_room: list[Block[Item]] = []

    def __iter__(self) -> Iterator[Block[Item]]:
        return iter(self._blocks)

    def add(self, item: Item) -> Block[Item]:
        """Put an item into a block and return that."""
        if not self._with_room:
            block = Block[Item]()
            self._blocks.append(block)
            self._with_room.append(block)
        block = self._with_room[-1]
        block.items.append(item)
        block.version += 1
        block.items_version += 1
        if len(block.items) == BLOCK_ITEMS:
            self._with_room.pop()
        return block

    def remove(self, item: Item, block: Block[Item]) -> None:
        """Take an item out of its block. Raises ValueError when it is not in it."""
        if len(block.items) == BLOCK_ITEMS:
            self._with_room.append(block)
        block.items.remove(item)
        block.version += 1
        block.items_version += 1
