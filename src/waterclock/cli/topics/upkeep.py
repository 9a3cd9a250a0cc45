"""Commands of ``waterclock topic`` that seal, compact, expire, relocate, verify and repair ledgers and their files."""

from __future__ import annotations

from dataclasses import asdict

from waterclock._support.quoting import counted
from waterclock.cli.terminal.common import Common, TopicName
from waterclock.cli.topics.positions import position_or_time
from waterclock.errors import UnavailableError
from waterclock.time import format_duration, to_duration

_FAULT_COLUMNS = ("kind", "ledger", "entry", "messages", "file", "text")


def roll(name: str, /, *, common: Common = Common()) -> None:
    """Close the open ledger and open the next one."""
    with common.connect() as database:
        topic = database.topic(name)
        topic.roll()
        common.output.talk(f"the topic continues at {topic.head}")


def seal(name: TopicName, /, *, master: str | None = None, common: Common = Common()) -> None:
    """Write every closed ledger to Parquet.

    Parameters
    ----------
    master
        The Spark cluster, or local[*], that runs one task per ledger; without it, this process seals.
    """
    with common.connect() as database:
        topic = database.topic(name)
        if master is None:
            sealed = topic.seal()
        else:
            from waterclock.spark import seal_topic, session

            sealed = seal_topic(session(master, app_name=f"waterclock seal {name}"), topic)
    common.output.talk(f"sealed {counted(sealed, 'ledger')}")


def compact(name: TopicName, /, *, master: str | None = None, common: Common = Common()) -> None:
    """Join small files of neighbouring sealed ledgers into larger ones; every message keeps its position.

    Parameters
    ----------
    master
        The Spark cluster, or local[*], that runs one task per new file; without it, this process compacts.
    """
    with common.connect() as database:
        topic = database.topic(name)
        if master is None:
            saved = topic.compact()
        else:
            from waterclock.spark import compact_topic, session

            saved = compact_topic(session(master, app_name=f"waterclock compact {name}"), topic)
    common.output.talk(f"saved {counted(saved, 'file')}")


def expire(name: TopicName, ttl: str, /, *, common: Common = Common()) -> None:
    """Skip messages older than a duration in every subscription, and delete ledgers that expired as a whole.

    Parameters
    ----------
    ttl
        How old a message may be, for example 7d.
    """
    with common.connect() as database:
        topic = database.topic(name)
        age = to_duration(ttl, "ttl")
        common.confirm(f"expire messages older than {format_duration(age)} in topic {name}")
        expired = topic.expire(age)
        common.output.facts(expired._asdict())


def truncate(name: TopicName, before: str, /, *, force: bool = False, common: Common = Common()) -> None:
    """Delete the ledgers that lie wholly before a position or a publish time.

    Parameters
    ----------
    before
        ledger:entry:index, a time with offset, or a duration such as 30d for that long ago. A ledger is deleted whole
        or not at all.
    force
        Also delete messages that a subscription has not read yet.
    """
    with common.connect() as database:
        topic = database.topic(name)
        place = position_or_time(before)
        common.confirm(f"delete the ledgers of topic {name} before {before}")
        count = topic.truncate(place, force=force)
        common.output.talk(f"deleted {counted(count, 'ledger')}")


def forget(name: TopicName, producer: str, /, *, common: Common = Common()) -> None:
    """Forget the producers whose names begin with a text, such as the producers of a removed stream.

    Parameters
    ----------
    producer
        The beginning of their names; for a stream on Spark, spark- and the query's id.
    """
    from waterclock.topics.writing.producers import forget_producers

    with common.connect() as database:
        topic = database.topic(name)
        common.confirm(f"forget the appends of the producers {producer}… to topic {name}")
        common.output.talk(f"forgot {forget_producers(topic.storage, producer)} producers")


def files(name: TopicName, /, *, common: Common = Common()) -> None:
    """List the files of a topic's sealed ledgers by their full names, each once."""
    with common.connect() as database:
        common.output.rows([{"file": file} for file in database.topic(name).files()], ("file",))


def relocate(name: TopicName, root: str, /, *, common: Common = Common()) -> None:
    """Relocate a topic's files: copy them to a new root, or record where their folder was moved to.

    Parameters
    ----------
    root
        Folder or URL. If it holds the topic's store, because the folder was renamed or is mounted elsewhere, the
        files there are checked and the new place is recorded. Otherwise the files are copied there and compared.
    """
    from waterclock.topics.store.ledger_files import StoreError
    from waterclock.topics.topic import Topic

    with common.connect() as database, common.output.progress(f"files of {name}") as step:
        try:
            topic = database.topic(name)
        except UnavailableError:
            # The root in the catalogue is wrong; the store may have been moved to the new root.
            topic = Topic.open(database.backend, root, name)
        relocated = topic.relocate(root, progress=step)
        try:
            database.topic(name)
        except StoreError:
            common.output.complain(
                f"warning: topic {name} cannot be opened while --ledgers or WATERCLOCK_LEDGERS names another place."
                " Omit the option, or unset the variable"
            )
    verb = "copied" if relocated.copied else "found"
    common.output.talk(
        f"{verb} {counted(relocated.copied or relocated.found, 'file')}; topic {name} is now at {relocated.root}"
    )


def verify(name: TopicName, /, *, deep: bool = False, common: Common = Common()) -> int:
    """Check a topic's catalogue and files, while it is in use. Exit code 1 if messages cannot be found or read.

    Parameters
    ----------
    deep
        Read every byte and compare it with its checksum.
    """
    with common.connect() as database, common.output.progress("verifying") as progress:
        verified = database.topic(name).verify(deep=deep, progress=progress)
    common.output.rows((asdict(fault) for fault in verified.faults), _FAULT_COLUMNS)
    common.output.talk(
        f"verified {counted(verified.messages, 'message')} in {counted(verified.ledgers, 'ledger')}"
        f" and {counted(verified.files, 'file')}: {counted(len(verified.faults), 'fault')}{_recorded(verified.lost)}"
    )
    return 0 if verified.is_whole else 1


def repair(name: TopicName, /, *, common: Common = Common()) -> int:
    """Import or find files that the catalogue has lost, measure bounds, and record unreadable messages as lost.

    Exit code 1 if faults remain.
    """
    with common.connect() as database:
        topic = database.topic(name)
        common.confirm(f"repair topic {name}, and record as lost what cannot be read")
        with common.output.progress("verifying and repairing") as progress:
            repaired = topic.repair(progress=progress)
    common.output.rows((asdict(fault) for fault in repaired.left), _FAULT_COLUMNS)
    common.output.talk(
        f"imported {counted(len(repaired.imported), 'ledger')}, found the moved files of {len(repaired.moved)},"
        f" remeasured {len(repaired.measured)}, recorded {counted(repaired.lost, 'message')} as lost;"
        f" {len(repaired.left)} faults remain"
    )
    return 0 if repaired.is_whole else 1


def _recorded(lost: int) -> str:
    return f"; {lost} messages are recorded as lost" if lost else ""
