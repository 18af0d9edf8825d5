"""What operators see of a proxy: its metrics page and health, `aerobee doctor --proxy`, its role in a container."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee.errors import UsageError
from aerobee.grpc.proto import messages as pb
from aerobee.ops.diagnosis.grpc_findings import examine_proxies
from aerobee.ops.servers.container import role_flags
from aerobee.ops.settings.settings import proxy_settings
from aerobee.proxy.config import ProxyConfig
from aerobee.proxy.server import ProxyServer
from aerobee.testing import LocalCluster
from tests.integration.grpc.client import GrpcClient


async def page(proxy: ProxyServer, path: str) -> str:
    assert proxy.export is not None
    host, port = proxy.export.address
    answer = await asyncio.to_thread(urllib.request.urlopen, f"http://{host}:{port}{path}", timeout=60)
    return str(answer.read().decode())


async def test_a_proxy_exports_metrics_and_health() -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        config = ProxyConfig(
            nameservers=cluster.nameserver_address, name="p1", host="127.0.0.1", port=0,
            metrics_exporter_type="PROM", metrics_prom_exporter_host="127.0.0.1", metrics_prom_exporter_port=0,
        )  # fmt: skip
        proxy = ProxyServer(config)
        await proxy.start()
        try:
            async with GrpcClient(proxy.address) as client:
                request = pb.QueryRouteRequest(topic=pb.Resource(name="orders"))
                assert (await client("QueryRoute", request)).status.code == pb.OK
                text = await page(proxy, "/metrics")
            found_samples = {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            node = {("node_type", "proxy"), ("node_id", "p1")}
            served = node | {("rpc", "QueryRoute"), ("status", "OK")}
            assert found_samples["aerobee_grpc_connections", frozenset(node)] == 1
            assert found_samples["aerobee_grpc_calls_total", frozenset(served)] == 1
            assert found_samples["aerobee_proxy_waiting_renewals", frozenset(node)] == 0
            await page(proxy, "/readyz")
            (found,) = await examine_proxies([proxy.address])
            assert (found.level, found.part) == ("ok", f"proxy {proxy.address}")
            address = proxy.address
        finally:
            await proxy.stop()
    (found,) = await examine_proxies([address])
    assert found.level == "fail"
    assert "start `aerobee proxy`" in found.advice
    with pytest.raises(UsageError):
        await examine_proxies(["no port"])


def test_a_container_has_the_role_proxy(tmp_path: Path) -> None:
    environ = {"AEROBEE_NAMESRVADDR": "ns:9876", "AEROBEE_DATA": str(tmp_path)}
    flags = [each for each in role_flags("proxy", environ, "h") if "=" in each]
    settings = proxy_settings(assignments=flags, environ=environ)
    assert (settings.proxy.nameservers, settings.proxy.exporters) == ("ns:9876", {"PROM"})
    assert settings.proxy.users_path == f"{tmp_path}/proxy"


async def test_the_command_prints_its_settings() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aerobee", "proxy", "-p", "--json", "--port", "0", "--set", "aclEnable=true",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    settings = json.loads(out)
    assert (settings["grpcServerPort"], settings["aclEnable"], settings["namesrvAddr"]) == (
        "0",
        "true",
        "localhost:9876",
    )
