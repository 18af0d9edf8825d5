"""PUT, GET, DELETE_KV_CONFIG and GET_KVLIST_BY_NAMESPACE. Source: DefaultRequestProcessor (RocketMQ).

A change that cannot be written is not made; the reply carries its StoreError.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.nameserver.answers import kv_table_body
from aerobee.nameserver.kv_config import KvConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.wire_name import check_wire_name

KEY_CHARS_MAX = 1_024  # maximum length of a namespace and of a key


class KvConfigCalls:
    """Request handlers of one KvConfig."""

    def __init__(self, config: KvConfig) -> None:
        self._config = config

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.PUT_KV_CONFIG: self.put,
            RequestCode.GET_KV_CONFIG: self.get,
            RequestCode.DELETE_KV_CONFIG: self.delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.list_namespace,
        }

    async def put(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        namespace, key = request.text("namespace"), request.text("key")
        value = request.text("value")
        for what, name in (("namespace", namespace), ("key", key)):
            check_wire_name(name, what, KEY_CHARS_MAX, is_required=False)
        await self._config.put(namespace, key, value)
        return request.reply()

    def get(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        namespace, key = request.text("namespace"), request.text("key")
        value = self._config.get(namespace, key)
        if value is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace} Key: {key}"
            )
        return request.reply(ext={"value": value})

    async def delete(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        namespace, key = request.text("namespace"), request.text("key")
        await self._config.delete(namespace, key)
        return request.reply()

    def list_namespace(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        namespace = request.text("namespace")
        table = self._config.namespace(namespace)
        if table is None:
            return request.reply(
                ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}"
            )
        return request.reply(body=kv_table_body(table))
