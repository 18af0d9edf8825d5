"""Captured frames of a real RocketMQ 5.5.0, as tests/data/nameserver keeps them."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[2] / "data" / "nameserver"


@dataclass(frozen=True)
class Captured:
    """One frame: who sent it, its header as parsed JSON (None when binary), its body."""

    conn: int
    tap: str
    label: str
    code: int
    opaque: int
    reply: bool
    oneway: bool
    t_ms: int
    frame: bytes
    body: bytes
    header: dict[str, Any] | None

    @property
    def ext(self) -> dict[str, str]:
        assert self.header is not None
        return self.header.get("extFields") or {}


def load(name: str) -> list[Captured]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [_captured(json.loads(line)) for line in file]


def pairs(frames: list[Captured]) -> list[tuple[Captured, Captured | None]]:
    """Requests with their replies, in the order of the requests."""
    replies = {(f.conn, f.opaque): f for f in frames if f.reply}
    return [(f, replies.get((f.conn, f.opaque))) for f in frames if not f.reply]


def _captured(line: dict[str, Any]) -> Captured:
    frame = bytes.fromhex(line["frame_hex"])
    word = struct.unpack_from(">I", frame, 4)[0]
    header_length = word & 0xFFFFFF
    header = json.loads(frame[8 : 8 + header_length]) if word >> 24 == 0 else None
    return Captured(
        conn=line["conn"],
        tap=line["tap"],
        label=line.get("label", ""),
        code=line["code"],
        opaque=line["opaque"],
        reply=line["reply"],
        oneway=line["oneway"],
        t_ms=line["t_ms"],
        frame=frame,
        body=frame[8 + header_length :],
        header=header,
    )
