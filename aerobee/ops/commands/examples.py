"""Examples of every command, shown at the end of its --help. A test parses each of them."""

from __future__ import annotations

from typing import Any

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "aerobee up",
        "aerobee up --brokers 3 --data ./cluster",
        "aerobee up --ephemeral --set enableLmq=true",
        "aerobee up --console 8090",
    ),
    "nameserver": ("aerobee nameserver --port 9876", "aerobee nameserver -c namesrv.conf"),
    "broker": (
        "aerobee broker -n 127.0.0.1:9876 --data ./broker-a --name broker-a",
        "aerobee broker -c broker.conf --print-config",
    ),
    "controller": ("aerobee controller -c controller.conf",),
    "proxy": (
        "aerobee proxy",
        "aerobee proxy --nameserver 10.0.0.1:9876 --certificate proxy.pem --key proxy.key",
    ),
    "send": (
        'aerobee send orders "order 17 paid" --tag paid --keys o-17',
        "aerobee send orders --file orders.txt",
        'aerobee send reminders "call back" --deliver-after 15m',
    ),
    "consume": (
        "aerobee consume orders --from first",
        "aerobee consume orders --group billing --tags 'paid || refunded'",
        "aerobee consume orders --from 15m --no-follow --format '%k %s\\n'",
    ),
    "console": (
        "aerobee console",
        "aerobee console --host 0.0.0.0 --users users.json --audit audit.jsonl --host-name console.example.org",
        "aerobee console --hash-password",
    ),
    "mcp": (
        "aerobee mcp --nameserver 127.0.0.1:9876",
        "aerobee mcp --allow-actions --audit audit.jsonl",
        "aerobee mcp --http --host 0.0.0.0 --token-file token.txt",
    ),
    "sim": ("aerobee sim --seed 7 --story", "aerobee sim --runs 100 --minutes 0.5 --json"),
    "placement apply": (
        "aerobee placement apply plan.json --dry-run",
        "aerobee placement apply plan.json --parallel 8 --grace 120",
    ),
    "placement revert": ("aerobee placement revert plan.json",),
    "placement show": ("aerobee placement show plan.json",),
    "spark placement": (
        "aerobee spark placement --history /data/load --sample 2 --every 60 --plan plan.json",
        "aerobee spark placement --history /data/load --plan plan.json --brokers brokers.json --horizon 30",
    ),
    "spark lag": (
        "aerobee spark lag --history /data/lag",
        "aerobee spark lag --history /data/lag --rounds 120 --every 30 --alerts lag-alerts",
    ),
    "doctor": ("aerobee doctor", "aerobee doctor -n 10.0.0.7:9876 --verbose"),
    "trace": (
        "aerobee trace 7F0000010A3C18B4AAC2000000000000",
        "aerobee trace 7F0000010A3C18B4AAC2000000000000 --since 2h",
    ),
    "why": ("aerobee why billing", "aerobee why --group billing --topic orders"),
    "top": ("aerobee top", "aerobee top --interval 5s --count 3"),
    "topic list": ("aerobee topic list", "aerobee topic list --all --watch 2s"),
    "topic create": (
        "aerobee topic create orders --queues 16",
        "aerobee topic create payments --type TRANSACTION",
    ),
    "topic update": (
        "aerobee topic update orders --queues 32",
        "aerobee topic update orders --perm r --broker broker-a",
    ),
    "topic delete": ("aerobee topic delete orders", "aerobee topic delete orders --yes"),
    "topic describe": ("aerobee topic describe orders",),
    "topic allocate": (
        "aerobee topic allocate orders 10.0.0.1@1 10.0.0.2@1 10.0.0.3@1",
        "aerobee topic allocate orders a b c --strategy circle",
    ),
    "topic static create": (
        "aerobee topic static create ledger --queues 16",
        "aerobee topic static create ledger --queues 32 --brokers broker-a,broker-b",
    ),
    "topic static move": ("aerobee topic static move ledger --brokers broker-b,broker-c --yes",),
    "topic static describe": ("aerobee topic static describe ledger",),
    "topic stats": ("aerobee topic stats orders", "aerobee topic stats orders --watch 2s"),
    "group list": ("aerobee group list",),
    "group create": ("aerobee group create billing --retries 5",),
    "group update": (
        "aerobee group update billing --no-consume",
        "aerobee group update billing --retries 3 --broker broker-a",
    ),
    "group describe": ("aerobee group describe billing",),
    "group lag": ("aerobee group lag billing", "aerobee group lag billing --topic orders --watch 2s"),
    "group pop": ("aerobee group pop billing",),
    "group mode": ("aerobee group mode billing pop --topic orders",),
    "group reset": ("aerobee group reset billing --topic orders --to first",),
    "group delete": ("aerobee group delete billing --yes",),
    "offset show": ("aerobee offset show billing", "aerobee offset show billing --topic orders"),
    "offset reset": (
        "aerobee offset reset billing --to 15m --dry-run",
        "aerobee offset reset billing --to earliest --topic orders",
    ),
    "offset skip": ("aerobee offset skip billing --topic orders",),
    "offset clone": ("aerobee offset clone billing billing-2 --dry-run",),
    "dlq list": ("aerobee dlq list",),
    "dlq show": ("aerobee dlq show billing", "aerobee dlq show billing --error timeout --since 1h"),
    "dlq redrive": ("aerobee dlq redrive billing --all --rate 10", "aerobee dlq redrive billing --keys o-17"),
    "filter test": ('aerobee filter test "price > 5" --property price=7',),
    "transaction list": ("aerobee transaction list", "aerobee transaction list --older-than 10m"),
    "transaction commit": ("aerobee transaction commit 7F0000010A3C18B4AAC2000000000000 --group payers",),
    "transaction rollback": ("aerobee transaction rollback 7F0000010A3C18B4AAC2000000000000 --group payers",),
    "transaction check": ("aerobee transaction check 7F0000010A3C18B4AAC2000000000000",),
    "cluster list": ("aerobee cluster list", "aerobee cluster list --watch 5s"),
    "cluster describe": ("aerobee cluster describe",),
    "cluster drain": (
        "aerobee cluster drain broker-b",
        "aerobee cluster drain --all-but broker-a --cluster DefaultCluster --timeout 10m --yes",
    ),
    "cluster stop-writes": ("aerobee cluster stop-writes broker-a",),
    "cluster allow-writes": ("aerobee cluster allow-writes broker-a",),
    "cluster clean": ("aerobee cluster clean --files", "aerobee cluster clean --queues --broker broker-a"),
    "cluster producers": ("aerobee cluster producers", "aerobee cluster producers --group payers"),
    "cluster export": ("aerobee cluster export cluster.json",),
    "cluster import": (
        "aerobee cluster import cluster.json --dry-run",
        "aerobee cluster import cluster.json --from broker-a --yes",
    ),
    "config show": (
        "aerobee config show broker-a flush",
        "aerobee config show brokers --changed",
        "aerobee config show controllers -a 127.0.0.1:9878",
    ),
    "config set": (
        "aerobee config set broker-a fileReservedTime=48",
        "aerobee config set nameservers orderMessageEnable=true",
    ),
    "kv list": ("aerobee kv list ORDER_TOPIC_CONFIG",),
    "kv get": ("aerobee kv get ORDER_TOPIC_CONFIG orders",),
    "kv set": ("aerobee kv set ORDER_TOPIC_CONFIG orders broker-a:4",),
    "kv delete": ("aerobee kv delete ORDER_TOPIC_CONFIG orders",),
    "ha epochs": ("aerobee ha epochs broker-a",),
    "ha status": ("aerobee ha status -a 127.0.0.1:9878",),
    "ha elect": ("aerobee ha elect broker-a 2 -a 127.0.0.1:9878",),
    "ha step-down": (
        "aerobee ha step-down broker-a 10.0.0.5:10911 -a 127.0.0.1:9878",
        "aerobee ha step-down broker-a 10.0.0.5:10911 --apart 35s --timeout 2m -a 127.0.0.1:9878",
    ),
    "ha forget": ("aerobee ha forget broker-a 3 -a 127.0.0.1:9878",),
    "ha add-controller": ("aerobee ha add-controller n3=127.0.0.1:9898 -a 127.0.0.1:9878",),
    "ha promote-controller": ("aerobee ha promote-controller n3 -a 127.0.0.1:9878",),
    "ha remove-controller": ("aerobee ha remove-controller n3 -a 127.0.0.1:9878",),
    "ha hand-over": ("aerobee ha hand-over n2 -a 127.0.0.1:9878",),
    "message id": ("aerobee message id 7F00000100002A9F0000000000000000",),
    "message unique-key": ("aerobee message unique-key orders 7F0000010A3C18B4AAC2000000000000",),
    "message key": ("aerobee message key orders o-17", "aerobee message key orders o-17 --since 1h"),
    "message offset": ("aerobee message offset orders broker-a/0 42",),
    "message entries": (
        "aerobee message entries orders broker-a/0 0",
        "aerobee message entries orders broker-a/0 42 --count 5 --group billing",
    ),
    "message time": ("aerobee message time orders --since 15m --count 20",),
    "timer list": ("aerobee timer list", "aerobee timer list --topic reminders --within 1h"),
    "timer recall": ("aerobee timer recall djEgcmVtaW5kZXJz",),
    "timer reschedule": ("aerobee timer reschedule djEgcmVtaW5kZXJz --after 15m",),
    "timer stats": ("aerobee timer stats",),
    "schedule create": (
        "aerobee schedule create nightly reports '{}' --cron '30 2 * * *' --tz Europe/Berlin",
        "aerobee schedule create poll feeds refresh --every 15m --jitter 1m --missed latest",
    ),
    "schedule list": ("aerobee schedule list",),
    "schedule next": (
        "aerobee schedule next nightly --count 3",
        "aerobee schedule next --cron '0 9 * * MON-FRI' --tz Asia/Tokyo",
    ),
    "schedule pause": ("aerobee schedule pause nightly",),
    "schedule resume": ("aerobee schedule resume nightly",),
    "schedule delete": ("aerobee schedule delete nightly --yes",),
    "bench produce": (
        "aerobee bench produce --seconds 10s",
        "aerobee bench produce --workers 64 --size 1024 --count 100000",
    ),
    "bench probe": ("aerobee bench probe", "aerobee bench probe --broker broker-a --count 100 --size 1024"),
    "bench consume": ("aerobee bench consume --from-first --count 100000",),
    "store verify": ("aerobee store verify --data ./broker-a",),
    "store repair": ("aerobee store repair --data ./broker-a",),
    "user list": ("aerobee user list",),
    "user create": (
        "aerobee user create alice",
        "aerobee user create alice --secret-env ALICE_SECRET --at 10.0.0.9:10911",
        "aerobee user create alice --secret-env ALICE_SECRET",
    ),
    "user update": ("aerobee user update alice --new-secret", "aerobee user update alice --disable"),
    "user delete": ("aerobee user delete alice",),
    "acl list": ("aerobee acl list", "aerobee acl list alice"),
    "acl allow": (
        "aerobee acl allow alice 'Topic:orders*' Group:billing --action Pub,Sub",
        "aerobee acl allow alice Topic:orders --action Sub --from 10.0.0.0/8",
    ),
    "acl deny": ("aerobee acl deny alice Topic:orders-secret --action All",),
    "acl delete": ("aerobee acl delete alice Topic:orders", "aerobee acl delete alice"),
    "acl copy": (
        "aerobee acl copy 10.0.0.7:10911 10.0.0.9:10911",
        "aerobee acl copy 10.0.0.7:10911 10.0.0.9:10911 --user alice",
    ),
    "context list": ("aerobee context list",),
    "context show": ("aerobee context show",),
    "context add": (
        "aerobee context add prod -n 10.0.0.5:9876 --tls-ca ca.pem --access-key alice --secret-key-env ALICE_SECRET",
    ),
    "context set": ("aerobee context set staging -n 10.0.0.7:9876 --tls",),
    "context use": ("aerobee context use staging",),
    "context delete": ("aerobee context delete staging",),
}


def add_to(command: Any, path: str) -> None:
    """Show the examples of a command, or of all commands of a group, in their help."""
    for name, below in getattr(command, "commands", {}).items():
        add_to(below, f"{path} {name}")
    found = EXAMPLES.get(path)
    if found:
        # Blank lines between: rich joins the lines of one paragraph.
        command.epilog = "\n\n".join(["Examples:", *(f"  {line}" for line in found)])
