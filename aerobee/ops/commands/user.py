"""`aerobee user`: list, create, update, delete. Equivalents of mqadmin's createUser, updateUser, deleteUser and listUser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run

app = typer.Typer(
    name="user", help="Users of access control: list, create, update, delete.", no_args_is_help=True
)
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name, its access key.")]
SecretEnv = Annotated[
    str | None,
    typer.Option(
        "--secret-env",
        metavar="NAME",
        help="Environment variable that contains the secret key (default: prompt for it).",
    ),
]


@app.command("list")
def list_users(
    cluster: ClusterName = None, nameserver: NameServers = NAMESERVER_DEFAULT, as_json: AsJson = False
) -> None:
    """List users, without their secret keys, and the servers that know them."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            users = await admin.users(cluster)
        rows = [
            {
                "user": each.name,
                "kind": "super" if each.is_super else "normal",
                "status": "enabled" if each.is_enabled else "disabled",
                "at": list(each.addresses),
            }
            for each in users
        ]
        out.table(
            rows,
            {"user": "user", "kind": "user type", "status": "status", "at": "known at"},
            empty="there are no users",
        )

    run(command)


@app.command("create")
def create_user(
    user: UserArgument,
    secret_env: SecretEnv = None,
    is_super: Annotated[
        bool, typer.Option("--super", help="Create an administrator with all permissions.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="HOST:PORT",
            help="Create the user at this server only, for example a new broker or NameServer.",
        ),
    ] = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a user who authenticates with a secret key. It has no permission until `aerobee acl allow` grants one."""
    out = Output(as_json)
    secret_key = _secret(user, secret_env)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            addresses = await admin.create_user(
                user, secret_key, is_super=is_super, cluster=cluster, address=address
            )
        out.document({"user": user, "at": list(addresses)}, f"user {user} is at {', '.join(addresses)}")

    run(command)


@app.command("update")
def update_user(
    user: UserArgument,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Change the secret key: prompt for it, or read --secret-env.")
    ] = False,
    secret_env: SecretEnv = None,
    is_super: Annotated[
        bool | None, typer.Option("--super/--normal", help="Administrator or normal user.")
    ] = None,
    is_enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether the user may connect.")
    ] = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change a user's secret key, kind or status; the rest stays unchanged."""
    out = Output(as_json)
    wants_secret = new_secret or secret_env is not None
    if not wants_secret and is_super is None and is_enabled is None:
        raise UsageError("no change is given: use --new-secret, --super, --normal, --enable or --disable")
    secret_key = _secret(user, secret_env) if wants_secret else None

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            addresses = await admin.update_user(
                user, secret_key=secret_key, is_super=is_super, is_enabled=is_enabled, cluster=cluster
            )
        out.document(
            {"user": user, "at": list(addresses)}, f"user {user} is changed at {', '.join(addresses)}"
        )

    run(command)


@app.command("delete")
def delete_user(
    user: UserArgument,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Delete a user and its permissions."""
    out = Output(as_json)
    ask(f"Delete user {user} and its permissions?", yes)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            addresses = await admin.delete_user(user, cluster=cluster)
        out.document(
            {"user": user, "deleted_at": list(addresses)}, f"user {user} is deleted at {', '.join(addresses)}"
        )

    run(command)


def _secret(user: str, variable: str | None) -> str:
    """Read the secret key. It is not an argument, because other users of the machine see arguments. Raises UsageError."""
    if variable is not None:
        found = os.environ.get(variable, "")
        if not found:
            raise UsageError(f"--secret-env {variable}: this variable is not set")
        return found
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to prompt for the secret key: use --secret-env NAME")
    return str(typer.prompt(f"secret key of {user}", hide_input=True, confirmation_prompt=True))
