"""The SDK's client at `aerobee mcp`, and what a test reads from the answers of tools."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.stdio import stdio_client as transport

TIMEOUT_S = 120.0


@asynccontextmanager
async def stdio_client(nameserver: str, *options: str, **environment: str) -> AsyncIterator[Client]:
    """A client of a server in a separate process, over standard input and output."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "aerobee", "mcp", "--nameserver", nameserver, *options],
        env=environment,
    )
    async with Client(transport(parameters), read_timeout_seconds=TIMEOUT_S) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The document that a tool returns."""
    text, is_error = await called(client, tool, **arguments)
    assert not is_error, text
    document: dict[str, Any] = json.loads(text)
    return document


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The sentence of a tool that fails."""
    text, is_error = await called(client, tool, **arguments)
    assert is_error, text
    return text


async def called(client: Client, tool: str, **arguments: Any) -> tuple[str, bool]:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    return str(getattr(content, "text", "")), bool(result.is_error)
