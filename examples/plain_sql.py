"""Puts, reads and postpones messages with plain SQL, which any language can do."""

import sqlite3
import tempfile
from pathlib import Path

import waterclock as wc

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "shop.db"
    with wc.connect(f"sqlite:///{file}") as db:
        orders = db.create_table("orders", payload="text")

        plain = sqlite3.connect(file, isolation_level=None)  # commits each statement
        plain.execute("INSERT INTO orders (message) VALUES ('press 17 plates'), ('press 3 plates')")
        plain.execute("UPDATE orders SET time_next = time_next + 3600000000000 WHERE id = 2")  # an hour, in ns

        for delivery in orders.receive():
            with delivery:
                print("received:", delivery.payload)
        print("in SQL:", plain.execute("SELECT id, message, time_acked IS NOT NULL FROM orders").fetchall())
        plain.close()
