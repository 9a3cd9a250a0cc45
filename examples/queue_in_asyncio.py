"""Puts and handles messages in an event loop, and reads a topic with async for."""

import asyncio
import tempfile
from pathlib import Path

import waterclock as wc
from waterclock import aio


async def main(folder: str) -> None:
    async with await aio.connect(f"sqlite:///{Path(folder) / 'shop.db'}") as database:
        orders: aio.MessageTable = await database.create_table("orders", payload="json")
        ids = await asyncio.gather(*(orders.put({"press": number}) for number in (17, 3)))
        print("put", len(ids))

        telemetry: aio.Topic = await database.create_topic("telemetry")
        async with orders.subscribe() as deliveries:
            for _ in ids:
                async with await anext(deliveries) as delivery:  # acks, or backs off after an exception
                    press: str = f"press-{delivery.payload['press']:02}"
                    await telemetry.append(wc.Message(press, "orders", "2026-07-01T12:00:00Z"))

        async for message in telemetry.read(stream="orders"):
            print(message.source, message.event_time)
        head: wc.Position = await telemetry.head
        print("acked", (await orders.stats()).acked, "until", head)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
