"""Send transactions with RocketMQ's C++ client, and answer a broker's checks, until standard input ends.

Runs in .interop/cpp-venv:  cpp/transact.py NAMESRV TOPIC GROUP

Standard input has one JSON object a line: {"body": ..., "state": ..., "answer": ...}, both states one of COMMIT, ROLLBACK,
UNKNOWN. `state` is what the local work returns, `answer` what a check of this body is answered with; without `state` nothing
is sent. Printed is {"executed": body} and {"checked": body}.

The Python package has no call for transactions, but the library inside it holds the class TransactionMQProducer. Its
constructor is inline in a header and so not in the library; `transaction_producer` does the same on bare memory, with
the constructors of its members, which are there. Offsets are those of the library in rocketmq==0.4.4 for x86-64.
"""

import ctypes
import json
import struct
import sys

from rocketmq.client import Message
from rocketmq.ffi import dll

LISTENER_AT, THREADS_AT, THREAD_GROUP_AT, IO_SERVICE_AT, WORK_AT, PRODUCER_BYTES = (
    0x90,
    0xA0,
    0xA8,
    0x1F0,
    0x200,
    0x208,
)
IO_SERVICE_IMPL_AT, OUTSTANDING_WORK_AT = 8, 0xB8
RESULT_BYTES = 4096  # a TransactionSendResult is much smaller
STATES = {"COMMIT": 0, "ROLLBACK": 1, "UNKNOWN": 2}
CLASS = "_ZN8rocketmq21TransactionMQProducer"

Destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Execute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
Check = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

kept = []  # memory that the library points into


def keep(memory):
    kept.append(memory)
    return ctypes.addressof(memory)


def cpp_string(text):
    """A std::string as before C++11: a pointer to bytes behind length, capacity and reference count."""
    data = text.encode()
    shape = struct.pack("QQi4x", len(data), len(data), 0)
    at = keep(ctypes.create_string_buffer(shape + data)) + len(shape)
    return keep(ctypes.c_void_p(at))


def call(name, *arguments):
    function = getattr(dll, name)
    function.restype = None
    function(*(ctypes.c_void_p(argument) for argument in arguments))


def listener(execute, check):
    """A TransactionListener: an object whose table of virtual functions holds these two."""
    nothing = Destroy(lambda this: None)
    functions = (nothing, nothing, Execute(execute), Check(check))
    kept.extend(functions)
    table = (ctypes.c_void_p * 4)(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))
    return keep(ctypes.c_void_p(keep(table)))


def transaction_producer(group, its_listener):
    this = keep(ctypes.create_string_buffer(PRODUCER_BYTES))
    call("_ZN8rocketmq17DefaultMQProducerC1ERKSs", this, cpp_string(group))
    table = ctypes.addressof(ctypes.c_char.in_dll(dll, "_ZTVN8rocketmq21TransactionMQProducerE"))
    ctypes.c_void_p.from_address(this).value = table + 16  # behind the offset and the type
    ctypes.c_void_p.from_address(this + LISTENER_AT).value = its_listener
    ctypes.c_int.from_address(this + THREADS_AT).value = 1
    call("_ZN5boost12thread_groupC1Ev", this + THREAD_GROUP_AT)
    call("_ZN5boost4asio10io_serviceC1Ev", this + IO_SERVICE_AT)
    # io_service::work: the service has something to do until it is stopped.
    implementation = ctypes.c_void_p.from_address(this + IO_SERVICE_AT + IO_SERVICE_IMPL_AT).value
    ctypes.c_void_p.from_address(this + WORK_AT).value = implementation
    ctypes.c_long.from_address(implementation + OUTSTANDING_WORK_AT).value += 1
    return this


def main():
    namesrv, topic, group = sys.argv[1:4]
    answers = {}
    current = {}

    def execute(this, message, argument):
        print(json.dumps({"executed": current["body"]}), flush=True)
        return STATES[current["state"]]

    def check(this, message):
        body = dll.GetMessageBody(message).decode()
        print(json.dumps({"checked": body}), flush=True)
        return STATES[answers.get(body, "UNKNOWN")]

    producer = transaction_producer(group, listener(execute, check))
    call("_ZN8rocketmq8MQClient14setNamesrvAddrERKSs", producer, cpp_string(namesrv))
    call(CLASS + "5startEv", producer)
    for line in sys.stdin:
        wanted = json.loads(line)
        answers[wanted["body"]] = wanted.get("answer", "UNKNOWN")
        if "state" not in wanted:
            continue
        current = wanted
        message = Message(topic)
        message.set_body(wanted["body"])
        message.set_tags("TagT")
        result = keep(ctypes.create_string_buffer(RESULT_BYTES))
        call(
            CLASS + "24sendMessageInTransactionERNS_9MQMessageEPv",
            result,
            producer,
            message._as_parameter_,
            0,
        )
    call(CLASS + "8shutdownEv", producer)


main()
