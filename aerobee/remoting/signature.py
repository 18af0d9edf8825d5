"""Signed requests: proof of the user and of the request's integrity. Pure.

Source: AclClientRPCHook, AclUtils.combineRequestContent, AclSigner (RocketMQ). A request carries the extension fields
`AccessKey`, perhaps `SecurityToken`, and `Signature`:

    content     the values (not the names) of all extension fields but Signature, in the order of their names, then the body
    Signature   Base64 of HMAC-SHA1 of the content, the secret key being the key

Replies are not signed, and a signature contains no time: an attacker who reads the network can replay a
request. TLS prevents that.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field

import orjson

from aerobee.errors import ConfigError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import decode_frame, encode_frame

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
KEY_CHARS_MAX = 255
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
LAST_WITHOUT_UNIQUE_KEY_QUERY = (
    399  # MQVersion of 4.9.3: up to it clients leave that field out of the content
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client. The secret never shows in repr().

    Raises ConfigError for an empty key, or one without the other.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name, value in (("access key", self.access_key), ("secret key", self.secret_key)):
            if not value or len(value) > KEY_CHARS_MAX:
                raise ConfigError(f"the {name} has {len(value)} characters, 1 to {KEY_CHARS_MAX} are needed")

    def sign(self, request: RemotingCommand) -> None:
        """Add the fields to the request. Call it last: later changes invalidate the signature."""
        ext = dict(request.ext or {})
        ext.pop(SIGNATURE, None)
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        request.ext = ext
        ext[SIGNATURE] = signature(self.secret_key, signed_content(request))

    def sign_frame(self, frame: bytes) -> bytes:
        """The same for a whole frame with a JSON header, as encode_frame() and the client's templates make them.

        A frame whose header is not JSON is decoded and encoded again.
        """
        size = int.from_bytes(frame[4:8], "big")
        if size >> 24:
            request = decode_frame(frame)
            self.sign(request)
            return encode_frame(request)
        header, body = frame[8 : 8 + size], frame[8 + size :]
        fields = orjson.loads(header)
        ext = dict(fields.get("extFields") or {})
        if ACCESS_KEY in ext:
            return frame  # signed already
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        content = "".join([str(ext[name]) for name in sorted(ext)]).encode("utf-8", "surrogatepass") + body
        ext[SIGNATURE] = signature(self.secret_key, content)
        fields["extFields"] = ext
        header = orjson.dumps(fields)
        return b"".join(
            ((4 + len(header) + len(body)).to_bytes(4, "big"), len(header).to_bytes(4, "big"), header, body)
        )


def credentials_of(
    text: str, key: str, name: str = "accessKey", secret: str = "secretKey"
) -> Credentials | None:
    """Read the value of a setting, `{"accessKey":"…","secretKey":"…"}`; None for an empty one.

    Raises ConfigError, which does not repeat the text: it holds a secret.
    """
    if not text.strip():
        return None
    try:
        document = orjson.loads(text)
        return Credentials(str(document[name]), str(document[secret]))
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f'{key} is not {{"{name}":"…","{secret}":"…"}}') from None


def signed_content(request: RemotingCommand) -> bytes:
    """The bytes that the signature of this request covers."""
    ext = request.ext or {}
    left_out = {SIGNATURE}
    if request.version <= LAST_WITHOUT_UNIQUE_KEY_QUERY:
        left_out.add(UNIQUE_KEY_QUERY)
    text = "".join([ext[name] for name in sorted(ext) if name not in left_out])
    return text.encode("utf-8", "surrogatepass") + request.body


def signature(secret_key: str, content: bytes) -> str:
    """Base64 of the HMAC-SHA1 of `content`."""
    import hmac  # imported here: it loads OpenSSL's hashes, needed only with keys

    digest = hmac.digest(secret_key.encode(), content, "sha1")
    return binascii.b2a_base64(digest, newline=False).decode("ascii")


def is_signed_with(request: RemotingCommand, secret_key: str) -> bool:
    """Whether the request's signature was made with this key. The comparison takes constant time."""
    import hmac

    given = (request.ext or {}).get(SIGNATURE, "")
    expected = signature(secret_key, signed_content(request))
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode("ascii"))
