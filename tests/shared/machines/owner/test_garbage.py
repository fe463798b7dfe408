"""A process collects garbage when a store asks for it, and asks those who borrow what it has stored."""

from __future__ import annotations

from dualray.shared.model.commands import CollectGarbage, Send
from dualray.shared.model.config import Config
from dualray.shared.model.events import BorrowAdded, CollectionWanted
from tests.shared.builders import OTHER, of, put_id

READER = "node-0/w2"


def asked(commands) -> list[str]:
    """Whom the process asks."""
    return [send.to for send in of(commands, Send) if isinstance(send.message, CollectionWanted)]


def test_an_owner_collects_and_asks_the_borrowers_of_what_it_has_stored(driver):
    for number in (1, 2):
        driver.put(number, inline=False)
        for borrower in (OTHER, READER):
            driver(BorrowAdded(object_id=put_id(number), borrower=borrower))
    driver.put(3, inline=True)
    driver(BorrowAdded(object_id=put_id(3), borrower="node-0/w3"))
    commands = driver(CollectionWanted())
    assert of(commands, CollectGarbage) == [CollectGarbage()]
    assert asked(commands) == [OTHER, READER]


def test_a_process_collects_at_most_twice_in_the_interval(driver):
    interval_ns = Config().garbage_ns
    times = [0, interval_ns // 2 - 1, interval_ns // 2, interval_ns - 1, interval_ns]
    collected = []
    began_ns = driver.now_ns
    for time_ns in times:
        driver.now_ns = began_ns + time_ns
        collected.append(len(of(driver(CollectionWanted()), CollectGarbage)))
    assert collected == [1, 0, 1, 0, 1]
