"""Every verb of RocketMQ 5.5.0's mqadmin, once: it works at a cluster of ours, or is answered with the sentence of docs/mqadmin.md.

One master in controller mode with its controller, one without, both with users; every request may come unsigned here, for what the
verbs do is tested, not who may call them.
"""

from __future__ import annotations

import json
import pathlib
import re
import runpy
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.remoting.codes import RequestCode
from tests.interop.rocketmq import CLASS_PATH, JAVA, ROOT, Broker, Controller, Driver, NameServer, call
from tests.waiting import wait_for

SCRIPTS = ROOT / "scripts"
TABLE = runpy.run_path(str(SCRIPTS / "mqadmin-table"))
VERBS: dict[str, dict[str, Any]] = TABLE["VERBS"]
ROWS: dict[str, Any] = TABLE["ROWS"]
C, T, G = "DefaultCluster", "TopicVerbs", "CG_verbs"
USERS = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"rootsecret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"innersecret"}',
    "authenticationWhitelist": ",".join(str(int(code)) for code in RequestCode),
    "aclEnable": "false",
}
# Verb -> arguments and what it prints when it has worked; in the order in which they run. {a}, {b}: the masters' addresses, {ctl}: the
# controller's, {dir}: a directory, {id}, {unique}: ids of a message. Those that never end are run by their own tests.
SCRIPT: dict[str, tuple[str, str]] = {
    "updateTopic": (f"-c {C} -t {T} -r 4 -w 4", "create topic to .* success"),
    "updateTopicList": (f"-c {C} -f {{dir}}/topics.json", "success"),
    "updateTopicPerm": (f"-b {{a}} -t {T} -p 6", "equals to the old one"),
    "updateSubGroup": (f"-c {C} -g {G} -r 3", "create subscription group to .* success"),
    "updateSubGroupList": (f"-c {C} -f {{dir}}/groups.json", "success"),
    "setConsumeMode": (f"-c {C} -t {T} -g {G} -m PULL", "success"),
    "sendMessage": (f"-t {T} -p hello -k verbkey -c TagA -b broker-a -i 0", "SEND_OK"),
    "consumeMessage": (f"-t {T} -b broker-a -i 0 -o 0 -c 1 -g {G}", "Consume ok"),
    "topicList": ("-c", T),
    "topicRoute": (f"-t {T}", '"brokerName":"broker-a"'),
    "topicStatus": (f"-t {T}", "broker-a"),
    "topicClusterList": (f"-t {T}", C),
    "clusterList": ("", "broker-a"),
    "brokerStatus": ("-b {a}", "commitLogMaxOffset"),
    "queryMsgById": (f"-t {T} -i {{id}}", "OffsetID: +{id}"),
    "queryMsgByKey": (f"-t {T} -k verbkey", "{unique}"),
    "queryMsgByUniqueKey": (f"-t {T} -i {{unique}}", "{unique}"),
    "queryMsgByOffset": (f"-t {T} -b broker-a -i 0 -o 0", "OffsetID"),
    "queryMsgTraceById": (f"-i {{unique}} -t {T}", ""),
    "printMsg": (f"-t {T} -d true", "hello"),
    "printMsgByQueue": (f"-t {T} -a broker-a -i 0 -p true -d true", "hello"),
    "sendMsgStatus": ("-b broker-a -c 1 -s 16", "SEND_OK"),
    "queryCq": (f"-t {T} -q 0 -i 0 -c 1 -b {{a}}", "physicOffset=0, physicSize="),
    "brokerConsumeStats": ("-b {a}", "Diff Total"),
    "producerConnection": (f"-g PG_verbs -t {T}", "producer group.PG_verbs. not exist"),
    "consumerConnection": (f"-g {G}", "group.CG_verbs. not online"),
    "consumerProgress": (f"-g {G}", "Diff Total: "),
    "consumerStatus": (f"-g {G}", "group.CG_verbs. not online"),
    "producer": ("-b {a}", "^$"),
    "cloneGroupOffset": (f"-s {G} -d CG_listed -t {T} -o true", "success"),
    "resetOffsetByTime": (f"-g {G} -t {T} -s 0", "broker-a +3 +0"),
    "skipAccumulatedMessage": (f"-g {G} -t {T}", "broker-a +3 +0"),
    "updateKvConfig": ("-s verbs -k one -v 1", "success"),
    "deleteKvConfig": ("-s verbs -k one", "success"),
    "updateOrderConf": (f"-t {T} -m put -v broker-a:4", "success"),
    "wipeWritePerm": ("-b broker-b", "OK, "),
    "addWritePerm": ("-b broker-b", "OK, "),
    "cleanExpiredCQ": ("-b {a}", "success"),
    "deleteExpiredCommitLog": ("-b {a}", "success"),
    "cleanUnusedTopic": ("-b {a}", "success"),
    "statsAll": (f"-t {T}", T),
    "allocateMQ": (f"-t {T} -i 10.0.0.1,10.0.0.2", "10.0.0.1"),
    "checkMsgSendRT": (f"-t {T} -a 2 -s 16", "Avg RT"),
    "getNamesrvConfig": ("", "orderMessageEnable"),
    "updateNamesrvConfig": ("-k orderMessageEnable -v true", "success"),
    "getBrokerConfig": ("-b {a}", "fileReservedTime"),
    "updateBrokerConfig": ("-b {a} -k fileReservedTime -v 71", "success"),
    "getConsumerConfig": (f"-g {G}", "retryMaxTimes"),
    # Before there is a static topic: mqadmin cannot read the tables of a broker that has one, RocketMQ's neither.
    "exportMetadata": (f"-c {C} -f {{dir}}", "success"),
    "exportConfigs": (f"-c {C} -f {{dir}}", "success"),
    "exportMetrics": (f"-c {C} -f {{dir}}", "success"),
    "updateStaticTopic": ("-t StaticVerbs -qn 2 -b broker-b", "new mapping data is written"),
    "remappingStaticTopic": ("-t StaticVerbs -b broker-b", "mapping data is written .*after"),
    "haStatus": ("-b {a}", "#MasterAddr\t{a}"),
    "getSyncStateSet": ("-a {ctl} -b broker-a", "broker-a"),
    "getBrokerEpoch": ("-b broker-a", "Epoch: "),
    "getControllerMetaData": ("-a {ctl}", "{ctl}"),
    "getControllerConfig": ("-a {ctl}", "controllerDLegerGroup"),
    "updateControllerConfig": ("-a {ctl} -k scanNotActiveBrokerInterval -v 4000", "success"),
    "electMaster": (f"-a {{ctl}} -b 1 -bn broker-a -c {C}", "the master 1 is alive"),
    "cleanBrokerMetadata": (f"-a {{ctl}} -b 1 -bn broker-a -c {C} -l", "success"),
    "dumpCompactionLog": ("-f {dir}/log", f"MessageExt .*{T}"),
    "createUser": ("-b {a} -u vera -p verasecret -t Normal", "success"),
    "updateUser": ("-b {a} -u vera -s disable", "success"),
    "getUser": ("-b {a} -u vera", "vera"),
    "listUser": ("-b {a}", "vera"),
    "copyUser": ("-f {a} -t {b} -u vera", ""),  # vera is made there before copyAcl
    "createAcl": ("-b {a} -s User:vera -r Topic:x -a Pub -d Allow", "success"),
    "updateAcl": ("-b {a} -s User:vera -r Topic:x -a Sub -d Deny", "success"),
    "getAcl": ("-b {a} -s User:vera", "Topic:x"),
    "listAcl": ("-b {a}", "Topic:x"),
    "copyAcl": ("-f {a} -t {b} -s User:vera", "success"),
    "deleteAcl": ("-b {a} -s User:vera", "success"),
    "deleteUser": ("-b {a} -u vera", "success"),
    "addBroker": ("-c {a} -b {dir}/topics.json", ""),
    "removeBroker": (f"-c {{a}} -b {C}:broker-z:1", ""),
    "resetMasterFlushOffset": ("-b {a} -o 0", ""),
    "exportMetadataInRocksDB": ("-p {dir} -t topics", ""),
    "exportPopRecord": ("-b {a}", ""),
    "rocksDBConfigToJson": (f"-n {{ns}} -c {C} -t topics", ""),
    "checkRocksdbCqWriteProgress": (f"-n {{ns}} -c {C}", ""),
    "getColdDataFlowCtrInfo": ("-b {a}", ""),
    "updateColdDataFlowCtrGroupConfig": (f"-b {{a}} -g {G} -v 1000", ""),
    "removeColdDataFlowCtrGroupConfig": (f"-b {{a}} -g {G}", ""),
    "setCommitLogReadAheadMode": ("-b {a} -m 0", ""),
    "switchTimerEngine": ("-b {a} -e F", ""),
    # The topic is of another type, as these say: tests/interop/test_lite_statistics.py shows lite topics.
    "getBrokerLiteInfo": ("-b {a}", "Store Type"),
    "getParentTopicInfo": (f"-p {T}", "error"),
    "getLiteTopicInfo": (f"-p {T} -l lite", "error"),
    "getLiteClientInfo": (f"-p {T} -g {G} -c client", "error"),
    "getLiteGroupInfo": (f"-p {T} -g {G}", "error"),
    "triggerLiteDispatch": (f"-p {T} -g {G}", "error"),
    "deleteSubGroup": (f"-c {C} -g {G}", "success"),
    "deleteTopic": (f"-c {C} -t {T}", "success"),
}
ENDLESS = {"clusterRT", "startMonitoring"}

