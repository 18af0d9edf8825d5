"""What an operator hid from other users stays hidden when the file is written again, and new files with secrets are hidden."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from unittest import mock

import pytest

from aerobee.access.rocks_table import RocksTable
from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.clock import SystemClock
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import RealDisk
from aerobee.store.files.json_file import save_config_file, save_settings_file

SECRET = 'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"innersecret"}\n'


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def hidden(path: Path, content: str) -> Path:
    path.write_text(content)
    path.chmod(0o600)
    return path


async def test_settings_that_are_changed_at_run_time_leave_their_files_hidden(tmp_path: Path) -> None:
    """Broker and NameServer write their settings files, the broker also its tables."""
    broker_file = hidden(tmp_path / "broker.conf", SECRET)
    server_file = hidden(tmp_path / "namesrv.conf", SECRET)
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", config_store_path=str(server_file))
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    async with NameServer(config, settings_path=str(server_file)) as server:
        broker = Broker(
            BrokerConfig(
                listen_port=0, bind_address="127.0.0.1", broker_ip1="127.0.0.1", namesrv_addr=server.address
            ),
            StoreConfig(store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20),
            settings_path=str(broker_file),
        )
        await broker.start()

        async def ask(address: str, code: int, body: bytes) -> None:
            reply = await client.invoke(address, RemotingCommand(code, body=body), timeout_s=60)
            assert reply.code == 0, reply.remark

        try:
            group = b'{"groupName": "g%d"}'
            create = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await ask(broker.address, create, group % 1)
            groups = tmp_path / "store" / "config" / "subscriptionGroup.json"
            groups.chmod(0o640)
            await ask(broker.address, create, group % 2)
            await ask(broker.address, RequestCode.UPDATE_BROKER_CONFIG, b"waitTimeMillsInSendQueue=900\n")
            await ask(
                server.address, RequestCode.UPDATE_NAMESRV_CONFIG, b"scanNotActiveBrokerInterval=7000\n"
            )
        finally:
            await broker.stop()
            await client.close()
    assert broker_file.read_text() == SECRET + "waitTimeMillsInSendQueue=900\n"
    assert "scanNotActiveBrokerInterval=7000" in server_file.read_text()
    assert mode(broker_file) == mode(server_file) == 0o600
    assert mode(groups) == mode(groups.with_name(groups.name + ".bak")) == 0o640


def test_a_new_settings_file_is_hidden(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    save_settings_file(RealDisk(), str(path), {"a": "1"}, SECRET)
    assert mode(path) == 0o600


def test_a_file_without_secrets_is_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_config_file(RealDisk(), str(tmp_path / "topics.json"), b"{}", json.loads)
    finally:
        os.umask(before)
    assert mode(tmp_path / "topics.json") == mode(tmp_path / "topics.json.bak") == 0o640


def test_the_users_database_is_hidden(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    RocksTable(str(tmp_path / "config" / "users")).close()
    assert mode(tmp_path / "config" / "users") == 0o700
    (tmp_path / "config" / "users").chmod(0o755)  # as an earlier release left it
    RocksTable(str(tmp_path / "config" / "users")).close()
    assert mode(tmp_path / "config" / "users") == 0o700


def test_what_a_process_that_died_left_is_written_over(tmp_path: Path) -> None:
    path = hidden(tmp_path / "file", "old")
    (tmp_path / "file.tmp").write_text("left")
    (tmp_path / "file.tmp").chmod(0o444)
    RealDisk().replace_file(str(path), b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    path = hidden(tmp_path / "file", "old")
    os.chown(path, 1234, 2345)
    RealDisk().replace_file(str(path), b"new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, mode(path)) == (1234, 2345, 0o600)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_a_group_that_cannot_be_given_has_no_more_than_all_others(tmp_path: Path, error: int) -> None:
    """Not by this user; not in this user namespace, as a container's; not on this file system."""
    path = hidden(tmp_path / "file", "old")
    path.chmod(0o664)
    known = path.stat()
    other = os.stat_result((*known[:4], known.st_uid + 1, known.st_gid + 1, *known[6:]))
    refusal = OSError(error, os.strerror(error))
    with mock.patch("os.stat", return_value=other), mock.patch("os.fchown", side_effect=refusal):
        RealDisk().replace_file(str(path), b"new")
    assert mode(path) == 0o644
