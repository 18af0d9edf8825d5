"""Checks of every request: host name, session, token, and headers for the browser.

Host            only names of this console: a foreign page whose name resolves to this console is refused (DNS rebinding)
session         a cookie (HttpOnly, SameSite=Strict) after a login; or the header of a reverse proxy, if configured
X-CSRF-Token    the session's token, required for each POST: only a page of the console can read it
CSP             browsers load and run only files of the console
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address

from aiohttp import web

from aerobee.clock import Clock
from aerobee.console.cluster_users import ClusterUsers
from aerobee.console.config import ConsoleConfig
from aerobee.console.users import Role, User, hash_password, is_password, load_users
from aerobee.errors import AerobeeError, UsageError

log = logging.getLogger(__name__)
COOKIE = "aerobee_console"
SESSION_S = 12 * 3600.0
SESSIONS_MAX = 1_000
CHECKED_S = 5.0  # interval after which a request reads the cluster user's status and role again
TRIES_MAX, TRIES_S = 5, 60.0  # wrong passwords of one account, from one address
ADDRESS_TRIES_MAX = 30  # of all accounts, from one address that is not a proxy
COUNTED_MAX = 10_000  # pairs of account and address; the oldest are dropped
ACCOUNT_CHARS_MAX = 200
CHECKS_AT_ONCE_MAX = 2  # each takes some 50 ms of a core
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN_PATHS = ("/api/session", "/api/login")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Session:
    """The session of a logged-in user, or the only session of a console without users."""

    user: User
    csrf: str
    until_s: float
    is_of_cluster: bool = False
    check_at_s: float = 0.0  # time of the next check of the user at the cluster


class Access:
    """Sessions and the middleware."""

    def __init__(self, config: ConsoleConfig, clock: Clock, by_cluster: ClusterUsers | None = None) -> None:
        """`by_cluster`: also accepts users of the cluster. Raises ConfigError for an unreadable file of users."""
        self._config = config
        self._by_cluster = by_cluster
        self._clock = clock
        self._users = load_users(config.users_file) if config.users_file is not None else None
        self._sessions: dict[str, Session] = {}
        self._tries: dict[
            tuple[str, str], list[float]
        ] = {}  # by account and address; account "": all accounts from that address
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)
        self._dummy = User("", Role.VIEWER, hash_password(secrets.token_hex()))
        self._shared_session = Session(User("local", Role.ADMIN), secrets.token_urlsafe(24), float("inf"))
        self._by_header: dict[str, Session] = {}

    @property
    def has_login(self) -> bool:
        return self._config.has_login

    def session_of(self, request: web.Request) -> Session | None:
        """The session of a request; None without a login."""
        if not self.has_login:
            return self._shared_session
        header = self._config.user_header
        if header and request.remote in self._config.proxy_addresses:
            names = request.headers.getall(header, ())
            # With two headers, one may be from the browser, passed through by the proxy.
            name = names[0] if len(names) == 1 else ""
            user = (self._users or {}).get(name)
            if user is not None:
                if name not in self._by_header:
                    self._by_header[name] = Session(user, secrets.token_urlsafe(24), float("inf"))
                return self._by_header[name]
        session = self._sessions.get(request.cookies.get(COOKIE, ""))
        if session is None or session.until_s < self._clock.monotonic():
            return None
        return session

    def client_of(self, request: web.Request) -> str:
        """The address of the browser: that of the connection, or the one in `client_header`, which is trusted only from
        `proxy_addresses`. Of several addresses the last one that is not a proxy's: the browser can forge those before it."""
        remote = request.remote or ""
        header, proxies = self._config.client_header, self._config.proxy_addresses
        if not header or remote not in proxies:
            return remote
        said = ",".join(request.headers.getall(header, ())).split(",")
        for address in reversed([each.strip() for each in said]):
            if address in proxies:
                continue
            try:
                return str(ip_address(address))
            except ValueError:
                return remote
        return remote

    def viewer_of(self, request: web.Request) -> str:
        """The party that shares bounded resources: a user, or an address if the console has no login."""
        session = self.session_of(request)
        if self.has_login and session is not None:
            return f"user {session.user.name}"
        return self.client_of(request)

    def shut_out(self, address: str, name: str = "") -> str:
        """Reason why this address may not try a password now, for the account `name` or, without `name`, for any
        account; "" if it may.

        Browsers behind a proxy share its address, unless client_header has theirs: they are counted by account only,
        otherwise one of them could lock out all others.
        """
        if name:
            account = name[:ACCOUNT_CHARS_MAX]
            if len(self._tries_of(account, address)) < TRIES_MAX:
                return ""
            return f"{TRIES_MAX} wrong passwords for this account from {address}: wait a minute"
        if address in self._config.proxy_addresses or len(self._tries_of("", address)) < ADDRESS_TRIES_MAX:
            return ""
        return f"{ADDRESS_TRIES_MAX} wrong passwords from {address}: wait a minute"

    def _tries_of(self, name: str, address: str) -> list[float]:
        now = self._clock.monotonic()
        return [at for at in self._tries.get((name, address), ()) if now - at < TRIES_S]

    def _count(self, name: str, address: str, now: float) -> None:
        for key in ((name, address), ("", address)):
            tries = self._tries_of(*key)[-ADDRESS_TRIES_MAX:]
            self._tries.pop(key, None)  # the newest last
            self._tries[key] = [*tries, now]
        while len(self._tries) > COUNTED_MAX:
            self._tries.pop(next(iter(self._tries)))

    def _uncount(self, name: str, address: str, now: float) -> None:
        for key in ((name, address), ("", address)):
            if now in (tries := self._tries.get(key, [])):
                tries.remove(now)

    async def login(self, request: web.Request, name: str, password: str) -> tuple[str, Session] | str:
        """A new session with its cookie value, or the reason of the refusal, which does not reveal whether the name exists."""
        now, address = self._clock.monotonic(), self.client_of(request)
        account = name[:ACCOUNT_CHARS_MAX] or "?"
        if refusal := self.shut_out(address) or self.shut_out(address, account):
            return refusal
        # Count the try before the check: concurrent tries are limited like sequential ones.
        self._count(account, address, now)
        user = (self._users or {}).get(name)
        is_of_cluster = user is None
        # The check of an unknown name takes as long as that of a known one.
        async with self._checks:
            is_right = await asyncio.to_thread(is_password, user or self._dummy, password)
        if user is None and self._by_cluster is not None:
            try:
                user = await self._by_cluster.verified(name, password, address)
            except AerobeeError as error:
                return error.plain
            is_right = user is not None
        if user is None or not is_right:
            return "wrong name or password"
        self._uncount(account, address, now)
        self._sessions = {key: each for key, each in self._sessions.items() if each.until_s > now}
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.pop(next(iter(self._sessions)))
        cookie = secrets.token_urlsafe(32)
        session = self._sessions[cookie] = Session(
            user, secrets.token_urlsafe(24), now + SESSION_S, is_of_cluster, now + CHECKED_S
        )
        return cookie, session

    def logout(self, request: web.Request) -> None:
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    async def check_user(self, request: web.Request) -> None:
        """End the session of a user that the cluster no longer has, or update the user's role.

        Called for each request; reads the user from the cluster at most once in CHECKED_S. If the cluster is unreachable,
        the session stays: no change is possible meanwhile either.
        """
        cookie = request.cookies.get(COOKIE, "")
        session, now = self._sessions.get(cookie), self._clock.monotonic()
        if (
            session is None
            or not session.is_of_cluster
            or now < session.check_at_s
            or self._by_cluster is None
        ):
            return
        session.check_at_s = now + CHECKED_S
        try:
            user = await self._by_cluster.user_of(session.user.name, self.client_of(request))
        except UsageError:
            user = None  # the user has no read permission any more
        except AerobeeError as error:
            log.warning(
                "user %s cannot be checked at the cluster, keeping the session: %s", session.user.name, error
            )
            return
        if user is None:
            self._sessions.pop(cookie, None)
        else:
            session.user = user

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse the request or pass it to its handler; add the headers in both cases."""
        await self.check_user(request)
        refusal = self._refusal(request)
        if refusal is not None:
            response: web.StreamResponse = web.json_response({"error": refusal[1]}, status=refusal[0])
        else:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = web.json_response({"error": error.reason}, status=error.status)
        if not response.prepared:
            response.headers.update(HEADERS)
            if request.path.startswith("/api/"):
                response.headers["Cache-Control"] = "no-store"
        return response

    def _refusal(self, request: web.Request) -> tuple[int, str] | None:
        host = request.host.lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name not in self._config.allowed_hosts:
            return 421, f"{request.host!r} is not a name of this console: add it with --host-name"
        if not request.path.startswith("/api/"):
            return None
        session = self.session_of(request)
        if request.method == "POST":
            origin = request.headers.get("Origin")
            if origin is not None and origin.partition("://")[2].lower() != host:
                return (
                    403,
                    f"requests of pages from {origin} are refused: only pages of this console are accepted",
                )
            if request.path != "/api/login":
                token = request.headers.get("X-CSRF-Token", "")
                given = token.encode(errors="surrogateescape")  # as the header's bytes were
                if session is None or not hmac.compare_digest(given, session.csrf.encode()):
                    return 403, "the request lacks the token of this session: reload the page"
        if session is None and request.path not in OPEN_PATHS:
            return 401, "login required"
        return None
