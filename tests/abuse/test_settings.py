"""Settings over the wire stay in their line, name no files, and leave the broker able to start again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.config import merge_properties, parse_properties, properties_text
from aerobee.errors import ConfigError, ConnectFailed, ConnectionLost
from aerobee.nameserver import NameServer
from aerobee.nameserver.config import NameServerConfig
from aerobee.remoting.tls import server_tls
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.integration.certificates import Identity, identity
from tests.integration.tls_serving import ask, authority, server_keys, serving, trusting

__all__ = ["authority"]
TEXTS = st.text(min_size=1, max_size=20)


@given(st.dictionaries(TEXTS, TEXTS.map(str.rstrip)))
def test_a_properties_text_gives_back_what_went_in(settings: dict[str, str]) -> None:
    text = properties_text(settings)
    assert {key: setting.value for key, setting in parse_properties(text, "").items()} == settings
    merged = merge_properties("# a comment\n", settings)
    assert {key: setting.value for key, setting in parse_properties(merged, "").items()} == settings


async def test_a_value_of_a_nameserver_writes_no_second_line(tmp_path: Path) -> None:
    stored = tmp_path / "namesrv.conf"
    stored.write_text("productEnvName=center\n")
    kv = tmp_path / "kv.json"
    config = NameServerConfig(
        listen_port=0, bind_address="127.0.0.1", config_store_path=str(stored), kv_config_path=str(kv)
    )
    target = tmp_path / "elsewhere"
    async with NameServer(config) as server, UntrustedPeer(server.address) as peer:
        for body in (
            f"productEnvName=x\\nkvConfigPath={target}",
            f"productEnvName=x\\u000akvConfigPath={target}",
            f"productEnvName=x\\rkvConfigPath={target}",
            f"productEnvName=y\nkvConfigPath={target}",
            f"configBlackList=nothing\nkvConfigPath={target}",
            "productEnvName=half \\ud800",
        ):
            assert (await peer.call(318, {}, body.encode())).code != 0, body
        assert (await peer.call(318, {}, b"productEnvName=back\\\\nslash=1")).code == 0
        shown = parse_properties((await peer.call(319)).body.decode(), "")
    found = parse_properties(stored.read_text(), "")
    assert found["productEnvName"].value == shown["productEnvName"].value == "back\\nslash=1"
    assert found.keys() == {"productEnvName"}, "only what was changed"
    assert not target.exists()


async def test_paths_of_a_nameserver_stay_when_its_black_list_is_empty(tmp_path: Path) -> None:
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", config_black_list="")
    async with NameServer(config) as server, UntrustedPeer(server.address) as peer:
        for key in ("kvConfigPath", "configStorePath"):
            assert (await peer.call(318, {}, f"{key}={tmp_path}/x".encode())).code != 0
        assert server.config.kv_config_path is None


async def test_a_value_of_a_broker_writes_no_second_line(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-a\n")
    settings = {"settings_path": str(conf), "config_black_list": ""}
    async with broker_at(tmp_path / "store", **settings) as broker, UntrustedPeer(broker.address) as peer:
        for body in (
            "msgTraceTopicName=x\\nstorePathRootDir=/tmp/x",
            "storePathRootDir=/tmp/x",
            "msgTraceTopicName=../../x",
            "startAcceptSendRequestTimeStamp=9223372036854775807",
            "startAcceptSendRequestTimeStamp=-1",
            "metricsLabel=half:\\ud800",
        ):
            reply = await peer.call(25, {}, body.encode())
            assert reply.code != 0, body
            assert "Error" not in (reply.remark or ""), "a fault is no refusal"
        assert (await peer.call(25, {}, b"startAcceptSendRequestTimeStamp=253402300799999")).code == 0
        assert (await peer.send_message("t")).code == 1
        assert (await peer.call(28)).code == 0
        assert (await peer.call(26)).code == 0
    assert set(parse_properties(conf.read_text(), "")) == {"brokerName", "startAcceptSendRequestTimeStamp"}


@pytest.mark.parametrize("value", ["--1", "²", "", "-", "9" * 400, "1 "])
async def test_an_attribute_that_is_no_number_is_refused(tmp_path: Path, value: str) -> None:
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        ext = {"topic": "t", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
               "topicFilterType": "SINGLE_TAG", "attributes": f"+reserve.time={value},+message.type=NORMAL"}  # fmt: skip
        reply = await peer.call(17, ext)
        assert reply.code == 29 or value == "1 "
        assert "Traceback" not in (reply.remark or "")


async def test_require_admits_no_client_without_certificate(tmp_path: Path, authority: Identity) -> None:
    own, caller = identity(tmp_path, "server", authority), identity(tmp_path, "client", authority)
    unknown = identity(tmp_path, "unknown")
    keys = server_keys(own) | {"tls.server.need.client.auth": "require"}
    with pytest.raises(ConfigError, match="trustCertPath"):
        server_tls(keys)
    with pytest.raises(ConfigError, match="trustCertPath"):
        server_tls({"tls.server.need.client.auth": "require"})
    for more in ({}, {"tls.server.authClient": "false"}, {"tls.server.authClient": "true"}):
        trusted = {"tls.server.trustCertPath": str(authority.cert_path)}
        async with serving(server_tls(keys | trusted | more)) as address:
            for certificate in (None, unknown):
                own_keys = {}
                if certificate is not None:
                    own_keys = {
                        "tls_client_certPath": str(certificate.cert_path),
                        "tls_client_keyPath": str(certificate.key_path),
                    }
                with pytest.raises((ConnectFailed, ConnectionLost)):
                    await ask(address, trusting(authority, **own_keys))
            known = trusting(
                authority,
                tls_client_certPath=str(caller.cert_path),
                tls_client_keyPath=str(caller.key_path),
            )
            assert (await ask(address, known)).code == 0
