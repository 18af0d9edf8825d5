"""`aerobee context`: named clusters in a file, with their addresses and connection options."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from aerobee.client.session.contexts import (
    SECRET_KEYS,
    Context,
    ContextFile,
    cluster,
    contexts_path,
    read_contexts,
    write_contexts,
)
from aerobee.client.session.nameservers import parse_addresses
from aerobee.errors import UsageError
from aerobee.ops.options.options import AsJson
from aerobee.ops.terminal.failure import LocalRefused
from aerobee.ops.terminal.output import Output

app = typer.Typer(
    help="Named clusters with their addresses and connection options.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _held_by(variable: str | None, option: str) -> str | None:
    """The value of an environment variable. A secret is not an argument: other users of the machine see arguments."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise UsageError(f"{option} {variable}: this variable is not set")
    return os.environ[variable]


def _user_of(access_key: str | None, variable: str | None) -> str | None:
    if access_key is not None and variable is not None:
        raise UsageError("--access-key and --access-key-env are mutually exclusive")
    return access_key if variable is None else _held_by(variable, "--access-key-env")


def _names() -> list[str]:
    return sorted(read_contexts(contexts_path()).contexts)


Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", autocompletion=_names)]


@app.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """Show all contexts; the current one is marked."""
    out = Output(as_json)
    file = read_contexts(contexts_path())
    rows = [
        {"current": name == file.current, "context": name, **_shown(context)}
        for name, context in sorted(file.contexts.items())
    ]
    shown = [{**row, "current": "*" if row["current"] else ""} for row in rows] if not as_json else rows
    columns = {
        "current": "",
        "context": "context",
        "nameserver": "nameserver",
        "controller": "controller",
        "tls": "tls",
        "files": "TLS files",
    }
    out.table(
        shown,
        columns,
        empty=f"{file.path} has no context; `aerobee context add NAME --nameserver HOST:PORT` adds one",
    )


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show the connection that a command would use now."""
    found = cluster()
    Output(as_json).facts(
        {
            "context": found.context or None,
            "nameserver": found.nameservers,
            "controller": found.controllers,
            "tls": found.client.tls,
            "tls_ca_file": found.client.tls_ca_file or None,
            "tls_insecure": found.client.tls_insecure,
            "tls_cert_file": found.client.tls_cert_file or None,
            "access_key": found.client.access_key or None,
            "file": str(contexts_path()),
        }
    )


Nameserver = Annotated[
    str | None,
    typer.Option("--nameserver", "-n", metavar="HOST:PORT[;…]", help="Addresses of its NameServers."),
]
ControllerOption = Annotated[
    str | None,
    typer.Option("--controller", "-a", metavar="HOST:PORT[;…]", help="Addresses of its controllers."),
]
Tls = Annotated[bool | None, typer.Option("--tls/--no-tls", help="Connect with TLS.")]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--tls-ca-file", "--tls-ca", metavar="PEM", help="Trust these authorities instead of the system's."
    ),
]
Insecure = Annotated[
    bool | None,
    typer.Option("--tls-insecure/--no-tls-insecure", help="Connect with TLS and accept any certificate."),
]
CertFile = Annotated[
    str | None, typer.Option("--tls-cert-file", "--tls-cert", metavar="PEM", help="Client certificate.")
]
KeyFile = Annotated[
    str | None,
    typer.Option("--tls-key-file", "--tls-key", metavar="PEM", help="Key of the client certificate."),
]
AccessKey = Annotated[
    str | None,
    typer.Option("--access-key", metavar="NAME", help="User name, for clusters with access control."),
]
AccessKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--access-key-env",
        metavar="VARIABLE",
        help="Environment variable to read the user name from now.",
    ),
]
SecretKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--secret-key-env",
        metavar="VARIABLE",
        help="Environment variable to read the secret key from now.",
    ),
]


@app.command("add")
def add_context(
    name: Name,
    nameserver: Nameserver = None,
    controller: ControllerOption = None,
    tls: Tls = None,
    ca_file: CaFile = None,
    insecure: Insecure = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    access_key: AccessKey = None,
    access_key_env: AccessKeyEnv = None,
    secret_key_env: SecretKeyEnv = None,
    as_json: AsJson = False,
) -> None:
    """Add a new context. The first context becomes the current one."""
    if name in read_contexts(contexts_path()).contexts:
        raise UsageError(
            f"context {name} exists already: `aerobee context set {name}` changes it and takes the same options"
        )
    user = _user_of(access_key, access_key_env)
    given = _given(
        nameserver, controller, tls, insecure, (ca_file, cert_file, key_file), user, secret_key_env
    )
    _keep(name, given, as_json=as_json)


@app.command("set")
def set_context(
    name: Name,
    nameserver: Nameserver = None,
    controller: ControllerOption = None,
    tls: Tls = None,
    ca_file: CaFile = None,
    insecure: Insecure = None,
    cert_file: CertFile = None,
    key_file: KeyFile = None,
    access_key: AccessKey = None,
    access_key_env: AccessKeyEnv = None,
    secret_key_env: SecretKeyEnv = None,
    as_json: AsJson = False,
) -> None:
    """Add a context, or change the given values of one. The first context becomes the current one."""
    user = _user_of(access_key, access_key_env)
    given = _given(
        nameserver, controller, tls, insecure, (ca_file, cert_file, key_file), user, secret_key_env
    )
    _keep(name, given, as_json=as_json)


def _given(
    nameserver: str | None,
    controller: str | None,
    tls: bool | None,
    insecure: bool | None,
    files: tuple[str | None, str | None, str | None],
    user: str | None,
    secret_key_env: str | None,
) -> Context:
    """The values of the options; None where not given. `files`: paths of the authorities, the certificate and its key."""
    for addresses in (nameserver, controller):
        if addresses is not None:
            parse_addresses(addresses)
    paths = [None if path is None else os.path.abspath(os.path.expanduser(path)) for path in files]
    return Context(
        access_key=user,
        secret_key=_held_by(secret_key_env, "--secret-key-env"),
        nameserver=nameserver,
        controller=controller,
        tls=True if tls is None and (insecure or any(paths)) else tls,
        tls_insecure=insecure,
        tls_ca_file=paths[0],
        tls_cert_file=paths[1],
        tls_key_file=paths[2],
    )


def _keep(name: str, given: Context, *, as_json: bool) -> None:
    file = read_contexts(contexts_path())
    context = given.over(file.contexts.get(name, Context()))
    if context.nameserver is None:
        raise UsageError(f"context {name} is new and needs an address: --nameserver HOST:PORT")
    file = replace(file, current=file.current or name, contexts={**file.contexts, name: context})
    _write(file)
    Output(as_json).document(
        {
            "context": name,
            "current": file.current,
            **{key: value for key, value in context.as_document().items() if key not in SECRET_KEYS},
        },
        f"context {name} is saved in {file.path}"
        + ("" if file.current != name else "; it is the current one"),
    )


@app.command("use")
def use(name: Name, as_json: AsJson = False) -> None:
    """Make a context the current one."""
    file = read_contexts(contexts_path())
    context = file.get(name)
    _write(replace(file, current=name))
    Output(as_json).document(
        {"current": name, "nameserver": context.nameserver},
        f"commands without -n now use context {name}: {context.nameserver}",
    )


@app.command("delete")
def delete(name: Name, as_json: AsJson = False) -> None:
    """Delete a context."""
    file = read_contexts(contexts_path())
    file.get(name)
    left = {other: context for other, context in file.contexts.items() if other != name}
    _write(replace(file, current="" if file.current == name else file.current, contexts=left))
    Output(as_json).document({"deleted": name}, f"context {name} is deleted")


def _shown(context: Context) -> dict[str, object]:
    files = [path for path in (context.tls_ca_file, context.tls_cert_file, context.tls_key_file) if path]
    return {
        "nameserver": context.nameserver,
        "controller": context.controller,
        "tls": bool(context.tls),
        "files": files,
    }


def _write(file: ContextFile) -> None:
    try:
        write_contexts(file)
    except OSError as error:
        raise LocalRefused(f"{file.path} cannot be written ({error.strerror})") from error
