"""The ports of a cluster in one container, and the command that starts it there. Core.

first     NameServer
first+1   three controllers
first+4   console
first+5   gRPC, one of each broker
then      the brokers, in steps of 10: each also has the VIP port 2 below and the replication port 1 above
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.broker.assembly.ports import (
    BROKER_PORT_STEP,
    CONTROLLERS_OF_A_QUORUM,
    HA_OFFSET,
    VIP_OFFSET,
)

_BEFORE_GRPC = 1 + CONTROLLERS_OF_A_QUORUM + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPorts:
    """Ports inside, which are those outside. `console` is 0 without a console."""

    nameserver: int
    controllers: tuple[int, ...]
    console: int
    grpc: tuple[int, ...]
    brokers: tuple[int, ...]

    @classmethod
    def size(cls, broker_count: int) -> int:
        """Number of ports in a row."""
        return _BEFORE_GRPC + broker_count + broker_count * BROKER_PORT_STEP

    @classmethod
    def at(
        cls, first: int, *, broker_count: int, has_controllers: bool, has_grpc: bool, has_console: bool
    ) -> ContainerPorts:
        """The ports from `first` on."""
        grpc = first + _BEFORE_GRPC
        broker = grpc + broker_count - VIP_OFFSET
        return cls(
            nameserver=first,
            controllers=tuple(range(first + 1, first + 1 + CONTROLLERS_OF_A_QUORUM))
            if has_controllers
            else (),
            console=first + 1 + CONTROLLERS_OF_A_QUORUM if has_console else 0,
            grpc=tuple(range(grpc, grpc + broker_count)) if has_grpc else (),
            brokers=tuple(broker + number * BROKER_PORT_STEP for number in range(broker_count)),
        )

    @property
    def published(self) -> tuple[int, ...]:
        """All ports that clients may use. Replication is among them: a slave connects to its master's advertised address."""
        of_brokers = (port + offset for port in self.brokers for offset in (VIP_OFFSET, 0, HA_OFFSET))
        console = (self.console,) if self.console else ()
        return (self.nameserver, *self.controllers, *console, *self.grpc, *of_brokers)

    def up_command(
        self, brokers: int, replicas: int, *, advertise: str, settings: Mapping[str, str]
    ) -> list[str]:
        """Arguments of the image's entry point."""
        words = ["up", "--json", "--ephemeral", "--no-console", "--host", "0.0.0.0", "--advertise", advertise]
        words += ["--brokers", str(brokers), "--replicas", str(replicas)]
        words += ["--nameserver-port", str(self.nameserver), "--port", str(self.brokers[0])]
        if self.controllers:
            words += ["--controller-port", str(self.controllers[0])]
        words += ["--grpc-port", str(self.grpc[0])] if self.grpc else ["--no-grpc"]
        for key, value in settings.items():
            words += ["--set", f"{key}={value}"]
        return words
