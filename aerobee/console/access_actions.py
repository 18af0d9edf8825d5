"""Changes of the access control page: users and policies, each with the equivalent command."""

from __future__ import annotations

from collections.abc import Callable

from aerobee.access.resource import parse_action, parse_resource
from aerobee.client import Admin
from aerobee.client.admin.access import CUSTOM, DEFAULT
from aerobee.console.fields import Fields, Outcome, Run, text
from aerobee.console.users import Role
from aerobee.errors import UsageError

SECRET_CHARS_MIN = 6


class AccessActions:
    """`table`: name -> (role, run)."""

    def __init__(self, admin: Admin, command: Callable[..., str]) -> None:
        """`command`: words of a command line -> its text, with the NameServer."""
        self._admin = admin
        self._command = command
        self.table: dict[str, tuple[Role, Run]] = {
            "user-create": (Role.ADMIN, self.user_create),
            "user-update": (Role.ADMIN, self.user_update),
            "user-delete": (Role.ADMIN, self.user_delete),
            "acl-put": (Role.ADMIN, self.acl_put),
            "acl-delete": (Role.ADMIN, self.acl_delete),
        }

    async def user_create(self, fields: Fields, dry_run: bool) -> Outcome:
        """Create a user. The command reads the secret key from a variable."""
        user, is_super = text(fields, "user"), fields.get("is_super") is True
        options = ("--super",) if is_super else ()
        command = self._command("user", "create", user, "--secret-env", "USER_SECRET", *options)
        secret_key = _secret(fields)
        if any(each.name == user for each in await self._admin.users()):
            raise UsageError(f"user {user} exists already: change it instead")
        if dry_run:
            kind = "as an administrator with all permissions" if is_super else "without permissions"
            return Outcome(command, f"user {user} would be created {kind}")
        where = await self._admin.create_user(user, secret_key, is_super=is_super)
        return Outcome(command, f"user {user} is created at {', '.join(where)}")

    async def user_update(self, fields: Fields, dry_run: bool) -> Outcome:
        """Change a user's secret key, kind or status, as far as given."""
        user = text(fields, "user")
        is_super, is_enabled = _truth(fields, "is_super"), _truth(fields, "is_enabled")
        secret_key = _secret(fields) if fields.get("secret_key") else None
        words = [
            *(("--secret-env", "USER_SECRET") if secret_key else ()),
            *(() if is_super is None else ("--super",) if is_super else ("--normal",)),
            *(() if is_enabled is None else ("--enable",) if is_enabled else ("--disable",)),
        ]
        if not words:
            raise UsageError("no change is given")
        command = self._command("user", "update", user, *words)
        before = [each for each in await self._admin.users() if each.name == user]
        if not before:
            raise UsageError(f"unknown user {user}")
        changes = [
            *(["new secret key"] if secret_key else []),
            *([] if is_super is None else ["administrator" if is_super else "normal user"]),
            *([] if is_enabled is None else ["enabled" if is_enabled else "disabled"]),
        ]
        if dry_run:
            return Outcome(command, f"user {user} would be changed: {', '.join(changes)}")
        where = await self._admin.update_user(
            user, secret_key=secret_key, is_super=is_super, is_enabled=is_enabled
        )
        return Outcome(command, f"user {user} is changed at {', '.join(where)}: {', '.join(changes)}")

    async def user_delete(self, fields: Fields, dry_run: bool) -> Outcome:
        """Delete a user and its permissions. The name must be typed to confirm."""
        user = text(fields, "user")
        command = self._command("user", "delete", user, "--yes")
        if dry_run:
            rows = tuple(
                {
                    "resource": each.resource,
                    "decision": _word(each.is_allowed),
                    "actions": ", ".join(each.actions),
                }
                for each in await self._admin.policies(user)
                if each.user == user
            )
            return Outcome(command, f"user {user} and these permissions would be deleted", rows)
        if fields.get("confirm") != user:
            raise UsageError(f"write {user} to confirm the deletion")
        where = await self._admin.delete_user(user)
        return Outcome(command, f"user {user} is deleted at {', '.join(where)}")

    async def acl_put(self, fields: Fields, dry_run: bool) -> Outcome:
        """Set a user's permissions on a resource; the row shows them before and after."""
        user, resource = text(fields, "user"), str(parse_resource(text(fields, "resource")))
        actions = [parse_action(each).name.capitalize() for each in text(fields, "actions").split(",")]
        is_allowed = fields.get("is_allowed") is not False
        sources = [each.strip() for each in str(fields.get("source_ips", "")).split(",") if each.strip()]
        policy = _policy(fields)
        options = [
            *(("--from", ",".join(sources)) if sources else ()),
            *(("--default",) if policy == DEFAULT else ()),
        ]
        command = self._command(
            "acl", _word(is_allowed), user, resource, "--action", ",".join(actions), *options
        )
        before = [
            each
            for each in await self._admin.policies(user)
            if (each.user, each.resource, each.policy) == (user, resource, policy)
        ]
        said = "; ".join(f"{_word(each.is_allowed)} {', '.join(each.actions)}" for each in before)
        row = {
            "user": user,
            "resource": resource,
            "before": said,
            "after": f"{_word(is_allowed)} {', '.join(actions)}",
        }
        if not dry_run:
            await self._admin.put_policy(
                user, [resource], actions, is_allowed=is_allowed, policy=policy, source_ips=sources
            )
        verb = "may" if is_allowed else "may not"
        return Outcome(
            command,
            f"user {user} {verb} {', '.join(actions)} at {resource}"
            + (" (not applied yet)" if dry_run else ""),
            (row,),
        )

    async def acl_delete(self, fields: Fields, dry_run: bool) -> Outcome:
        """Delete a user's permissions on a resource."""
        user, resource, policy = (
            text(fields, "user"),
            str(parse_resource(text(fields, "resource"))),
            _policy(fields),
        )
        option = "--default" if policy == DEFAULT else "--custom"
        command = self._command("acl", "delete", user, resource, option, "--yes")
        if dry_run:
            return Outcome(command, f"the permissions of user {user} on {resource} would be deleted")
        await self._admin.delete_policy(user, resource, policy=policy)
        return Outcome(command, f"the permissions of user {user} on {resource} are deleted")


def _word(is_allowed: bool) -> str:
    return "allow" if is_allowed else "deny"


def _policy(fields: Fields) -> str:
    return DEFAULT if str(fields.get("policy", CUSTOM)).lower() == DEFAULT.lower() else CUSTOM


def _truth(fields: Fields, name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, must be true or false")
    return value


def _secret(fields: Fields) -> str:
    """The secret key. Raises UsageError, whose text does not contain the key."""
    value = fields.get("secret_key")
    if not isinstance(value, str) or len(value) < SECRET_CHARS_MIN:
        raise UsageError(f"the secret key must have at least {SECRET_CHARS_MIN} characters")
    return value
