"""What an administrator asks of the brokers behind a proxy: of those that have a topic, or of those that know a group."""

from __future__ import annotations

from aerobee.client.admin.groups import GroupCalls
from aerobee.client.session.session import Session
from aerobee.errors import ConsumerNotOnline, RemoteError, RemoteSystemError, SubscriptionGroupNotExist
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand


class AdminBrokers(GroupCalls):
    """Requests as the proxy's own user. All raise RemoteError for a refusal, TransportError when a broker does not answer."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._timeout_s = session.config.request_timeout_s

    async def at_topic(self, topic: str, code: RequestCode, /, **ext: str) -> dict[str, RemotingCommand]:
        """The answer of each broker of a topic, by its name. Raises TopicNotExist."""
        brokers = await self._topic_addresses(topic)
        answers = await self._all(self._call(address, code, dict(ext)) for _, address in brokers)
        return dict(zip((name for name, _ in brokers), answers, strict=True))

    async def at_group(self, group: str, code: RequestCode, /, **ext: str) -> list[RemotingCommand]:
        """The answers of the brokers that know a group; none when no broker does."""
        found = []
        for address in await self._group_addresses(group):
            try:
                found.append(await self._call(address, code, dict(ext)))
            except (ConsumerNotOnline, SubscriptionGroupNotExist):
                continue
        return found

    async def of_client(self, group: str, code: RequestCode, /, **ext: str) -> RemotingCommand | None:
        """The answer of a client of remoting, by the first broker that knows it. None when no broker does."""
        for address in await self._group_addresses(group):
            try:
                return await self._call(address, code, dict(ext))
            except (ConsumerNotOnline, RemoteSystemError):
                continue  # SYSTEM_ERROR says that the client is not online
        return None

    async def at_broker(self, address: str, code: RequestCode, /, **ext: str) -> RemotingCommand:
        """The answer of one broker."""
        return await self._call(address, code, dict(ext))

    async def addresses(self, topic: str) -> dict[str, str]:
        """The brokers of a topic: name, address. Raises TopicNotExist."""
        return dict(await self._topic_addresses(topic))

    async def where_served(
        self, topic: str, code: RequestCode, /, **ext: str
    ) -> dict[str, RemotingCommand | None]:
        """As at_topic(); None for a broker that does not know the request."""
        found: dict[str, RemotingCommand | None] = {}
        for name, address in await self._topic_addresses(topic):
            try:
                found[name] = await self._call(address, code, dict(ext))
            except RemoteError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                found[name] = None
        return found
