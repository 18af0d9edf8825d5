"""What the page of access control changes: users and policies, each with the command that does the same."""

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
        """Make a user. The command has the secret key in a variable."""
        user, is_super = text(fields, "user"), fields.get("is_super") is True
        options = ("--super",) if is_super else ()
        command = self._command("user", "create", user, "--secret-env", "USER_SECRET", *options)
        secret_key = _secret(fields)
        if any(each.name == user for each in await self._admin.users()):
            raise UsageError(f"user {user} is there already: change it instead")
        if dry_run:
            kind = "an administrator, who may do everything" if is_super else "who may do nothing yet"
            return Outcome(command, f"user {user} would be made, {kind}")
        where = await self._admin.create_user(user, secret_key, is_super=is_super)
        return Outcome(command, f"user {user} is at {', '.join(where)}")

    async def user_update(self, fields: Fields, dry_run: bool) -> Outcome:
        """Change a user's secret key, kind or status: what is given."""
        user = text(fields, "user")
        is_super, is_enabled = _truth(fields, "is_super"), _truth(fields, "is_enabled")
        secret_key = _secret(fields) if fields.get("secret_key") else None
        words = [
            *(("--secret-env", "USER_SECRET") if secret_key else ()),
            *(() if is_super is None else ("--super",) if is_super else ("--normal",)),
            *(() if is_enabled is None else ("--enable",) if is_enabled else ("--disable",)),
        ]
        if not words:
            raise UsageError("nothing is to be changed")
        command = self._command("user", "update", user, *words)
        before = [each for each in await self._admin.users() if each.name == user]
        if not before:
            raise UsageError(f"there is no user {user}")
        changes = [
            *(["another secret key"] if secret_key else []),
            *([] if is_super is None else ["an administrator" if is_super else "no administrator"]),
            *([] if is_enabled is None else ["let in" if is_enabled else "not let in any more"]),
        ]
        if dry_run:
            return Outcome(command, f"user {user} would be changed: {', '.join(changes)}")
        where = await self._admin.update_user(
            user, secret_key=secret_key, is_super=is_super, is_enabled=is_enabled
        )
        return Outcome(command, f"user {user} is changed at {', '.join(where)}: {', '.join(changes)}")

    async def user_delete(self, fields: Fields, dry_run: bool) -> Outcome:
        """Delete a user with what he may do. The name must be typed again."""
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
            return Outcome(command, f"user {user} would be deleted with all that he may do", rows)
        if fields.get("confirm") != user:
            raise UsageError(f"write {user} to confirm that this user is to be deleted")
        where = await self._admin.delete_user(user)
        return Outcome(command, f"user {user} is deleted at {', '.join(where)}")

    async def acl_put(self, fields: Fields, dry_run: bool) -> Outcome:
        """Say what a user may do with a resource: before and after."""
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
            f"user {user} {verb} {', '.join(actions)} at {resource}" + (", if you do it" if dry_run else ""),
            (row,),
        )

    async def acl_delete(self, fields: Fields, dry_run: bool) -> Outcome:
        """Take back what is said of a resource."""
        user, resource, policy = (
            text(fields, "user"),
            str(parse_resource(text(fields, "resource"))),
            _policy(fields),
        )
        option = "--default" if policy == DEFAULT else "--custom"
        command = self._command("acl", "delete", user, resource, option, "--yes")
        if dry_run:
            return Outcome(command, f"nothing would be said any more about {resource} of user {user}")
        await self._admin.delete_policy(user, resource, policy=policy)
        return Outcome(command, f"nothing is said any more about {resource} of user {user}")


def _word(is_allowed: bool) -> str:
    return "allow" if is_allowed else "deny"


def _policy(fields: Fields) -> str:
    return DEFAULT if str(fields.get("policy", CUSTOM)).lower() == DEFAULT.lower() else CUSTOM


def _truth(fields: Fields, name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}: it is true or false")
    return value


def _secret(fields: Fields) -> str:
    """Raises UsageError, without the key."""
    value = fields.get("secret_key")
    if not isinstance(value, str) or len(value) < SECRET_CHARS_MIN:
        raise UsageError(f"the secret key has {SECRET_CHARS_MIN} characters at least")
    return value
