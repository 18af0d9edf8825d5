"""Annotations of handlers' parameters: `async def handle(body: str, message: AerobeeMessage)`."""

from __future__ import annotations

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from aerobee.client.producer.producer import Producer as ClientProducer
from aerobee.contrib.faststream.broker import AerobeeBroker as Broker
from aerobee.contrib.faststream.message import AerobeeMessage as Message

__all__ = ["AerobeeBroker", "AerobeeMessage", "ContextRepo", "Logger", "NoCast", "Producer"]

AerobeeMessage = Annotated[Message, Context("message")]
AerobeeBroker = Annotated[Broker, Context("broker")]
Producer = Annotated[ClientProducer, Context("broker._connection")]
