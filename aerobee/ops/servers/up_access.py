"""Keys of `aerobee up` with access control: those of its servers, of its requests, and of the user's commands."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.access.config import AccessConfig, codes_of
from aerobee.config import build, environment_settings
from aerobee.errors import ConfigError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.signature import Credentials

INNER = "AEROBEE_INNERCLIENTAUTHENTICATIONCREDENTIALS"
HOW_TO_SET_INNER = f"""set {INNER}='{{"accessKey":"…","secretKey":"…"}}'"""
ACCESS_KEY, SECRET_KEY = "AEROBEE_ACCESS_KEY", "AEROBEE_SECRET_KEY"


def require_inner_keys(brokers: AccessConfig, environ: Mapping[str, str]) -> None:
    """Check the keys if the NameServer is a separate process and reads the environment. Raises ConfigError if it would
    refuse the brokers."""
    nameserver = build(AccessConfig, environment_settings(environ, (AccessConfig,)))
    if (
        nameserver.authentication_enabled
        and brokers.inner_credentials is None
        and RequestCode.REGISTER_BROKER not in codes_of(nameserver.authentication_whitelist, "")
    ):
        raise ConfigError(
            "the environment sets authenticationEnabled for the NameServer too, but brokers have no keys to register with: "
            + HOW_TO_SET_INNER
        )


def own_keys(brokers: AccessConfig, environ: Mapping[str, str]) -> Credentials | None:
    """The keys with which `up` signs its requests; None without any."""
    known = brokers.inner_credentials or brokers.first_user
    if known is None and environ.get(ACCESS_KEY):
        known = Credentials(environ[ACCESS_KEY], environ.get(SECRET_KEY, ""))
    return known


def refused(brokers: AccessConfig, why: str) -> str:
    """The error for a NameServer that refuses the keys of `up` and its brokers."""
    keys = (
        "innerClientAuthenticationCredentials" if brokers.inner_credentials else "requests without such keys"
    )
    return (
        f"the NameServer requires authentication and refuses {keys}: {why}. Brokers register with these keys: "
        f"{HOW_TO_SET_INNER}; use those of an administrator that the NameServer knows. An existing user keeps its password"
    )


def what_commands_need(brokers: AccessConfig, environ: Mapping[str, str]) -> str:
    """A hint if access control is on and the environment has no keys; "" if nothing is missing."""
    if not brokers.is_closed or environ.get(ACCESS_KEY):
        return ""
    user = brokers.first_user
    name, secret = ("…", "…") if user is None else (user.access_key, "…")
    whose = "" if user is None else " (the password of initAuthenticationUser)"
    return f"required by commands: export {ACCESS_KEY}={name} {SECRET_KEY}={secret}{whose}"
