"""Bodies in the message browser by a schema file: Avro and Protocol Buffers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from aerobee import Message
from aerobee.client.serialize.avro import Avro
from aerobee.console.body_schemas import (
    BODY_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    TEXT_CHARS_MAX,
    BodySchemas,
    indented,
)
from aerobee.errors import ConfigError
from aerobee.testing import LocalCluster
from tests.integration.console_server import console

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "int"}, {"name": "note", "type": "bytes"}],
}


@pytest.fixture
def avro_file(tmp_path: Path) -> Path:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    return path


@pytest.fixture
def descriptors(tmp_path: Path) -> Path:
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    path = tmp_path / "time.desc"
    path.write_bytes(files.SerializeToString())
    return path


async def test_bodies_are_decoded_by_the_schema_of_their_topic(
    cluster: LocalCluster, avro_file: Path, descriptors: Path
) -> None:
    specs = (f"orders={avro_file}", f"times={descriptors}#google.protobuf.Timestamp")
    async with cluster.producer() as producer:
        await producer.send(Message("orders", Avro(ORDER).serialize({"number": 7, "note": b"\xff"}).body))
        await producer.send(
            Message("times", timestamp_pb2.Timestamp(seconds=0).SerializeToString() or b"\x08\x00")
        )
        await producer.send(Message("plain", b"text"))
    async with console(cluster, schemas=specs) as server, aiohttp.ClientSession() as session:

        async def decoded(topic: str) -> Any:
            async with session.get(f"{server.url}api/browse", params={"topic": topic}) as answer:
                (message,) = (await answer.json())["messages"]
                return message["decoded"]

        order = await decoded("orders")
        assert (order["format"], json.loads(order["text"])) == ("Avro", {"number": 7, "note": "ff"})
        assert await decoded("times") == {"format": "Protobuf", "text": '"1970-01-01T00:00:00Z"'}
        assert await decoded("plain") is None


def test_a_body_that_the_schema_does_not_fit_says_why(avro_file: Path, descriptors: Path) -> None:
    schemas = BodySchemas([f"a={avro_file}", f"p={descriptors}#google.protobuf.Timestamp"]).for_response()
    for topic in "ap":
        found = schemas.decoded(topic, b"\xff" * 40)
        assert found is not None
        assert found["text"].startswith("the schema does not fit this body")
        large = schemas.decoded(topic, b"\x00" * (BODY_BYTES_MAX + 1))
        assert large is not None
        assert "limit" in large["text"]


def test_the_bodies_of_one_response_are_bounded_together(avro_file: Path) -> None:
    schemas = BodySchemas([f"orders={avro_file}"])
    body = Avro(ORDER).serialize({"number": 7, "note": b"x" * (BODY_BYTES_MAX // 2)}).body
    bodies, texts = schemas.for_response(), []
    for _ in range(200):  # the dead letters of a page
        found = bodies.decoded("orders", body)
        assert found is not None
        texts.append(found["text"])
    decoded = [text for text in texts if text.startswith("{")]
    assert len(decoded) == RESPONSE_BYTES_MAX // len(body)
    assert "open this message" in texts[-1]
    again = schemas.for_response().decoded("orders", body)
    assert again is not None
    assert again["text"] == decoded[0]


def test_a_text_that_is_cut_takes_no_time_for_what_lies_behind() -> None:
    class Counted(list[int]):
        """A list that counts the lists of its kind that are written."""

        written = 0

        def __iter__(self) -> Iterator[int]:
            Counted.written += 1
            return super().__iter__()

    deep: list[object] = [Counted([1]) for _ in range(100_000)]
    for _ in range(100):
        deep = [deep]
    text = indented(deep)
    assert len(text) == TEXT_CHARS_MAX + 1
    assert Counted.written < 2_000
    assert (
        indented({"a": [1, "ü", None, b"\xff"]})
        == '{\n  "a": [\n    1,\n    "ü",\n    null,\n    "ff"\n  ]\n}'
    )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("orders", "TOPIC=FILE"),
        ("=x.avsc", "TOPIC=FILE"),
        ("a b=x.avsc", "a b"),
        ("orders=/no/such/file", "No such file"),
        ("orders={json}", "not JSON"),
        ("orders={schema}", "Avro schema is wrong"),
        ("orders={json}#shop.Order", "no message shop.Order"),
    ],
)
def test_a_wrong_schema_is_refused_at_the_start(spec: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "json").write_text("{not json")
    (tmp_path / "schema").write_text('{"type": "no such type"}')
    with pytest.raises(ConfigError, match=says):
        BodySchemas([spec.format(json=tmp_path / "json", schema=tmp_path / "schema")])
