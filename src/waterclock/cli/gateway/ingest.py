"""``waterclock ingest`` moves published messages into topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from waterclock._support.quoting import counted, in_a_line, quoted
from waterclock._support.small_process import keep_small
from waterclock._support.urls import without_secrets
from waterclock.cli.gateway.ingest_talk import saying, signals, teller
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.exporting import MetricsOptions, exporting
from waterclock.cli.terminal.log_format import LogOptions
from waterclock.cli.terminal.output import Output
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.time import format_time, system_clock

if TYPE_CHECKING:
    from waterclock.connection import Database
    from waterclock.ingest.ingest import Ingest
    from waterclock.ingest.ingest_file import IngestFile
    from waterclock.ingest.kafka.kafka_ingest import KafkaIngest
    from waterclock.ingest.kafka.kafka_plan import KafkaPlan
    from waterclock.ingest.mapping.mapped import SampledMessage
    from waterclock.ingest.mqtt.plan import IngestPlan
    from waterclock.ingest.progress import Tell

_FILE = """Append files to a topic, once or as they grow.

Each message is appended once, also when the command is killed: the next run continues. Rotated and truncated files are
recognised. Lines that cannot be mapped become dead letters.
"""

app = App(name="ingest")
app.command("waterclock.cli.gateway.ingest_file:file", name="file", help=_FILE)

_OF_MQTT = ("filter", "qos", "retained", "client_id", "mqtt_version")

_LONGEST_SHOWN = 120  # characters of a payload

_MOST_LAGS = 10
"""Streams in an event of the progress."""


@Parameter(name="*")
@dataclass(frozen=True)
class MappingOptions:
    """How messages are mapped if the source is a URL. A file has its own mapping."""

    topic: str | None = None
    """The topic that takes the messages."""
    format: str = "collectd"
    """collectd, thin-edge, json, senml, raw or ess."""
    filter: str | None = None
    """The MQTT filter; by default collectd/# for collectd, and te/+/+/+/+/m/+ for thin-edge."""
    template: str | None = None
    """How topics name source and stream, such as collectd/{source}/{stream...}; for Kafka, the path is TOPIC/KEY."""
    qos: int = 1
    """0 or 1; the broker keeps messages for the ingest only at 1."""
    retained: str = "skip"
    """take or skip: what happens to messages that the broker has retained."""
    client_id: str | None = None
    """The name under which the broker keeps the session; derived from the topic unless given."""
    mqtt_version: str = "5"
    """5 or 3.1.1."""
    dead_letters: str = "ingest-dead-letters"
    """The topic of messages that cannot be mapped."""


@Parameter(name="*")
@dataclass(frozen=True)
class KafkaOptions:
    """Options of an ingest from Kafka if the source is a URL. A file has its own options."""

    kafka_topic: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Kafka: a topic to read; may be given several times."""
    key: str = "text"
    """Kafka: how a key becomes text: text, hex, base64, or ignore."""
    key_header: str | None = None
    """Kafka: the header whose value is used instead of the key."""
    group: str | None = None
    """Kafka: share the partitions with the other members of this group; otherwise all are read."""
    start: str = "earliest"
    """Kafka: where to begin a partition that was never read: earliest, latest or a time."""
    until: str | None = None
    """Kafka: stop reading a partition at its first record at or after this time."""
    lost: str = "stop"
    """Kafka: stop or skip: what happens to a partition whose next records the brokers have deleted."""
    property: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Kafka: NAME=VALUE for librdkafka, such as security.protocol=SSL; may be given several times."""


_NO_MAPPING = MappingOptions()
_NO_KAFKA = KafkaOptions()


