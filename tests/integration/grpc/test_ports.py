"""Ports that take every protocol: remoting, HTTP/2, and TLS around either."""

from __future__ import annotations

import asyncio
import ssl

import grpc
import pytest

from aerobee import Message
from aerobee.broker.assembly import grpc_endpoint, ports
from aerobee.client.base.config import ClientConfig
from aerobee.grpc.proto import messages as pb
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient, message
from tests.ports import free_port


async def test_the_grpc_port_takes_either_protocol() -> None:
    port = free_port()
    async with LocalCluster(broker_config={"grpcServerPort": port}) as cluster:
        await cluster.create_topic("orders", queues=1)
        async with GrpcClient(f"127.0.0.1:{port}") as client:
            request = pb.QueryRouteRequest(topic=pb.Resource(name="orders"), endpoints=client.endpoints())
            (queue,) = (await client("QueryRoute", request)).message_queues
            assert queue.broker.endpoints == client.endpoints()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'\0\0\0\x0e\0\0\0\x0a{"code":0}')
        assert (await reader.readexactly(4))[0] == 0  # a frame of remoting
        writer.close()
        async with cluster.producer() as producer:
            await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize("protocols", [["h2"], ["http/1.1", "h2"], None])
async def test_tls_chooses_h2(protocols: list[str] | None, cluster: LocalCluster) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    from aerobee.remoting.tls import ServerTls

    broker = cluster.broker()
    broker.ports.main._endpoint.tls = ServerTls()
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    assert chosen == ("h2" if protocols else None)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    head = await reader.readexactly(9)
    assert head[3] == 4  # the broker's SETTINGS
    writer.close()


async def test_grpc_over_tls_is_served(cluster: LocalCluster) -> None:
    from cryptography import x509

    from aerobee.remoting.tls import ServerTls

    await cluster.create_topic("orders", queues=1)
    broker = cluster.broker()
    broker.ports.main._endpoint.tls = ServerTls()
    host, _, port = broker.address.rpartition(":")
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    name = x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string().removeprefix("CN=")
    credentials = grpc.ssl_channel_credentials(root_certificates=pem.encode())
    async with GrpcClient(broker.address) as client:
        await client.channel.close()
        client.channel = grpc.aio.secure_channel(
            broker.address, credentials, options=[("grpc.ssl_target_name_override", name)]
        )
        answer = await client("SendMessage", pb.SendMessageRequest(messages=[message("orders")]))
        assert answer.status.code == pb.OK


async def test_a_broker_without_protobuf_serves_remoting_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (grpc_endpoint, ports):
        monkeypatch.setattr(module, "grpc_is_installed", lambda: False)
    port = free_port()
    async with LocalCluster(broker_config={"grpcServerPort": port}) as cluster:
        lines = [record.getMessage() for record in caplog.records if "gRPC" in record.getMessage()]
        assert lines == [
            f"grpcServerPort {port} is not served: gRPC needs the package protobuf, pip install 'aerobee[grpc]'"
        ]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await cluster.create_topic("orders", queues=1)
        async with cluster.producer(client=ClientConfig()) as producer:
            await producer.send(Message("orders", b"x"))
        host, _, own = cluster.broker().address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(own))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert await reader.read() == b""  # closed: these are no frames of remoting
        writer.close()
