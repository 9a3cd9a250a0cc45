"""Handles the messages of each customer in order, independently of other customers."""

import tempfile
from pathlib import Path

import waterclock as wc

with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'shop.db'}") as db:
    orders = db.create_table("orders", payload="text", groups="sequenced")
    for customer, text in [("ada", "open"), ("ada", "pay"), ("bob", "open"), ("ada", "ship"), ("bob", "cancel")]:
        orders.put(text, group=customer)

    # Consumers get the messages of a group in order. If one fails, only the later messages of its group wait.
    handled = []
    while deliveries := orders.receive(limit=1):
        for delivery in deliveries:
            if (delivery.group, delivery.payload) == ("ada", "pay"):
                delivery.nack(delay="1h", error="the bank is closed")
                continue
            with delivery:
                handled.append(f"{delivery.group}: {delivery.payload}")

    print(*handled, sep="\n")
    print("ada waits with", [message.payload for message in orders.peek(group="ada")])

    orders.groups.skip_head("ada")  # the payment was made by phone
    [delivery] = orders.receive(limit=1)
    with delivery:
        print(f"{delivery.group}: {delivery.payload}")
