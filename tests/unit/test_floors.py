"""Hold the code to the layers of docs/architecture.md by reading its imports; nothing is imported.

    layer 4   ops/      testing/  simulation/  console/  contrib/
    layer 3   broker/   nameserver/   placement/
    layer 2   client/   ha/        access/
    layer 1   remoting/ store/  monitoring/  grpc/
    layer 0   errors.py clock.py message.py record_head.py property_names.py system_names.py lite_topic.py network.py config.py
              queue_choice.py metrics_config.py quick_init.py system.py

Imports only go down, packages of one layer do not import each other, and inside `aerobee` nothing imports through a
package's `__init__`, except what only layer 4 and users see.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.sources import nodes_of, tree_of
from tests.unit.layers import ALLOWED_SIDEWAYS, LAYERS, PACKAGE, ROOT
from tests.unit.package_imports import _is_module, imports_of
from tests.unit.small_files import CORE, FULL, FULL_LINES, KEPT, LAYER

# Cores: no IO, no clock, no randomness. These and every file whose docstring calls itself one.
SAYS_CORE = re.compile(r"(?:^|[.;] |\n)(?:Core[.:,]|core\.|A core[.,])")
CORES = [
    "errors.py",
    "remoting/frame.py",
    "remoting/json_header.py",
    "remoting/binary_header.py",
    "remoting/fastjson.py",
    "remoting/body/*.py",
    "client/consumer/allocation.py",
    "client/base/compression.py",
    "client/producer/fault_avoidance.py",
    "client/consumer/process_queue.py",
    "client/producer/publish_info.py",
    "client/base/topic_route.py",
    "client/base/received.py",
    "client/session/send_header.py",
    "client/consumer/subscription.py",
    "client/base/unique_id.py",
    "broker/filter/sql92.py",
    "broker/filter/record_test.py",
    "broker/filter/bloom.py",
    "broker/consumer/subscription_conflict.py",
    "broker/consumer/consumer_offsets.py",
    "broker/send/send_header.py",
    "broker/send/message_type.py",
    "broker/send/dead_letter.py",
    "broker/send/delay_level.py",
    "broker/fastpath/delivery.py",
    "store/log/stored_message.py",
    "ha/controller/codes.py",
    "ha/controller/commands.py",
    "ha/controller/election.py",
    "ha/controller/leases.py",
    "ha/controller/liveness.py",
    "ha/controller/state.py",
    "ha/stream/divergence.py",
    "ha/stream/epoch_file.py",
    "ha/stream/handshake.py",
    "ha/packed.py",
    "ha/raft/asked_reads.py",
    "ha/raft/config.py",
    "ha/raft/entry.py",
    "ha/raft/incoming.py",
    "ha/raft/layout.py",
    "ha/raft/leadership.py",
    "ha/raft/log.py",
    "ha/raft/membership_change.py",
    "ha/raft/messages.py",
    "ha/raft/node.py",
    "ha/raft/outgoing.py",
    "ha/raft/progress.py",
    "ha/raft/replica.py",
    "ha/raft/roles.py",
    "ha/stream/sync_state_set.py",
    "ha/stream/transfer_header.py",
    "nameserver/route_table.py",
    "nameserver/route_calls.py",
    "nameserver/answers.py",
]
IO_MODULES = {"asyncio", "socket", "ssl", "time", "random", "threading", "subprocess", "os", "select"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


@cache
def _is_folder(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).is_dir()


def part_of(path: Path) -> str:
    """The package or module right below `aerobee`; "" for aerobee/__init__.py."""
    head = path.relative_to(PACKAGE).parts[0]
    return "" if head == "__init__.py" else head.removesuffix(".py")


def own_part(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "aerobee" and len(parts) > 1 else None


LOWER_SOURCES = [path for path in SOURCES if LAYERS.get(part_of(path), 5) < 4]


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path) for path in SOURCES} - {"", "__main__"}
    assert parts <= set(LAYERS), (
        f"give these a layer, here and in docs/architecture.md: {parts - set(LAYERS)}"
    )


def test_imports_only_go_down() -> None:
    wrong = []
    for path in SOURCES:
        part = part_of(path)
        layer = LAYERS.get(part, 5)
        for found in imports_of(path):
            target = own_part(found.module)
            if target is None or target == part or target not in LAYERS:
                continue
            sideways = LAYERS[target] == layer and layer > 0 and (part, target) not in ALLOWED_SIDEWAYS
            if LAYERS[target] > layer or sideways:
                wrong.append(
                    f"{path.relative_to(ROOT)}:{found.line}: {found.module} (layer {LAYERS[target]}, this is layer {layer})"
                )
    assert not wrong, "\n".join(wrong)


# What a plain start has no use for is loaded where it is wanted (tests/integration/test_start_imports.py); nothing else is.
LOADED_WHEN_WANTED = {
    "recurrence.py": {"cronsim"},
    "access/opening.py": {"aerobee.access.closed"},
    "broker/assembly/broker.py": {"aerobee.broker.exporter.exporter"},
    "broker/assembly/grpc_endpoint.py": {"aerobee.broker.grpc.endpoint"},
    "broker/fastpath/choice.py": {
        "aerobee.broker.fastpath.delivery",
        "aerobee.broker.fastpath.python_backend",
    },
    "broker/grpc/admin_server.py": {"importlib.metadata"},
    "grpc/core.py": {"aerobee.grpc.http2_connection"},
    "proxy/admin.py": {"importlib.metadata"},
    "broker/replication/classic_mode.py": {"aerobee.broker.replication.classic_slave_connection"},
    "broker/replication/ha_listener.py": {
        "aerobee.broker.replication.keyed_connection",
        "aerobee.broker.replication.tls_connection",
    },
    "broker/replication/wiring.py": {
        "aerobee.broker.replication.classic_follower",
        "aerobee.broker.replication.tls_connection",
    },
    "broker/assembly/serving.py": {
        "aerobee.broker.acting.wiring",
        "aerobee.broker.replication.controller_wiring",
    },
    "nameserver/__init__.py": {"aerobee.nameserver.server"},
    "ops/commands/tree.py": {"importlib", "aerobee.broker.fastpath.choice"},
    "ops/options/completion.py": {"aerobee.client.session.contexts", "aerobee.ops.options.clients"},
    "ops/servers/nameserver.py": {"aerobee.ops.servers.controller"},
    "ops/terminal/run.py": {"uvloop"},
    "ops/settings/settings.py": {"aerobee.ha.controller.config", "aerobee.proxy.config"},
    "ops/terminal/output.py": {"rich.console", "rich.table"},
    "spark/html_page.py": {"plotly.graph_objects", "plotly.offline"},
    "ops/options/shared_options.py": {"aerobee.client.base.config", "aerobee.client.session.contexts"},
    "ops/servers/up.py": {"aerobee.ha.controller.config"},
    "simulation/features.py": {"aerobee.simulation", "aerobee.simulation.grpc_tasks"},
    "remoting/request_proof.py": {"hmac"},
    "remoting/signature.py": {"hmac"},
    "broker/fastpath/pop.py": {"aerobee.broker.fastpath.guard"},
    "broker/fastpath/python_backend.py": {"aerobee.broker.fastpath.guard"},
}


def test_nothing_is_imported_inside_a_function_but_what_is_named() -> None:
    inside: dict[str, set[str]] = {}
    for path in SOURCES:
        for found in imports_of(path):
            if found.inside_function and not found.type_checking:
                inside.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(found.module)
    assert inside == LOADED_WHEN_WANTED


def test_only_the_top_layer_imports_through_a_package() -> None:
    """`from aerobee.remoting import X` where X is re-exported is how import cycles start."""
    wrong = []
    for path in LOWER_SOURCES:
        if path.name == "__init__.py":
            continue
        for node in nodes_of(path):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            is_package = node.module.startswith("aerobee") and _is_folder(node.module)
            names = [alias.name for alias in node.names if not _is_module(f"{node.module}.{alias.name}")]
            if is_package and names:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {', '.join(names)} from {node.module}")
    assert not wrong, "\n".join(wrong)


def folders_in_cycles(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left of a graph when every folder without an import, then every folder that nothing imports, is taken out again and again."""
    left = {name: targets - {name} for name, targets in imports.items()}
    while True:
        targets_of_others = set[str]().union(*left.values())
        free = {
            name
            for name, targets in left.items()
            if not targets & left.keys() or name not in targets_of_others
        }
        if not free:
            return left
        left = {name: targets - free for name, targets in left.items() if name not in free}


