"""A desk over a journal in memory that may be cut off, and how one buys at it."""

import random
from collections.abc import Mapping, Sequence

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.trade_messages import Accept, Confirm, PriceQuote, RequestQuote, TradeMessage
from bursar.model.site import SiteFacts
from bursar.service.billing import ServiceBilling
from bursar.service.config import MarketSettings, UserSettings
from bursar.store import Position, RecordOwner

MICROS = 1_000_000

SITE = SiteFacts(name="uni", processors=8, unit_price=0.5)

SELLING = MarketSettings(credit=1_000.0)


class MemoryJournal:
    """Keeps records; after a crash only what was durable."""

    def __init__(self, records: Mapping[Position, tuple[int, bytes]] | None = None) -> None:
        self.records = dict(records or {})
        self.durable_records = dict(self.records)
        self.problem = ""
        self._next = max(self.records, default=0) + 1
        self._participants: dict[int, RecordOwner] = {}

    def register(self, kinds: Sequence[int], participant: RecordOwner) -> None:
        for kind in kinds:
            assert kind not in self._participants
            self._participants[kind] = participant

    def restore(self, chance: random.Random) -> None:
        """In whatever order."""
        positions = sorted(self.records)
        chance.shuffle(positions)
        for position in positions:
            kind, payload = self.records[position]
            self._participants[kind].restore(kind, position, payload)

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Position:
        position, self._next = self._next, self._next + 1
        self.records[position] = kind, payload
        return position

    def kill(self, position: Position) -> None:
        del self.records[position]

    def commit(self) -> None:
        self.durable_records = dict(self.records)

    async def open(self) -> list[str]:
        raise NotImplementedError

    async def durable(self) -> None:
        self.commit()

    async def read(self, position: Position) -> bytes:
        return self.records[position][1]

    async def failed(self) -> str:
        raise NotImplementedError

    @property
    def size(self) -> int:
        return sum(len(payload) for _, payload in self.records.values())

    async def close(self) -> None:
        self.commit()


class Shop:
    """A desk, its clock and its journal, which may crash."""

    def __init__(
        self,
        site: SiteFacts = SITE,
        selling: MarketSettings = SELLING,
        users: Mapping[str, UserSettings] | None = None,
    ) -> None:
        self.now = 1_000_000.0
        self.changed: list[str] = []
        self._made = site, selling, users or {}
        self._chance = random.Random(1)
        self._deals = 0
        self.journal = MemoryJournal()
        self.billing = self._open()

    def _open(self) -> ServiceBilling:
        site, selling, users = self._made
        desk = ServiceBilling(
            self.journal,
            site=site,
            selling=selling,
            users=users,
            clock=lambda: self.now,
            entropy=self._chance.randbytes,
            on_change=self.changed.append,
        )
        self.journal.restore(self._chance)
        desk.open()
        return desk

    def configure(self, site: SiteFacts) -> None:
        """Of the next life."""
        self._made = site, *self._made[1:]

    def sell_by(self, selling: MarketSettings) -> None:
        """Rules of the next life."""
        self._made = self._made[0], selling, self._made[2]

    def crash(self, away: float = 0.0) -> None:
        """The service is killed; the next life begins so many seconds later."""
        self.now += away
        self.journal = MemoryJournal(self.journal.durable_records)
        self.billing = self._open()

    def wait(self, seconds: float) -> None:
        """Time passes, as the house lets it."""
        end = self.now + seconds
        while self.billing.next_tick() <= end:
            self.now = max(self.now, self.billing.next_tick())
            self.billing.tick(self.now)
        self.now = end
        self.billing.tick(self.now)

    def say(self, user: str, message: TradeMessage) -> TradeMessage:
        answers = self.billing.deliver(user, message)
        assert len(answers) == 1
        return answers[0]

    def buy(
        self, user: str, processors: int = 1, seconds: float = 100.0, start: float = 0.0
    ) -> Agreement | TradeMessage:
        """An agreement at the posted price, to begin so many seconds from now; or the refusal."""
        self._deals += 1
        about = {"deal": f"deal-{self._deals}", "sender": user, "to": "uni"}
        template = DealTemplate(
            processors=processors,
            seconds=seconds,
            earliest=self.now + start,
            latest=self.now + start + seconds,
        )
        quote = self.say(user, RequestQuote(**about, number=1, template=template))
        if not isinstance(quote, PriceQuote):
            return quote
        answer = self.say(user, Accept(**about, number=2, of=quote.number))
        return answer.agreement if isinstance(answer, Confirm) else answer

    def bought(
        self, user: str, processors: int = 1, seconds: float = 100.0, start: float = 0.0
    ) -> str:
        """Its identity."""
        agreement = self.buy(user, processors, seconds, start)
        assert isinstance(agreement, Agreement)
        return agreement.id

    def balance(self, user: str) -> float:
        """Currency units that may still be spent."""
        return self.billing.accounts.account(user).balance / MICROS
