"""Topics and subscriptions of topics, for asyncio."""

from __future__ import annotations

from waterclock.aio.calling import AwaitedProperty, ClosedAtExit, Facade, Plain, awaited, awaited_as, iterated
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
    send = awaited(SyncProducer.send)
    flush = awaited(SyncProducer.flush)
    close = awaited(SyncProducer.close)


class Subscription(ClosedAtExit[SyncSubscription]):
    """A durable reading position in a topic; see `waterclock.Subscription`."""

    position = AwaitedProperty[SyncSubscription, Position](lambda subscription: subscription.position)
    backlog = AwaitedProperty[SyncSubscription, Backlog](lambda subscription: subscription.backlog)
    info = AwaitedProperty[SyncSubscription, SubscriptionInfo](lambda subscription: subscription.info)
    read = awaited(SyncSubscription.read)
    commit = awaited(SyncSubscription.commit)
    seek = awaited(SyncSubscription.seek)
    expire = awaited(SyncSubscription.expire)
    close = awaited(SyncSubscription.close)


class Topic(Facade[SyncTopic]):
    """A log of messages; see `waterclock.Topic`."""

    name = Plain[SyncTopic, str](lambda topic: topic.name)
    head = AwaitedProperty[SyncTopic, Position](lambda topic: topic.head)
    bounds = AwaitedProperty[SyncTopic, Bounds | None](lambda topic: topic.bounds)
    info = AwaitedProperty[SyncTopic, TopicInfo](lambda topic: topic.info)

    append = awaited(SyncTopic.append)
    read = iterated(SyncTopic.read)
    read_arrow = iterated(SyncTopic.read_arrow, items_a_call=1)
    read_pandas = awaited(SyncTopic.read_pandas)
    read_polars = awaited(SyncTopic.read_polars)
    find = awaited(SyncTopic.find)
    newest = awaited(SyncTopic.newest)
    at = awaited(SyncTopic.at)
    index = awaited(SyncTopic.index)
    advance = awaited(SyncTopic.advance)
    messages_at = awaited(SyncTopic.messages_at)
    plan = awaited(SyncTopic.plan)
    ledgers = awaited(SyncTopic.ledgers)
    files = awaited(SyncTopic.files)
    subscribe = awaited_as(
        SyncTopic.subscribe, lambda topic, found: Subscription(found, topic.threads), SyncSubscription.close
    )
    subscriptions = awaited(SyncTopic.subscriptions)
    producer = awaited_as(SyncTopic.producer, lambda topic, found: Producer(found, topic.threads), SyncProducer.close)
    unsubscribe = awaited(SyncTopic.unsubscribe)
    alter = awaited(SyncTopic.alter)
    rename = awaited(SyncTopic.rename)
    remove = awaited(SyncTopic.remove)
    roll = awaited(SyncTopic.roll)
    seal = awaited(SyncTopic.seal)
    compact = awaited(SyncTopic.compact)
    expire = awaited(SyncTopic.expire)
    truncate = awaited(SyncTopic.truncate)
    enforce_retention = awaited(SyncTopic.enforce_retention)
    sweep = awaited(SyncTopic.sweep)
    verify = awaited(SyncTopic.verify)
    repair = awaited(SyncTopic.repair)
    relocate = awaited(SyncTopic.relocate)
