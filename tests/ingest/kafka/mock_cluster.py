"""librdkafka's mock cluster: brokers with sockets of their own, through the C symbols that the library exports."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException, Producer

FETCH = 1  # ApiKey


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _Value(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("pointer", ctypes.c_void_p),
        ("number", ctypes.c_int32),
        ("bytes", _Bytes),
        ("padding", ctypes.c_char * 64),
    )


class _Field(ctypes.Structure):
    """A `rd_kafka_vu_t`: a field of a record to produce, whose kind is a `rd_kafka_vtype_t`."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Value))


_POINTER, _TEXT, _INT, _PARTITION, _OFFSET = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int32,
    ctypes.c_int64,
)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rd_kafka_conf_new": (_POINTER,),
    "rd_kafka_conf_set": (_INT, _POINTER, _TEXT, _TEXT, _POINTER, ctypes.c_size_t),
    "rd_kafka_new": (_POINTER, _INT, _POINTER, _POINTER, ctypes.c_size_t),
    "rd_kafka_destroy": (None, _POINTER),
    "rd_kafka_headers_new": (_POINTER, ctypes.c_size_t),
    "rd_kafka_header_add": (_INT, _POINTER, _TEXT, ctypes.c_ssize_t, _TEXT, ctypes.c_ssize_t),
    "rd_kafka_produceva": (_POINTER, _POINTER, _POINTER, ctypes.c_size_t),
    "rd_kafka_flush": (_INT, _POINTER, _INT),
    "rd_kafka_mock_cluster_new": (_POINTER, _POINTER, _INT),
    "rd_kafka_mock_cluster_destroy": (None, _POINTER),
    "rd_kafka_mock_cluster_bootstraps": (_TEXT, _POINTER),
    "rd_kafka_mock_set_controller_id": (None, _POINTER, _PARTITION),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, _POINTER, _PARTITION),
    "rd_kafka_mock_topic_create": (_INT, _POINTER, _TEXT, _INT, _INT),
    "rd_kafka_mock_topic_delete": (_INT, _POINTER, _TEXT),
    "rd_kafka_mock_topic_set_error": (None, _POINTER, _TEXT, _INT),
    "rd_kafka_mock_partition_delete_records": (_INT, _POINTER, _TEXT, _PARTITION, _OFFSET),
    "rd_kafka_mock_partition_set_leader": (_INT, _POINTER, _TEXT, _PARTITION, _PARTITION),
    "rd_kafka_mock_broker_set_down": (_INT, _POINTER, _PARTITION),
    "rd_kafka_mock_broker_set_up": (_INT, _POINTER, _PARTITION),
    "rd_kafka_mock_push_request_errors_array": (None, _POINTER, ctypes.c_int16, ctypes.c_size_t, _POINTER),
}


def _library() -> Any:
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """One broker; each topic has the partitions that a test gives it."""

    def __init__(self) -> None:
        self._library = _library()
        text = ctypes.create_string_buffer(512)
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", text, 512)
        self._client = self._library.rd_kafka_new(0, conf, text, 512)
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        self._call("set_controller_id", 1)  # without one it does not describe topics
        self._call("group_initial_rebalance_delay_ms", 0)
        self.servers = self._call("cluster_bootstraps").decode()
        self._producer = self.producer()

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)

    def producer(self, **properties: Any) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 0, "log_level": 0, **properties})

    def create(self, topic: str, partitions: int = 1) -> None:
        assert self._call("topic_create", topic.encode(), partitions, 1) == 0

    def delete(self, topic: str) -> None:
        assert self._call("topic_delete", topic.encode()) == 0

    def refuse(self, topic: str, error: int) -> None:
        self._call("topic_set_error", topic.encode(), error)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        assert self._call("partition_delete_records", topic.encode(), partition, before) == 0

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        assert self._call("partition_set_leader", topic.encode(), partition, broker) == 0

    def set_up(self, *, is_up: bool) -> None:
        self._call("broker_set_up" if is_up else "broker_set_down", 1)

    def fail(self, request: int, *errors: int) -> None:
        self._call("push_request_errors_array", request, len(errors), (ctypes.c_int * len(errors))(*errors))

    def send(self, topic: str, *values: bytes | None, partition: int = 0, **options: Any) -> None:
        """Produce records of one partition, and return when the broker has them."""
        options = {"key": b"press", **options}
        for value in values:
            self._producer.produce(topic, value, partition=partition, **options)
        assert self._producer.flush(30) == 0

    def send_with_raw_header(self, topic: str, value: bytes, name: bytes) -> None:
        """Produce a record whose header has any bytes as its name, which the Python producer refuses."""
        text = ctypes.create_string_buffer(512)
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"bootstrap.servers", self.servers.encode(), text, 512)
        producer = self._library.rd_kafka_new(0, conf, text, 512)
        headers = self._library.rd_kafka_headers_new(1)
        self._library.rd_kafka_header_add(headers, name, len(name), b"v", 1)
        fields = (_Field * 4)()
        (fields[0].kind, fields[0].value.text), (fields[1].kind, fields[1].value.number) = (1, topic.encode()), (3, 0)
        (fields[2].kind, fields[2].value.bytes) = (4, _Bytes(value, len(value)))
        (fields[3].kind, fields[3].value.pointer) = (10, headers)
        assert self._library.rd_kafka_produceva(producer, fields, 4) is None
        assert self._library.rd_kafka_flush(producer, 30_000) == 0
        self._library.rd_kafka_destroy(producer)

    def send_in_transactions(self, topic: str, *transactions: Sequence[bytes], commit: bool = True) -> None:
        producer = self.producer(**{"transactional.id": topic})
        producer.init_transactions(30)
        for values in transactions:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value, key=b"press", partition=0)
            producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    def close(self) -> None:
        with suppress(KafkaException):
            self._producer.purge()
        del self._producer
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)