def test_no_folder_imports_itself_over_others() -> None:
    """Folders, sub-packages included, form a graph without cycles, imports for types included: each has a separate layer."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    imports: dict[str, set[str]] = {}
    for name, path in files.items():
        if name in (
            "aerobee.__init__",
            "aerobee.__main__",
        ):  # the public names and the command, above everything
            continue
        folder = name.rpartition(".")[0]
        targets = {found.module for found in imports_of(path)}
        imports.setdefault(folder, set()).update(
            target.rpartition(".")[0] if target in files else target
            for target in targets
            if target in files or f"{target}.__init__" in files
        )
    assert not folders_in_cycles(imports)


def test_a_cycle_of_folders_is_found() -> None:
    assert folders_in_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {"b": {"c"}, "c": {"b"}}


def test_no_file_imports_itself_over_others() -> None:
    """No cycle of files anywhere in the package, imports for types included."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    imports = {
        name: {found.module for found in imports_of(path) if found.module in files}
        for name, path in files.items()
    }
    while leaves := [name for name, targets in imports.items() if not targets & imports.keys()]:
        for name in leaves:
            del imports[name]
    # What is left imports something that is left: follow it until a file comes twice.
    trail: list[str] = []
    name = min(imports, default="")
    while name and name not in trail:
        trail.append(name)
        name = min(imports[name] & imports.keys())
    assert not name, " -> ".join([*trail[trail.index(name) :], name])


