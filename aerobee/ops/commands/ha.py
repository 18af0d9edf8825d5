"""`aerobee ha`: state of the controllers and of the broker groups, and changes of both.

Each command looks up the leader at the given controllers and sends its request to the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from aerobee.client import ClientConfig
from aerobee.client.session.session import client_tls
from aerobee.clock import SystemClock
from aerobee.errors import ConnectFailed, NotLeader, RequestNotSupported, TransportError, UsageError
from aerobee.host_port import CONTROLLER_DEFAULT, NAMESERVER_DEFAULT
from aerobee.network import AsyncioNetwork
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, Controllers, NameServers, Yes, ask
from aerobee.ops.options.shared_options import client_config
from aerobee.ops.terminal.failure import NoController, NoEpochs, NotFound, explain
from aerobee.ops.terminal.output import Output, snake_keys
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import seconds
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads_trusted
from aerobee.remoting.proven_client import prove
from aerobee.words import plural

CALL_TIMEOUT_S = 10.0

app = typer.Typer(
    name="ha", help="Controllers and broker groups: state, elections, members.", no_args_is_help=True
)
GroupName = Annotated[
    str, typer.Argument(metavar="BROKER_NAME", help="Broker name, shared by a master and its replicas.")
]
BrokerId = Annotated[int, typer.Argument(metavar="ID", min=1, help="The broker's id at the controllers.")]
Member = Annotated[str, typer.Argument(metavar="CONTROLLER", help="The controller's controllerDLegerSelfId.")]


@app.command("status")
def status(controllers: Controllers = CONTROLLER_DEFAULT, as_json: AsJson = False) -> None:
    """Show the controllers' leader, and for each broker group its master, in-sync replicas and log ends at the last heartbeat."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with opened(controllers) as quorum:
            seen = await quorum.status()
        if as_json:
            out.document(snake_keys(seen))
            return
        out.facts(
            {
                "group": seen["group"],
                "leader": f"{seen['leaderId'] or 'none'} (term {seen['term']})",
                "voters": ", ".join(seen["voters"]),
                "learners": ", ".join(seen["learners"]) or "none",
            },
            title="controllers",
        )
        out.say("")
        out.table(
            [row for group in seen["brokerGroups"] for row in _rows(group)],
            {
                "broker": "broker",
                "id": "id",
                "address": "address",
                "role": "role",
                "epoch": "epoch",
                "state": "state",
                "max_offset": "log end",
                "behind": "behind",
            },
            empty="no broker has registered with these controllers",
        )
        if left_out := seen.get("brokerGroupsLeftOut"):
            out.note(
                f"left out: {plural(left_out, 'group')} without a master, or for which the answer has no space"
            )

    run(command)


