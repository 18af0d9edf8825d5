"""Keys of `aerobee up` where access control is on: what its servers need, what it asks with itself, what commands need."""

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
    """Where the NameServer is a process, which reads the environment, too. Raises ConfigError when it would refuse the brokers."""
    nameserver = build(AccessConfig, environment_settings(environ, (AccessConfig,)))
    if (
        nameserver.authentication_enabled
        and brokers.inner_credentials is None
        and RequestCode.REGISTER_BROKER not in codes_of(nameserver.authentication_whitelist, "")
    ):
        raise ConfigError(
            "authenticationEnabled is on in the environment, for the NameServer, too, and brokers have no keys to register with: "
            + HOW_TO_SET_INNER
        )


def own_keys(brokers: AccessConfig, environ: Mapping[str, str]) -> Credentials | None:
    """What `up` signs its own questions with; None when it knows no keys."""
    known = brokers.inner_credentials or brokers.first_user
    if known is None and environ.get(ACCESS_KEY):
        known = Credentials(environ[ACCESS_KEY], environ.get(SECRET_KEY, ""))
    return known


def refused(brokers: AccessConfig, why: str) -> str:
    """What to do about a NameServer that takes none of those keys, and so no broker of theirs."""
    keys = (
        "innerClientAuthenticationCredentials" if brokers.inner_credentials else "requests without such keys"
    )
    return (
        f"the NameServer asks for keys and refuses {keys}: {why}. Brokers register with these: {HOW_TO_SET_INNER}, those of an "
        "administrator whom the NameServer knows; a user that is there already keeps his password"
    )


def what_commands_need(brokers: AccessConfig, environ: Mapping[str, str]) -> str:
    """A sentence for whoever starts a cluster with access control and has no keys in his environment; "" when nothing is missing."""
    if not brokers.is_closed or environ.get(ACCESS_KEY):
        return ""
    user = brokers.first_user
    name, secret = ("…", "…") if user is None else (user.access_key, "…")
    whose = "" if user is None else " (the password of initAuthenticationUser)"
    return f"commands need them: export {ACCESS_KEY}={name} {SECRET_KEY}={secret}{whose}"