SMALL_LINES = 80


def small_files_of_one_user() -> dict[str, Path]:
    """Files with fewer than SMALL_LINES lines that exactly one other file of the package imports, with that file."""
    users: dict[str, set[Path]] = {}
    for path in SOURCES:
        for found in imports_of(path):
            users.setdefault(found.module, set()).add(path)
    small = {}
    for path in SOURCES:
        others = users.get(".".join(path.relative_to(ROOT).with_suffix("").parts), set()) - {path}
        lines = path.read_text(encoding="utf-8").count("\n")
        if not path.name.startswith("__") and lines < SMALL_LINES and len(others) == 1:
            (small[path.relative_to(PACKAGE).as_posix()],) = others
    return small


def test_a_small_file_of_one_user_has_a_reason() -> None:
    without = sorted(small_files_of_one_user().keys() - KEPT.keys())
    assert not without, (
        "below 80 lines, with one user: move the code there, or give a reason in tests/unit/small_files.py"
    )
    gone = [name for name in KEPT if not (PACKAGE / name).exists()]
    assert not gone, "remove them from tests/unit/small_files.py"


def test_the_reasons_of_small_files_hold() -> None:
    all_cores = set(cores())
    wrong = []
    for name, user in small_files_of_one_user().items():
        path, reason = PACKAGE / name, KEPT.get(name)
        holds = {
            CORE: path in all_cores,
            LAYER: path.parent != user.parent,
            FULL: user.read_text(encoding="utf-8").count("\n") >= FULL_LINES,
        }
        if reason in holds and not holds[reason]:
            wrong.append(f"{name}: {reason}")
    assert not wrong, wrong


def cores() -> list[Path]:
    named = {path for pattern in CORES for path in PACKAGE.glob(pattern)}
    says = {path for path in SOURCES if SAYS_CORE.search(ast.get_docstring(tree_of(path)) or "")}
    return sorted(named | says)


@pytest.mark.parametrize("pattern", CORES)
def test_each_named_core_exists(pattern: str) -> None:
    assert list(PACKAGE.glob(pattern))


def test_cores_do_no_io() -> None:
    assert len(cores()) > len(CORES), "no docstring calls its module a core"
    wrong = []
    for path in cores():
        name = path.relative_to(ROOT)
        wrong += [
            f"{name}:{found.line}: {found.module}"
            for found in imports_of(path)
            if found.module.split(".")[0] in IO_MODULES and not found.type_checking
        ]
        wrong += [
            f"{name}:{node.lineno}: open()"
            for node in nodes_of(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
        ]
    assert not wrong, "\n".join(wrong)


def test_files_and_functions_stay_readable() -> None:
    """No function above 80 lines, no file above 700: a reviewer reads one at a sitting."""
    wrong = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 700:
            wrong.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 80:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert not wrong