@app.command("epochs")
def epochs(name: GroupName, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False) -> None:
    """Show the epochs of each broker's log in a group with controllers; logs with different epochs have diverged."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            found = [info for info in await admin.brokers() if info.broker_name == name]
            if not found:
                raise NotFound(
                    f"no broker of {name} is registered; `aerobee cluster list` shows the registered brokers"
                )
            try:
                rows = [
                    {
                        "broker": info.address,
                        "epoch": each.number,
                        "from": each.start_offset,
                        "to": each.end_offset,
                    }
                    for info in found
                    for each in await admin.epochs(info.address)
                ]
            except RequestNotSupported as error:
                raise NoEpochs(explain(error).sentence) from error
        out.table(
            rows,
            {"broker": "broker", "epoch": "epoch", "from": "from byte", "to": "to byte"},
            empty=f"no master of {name} has written to its log yet",
        )

    run(command)


@app.command("elect")
def elect(
    name: GroupName,
    broker_id: BrokerId,
    controllers: Controllers = CONTROLLER_DEFAULT,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make an in-sync replica the master of its group."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        ask(f"Make broker {broker_id} the master of {name}? Writes pause until the lease ends.", yes)
        async with opened(controllers) as quorum:
            answer = await quorum.call(
                RequestCode.CONTROLLER_ELECT_MASTER,
                {"clusterName": "", "brokerName": name, "brokerId": str(broker_id), "designateElect": "true"},
            )
        ext = answer.ext or {}
        out.document(
            snake_keys({"broker_name": name, **ext}),
            f"broker {ext.get('masterBrokerId')} at {ext.get('masterAddress')} is master of {name}, "
            f"epoch {ext.get('masterEpoch')}",
        )

    run(command)


@app.command("step-down")
def step_down(
    name: GroupName,
    address: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Address of the broker at the controllers.")
    ],
    apart_s: Annotated[
        float,
        typer.Option(
            "--apart",
            parser=seconds,
            metavar="SPAN",
            help="Minimum time since the last change of master in another group, so that clients learn of each change.",
        ),
    ] = 0.0,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", parser=seconds, metavar="SPAN", help="Maximum time to wait for --apart."),
    ] = 60.0,
    controllers: Controllers = CONTROLLER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Hand the mastership to another in-sync broker before this one is stopped. Does nothing if it is not the master."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with opened(controllers) as quorum:
            seen = await quorum.status()
            successor = successor_of(seen["brokerGroups"], name, address)
            if successor is None:
                out.document(
                    {"broker_name": name, "stepped_down": False}, f"{address} is not master of {name}"
                )
                return
            answer = await quorum.hand_over(name, successor, apart_s, timeout_s)
        ext = answer.ext or {}
        out.document(
            snake_keys({"broker_name": name, "stepped_down": True, **ext}),
            f"broker {ext.get('masterBrokerId')} at {ext.get('masterAddress')} is master of {name}, "
            f"epoch {ext.get('masterEpoch')}",
        )

    run(command)


def successor_of(groups: Iterable[Mapping[str, Any]], name: str, address: str) -> int | None:
    """Id of the broker that should succeed the master at `address`: the in-sync replica with the longest log.

    None when the broker at `address` is not the master. Raises UsageError without another live in-sync replica.
    """
    for group in groups:
        if group["brokerName"] != name:
            continue
        brokers = group["brokers"]
        if address not in [each["address"] for each in brokers if each["brokerId"] == group["masterId"]]:
            return None
        others = [
            each
            for each in brokers
            if each["isAlive"] and each["isInSync"] and each["isDiskSound"] and each["address"] != address
        ]
        if not others:
            raise UsageError(
                f"only {address} can be master of {name}: no other broker of the group is alive and in sync "
                "(`aerobee ha status`)"
            )
        return int(max(others, key=lambda each: (each["maxOffset"], -each["brokerId"]))["brokerId"])
    return None


@app.command("forget")
def forget(
    name: GroupName,
    broker_id: BrokerId,
    controllers: Controllers = CONTROLLER_DEFAULT,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove a broker that will not come back from the controllers. Fails for a live broker."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        ask(f"Remove broker {broker_id} of {name}? If it comes back, it needs a new id.", yes)
        async with opened(controllers) as quorum:
            await quorum.call(
                RequestCode.CLEAN_BROKER_DATA,
                {
                    "clusterName": "",
                    "brokerName": name,
                    "brokerControllerIdsToClean": str(broker_id),
                    "isCleanLivingBroker": "false",
                },
            )
        out.document(
            {"broker_name": name, "forgotten": broker_id}, f"broker {broker_id} of {name} is removed"
        )

    run(command)


@app.command("add-controller")
def add_controller(
    member: Member, controllers: Controllers = CONTROLLER_DEFAULT, as_json: AsJson = False
) -> None:
    """Add a controller that was started with controllerJoinsQuorum=true as a learner, without a vote until it is promoted."""
    _change(
        "addLearner",
        member,
        f"{member} is a learner; `aerobee ha promote-controller` makes it a voter",
        controllers,
        as_json,
    )


@app.command("promote-controller")
def promote_controller(
    member: Member, controllers: Controllers = CONTROLLER_DEFAULT, as_json: AsJson = False
) -> None:
    """Make a learner that has caught up a voter."""
    _change("promote", member, f"{member} is a voter", controllers, as_json)


@app.command("remove-controller")
def remove_controller(
    member: Member, controllers: Controllers = CONTROLLER_DEFAULT, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Remove a controller from the quorum."""
    _change(
        "remove",
        member,
        f"{member} is removed from the quorum",
        controllers,
        as_json,
        f"Remove {member}?",
        yes,
    )


@app.command("hand-over")
def hand_over(member: Member, controllers: Controllers = CONTROLLER_DEFAULT, as_json: AsJson = False) -> None:
    """Transfer the leadership to another controller before the leader is stopped."""
    _change(
        "transfer", member, f"{member} becomes leader as soon as its log is complete", controllers, as_json
    )


def _change(
    action: str, member: str, done: str, controllers: str, as_json: bool, question: str = "", yes: bool = True
) -> None:
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        if question:
            ask(question, yes)
        async with opened(controllers) as quorum:
            await quorum.call(RequestCode.AEROBEE_CHANGE_QUORUM, {"action": action, "member": member})
        out.document({"action": action, "member": member}, done)

    run(command)


