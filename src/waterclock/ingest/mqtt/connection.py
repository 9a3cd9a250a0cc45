"""One connection to a broker, from CONNECT to its end. Paho's client runs it in a thread, which also answers pings.

A connection object connects once. Packet ids are valid only for one connection. So each connection has its own client,
and messages of earlier connections are never acked.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import UnavailableError, WaterclockError
from waterclock.ingest.mapping.format_rule import FormatRule, Published
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.publish_packet import PublishPacket, read_publish
from waterclock.ingest.storing.received import Received

DROPPED_TOPIC = "$SYS/broker/publish/messages/dropped"
"""Topic on which Mosquitto reports how many messages it dropped, every 10 s by default."""

_PATIENCE = 20.0
"""Seconds for an answer to CONNECT, SUBSCRIBE or UNSUBSCRIBE."""

_CLOSING = 5.0
"""Seconds for acks under way and DISCONNECT to be sent."""

_RECEIVED_AT_ONCE = 1 << 16
"""Bytes that are read from the socket at once."""

_PUBACK = struct.Struct(">BBH")
"""Type, length and packet id; also under v5, which omits the reason of a success."""

_FAILED = 0x80
_TAKEN_OVER = 0x8E

_FINAL = {0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x98, 0x9C, 0x9D}
"""Reasons that rule out a later attempt: protocol version, client id, credentials, a ban, another server."""


class RefusedByBrokerError(WaterclockError):
    """The broker refused a connection or subscription, and would again; trying later does not help."""


class _MqttClient(paho.Client):
    """Receives and acks many packets at a time: paho reads header bytes one by one, and sends acks one by one.

    Parameters
    ----------
    take
        Takes each PUBLISH packet.
    """

    def __init__(self, take: Callable[[PublishPacket], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._take = take
        self._buffer = b""
        self._at = 0

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        code = super().loop_read(max_packets)
        while not code and self._at < len(self._buffer):  # select() does not know of these bytes
            code = super().loop_read(max_packets)
        return code

    def send_acks(self, packet_ids: Iterable[int]) -> None:
        packets = b"".join(_PUBACK.pack(paho.PUBACK, 2, packet_id) for packet_id in packet_ids)
        self._packet_queue(paho.PUBACK, packets, 0, 0)

    def _handle_publish(self) -> MQTTErrorCode:
        received: Any = self._in_packet
        has_properties = self._protocol == paho.MQTTv5
        try:
            packet = read_publish(received["command"], bytes(received["packet"]), has_properties=has_properties)
        except ValueError:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        if packet.qos > 1:  # not requested
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._take(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._at == len(self._buffer):
            self._buffer, self._at = super()._sock_recv(_RECEIVED_AT_ONCE), 0
        part = self._buffer[self._at : self._at + bufsize]
        self._at += len(part)
        return part


class Connection:
    """A connection, which acks the messages that it delivered. Its callbacks run on paho's thread and never wait.

    Parameters
    ----------
    broker, client_id
        The broker, and the client's name.
    session
        Name of the session.
    number
        Which connection of the session's it is.
    deliver
        Takes a received message; returns False if there is no room. Later messages are then left to the next
        connection.
    tell_dropped
        Takes the number of messages that the broker reports as dropped.
    is_clean
        Whether the session ends with the connection.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        session: str,
        number: int,
        deliver: Callable[[Received], bool],
        tell_dropped: Callable[[int], None],
        *,
        is_clean: bool = False,
    ) -> None:
        self.session = session
        self.number = number
        self.session_present = False
        self.is_overfull = False
        self._broker = broker
        self._deliver = deliver
        self._tell_dropped = tell_dropped
        self._changed = threading.Condition()
        self._connected: ReasonCode | None = None
        self._ended: ReasonCode | None = None
        self._failure: Exception | None = None
        self._answers: dict[int, list[ReasonCode]] = {}
        self._is_v5 = broker.version == "5"
        self._is_clean = is_clean
        self._client = self._made(client_id)

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._connected is not None and self._ended is None

    @property
    def is_taken_over(self) -> bool:
        """Whether it ended because another client connected with the same client id, as v5 says."""
        return self._ended is not None and self._ended.value == _TAKEN_OVER

    @property
    def is_ended_for_good(self) -> bool:
        """Whether the broker ended it for a reason that also applies to another connection."""
        return self._ended is not None and self._ended.value in _FINAL

    @property
    def end(self) -> str:
        """Why it ended, for people."""
        return "open" if self._ended is None else str(self._ended)

    def open(self) -> None:
        """Connect, and wait for the broker's answer.

        Raises
        ------
        UnavailableError
            If the broker cannot be reached, does not answer, or is busy.
        RefusedByBrokerError
            If it refuses the client, and would again.
        """
        broker, client = self._broker, self._client
        client.username_pw_set(broker.username, broker.current_password())
        context = broker.tls_context()
        if context is not None:
            client.tls_set_context(context)
        try:
            client.connect(broker.host, broker.port, broker.keepalive, **self._connect_options())
        except (OSError, ValueError) as error:
            raise UnavailableError(f"connection to {broker.place} failed: {error}. Is the broker running?") from error
        client.loop_start()
        if not self._wait_for(lambda: self._connected or self._ended):
            self.close()
            raise UnavailableError(f"broker {broker.place} did not answer within {_PATIENCE:g} s")
        reason = self._connected or self._ended
        if reason is not None and (reason.value >= _FAILED or self._connected is None):
            self.close()
            text = f"broker {broker.place} refused the connection: {reason}"
            if reason.value in _FINAL:
                raise RefusedByBrokerError(f"{text}. Check the options client_id, version, username and password")
            raise UnavailableError(text)

    def subscribe(self, rules: Sequence[FormatRule]) -> None:
        """Subscribe to the filters of some rules, also to those that the session has already.

        Raises
        ------
        RefusedByBrokerError
            If the broker refuses one, or grants a lower QoS.
        UnavailableError
            If the connection ended first.
        """
        if not rules:
            return
        asked: Any = [(rule.filter, self._options(rule)) for rule in rules]
        granted = self._ask(self._client.subscribe(asked))
        for rule, reason in zip(rules, granted, strict=True):
            if reason.value >= _FAILED:
                raise RefusedByBrokerError(
                    f"broker {self._broker.place} refused the subscription to {quoted(rule.filter)}: {reason}"
                )
            if reason.value < rule.qos:
                raise RefusedByBrokerError(
                    f"broker {self._broker.place} granted only QoS {reason.value} for {quoted(rule.filter)}, instead of"
                    f" {rule.qos}. Messages could be lost; subscribe with qos = 0 if that is acceptable"
                )

    def watch_dropped(self) -> None:
        """Subscribe to the broker's count of dropped messages. Brokers without one refuse, or send nothing."""
        self._client.subscribe(DROPPED_TOPIC, 0)

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """Drop filters; UnavailableError if the connection ended first."""
        if filters:
            self._ask(self._client.unsubscribe(list(filters)))

    def ack(self, packet_ids: Iterable[int]) -> None:
        """Ack messages that this connection delivered; do nothing if it has ended."""
        if self._ended is None:
            self._client.send_acks(packet_ids)

    def wait(self, seconds: float) -> bool:
        """Wait until it ends, at most this long; return whether it has. Raise the error of its thread."""
        has_ended = self._wait_for(lambda: self._ended or self._failure, seconds)
        if self._failure is not None:
            raise self._failure
        return has_ended

    def close(self) -> None:
        """Send outstanding packets and DISCONNECT, without UNSUBSCRIBE: the broker keeps the session's messages."""
        self._client.disconnect()
        self._wait_for(lambda: self._ended, _CLOSING)
        with self._changed:
            self._ended = self._ended or ReasonCode(PacketTypes.DISCONNECT, identifier=0)
            self._changed.notify_all()

    def _made(self, client_id: str) -> _MqttClient:
        options: dict[str, Any] = {} if self._is_v5 else {"clean_session": self._is_clean}
        client = _MqttClient(
            self._take,
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=paho.MQTTv5 if self._is_v5 else paho.MQTTv311,
            manual_ack=True,
            reconnect_on_failure=False,
            **options,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_answer
        client.on_unsubscribe = self._on_answer
        return client

    def _connect_options(self) -> dict[str, Any]:
        if not self._is_v5:
            return {}
        properties: Any = Properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = self._broker.receive_maximum
        properties.SessionExpiryInterval = 0 if self._is_clean else self._broker.session_expiry
        return {"clean_start": self._is_clean, "properties": properties}

    def _options(self, rule: FormatRule) -> Any:
        if not self._is_v5:
            return rule.qos
        handling = SubscribeOptions.RETAIN_DO_NOT_SEND
        if rule.retained == "take":
            handling = SubscribeOptions.RETAIN_SEND_IF_NEW_SUB
        return SubscribeOptions(rule.qos, retainHandling=handling)

    def _ask(self, sent: tuple[MQTTErrorCode, int | None]) -> list[ReasonCode]:
        code, number = sent
        if code or number is None or not self._wait_for(lambda: number in self._answers or self._ended):
            raise UnavailableError(f"broker {self._broker.place} did not answer within {_PATIENCE:g} s")
        if number not in self._answers:
            raise UnavailableError(f"the connection to broker {self._broker.place} ended: {self.end}")
        return self._answers.pop(number)

    def _wait_for(self, comes_true: Callable[[], object], seconds: float = _PATIENCE) -> bool:
        until = moments.monotonic() + seconds
        with self._changed:
            while not comes_true():
                left = until - moments.monotonic()
                if left <= 0:
                    return False
                moments.wait(self._changed, left)
        return True

    def _on_connect(self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        with self._changed:
            self.session_present = bool(flags.session_present)
            self._connected = reason
            self._changed.notify_all()

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: ReasonCode, _properties: Any) -> None:
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()

    def _on_answer(self, _client: Any, _data: Any, number: int, reasons: list[ReasonCode], _properties: Any) -> None:
        with self._changed:
            self._answers[number] = reasons
            self._changed.notify_all()

    def _take(self, packet: PublishPacket) -> None:
        if self._failure is not None:
            return
        try:
            self._on_publish(packet)
        except Exception as error:  # noqa: BLE001  # paho's thread would end unnoticed: `wait` raises it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _on_publish(self, packet: PublishPacket) -> None:
        try:
            topic: str | bytes = packet.topic.decode()
        except UnicodeDecodeError:
            topic = packet.topic
        if topic == DROPPED_TOPIC:
            if packet.payload.isdigit():
                self._tell_dropped(int(packet.payload[:18]))
            return
        if self.is_overfull and packet.qos:
            return
        published = Published(topic, packet.payload, packet.is_retained)
        received = Received(published, self, packet.packet_id, packet.qos, packet.is_repeat)
        if not self._deliver(received) and packet.qos:
            # The broker keeps it. To keep acks in order, the broker must also send all later messages again.
            self.is_overfull = True
