"""Topics and subscriptions of topics, for asyncio."""

from __future__ import annotations

from waterclock.aio.calling import Awaited, AwaitedAs, AwaitedProperty, ClosedAtExit, Facade, Iterated, Plain
from waterclock.message import Position
from waterclock.topics.catalogue.topic_info import TopicInfo
from waterclock.topics.finding.subscription_rows import SubscriptionInfo
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.subscription import Backlog
from waterclock.topics.subscription import Subscription as SyncSubscription
from waterclock.topics.topic import Topic as SyncTopic
from waterclock.topics.writing.producing import Producer as SyncProducer


class Producer(ClosedAtExit[SyncProducer]):
    """Gathers messages into appends; see `waterclock.Topic.producer`."""

    last_sequence = Plain[SyncProducer, int | None](lambda producer: producer.last_sequence)
    rejected = Plain[SyncProducer, int](lambda producer: producer.rejected)
    send = Awaited(SyncProducer.send)
    flush = Awaited(SyncProducer.flush)
    close = Awaited(SyncProducer.close)


class Subscription(ClosedAtExit[SyncSubscription]):
    """A durable reading position in a topic; see `waterclock.Subscription`."""

    position = AwaitedProperty[SyncSubscription, Position](lambda subscription: subscription.position)
    backlog = AwaitedProperty[SyncSubscription, Backlog](lambda subscription: subscription.backlog)
    info = AwaitedProperty[SyncSubscription, SubscriptionInfo](lambda subscription: subscription.info)
    read = Awaited(SyncSubscription.read)
    commit = Awaited(SyncSubscription.commit)
    seek = Awaited(SyncSubscription.seek)
    expire = Awaited(SyncSubscription.expire)
    close = Awaited(SyncSubscription.close)


def _subscribed(topic: Topic, subscription: SyncSubscription) -> Subscription:
    return Subscription(subscription, topic.threads)


def _produced(topic: Topic, producer: SyncProducer) -> Producer:
    return Producer(producer, topic.threads)


class Topic(Facade[SyncTopic]):
    """A log of messages; see `waterclock.Topic`."""

    name = Plain[SyncTopic, str](lambda topic: topic.name)
    head = AwaitedProperty[SyncTopic, Position](lambda topic: topic.head)
    bounds = AwaitedProperty[SyncTopic, Bounds | None](lambda topic: topic.bounds)
    info = AwaitedProperty[SyncTopic, TopicInfo](lambda topic: topic.info)

    append = Awaited(SyncTopic.append)
    read = Iterated(SyncTopic.read)
    read_arrow = Iterated(SyncTopic.read_arrow, items_a_call=1)
    read_pandas = Awaited(SyncTopic.read_pandas)
    read_polars = Awaited(SyncTopic.read_polars)
    find = Awaited(SyncTopic.find)
    newest = Awaited(SyncTopic.newest)
    at = Awaited(SyncTopic.at)
    index = Awaited(SyncTopic.index)
    advance = Awaited(SyncTopic.advance)
    messages_at = Awaited(SyncTopic.messages_at)
    plan = Awaited(SyncTopic.plan)
    ledgers = Awaited(SyncTopic.ledgers)
    files = Awaited(SyncTopic.files)
    subscribe = AwaitedAs(SyncTopic.subscribe, _subscribed, SyncSubscription.close)
    subscriptions = Awaited(SyncTopic.subscriptions)
    producer = AwaitedAs(SyncTopic.producer, _produced, SyncProducer.close)
    unsubscribe = Awaited(SyncTopic.unsubscribe)
    alter = Awaited(SyncTopic.alter)
    rename = Awaited(SyncTopic.rename)
    remove = Awaited(SyncTopic.remove)
    roll = Awaited(SyncTopic.roll)
    seal = Awaited(SyncTopic.seal)
    compact = Awaited(SyncTopic.compact)
    expire = Awaited(SyncTopic.expire)
    truncate = Awaited(SyncTopic.truncate)
    enforce_retention = Awaited(SyncTopic.enforce_retention)
    sweep = Awaited(SyncTopic.sweep)
    verify = Awaited(SyncTopic.verify)
    repair = Awaited(SyncTopic.repair)
    relocate = Awaited(SyncTopic.relocate)
