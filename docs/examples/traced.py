"""Send and consume with message trace and OpenTelemetry: `python docs/examples/traced.py [NAMESERVER]`."""

import asyncio
import os

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from aerobee import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer, ReceivedMessage
from aerobee.contrib.opentelemetry import OpenTelemetry

provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(
        ConsoleSpanExporter(
            formatter=lambda span: (
                f"{span.name}  trace {span.context.trace_id:032x}  span {span.context.span_id:016x}  "
                f"parent {span.parent.span_id if span.parent else 0:016x}\n"
            )
        )
    )
)
telemetry = OpenTelemetry(provider)


async def main(nameserver: str) -> None:
    async with Producer(nameserver, "makers", trace=True, observers=[telemetry]) as producer:
        result = await producer.send(Message("traced", b"hello", keys=("order-7",)))
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        done.set()

    async with PushConsumer(
        nameserver,
        "readers",
        subscriptions={"traced": "*"},
        handler=handle,
        config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
        trace=True,
        observers=[telemetry],
    ):
        await done.wait()
    print(f"aerobee trace {result.message_id}")


asyncio.run(main(os.environ.get("AEROBEE_NAMESRV_ADDR", "127.0.0.1:9876")))
