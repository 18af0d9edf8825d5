"""Admin calls on brokers and nameservers: settings, counters, permissions, KV configuration."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.client.admin.base import AdminCalls
from aerobee.client.base.results import StatsRates
from aerobee.errors import UsageError
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.kv_table import KVTable
from aerobee.remoting.codes import RequestCode


class BrokerCalls(AdminCalls):
    """Inspect brokers and change their settings while they run."""

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """The broker's counters and state: RocketMQ's names and their values as text."""
        answer = await self._call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(KVTable.decode(answer.body).table)

    async def broker_config(self, address: str) -> dict[str, str]:
        """All settings of a broker, by RocketMQ's names."""
        answer = await self._call(address, RequestCode.GET_BROKER_CONFIG)
        return _parse_properties(answer.body)

    async def update_broker_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change settings while the broker runs; the broker ignores unknown keys."""
        await self._call(address, RequestCode.UPDATE_BROKER_CONFIG, None, _properties_text(values))

    async def nameserver_config(self, address: str) -> dict[str, str]:
        """All settings of one nameserver."""
        answer = await self._call(address, RequestCode.GET_NAMESRV_CONFIG)
        return _parse_properties(answer.body)

    async def update_nameserver_config(self, address: str, values: Mapping[str, str]) -> None:
        await self._call(address, RequestCode.UPDATE_NAMESRV_CONFIG, None, _properties_text(values))

    async def controller_config(self, address: str) -> dict[str, str]:
        """All settings of one controller."""
        answer = await self._call(address, RequestCode.GET_CONTROLLER_CONFIG)
        return _parse_properties(answer.body)

    async def update_controller_config(self, address: str, values: Mapping[str, str]) -> None:
        """Change settings of one controller while it runs; each controller of a quorum has separate settings."""
        await self._call(address, RequestCode.UPDATE_CONTROLLER_CONFIG, None, _properties_text(values))

    async def broker_stats(self, address: str, name: str, key: str) -> StatsRates:
        """One counter, e.g. name "TOPIC_PUT_NUMS" and key the topic, or "GROUP_GET_NUMS" and "topic@group".

        Raises RemoteError when the broker has not counted anything under that key yet.
        """
        answer = await self._call(
            address, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}
        )
        document = fastjson.loads_trusted(answer.body, "BrokerStatsData")
        minute, hour, day = (
            json_fields.mapping(document, field) for field in ("statsMinute", "statsHour", "statsDay")
        )
        return StatsRates(
            minute_sum=json_fields.integer(minute, "sum"),
            minute_tps=json_fields.number(minute, "tps"),
            hour_sum=json_fields.integer(hour, "sum"),
            hour_tps=json_fields.number(hour, "tps"),
            day_sum=json_fields.integer(day, "sum"),
            day_tps=json_fields.number(day, "tps"),
        )

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Revoke the write permission of a broker's topics at every NameServer; returns the number of topics.

        Producers stop sending to the broker after their next route refresh, until the broker's next full
        registration.
        """
        answers = await self._call_each_nameserver(
            RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker_name}
        )
        return max(answer.integer("wipeTopicCount", 0) for answer in answers)

    async def add_write_perm(self, broker_name: str) -> int:
        """Restore the write permission; returns the number of topics."""
        answers = await self._call_each_nameserver(
            RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": broker_name}
        )
        return max(answer.integer("addTopicCount", 0) for answer in answers)

    async def kv_get(self, namespace: str, key: str) -> str:
        """A value of the nameservers' KV configuration. Raises QueryNotFound."""
        answer = await self._call_nameserver(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        return answer.text("value", "")

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every nameserver."""
        await self._call_each_nameserver(
            RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value}
        )

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Delete a value at every nameserver."""
        await self._call_each_nameserver(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace. Raises QueryNotFound when it does not exist."""
        answer = await self._call_nameserver(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": namespace})
        return dict(KVTable.decode(answer.body).table) if answer.body else {}


def _parse_properties(body: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in body.decode(errors="replace").splitlines():
        name, separator, value = line.partition("=")
        if separator and not name.startswith("#"):
            found[name.strip()] = value.strip()
    return found


def _properties_text(values: Mapping[str, str]) -> bytes:
    for name, value in values.items():
        if not name or "=" in name or "\n" in name or "\n" in value:
            raise UsageError(f"setting {name!r}={value!r}: names hold no '=', neither side a line break")
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()