# Prints its own words in place of the answer's: a file that is not there.
OWN_WORDS = {"exportMetadataInRocksDB": "RocksDB load error"}


def test_the_list_of_verbs_is_rocketmqs() -> None:
    told = subprocess.run(
        [*JAVA, "-cp", CLASS_PATH, "VerbsList"], capture_output=True, timeout=120, check=True
    )
    theirs = json.loads(told.stdout[told.stdout.index(b"{") :])
    assert {verb: facts["options"] for verb, facts in theirs.items()} == {
        verb: facts["options"] for verb, facts in VERBS.items()
    }
    assert theirs.keys() == SCRIPT.keys() | ENDLESS


class World:
    """A NameServer, a controller, broker-a in controller mode, broker-b without, and what the arguments name."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.namesrv = NameServer("aerobee", root)
        self.controller = Controller("aerobee", root)
        mode = {"enableControllerMode": "true", "controllerAddr": self.controller.address}
        self.a = Broker("aerobee", root / "a", self.namesrv.address, brokerName="broker-a", **mode, **USERS)
        self.b = Broker("aerobee", root / "b", self.namesrv.address, brokerName="broker-b", **USERS)
        self.files = root / "files"
        self.files.mkdir()
        topics = [{"topicName": "TopicListed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]
        (self.files / "topics.json").write_text(json.dumps(topics))
        (self.files / "groups.json").write_text(json.dumps([{"groupName": "CG_listed", "retryMaxTimes": 4}]))
        self.names = {
            "a": self.a.address, "b": self.b.address, "ctl": self.controller.address, "ns": self.namesrv.address,
            "dir": str(self.files), "id": "", "unique": "",
        }  # fmt: skip

    @property
    def servers(self) -> tuple[Any, ...]:
        return self.namesrv, self.controller, self.a, self.b

    def learn(self, verb: str, text: str) -> None:
        """What later arguments need of an output."""
        if verb == "sendMessage":
            self.names["unique"] = text.split()[-1]
            wait_for("the message's ends", lambda: self.ends() == 1)
            queue_fields = {"topic": T, "queueId": "0"}
            call(self.a.address, 15, {"consumerGroup": G, "commitOffset": "1", **queue_fields})
            _, body = call(self.a.address, 11, {
                "consumerGroup": G, "topic": T, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
            })  # fmt: skip
            host, port = self.a.address.split(":")
            packed = bytes(map(int, host.split("."))) + int(port).to_bytes(4, "big") + body[28:36]
            self.names["id"] = packed.hex().upper()
        elif verb == "copyUser":
            call(self.b.address, 3001, {"username": "vera"}, b'{"username":"vera","password":"verasecret"}')
        elif verb == "cleanUnusedTopic":
            log = min((self.a.store / "commitlog").glob("0*"))
            shutil.copy(log, self.files / "log")

    def ends(self) -> int:
        header, _ = call(self.a.address, 30, {"topic": T, "queueId": "0"})
        return int(header["extFields"]["offset"])


@pytest.fixture(scope="module")
def world(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("verbs"))
    try:
        for server in world.servers:
            server.start()
        yield world
    finally:
        for server in reversed(world.servers):
            server.stop()


def test_each_verb_does_what_the_table_says(world: World, driver: Driver) -> None:
    wrong = []
    for verb, (arguments, wanted) in SCRIPT.items():
        filled = [word.format(**world.names) for word in arguments.split()]
        text = driver.admin(world.namesrv.address, verb, *filled, with_errors=True)
        world.learn(verb, text)
        row = ROWS[verb]
        if row.why_not:
            sentence = OWN_WORDS.get(verb, row.why_not)
            is_right = sentence in text
        else:
            names = {name: re.escape(value) for name, value in world.names.items()}
            pattern = wanted
            for name, value in names.items():
                pattern = pattern.replace(f"{{{name}}}", value)
            is_right = re.search(pattern, text.strip()) is not None
        if not is_right:
            wrong.append(f"$ mqadmin {verb} {' '.join(filled)}   # {row.why_not or wanted}\n{text[:1500]}")
    assert not wrong, "\n\n".join(wrong)


def clusters_timed(startup: list[str]) -> subprocess.Popen[bytes]:
    command = [*startup, "clusterRT", "-a", "2", "-s", "16", "-i", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def first_row(timed: subprocess.Popen[bytes]) -> bytes | None:
    """None when it ended without one, as it does when a NameServer's answer took more than its 3 s."""
    assert timed.stdout is not None
    return next((line for line in timed.stdout if C.encode() in line), None)


def test_verbs_that_never_end_work(world: World) -> None:
    """clusterRT sends to each broker again and again; startMonitoring is a consumer of events that stays."""
    call(world.a.address, 17, {
        "topic": "broker-a", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "7",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    })  # fmt: skip
    deadline = time.monotonic() + 120
    java = [*JAVA, f"-Drocketmq.namesrv.addr={world.namesrv.address}", "-cp", CLASS_PATH]
    startup = [*java, "org.apache.rocketmq.tools.command.MQAdminStartup"]
    timed = clusters_timed(startup)
    watching = subprocess.Popen(
        [*startup, "startMonitoring"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while (row := first_row(timed)) is None:
            assert time.monotonic() < deadline, "clusterRT ends without a row each time"
            timed.communicate()
            timed = clusters_timed(startup)
        assert re.search(rb"broker-[ab]\s", row)

        def is_there() -> bool:
            header, _ = call(world.a.address, 203, {"consumerGroup": "__MONITOR_CONSUMER"})
            return bool(header["code"] == 0)

        wait_for("the monitor's consumer", is_there, 60)
    finally:
        for process in (timed, watching):
            process.kill()
            process.communicate()