@app.default
def ingest(
    source: str,
    /,
    *,
    mapping: MappingOptions = _NO_MAPPING,
    kafka: KafkaOptions = _NO_KAFKA,
    metrics: MetricsOptions = MetricsOptions(),
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> None:
    """Move messages from an MQTT broker or a Kafka cluster into topics until it is stopped.

    MQTT: each message is acked once its append has committed. Kafka: the append writes the offsets. SIGTERM and SIGINT
    stop it, and the broker keeps later messages. At SIGHUP, it reads the file again. The user and password for MQTT
    come from the file, or from WATERCLOCK_MQTT_USERNAME and WATERCLOCK_MQTT_PASSWORD.

    Parameters
    ----------
    source
        mqtt://HOST[:PORT], mqtts://HOST[:PORT], kafka://HOST[:PORT][,HOST[:PORT]…], or a TOML file.
    """
    from waterclock.monitoring.process_reports import ProcessReport

    keep_small()
    read = _read(source, mapping, kafka)
    output = log.output(common)
    with _with_database_of(read, common).connect() as database:
        runner, reload = _runner(database, read, teller(output), source)
        with (
            signals(runner.stop, reload),
            saying(
                lambda: runner.progress.received,
                lambda rate: _line(runner, rate),
                output,
                ProcessReport(database.backend, "ingest", without_secrets(source), 0, counts="appended"),
            ),
            _exporting(metrics, runner, output, database),
        ):
            runner.run()


def _runner(
    database: Database, read: IngestFile, tell: Tell, source: str
) -> tuple[Ingest | KafkaIngest, Callable[[], None] | None]:
    """Return the runner of the plan, and the function that reads the file again."""
    from waterclock.ingest.kafka.kafka_plan import KafkaPlan

    if isinstance(read.plan, KafkaPlan):
        from waterclock.ingest.kafka.kafka_ingest import KafkaIngest

        kafka = KafkaIngest(database, read.plan, tell)
        return kafka, None if _is_url(source) else lambda: kafka.reload(lambda: _kafka_plan(_read(source)))
    from waterclock.ingest.ingest import Ingest

    runner = Ingest(database, read.plan, tell)
    return runner, None if _is_url(source) else lambda: runner.reload(lambda: _mqtt_plan(_read(source)))


def _exporting(
    options: MetricsOptions, runner: Ingest | KafkaIngest, output: Output, database: Database
) -> AbstractContextManager[None]:
    if options.metrics is None:
        return nullcontext()
    from waterclock.ingest.metrics import IngestMetrics

    collector = IngestMetrics(runner.progress, runner.lags, options.metrics_labels)
    return exporting(options, output, lambda: database, [collector], list[str])


@app.command
def check(
    source: str,
    /,
    *,
    sample: int = 20,
    wait: str = "30s",
    messages: Path | None = None,
    broker_config: Path | None = None,
    mapping: MappingOptions = _NO_MAPPING,
    kafka: KafkaOptions = _NO_KAFKA,
    common: Common = Common(),
) -> None:
    """Show how the next messages would be mapped, and which broker settings affect the ingest; append nothing.

    With Kafka, this reads the newest records. Exit code 1 if a message would become a dead letter.

    Parameters
    ----------
    source
        mqtt://HOST[:PORT], mqtts://HOST[:PORT], kafka://HOST[:PORT], or a TOML file.
    sample
        How many messages to read.
    wait
        How long to wait for these messages.
    messages
        MQTT: read the messages of this file instead, JSON lines as `mosquitto_sub -F %j` writes them.
    broker_config
        Mosquitto's configuration, to report its settings that lose messages: /etc/mosquitto/mosquitto.conf.
    """
    from waterclock.ingest.kafka.kafka_plan import KafkaPlan
    from waterclock.time import to_duration

    plan = _read(source, mapping, kafka).plan
    output, seconds = common.output, to_duration(wait, "wait") / 1_000_000_000
    if isinstance(plan, KafkaPlan):
        if messages is not None or broker_config is not None:
            raise InvalidArgumentError("--messages and --broker-config can only be used with MQTT, got a Kafka source")
        sampled = _sample_of_cluster(plan, sample, seconds)
    else:
        sampled = _sample_of_broker(plan, sample, seconds, messages, broker_config, output)
    bad = seen = 0
    for each in sampled:
        seen += 1
        bad += each.reason is not None
        _show(output, each)
    output.talk(f"{counted(seen, 'message')}, {bad} of them would be dead letters")
    if bad:
        raise WaterclockError(f"cannot map {bad} of {seen} messages; the reasons are above. Correct the mapping")


def _sample_of_cluster(plan: KafkaPlan, sample: int, seconds: float) -> Iterator[SampledMessage]:
    from waterclock.ingest.kafka.newest_records import newest_records
    from waterclock.ingest.kafka.record import check_record

    rules = {rule.kafka_topic: rule for rule in plan.rules}
    for record in newest_records(plan, sample, seconds):
        yield check_record(rules[record.topic], plan.most_payload, record, system_clock())


def _sample_of_broker(
    plan: IngestPlan, sample: int, seconds: float, messages: Path | None, broker_config: Path | None, output: Output
) -> Iterator[SampledMessage]:
    from itertools import islice

    from waterclock.ingest.checking import BrokerCheck, check_published, read_published
    from waterclock.ingest.mapping.format_rule import RuleSet

    rules = RuleSet(plan.rules)
    broker = None
    if messages is not None:
        published = islice(read_published(messages), sample)
    else:
        broker = BrokerCheck(plan)
        published = broker.sample(sample, seconds)
    for each in published:
        yield check_published(rules, plan.most_payload, each, system_clock())
    if broker is not None:
        output.talk(f"the broker is {broker.version or 'of an unknown version'}, and grants all requested options")
        if broker.dropped:
            output.talk(f"the broker dropped {counted(broker.dropped, 'message')} for its clients since it was started")
    _warn_of_broker(output, broker_config)


@app.command
def replay(
    source: str,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    mapping: MappingOptions = _NO_MAPPING,
    kafka: KafkaOptions = _NO_KAFKA,
    common: Common = Common(),
) -> None:
    """Map dead letters again after the mapping was corrected, and append those that can now be mapped.

    Continues after the last replay. A message that still cannot be mapped becomes a dead letter again, with the new
    reason.

    Parameters
    ----------
    source
        The ingest's TOML file, or its URL with the same options.
    dry_run
        Only count the messages, and append nothing.
    """
    from waterclock.ingest.replaying import replay as replay_dead_letters

    read = _read(source, mapping, kafka)
    with _with_database_of(read, common).connect() as database:
        replayed = replay_dead_letters(database, read.plan, dry_run=dry_run)
    common.output.facts(vars(replayed))


def _is_url(source: str) -> bool:
    return "://" in source


def _read(source: str, mapping: MappingOptions = _NO_MAPPING, kafka: KafkaOptions = _NO_KAFKA) -> IngestFile:
    from waterclock.ingest.ingest_file import IngestFile

    if source.startswith("kafka:"):
        return IngestFile(_kafka_plan_of_url(source, mapping, kafka))
    if kafka != _NO_KAFKA:
        raise InvalidArgumentError("cannot use Kafka options with this source. Pass a Kafka URL, such as kafka://HOST")
    if _is_url(source):
        return IngestFile(_mqtt_plan_of_url(source, mapping))
    if mapping != _NO_MAPPING:
        raise InvalidArgumentError(
            f"cannot use mapping options with the file {quoted(source)}: the file has its own mapping."
            " Pass a URL as source, such as mqtt://HOST"
        )
    return IngestFile.read(Path(source))


def _mqtt_plan_of_url(source: str, mapping: MappingOptions) -> IngestPlan:
    from waterclock.ingest.mapping.format_rule import FormatRule
    from waterclock.ingest.mqtt.broker import Broker
    from waterclock.ingest.mqtt.plan import IngestPlan

    rule = FormatRule.checked(
        mapping.filter, _topic(mapping), mapping.format, mapping.template, None, mapping.qos, mapping.retained
    )
    broker = Broker.checked(source, client_id=mapping.client_id, version=mapping.mqtt_version)
    return IngestPlan(broker, (rule,), mapping.dead_letters)


def _kafka_plan_of_url(source: str, mapping: MappingOptions, kafka: KafkaOptions) -> KafkaPlan:
    from waterclock.ingest.kafka.kafka_plan import KafkaCluster, KafkaPlan, parse_start
    from waterclock.ingest.kafka.record import KafkaRule
    from waterclock.ingest.storing.dead_letters import MOST_PAYLOAD
    from waterclock.time import to_time

    topic = _topic(mapping)
    unfit = [name for name in _OF_MQTT if getattr(mapping, name) != getattr(_NO_MAPPING, name)]
    if unfit:
        raise InvalidArgumentError(f"--{unfit[0].replace('_', '-')} can only be used with MQTT, got a Kafka source")
    if not kafka.kafka_topic:
        raise InvalidArgumentError("--kafka-topic is missing; name a Kafka topic")
    properties: dict[str, str] = {}
    for text in kafka.property:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidArgumentError("--property must be NAME=VALUE, such as security.protocol=SSL")
        properties[name] = value
    rules = tuple(
        KafkaRule.checked(each, topic, mapping.format, mapping.template, None, kafka.key, kafka.key_header)
        for each in kafka.kafka_topic
    )
    return KafkaPlan(
        KafkaCluster.checked(source, kafka.group, properties),
        rules,
        mapping.dead_letters,
        MOST_PAYLOAD,
        parse_start(kafka.start, system_clock()),
        None if kafka.until is None else to_time(kafka.until, "until"),
        kafka.lost,
    )


def _topic(mapping: MappingOptions) -> str:
    if mapping.topic is None:
        raise InvalidArgumentError("--topic is missing; name the topic that gets the messages")
    return mapping.topic


def _mqtt_plan(read: IngestFile) -> IngestPlan:
    from waterclock.ingest.kafka.kafka_plan import KafkaPlan

    if isinstance(read.plan, KafkaPlan):
        raise InvalidArgumentError("the file must have a table [broker], got a file with [kafka]")
    return read.plan


def _kafka_plan(read: IngestFile) -> KafkaPlan:
    from waterclock.ingest.mqtt.plan import IngestPlan

    if isinstance(read.plan, IngestPlan):
        raise InvalidArgumentError("the file must have a table [kafka], got a file with [broker]")
    return read.plan


def _with_database_of(read: IngestFile, common: Common) -> Common:
    if read.url is None:
        return common
    return replace(common, url=read.url, ledgers=read.ledgers)


def _show(output: Output, checked: SampledMessage) -> None:
    payload = in_a_line(checked.payload[:_LONGEST_SHOWN].decode(errors="backslashreplace"))
    raw = {**checked.facts, "raw": payload}
    if checked.reason is not None:
        output.facts({**raw, "dead_letter": checked.reason})
    for message in checked.messages:
        output.facts(
            {
                **raw,
                "source": message.source,
                "stream": message.stream,
                "event_time": format_time(message.event_time),
                "payload": in_a_line(message.payload[:_LONGEST_SHOWN].decode(errors="backslashreplace")),
            }
        )
    if not output.as_json:
        output.text("")


def _warn_of_broker(output: Output, config: Path | None) -> None:
    from waterclock.ingest.checking import broker_settings, broker_warnings

    if config is None:
        output.talk(
            "by default, Mosquitto queues 1,000 messages for each client and drops further ones, and a stop loses the"
            " queues. To check your broker, pass --broker-config"
        )
        return
    try:
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {quoted(str(config))}: {error.strerror}") from None
    for warning in broker_warnings(broker_settings(text)):
        output.talk(warning)


def _line(runner: Ingest | KafkaIngest, rate: float) -> tuple[str, dict[str, object]]:
    counts = runner.progress.facts()
    said = [f"{counts['appended']:,} appended, {rate:,.0f}/s"]
    named = ("waiting", "dead", "repeats", "skipped", "lost", "broker_dropped", "stopped")
    said += [f"{counts[name]:,} {name.replace('_', ' ')}" for name in named if counts[name]]
    lags = {f"{source} {stream}": lag.largest / 1e9 for (source, stream), lag in runner.lags.worst(_MOST_LAGS)}
    for name, lag in list(lags.items())[:1]:
        said.append(f"{in_a_line(name)} {lag:,.1f} s behind")
    said.append("database away" if counts["is_database_away"] else f"{counts['connected']} connected")
    return ", ".join(said), {**counts, "lags": lags}