class QuorumAdmin:
    """Sends requests to the leader of the controllers."""

    def __init__(self, client: RemotingClient, addresses: list[str]) -> None:
        self._client = client
        self._addresses = addresses

    async def leader(self) -> str:
        """host:port of the leader. Raises NotLeader when no controller knows one, ConnectFailed when none is reachable."""
        failure: TransportError | None = None
        for address in self._addresses:
            try:
                answer = await self._ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            except TransportError as error:
                failure = error
                continue
            found = (answer.ext or {}).get("controllerLeaderAddress")
            if found:
                return found
            failure = None
        if failure is not None:
            raise failure
        raise NotLeader(
            "the controllers have no leader now: a majority of them must run and reach each other"
        )

    async def call(self, code: int, ext: Mapping[str, str]) -> RemotingCommand:
        """Send a request to the leader. Raises RemoteError when it refuses."""
        return await self._ask(await self.leader(), code, ext)

    async def hand_over(self, name: str, broker_id: int, apart_s: float, timeout_s: float) -> RemotingCommand:
        """Make a broker master, at least `apart_s` after the last change of master in another group.

        After `timeout_s` the change happens in any case. Raises RemoteError when the controller refuses.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        ext = {"clusterName": "", "brokerName": name, "brokerId": str(broker_id), "designateElect": "true"}
        while (left_s := end_s - loop.time()) > 0 and apart_s:
            request = RemotingCommand(
                RequestCode.CONTROLLER_ELECT_MASTER, {**ext, "apartMillis": str(round(apart_s * 1000))}
            )
            address = await self.leader()
            await prove(self._client, address, CALL_TIMEOUT_S)
            answer = await self._client.invoke(address, request, timeout_s=CALL_TIMEOUT_S)
            wait_ms = (answer.ext or {}).get("waitMillis", "")
            if not wait_ms.isdigit():
                return checked(answer, address=address, request=RequestCode(request.code).name)
            await asyncio.sleep(min(int(wait_ms) / 1000, left_s))
        return await self.call(RequestCode.CONTROLLER_ELECT_MASTER, ext)

    async def status(self) -> dict[str, Any]:
        """The leader's view, or that of any controller when there is no leader."""
        try:
            address = await self.leader()
        except NotLeader:
            address = self._addresses[0]
        answer = await self._ask(address, RequestCode.AEROBEE_QUORUM_STATUS)
        return loads_trusted(answer.body, "the state of the quorum")

    async def _ask(self, address: str, code: int, ext: Mapping[str, str] | None = None) -> RemotingCommand:
        request = RemotingCommand(code, dict(ext) if ext is not None else None)
        await prove(self._client, address, CALL_TIMEOUT_S)
        answer = await self._client.invoke(address, request, timeout_s=CALL_TIMEOUT_S)
        return checked(answer, address=address, request=RequestCode(code).name)


@asynccontextmanager
async def opened(controllers: str, config: ClientConfig | None = None) -> AsyncIterator[QuorumAdmin]:
    """A QuorumAdmin for "host:port;host:port". `config`: TLS and keys, by default those of the command line."""
    addresses = [part.strip() for part in controllers.split(";") if part.strip()]
    if not addresses:
        raise UsageError("no controller is given: use --controller HOST:PORT[;HOST:PORT]")
    config = config or client_config()
    client = RemotingClient(
        clock=SystemClock(), network=AsyncioNetwork(), tls=client_tls(config), credentials=config.credentials
    )
    try:
        yield QuorumAdmin(client, addresses)
    except ConnectFailed as error:
        raise NoController(
            f"no controller is reachable at {error.address}: {error.reason}; set --controller, AEROBEE_CONTROLLER_ADDR, or a "
            "context (`aerobee context set NAME --controller …`)"
        ) from error
    finally:
        await client.close()


def _rows(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    ends = [each["maxOffset"] for each in group["brokers"] if each["brokerId"] == group["masterId"]]
    rows = []
    for each in group["brokers"]:
        if not each["isAlive"]:
            state = "disk takes no writes" if not each["isDiskSound"] else "gone"
        else:
            state = "in sync" if each["isInSync"] else "catching up"
        is_known = bool(ends) and ends[0] >= 0 and each["maxOffset"] >= 0
        rows.append(
            {
                "broker": group["brokerName"],
                "id": each["brokerId"],
                "address": each["address"],
                "role": "master" if each["brokerId"] == group["masterId"] else "slave",
                "epoch": group["masterEpoch"] if each["epoch"] < 0 else each["epoch"],
                "state": state + ("" if each["isInSync"] or each["isAlive"] else ", not in sync"),
                "max_offset": each["maxOffset"] if each["maxOffset"] >= 0 else None,
                "behind": max(ends[0] - each["maxOffset"], 0) if is_known else None,
            }
        )
    return rows
