"""``waterclock subscription`` manages durable reading positions in a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from waterclock._support.quoting import quoted, unknown_name
from waterclock.cli.terminal.common import Common, TopicName
from waterclock.cli.terminal.output import Span
from waterclock.cli.topics.positions import position_or_time
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.topics.model.literals import By

if TYPE_CHECKING:
    from waterclock.topics.subscription import Subscription
    from waterclock.topics.topic import Topic

app = App(name="subscription")

_COLUMNS = ("name", "position", "unread", "holder")


@app.command
def add(
    topic: TopicName,
    name: str,
    /,
    *,
    start: str = "earliest",
    by: By = "publish_time",
    common: Common = Common(),
) -> None:
    """Create a subscription; an existing one keeps its position.

    Parameters
    ----------
    name
        The subscription.
    start
        earliest, latest, a position, a time with offset, or a duration such as 2h for that long ago.
    by
        The time of a message to which --start refers; effective_time is the smaller of its publish and receive time.
    """
    with common.connect() as database:
        subscription = database.topic(topic).subscribe(name, position_or_time(start), by=by)
        common.output.talk(f"subscription {name} is at {subscription.position}")


@app.command
def ls(topic: str, /, *, common: Common = Common()) -> None:
    """List a topic's subscriptions with their positions and readers."""
    with common.connect() as database:
        infos = database.topic(topic).subscriptions()
        common.output.rows([{name: getattr(info, name) for name in _COLUMNS} for info in infos], _COLUMNS)


@app.command
def info(topic: str, name: str, /, *, common: Common = Common()) -> None:
    """Show a subscription's position and backlog."""
    with common.connect() as database:
        subscription = _existing(database.topic(topic), name)
        backlog = subscription.backlog
        facts = {column: getattr(subscription.info, column) for column in _COLUMNS}
        common.output.facts(facts | {"backlog": backlog.messages, "backlog_age": Span(backlog.age)})


@app.command
def read(
    topic: TopicName,
    name: str,
    /,
    *,
    limit: int = 1000,
    commit: bool = True,
    common: Common = Common(),
) -> int:
    """Print the next messages, and count them as read. Exit code 1 if no message is left.

    Parameters
    ----------
    name
        The subscription.
    limit
        At most this many messages.
    commit
        With --no-commit, the next read returns the same messages.
    """
    with common.connect() as database, _existing(database.topic(topic), name) as subscription:
        messages = subscription.read(limit)
        output = common.output
        for message in messages:
            output.message(message)
        if commit:
            subscription.commit()
        return 0 if messages else 1


@app.command
def seek(
    topic: TopicName,
    name: str,
    /,
    *,
    to: str | None = None,
    since: str | None = None,
    start: Annotated[bool, Parameter(negative="")] = False,
    end: Annotated[bool, Parameter(negative="")] = False,
    by: By = "publish_time",
    filter_older: bool = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    common: Common = Common(),
) -> None:
    """Move a subscription; messages that were read before the move can no longer be committed.

    Parameters
    ----------
    name
        The subscription.
    to
        A time with offset, or a position.
    since
        How long ago, for example 2h.
    start
        To the first remaining message.
    end
        To the next message to be written.
    by
        The time of a message to which --to and --since refer; effective_time is the smaller of its publish and receive
        time.
    filter_older
        Skip messages after that position whose own time is earlier.
    dry_run
        Only show the new position.
    """
    choices = [to, since, "earliest" if start else None, "latest" if end else None]
    chosen = [choice for choice in choices if choice is not None]
    if len(chosen) != 1:
        raise InvalidArgumentError("the target must be exactly one of --to, --since, --start and --end")
    with common.connect() as database:
        opened = database.topic(topic)
        subscription = _existing(opened, name)
        where = position_or_time(chosen[0])
        if dry_run:
            from waterclock.topics.finding.finding import place_at

            common.output.facts(
                {"name": name, "from": subscription.position, "to": place_at(opened.storage, where, by).position}
            )
            return
        common.output.facts({"name": name, "to": subscription.seek(where, by=by, filter_older=filter_older)})


@app.command
def expire(topic: str, name: str, ttl: str, /, *, common: Common = Common()) -> None:
    """Skip a subscription's messages that are older than a duration, such as 7d."""
    with common.connect() as database:
        common.output.facts(_existing(database.topic(topic), name).expire(ttl)._asdict())


@app.command
def rm(topic: str, name: str, /, *, common: Common = Common()) -> None:
    """Remove a subscription; the topic keeps its messages."""
    with common.connect() as database:
        opened = database.topic(topic)
        _existing(opened, name)
        common.confirm(f"remove subscription {name} of topic {topic}")
        opened.unsubscribe(name)
        common.output.talk(f"removed subscription {name}")


def _existing(topic: Topic, name: str) -> Subscription:
    # subscribe() would create a subscription for a mistyped name.
    known = [info.name for info in topic.subscriptions()]
    if name not in known:
        remedy = "create it with 'waterclock subscription add'"
        raise NotFoundError(unknown_name("subscription", name, known, remedy, f"topic {quoted(topic.name)}"))
    return topic.subscribe(name)
