"""messages.proto has the messages, numbers and types of RocketMQ's own descriptors (rocketmq-proto 2.1.2)."""

from __future__ import annotations

import importlib.util
import os
import runpy
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from aerobee.grpc.proto import messages

ROOT = Path(__file__).resolve().parents[3]
COMPILED = Path(messages.__file__).with_name("messages.binpb")
INTEROP = Path(os.environ.get("AEROBEE_INTEROP_DIR") or ROOT / ".interop")
JAR = INTEROP / "jars" / "rocketmq-proto-2.1.2.jar"
CLASSES = ("MQDomain", "MQService", "MQAdmin")  # what protobuf's compiler makes of RocketMQ's three files
# Of a newer rocketmq-apis, which Maven Central does not have: the settings' properties, and all of the Admin service but one RPC.
ONLY_OURS = ("Settings.ClientPropertiesEntry", "Settings.client_properties")
LAST_OF_MESSAGING_SERVICE = "SyncLiteSubscriptionResponse"
ADMIN_RPCS = 16


def constants(data: bytes) -> Iterator[bytes]:
    """The text constants of a Java class file."""
    sizes = {
        3: 5,
        4: 5,
        5: 9,
        6: 9,
        7: 3,
        8: 3,
        9: 5,
        10: 5,
        11: 5,
        12: 5,
        15: 4,
        16: 3,
        17: 5,
        18: 5,
        19: 3,
        20: 3,
    }
    (count,) = struct.unpack_from(">H", data, 8)
    at, number = 10, 1
    while number < count:
        tag = data[at]
        number += 2 if tag in (5, 6) else 1
        if tag == 1:
            (size,) = struct.unpack_from(">H", data, at + 1)
            yield data[at + 3 : at + 3 + size]
            at += 3 + size
        else:
            at += sizes[tag]


def bytes_of(text: bytes) -> bytes:
    """The bytes that protobuf's compiler wrote as characters, one each, in Java's modified UTF-8."""
    return text.replace(b"\xc0\x80", b"\0").decode("utf-8").encode("latin-1")


def descriptor(name: str) -> FileDescriptorProto:
    with zipfile.ZipFile(JAR) as jar:
        texts = constants(jar.read(f"apache/rocketmq/v2/{name}.class"))
        (text,) = (each for each in texts if each.startswith(b"\n") and b".proto" in each[:80])
    return FileDescriptorProto.FromString(bytes_of(text))


def shape_of_field(field: FieldDescriptorProto, message: DescriptorProto) -> tuple[object, ...]:
    group = ""
    if field.HasField("oneof_index") and not field.proto3_optional:
        group = message.oneof_decl[field.oneof_index].name
    return (field.number, field.type, field.label, field.type_name, field.proto3_optional, group)


def shapes_of_message(message: DescriptorProto, prefix: str = "") -> dict[str, object]:
    name = f"{prefix}{message.name}"
    found: dict[str, object] = {name: "message"}
    for field in message.field:
        found[f"{name}.{field.name}"] = shape_of_field(field, message)
    for inner in message.nested_type:
        found |= shapes_of_message(inner, f"{name}.")
    for each in message.enum_type:
        found |= shapes_of_enum(each, f"{name}.")
    return found


def shapes_of_enum(enum: EnumDescriptorProto, prefix: str = "") -> dict[str, object]:
    return {f"{prefix}{enum.name}.{value.name}": value.number for value in enum.value}


def shapes(file: FileDescriptorProto) -> dict[str, object]:
    """Every message, field, enum value and RPC with what the wire sees of it."""
    found: dict[str, object] = {}
    for message in file.message_type:
        found |= shapes_of_message(message)
    for enum in file.enum_type:
        found |= shapes_of_enum(enum)
    for service in file.service:
        for rpc in service.method:
            found[f"{service.name}/{rpc.name}"] = (
                rpc.input_type,
                rpc.output_type,
                rpc.client_streaming,
                rpc.server_streaming,
            )
    return found


@pytest.mark.skipif(not JAR.exists(), reason="scripts/setup-interop fetches RocketMQ's jars")
def test_messages_are_those_of_rocketmq() -> None:
    theirs: dict[str, object] = {}
    for name in CLASSES:
        theirs |= shapes(descriptor(name))
    file = FileDescriptorProto.FromString(COMPILED.read_bytes())
    ours = shapes(file)
    assert len(theirs) > 300, "this test has to see something"
    assert {name: ours.get(name) for name in theirs} == theirs
    names = [message.name for message in file.message_type]
    of_admin = {*names[names.index(LAST_OF_MESSAGING_SERVICE) + 1 :], "MessageModel", "NetworkType"}
    more = {name for name in ours.keys() - theirs.keys() if not name.startswith(ONLY_OURS)}
    assert {name for name in more if name.split(".")[0] not in of_admin} == {
        f"Admin/{name.removesuffix('Request').replace('ListMessage', 'QueryMessage')}"
        for name in of_admin
        if name.endswith("Request") and name != "ChangeLogLevelRequest"
    }


def test_each_admin_request_begins_with_its_deployment() -> None:
    """As each of its responses does with a status; but for those of a proxy as a whole."""
    file = FileDescriptorProto.FromString(COMPILED.read_bytes())
    messages = {f".{file.package}.{message.name}": message for message in file.message_type}
    (admin,) = (service for service in file.service if service.name == "Admin")
    assert len(admin.method) == ADMIN_RPCS
    for rpc in admin.method:
        if rpc.name not in ("ChangeLogLevel", "GetProxyRuntimeStats"):
            assert messages[rpc.input_type].field[0].name == "deployment_name"
        if rpc.name != "ChangeLogLevel":
            assert messages[rpc.output_type].field[0].name == "status"


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="the compiler comes with the extra `dev`"
)
def test_the_compiled_messages_are_those_of_the_definition() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "make-grpc-messages"))["compiled"]()
    for name, data in made.items():
        assert (COMPILED.parent / name).read_bytes() == data, "run scripts/make-grpc-messages"


def test_the_official_clients_messages_load_besides() -> None:
    """Both define apache.rocketmq.v2.Message; protobuf's default pool takes it once."""
    from google.protobuf.descriptor_pool import Default

    Default().AddSerializedFile(
        FileDescriptorProto(name="definition.proto", package="apache.rocketmq.v2", syntax="proto3",
                            message_type=[DescriptorProto(name="Message")]).SerializeToString()
    )  # fmt: skip
    official = Default().FindMessageTypeByName("apache.rocketmq.v2.Message")
    assert official.full_name == messages.Message.DESCRIPTOR.full_name
    assert official is not messages.Message.DESCRIPTOR
