"""Changes of the topology: an election, and stopping or permitting the sends to a broker group."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.client import Admin
from aerobee.console.fields import Fields, Outcome, Run, integer, text
from aerobee.console.topology import Topology
from aerobee.console.users import Role
from aerobee.errors import UsageError
from aerobee.ops.commands.drain import READ_ONLY, make_read_only
from aerobee.remoting.protocol import MASTER_ID
from aerobee.words import plural

WRITABLE = "6"


class TopologyActions:
    """`table`: name -> (role, run)."""

    def __init__(self, admin: Admin, topology: Topology, command: Callable[..., str]) -> None:
        """`command` makes the text of the equivalent command."""
        self._admin = admin
        self._topology = topology
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "elect": (Role.ADMIN, self.elect),
            "read-only": (Role.ADMIN, self.read_only),
            "writable": (Role.ADMIN, self.writable),
        }

    async def elect(self, fields: Fields, dry_run: bool) -> Outcome:
        """Make an in-sync replica the master of its group."""
        name, broker_id = text(fields, "broker"), integer(fields, "id")
        controllers = await self._topology.controllers()
        if not controllers:
            raise UsageError(
                "no broker is in controller mode: roles are configured, and no master is elected"
            )
        command = self._command("ha", "elect", name, str(broker_id), "--controller", controllers[0], "--yes")
        command = command.rpartition(" --nameserver ")[0]  # the command asks the controllers only
        if dry_run:
            return Outcome(
                command, f"broker {broker_id} would be master of {name}; sends wait until the lease ends"
            )
        master = await self._topology.elect(name, broker_id)
        return Outcome(command, f"{master} is master of {name}")

    async def read_only(self, fields: Fields, dry_run: bool) -> Outcome:
        """Stop the sends to a broker group, before it is removed."""
        name = text(fields, "broker")
        command = self._command("cluster", "drain", name, "--yes")
        addresses = await self._addresses(name)
        if dry_run:
            return Outcome(
                command, f"{name} would accept no messages; the command then waits until all are consumed"
            )
        for address in addresses:
            await make_read_only(self._admin, address)
        return Outcome(command, f"{name} accepts no messages at {plural(len(addresses), 'broker')}")

    async def writable(self, fields: Fields, dry_run: bool) -> Outcome:
        """Permit the sends to a broker group again."""
        name = text(fields, "broker")
        addresses = await self._addresses(name)
        master = addresses[0]
        command = self._command("config", "set", master, f"brokerPermission={WRITABLE}")
        if dry_run:
            return Outcome(command, f"{name} would be writable again")
        for address in addresses:
            if (await self._admin.broker_config(address)).get("brokerPermission") == READ_ONLY:
                await self._admin.update_broker_config(address, {"brokerPermission": WRITABLE})
        return Outcome(command, f"{name} is writable again")

    async def _addresses(self, name: str) -> list[str]:
        """The brokers of a group, the master first. Raises UsageError."""
        found = [info for info in await self._admin.brokers() if info.broker_name == name]
        if not found:
            raise UsageError(f"the cluster has no broker group {name!r}")
        return [info.address for info in sorted(found, key=lambda info: info.broker_id != MASTER_ID)]
