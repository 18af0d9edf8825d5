"""The captured frames in tests/data/wire: bytes that RocketMQ 5.5.0 and its clients sent."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

WIRE = Path(__file__).parent / "data" / "wire"


@dataclass(frozen=True)
class CapturedFrame:
    """One frame. `request_code` is the request's own code, or the code of the request that a reply answers."""

    file: str
    label: str
    tap: str
    connection: int
    direction: str
    is_reply: bool
    is_oneway: bool
    is_json: bool
    request_code: int | None
    header: dict[str, Any]
    data: bytes


def capture_names() -> list[str]:
    return sorted(path.name.removesuffix(".jsonl.gz") for path in WIRE.glob("*.jsonl.gz"))


@cache
def captured(name: str) -> tuple[CapturedFrame, ...]:
    """Return every frame of one capture, in order."""
    return tuple(_read(name))


def _read(name: str) -> Iterator[CapturedFrame]:
    asked: dict[tuple[str, int, str, int], int] = {}
    with gzip.open(WIRE / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            fields = json.loads(line)
            if "frame_hex" not in fields:
                continue  # a line about a connection
            side = fields["direction"]
            other_side = "response" if side == "request" else "request"
            stream = (fields["tap"], fields["conn"])
            if fields["reply"]:
                request_code = asked.get((*stream, other_side, fields["opaque"]))
            else:
                request_code = fields["code"]
                asked[(*stream, side, fields["opaque"])] = fields["code"]
            yield CapturedFrame(
                file=name,
                label=fields.get("label", ""),
                tap=fields["tap"],
                connection=fields["conn"],
                direction=side,
                is_reply=fields["reply"],
                is_oneway=fields["oneway"],
                is_json=fields["serializeType"] == "JSON",
                request_code=request_code,
                header=fields["header"],
                data=bytes.fromhex(fields["frame_hex"]),
            )
