"""Puts dataclasses as messages, and gets them back in a handler that names their types."""

import tempfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

import waterclock as wc
from waterclock.testing import drain


@dataclass
class Refund:
    """An amount to pay back."""

    order: int
    amount: Decimal
    kind: Literal["refund"] = "refund"  # distinguishes the two types


@dataclass
class Cancel:
    """An order that is no longer wanted."""

    order: int
    kind: Literal["cancel"] = "cancel"


def handle(message: Refund | Cancel) -> None:
    """Handle a message of either type."""
    match message:
        case Refund(order, amount):
            print(f"refund {amount} for order {order}")
        case Cancel(order):
            print(f"cancel order {order}")


with tempfile.TemporaryDirectory() as folder, wc.connect(f"sqlite:///{Path(folder) / 'shop.db'}") as db:
    wishes = db.create_table("wishes", payload="json")
    wishes.put(Refund(order=1, amount=Decimal("2.50")))
    wishes.put(Cancel(order=2))
    print("handled:", drain(wishes, handle))
