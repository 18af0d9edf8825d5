"""The classes of the messages in messages.proto, made from its compiled form when this module is loaded.

They are registered in a separate descriptor pool: the official Python client registers messages of the same names in
protobuf's default pool, and both can be loaded in one process. messages.pyi has the types. Needs the package `protobuf`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

COMPILED = Path(__file__).with_name("messages.binpb")


def _load() -> Any:
    pool = DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(COMPILED.read_bytes())
    return pool.FindFileByName("messages.proto")


DESCRIPTOR = _load()
for _enum in DESCRIPTOR.enum_types_by_name.values():
    globals()[_enum.name] = EnumTypeWrapper(_enum)
    globals().update({_value.name: _value.number for _value in _enum.values})
for _message in DESCRIPTOR.message_types_by_name.values():
    globals()[_message.name] = GetMessageClass(_message)
