"""Access control of the fast path: each frame must carry the signature of a permitted user. A core.

Permissions are looked up once and cached until users or permissions change: whether the owner of this access key may
send to this topic, or pull this topic for this group, from this host (Gate.grant). The signature is verified for each
frame: HMAC-SHA1 over the values of all its fields and its body, as the protocol defines. So the fast path serves no
request that the handlers' gate would refuse; unusual frames are left to the handlers, which return the reason.
Permissions are looked up and cached only after a valid signature: an unauthenticated peer fills no memory and causes no
look-up.
"""

from __future__ import annotations

import hmac
from typing import Any

from aerobee.broker.fastpath.exclusions import GUARDED_FIELDS_MAX, GUARDED_TEXT_CHARS_MAX
from aerobee.broker.fastpath.request import Request
from aerobee.broker.fastpath.seam import FrameGrant, GuardSettings
from aerobee.remoting.signature import ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY, signature

REMEMBERED_MAX = 10_000  # maximum number of cached grants; at the limit all are dropped
_UNDECODABLE = "\ufffd"  # replacement for bytes that are not UTF-8


class Guard:
    """Checks the signature and permissions of frames, one by one."""

    def __init__(self, settings: GuardSettings) -> None:
        self._find_grant = settings.find_grant
        self._fields = settings.fields
        self._granted: dict[tuple[int, str, str, tuple[str, ...]], FrameGrant] = {}
        self._forgets = False

    def forget(self) -> None:
        """Users or permissions have changed: drop the cached grants. Callable from any thread."""
        self._forgets = True

    def lets(self, request: Request, host: str | None) -> bool:
        """As admits(), for a backend's present request."""
        if host == "":
            return True  # without a copy of the body
        is_binary = request.command is not None
        return self.admits(request.code, request.ext, request.body, host, is_binary=is_binary)

    def admits(
        self,
        code: int,
        ext: Any,
        body: bytes | bytearray,
        host: str | None,
        *,
        is_binary: bool = False,
    ) -> bool:
        """Whether this frame may be served here. `host` is the peer's host, "" for a peer that is not checked, None if
        unknown."""
        if host == "":
            return True
        names = self._fields.get(code)
        if names is None or host is None or type(ext) is not dict:
            return False
        if UNIQUE_KEY_QUERY in ext or len(ext) > GUARDED_FIELDS_MAX:
            return False
        if is_binary and any(_UNDECODABLE in name or _UNDECODABLE in ext[name] for name in ext):
            return False
        if self._forgets:
            self._forgets = False  # first, so that a later change takes effect with the next frame
            self._granted.clear()
        access_key = ext.get(ACCESS_KEY, "")
        named = tuple([ext.get(name, "") for name in names])
        if type(access_key) is not str or any(type(text) is not str for text in named):
            return False
        if len(access_key) > GUARDED_TEXT_CHARS_MAX or any(
            len(text) > GUARDED_TEXT_CHARS_MAX for text in named
        ):
            return False
        key = (code, host, access_key, named)
        grant = known = self._granted.get(key)
        if grant is None:
            grant = self._find_grant(
                code, {ACCESS_KEY: access_key, **dict(zip(names, named, strict=True))}, host
            )
            if grant is None:
                return False
        if not _is_signed(grant.signing_key, ext, body):
            return False
        if known is None:
            if not grant.allows():
                return False
            if len(self._granted) >= REMEMBERED_MAX:
                self._granted.clear()
            self._granted[key] = grant
        return True


def _is_signed(key: str | None, ext: dict[str, Any], body: bytes | bytearray) -> bool:
    if key is None:
        return True
    given = ext.get(SIGNATURE)
    if type(given) is not str:
        return False
    try:
        content = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE]).encode()
        return hmac.compare_digest(given.encode(), signature(key, content + body).encode())
    except (TypeError, UnicodeEncodeError):
        return False  # a value that is no text
