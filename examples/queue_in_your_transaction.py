"""Puts work into the queue in the transaction that writes its data, so that both are stored or neither."""

import tempfile
from pathlib import Path

import sqlalchemy as sa

import waterclock as wc

with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'shop.db'}") as db:
    invoices = db.create_table("invoices", payload="json", groups="sequenced")
    with db.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT)"))

    with db.begin() as connection:
        connection.execute(sa.text("INSERT INTO orders VALUES (1, 'ada')"))
        invoices.put({"order": 1}, group="ada", connection=connection)

    try:
        with db.begin() as connection:
            connection.execute(sa.text("INSERT INTO orders VALUES (2, 'bob')"))
            invoices.put({"order": 2}, group="bob", connection=connection)
            raise RuntimeError("the card was refused")
    except RuntimeError as error:
        print(f"rolled back: {error}")

    for delivery in invoices.receive():
        with delivery:
            print(f"invoice for {delivery.group}: {delivery.payload}")
