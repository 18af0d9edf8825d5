"""gRPC at the broker's ports, where protobuf is installed: it is loaded when it is needed.

A broker with grpcServerPort loads it at its start, another one when the first connection begins as HTTP/2's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aerobee.broker.assembly.grpc_packages import grpc_is_installed
from aerobee.broker.transaction.service import Transactions
from aerobee.remoting.connection import Connection
from aerobee.remoting.other_protocol import OtherProtocol

if TYPE_CHECKING:
    from aerobee.broker.assembly.foundation import Foundation
    from aerobee.broker.assembly.ports import Ports
    from aerobee.broker.assembly.serving import Serving
    from aerobee.broker.grpc.endpoint import GrpcEndpoint
    from aerobee.grpc.core import MakeHttp2

log = logging.getLogger(__name__)


def serve_grpc(
    ports: Ports, serving: Serving, base: Foundation, *, port: int, make_http2: MakeHttp2 | None = None
) -> None:
    """Let the ports take gRPC from now on. `port` is grpcServerPort, `make_http2` makes native HTTP/2 cores."""
    if not grpc_is_installed():
        if port:
            log.warning(
                "grpcServerPort %d is not served: gRPC needs the package protobuf, pip install 'aerobee[grpc]'",
                port,
            )
        return
    made: list[GrpcEndpoint] = []

    def endpoint() -> GrpcEndpoint:
        if not made:
            from aerobee.broker.grpc.endpoint import make_endpoint  # loaded where it is wanted

            services = serving.services
            (transactions,) = (each for each in serving.features if isinstance(each, Transactions))
            made.append(
                make_endpoint(
                    serving.parts,
                    sends=services.sends,
                    pops=services.pops,
                    acks=services.acks,
                    send_backs=services.send_backs,
                    lite=services.lite,
                    transactions=lambda: transactions.transaction_store.table,
                    handlers=serving.handlers,
                    gate=base.access.gate,
                    make_http2=make_http2,
                    traffic=ports.grpc_traffic,
                    fast_path=serving.fast_path,
                )
            )
        return made[0]

    def session(connection: Connection) -> OtherProtocol:
        return endpoint().session(connection)

    if port:
        endpoint()
        log.info("gRPC is served at port %d", port)
    ports.serve_grpc(session)
