"""A service behind the API that does little, and whom to ask it as."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import msgspec

from bursar.market.agreement import SignedRecord
from bursar.market.trade_messages import Reject, TradeMessage
from bursar.model.money import Pricing
from bursar.model.provisioning import ProcessorDemand
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo
from bursar.remote.output_messages import RunningOutput
from bursar.service.config import HttpLimits
from bursar.service.http.app import ServiceApi
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.interfaces import SCOPES, Principal, ResultBatch, ServiceError

TOKENS: dict[str, Principal] = {
    "all": Principal(user="ann", scopes=frozenset(SCOPES) - {"admin"}),
    "other": Principal(user="bob", scopes=frozenset(SCOPES)),
    "admin": Principal(user="root", scopes=frozenset(SCOPES)),
    **{scope: Principal(user="ann", scopes=frozenset({scope})) for scope in SCOPES},
}
"""What tokens are good, and whose they are."""


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Entropy:
    """Looks random enough, and is the same every time."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def __call__(self, size: int) -> bytes:
        return next(self._count).to_bytes(size, "big")


class FakeAuthenticator:
    """Knows some tokens."""

    def authenticate(
        self, headers: Mapping[str, str], certificate: bytes | None, peer: str
    ) -> Principal:
        if certificate is not None:
            return Principal(user="card", scopes=frozenset({"read"}))
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or token not in TOKENS:
            raise ServiceError("unauthenticated", 401, "who are you?")
        return TOKENS[token]


class Held:
    """An instance."""

    def __init__(self, owner: str, info: api.InstanceInfo, home: Path) -> None:
        self.owner = owner
        self.info = info
        self.home = home
        self.tasks: list[api.TaskSpec] = []
        self.lines: list[bytes] = []
        self.forgotten = 0
        self.changed = asyncio.Event()


class FakeEngine:
    """Instances in memory, whose tasks end when they are told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: dict[str, Held] = {}
        self.fault: Exception | None = None

    def make(self, user: str, handle: str, **more: Any) -> Held:
        home = self.folder / "instances" / str(len(self.held))
        for name in ("files", "work", "logs"):
            (home / name).mkdir(parents=True)
        made = Held(user, api.InstanceInfo(id=handle, created=1.0, **more), home)
        self.held[handle] = made
        return made

    def finish(self, handle: str, *tasks: int) -> None:
        held = self.held[handle]
        for task in tasks:
            result = api.Result(
                cursor=len(held.lines) + 1, task=task, state="succeeded", stdout=f"out {task}\n"
            )
            held.lines.append(msgspec.json.encode(result))
        held.info = msgspec.structs.replace(held.info, results=len(held.lines))
        held.changed.set()

    def _mine(self, user: str, handle: str) -> Held:
        if self.fault is not None:
            raise self.fault
        held = self.held.get(handle)
        if held is None or held.owner != user:
            raise ServiceError("not-found", 404, "there is no such instance")
        return held

    async def create(self, user: str, new: api.NewInstance, key: str) -> api.InstanceInfo:
        handle = f"key-{user}-{key}" if key else f"handle-{len(self.held)}"
        if handle not in self.held:
            self.make(user, handle, label=new.label, agreement=new.agreement)
        return self.held[handle].info

    def instances(self, user: str) -> list[api.InstanceInfo]:
        return [held.info for held in self.held.values() if held.owner == user]

    def instance(self, user: str, handle: str) -> api.InstanceInfo:
        return self._mine(user, handle).info

    def home(self, user: str, handle: str) -> Path:
        return self._mine(user, handle).home

    def homes(self, user: str) -> Sequence[Path]:
        return [held.home for held in self.held.values() if held.owner == user]

    @property
    def outputs(self) -> "FakeEngine":
        return self

    async def running(self, user: str, handle: str, task: int, *_: Any) -> RunningOutput:
        self._mine(user, handle)
        return RunningOutput(task, "running", serial=7, shown=True)

    def file(self, user: str, handle: str, task: int, stream: str) -> str:
        if task >= len(self._mine(user, handle).tasks):
            raise ServiceError("not-found", 404, "there is no file with what the task printed")
        return f"{task}.1.{stream}"

    async def destroy(self, user: str, handle: str) -> None:
        self._mine(user, handle)
        del self.held[handle]

    async def submit(
        self, user: str, handle: str, tasks: Sequence[api.TaskSpec], key: str
    ) -> api.Submitted:
        held = self._mine(user, handle)
        held.tasks += tasks
        return api.Submitted(first=len(held.tasks) - len(tasks), count=len(tasks))

    def tasks(self, user: str, handle: str, after: int, limit: int) -> api.TaskPage:
        count = len(self._mine(user, handle).tasks)
        found = [
            api.TaskInfo(task=number, state="waiting")
            for number in range(after, min(count, after + limit))
        ]
        return api.TaskPage(tasks=found, next=after + limit if after + limit < count else None)

    async def cancel(
        self,
        user: str,
        handle: str,
        tasks: Sequence[int] | None,
        grace: float | None = None,
    ) -> api.Cancelled:
        self._mine(user, handle)
        return api.Cancelled(count=len(tasks or ()))

    async def results(
        self, user: str, handle: str, after: int, limit: int, wait: float
    ) -> ResultBatch:
        held = self._mine(user, handle)
        if len(held.lines) <= after < len(held.tasks) and wait:
            held.changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await held.changed.wait()
            except TimeoutError:
                pass
        lines = held.lines[after : after + limit]
        last = after + len(lines)
        return ResultBatch(lines=lines, next=last, done=last >= len(held.tasks))

    async def forget(self, user: str, handle: str, through: int) -> None:
        self._mine(user, handle).forgotten = through

    async def changes(self, user: str, handle: str) -> AsyncIterator[api.InstanceInfo]:
        held = self._mine(user, handle)
        while True:
            held.changed.clear()
            await held.changed.wait()
            yield held.info

    def demand(self) -> Mapping[str, ProcessorDemand]:
        return {}

    def overview(self) -> Overview:
        return Overview(
            at=1.0,
            since=0.0,
            instances=[held.info for held in self.held.values()],
            owners=[held.owner for held in self.held.values()],
            workers=[],
            submitted=0,
            started=0,
            finished=0,
            delivered=0,
            journal_bytes=0,
        )


class FakeTill:
    """Sells nothing, and has one agreement of Ann's."""

    def __init__(self) -> None:
        self.pricing: Pricing | None = None
        self.deposits: dict[tuple[str, str], int] = {}
        self.accounts = self

    def _agreement(self) -> api.AgreementInfo:
        return api.AgreementInfo(
            id="deal-1",
            processors=2,
            start=0.0,
            seconds=60.0,
            unit_price=1.0,
            fixed_price=0.0,
            currency="SU",
            state="signed",
        )

    def deliver(self, user: str, message: TradeMessage) -> tuple[TradeMessage, ...]:
        if message.sender != user:
            raise ServiceError("forbidden", 403, "speak for yourself", where="sender")
        refusal = Reject(
            deal=message.deal, sender="site", to=user, number=1, reason="no", of=message.number
        )
        return (refusal,)

    def agreements(self, user: str) -> api.AgreementList:
        return api.AgreementList(agreements=[self._agreement()] if user == "ann" else [])

    def agreement(self, user: str, agreement: str) -> api.AgreementInfo:
        if user != "ann" or agreement != "deal-1":
            raise ServiceError("not-found", 404, "there is no such agreement")
        return self._agreement()

    def cancel(self, user: str, agreement: str) -> api.AgreementInfo:
        return self.agreement(user, agreement)

    def account(self, user: str) -> api.AccountInfo:
        return api.AccountInfo(
            user=user,
            currency="SU",
            balance=sum(amount for (who, _), amount in self.deposits.items() if who == user),
            held=0,
            spent=0,
        )

    def deposit(self, user: str, deposit: api.Deposit) -> api.AccountInfo:
        self.deposits[user, deposit.key] = deposit.amount
        return self.account(user)

    def spent(self) -> int:
        return 7

    def invoice(self, user: str, since: float, until: float) -> market.InvoiceInfo:
        return market.InvoiceInfo(user=user, owner="site", currency="SU", lines=[], total=0)

    def usage(self, user: str) -> Sequence[SignedRecord]:
        return ()

    def reprice(self, pricing: Pricing) -> None:
        self.pricing = pricing

    def sales(self) -> Mapping[str, api.AgreementList]:
        return {"ann": self.agreements("ann")}


class FakeTokens:
    """Has one token."""

    def create(self, new: NewToken) -> TokenInfo:
        return TokenInfo(id="t2", user=new.user, scopes=list(new.scopes), expires=9.0)

    def tokens(self) -> list[TokenInfo]:
        return [TokenInfo(id="t1", user="ann", scopes=["read"], expires=9.0)]

    def revoke(self, token: str) -> None:
        if token != "t1":
            raise ServiceError("not-found", 404, "there is no token of this id")


class Listener:
    """Hears what was served and what failed."""

    def __init__(self) -> None:
        self.served_requests: list[dict[str, Any]] = []
        self.failures: list[tuple[str, str, BaseException]] = []

    def served(self, **what: Any) -> None:
        self.served_requests.append(what)

    def failed(self, incident: str, route: str, error: BaseException) -> None:
        self.failures.append((incident, route, error))


class FakeManager(Listener):
    """The service as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = False

    def site(self, user: str) -> api.SiteInfo:
        return api.SiteInfo(name="site", processors=4, free=4, currency="EUR")

    def health(self) -> api.Health:
        return api.Health(status="draining" if self.draining else "ok")

    def ready(self) -> api.Health:
        return self.health()

    def degraded(self) -> str:
        return ""

    def metrics(self) -> bytes:
        return b"bursar_up 1\n"

    def drain(self) -> None:
        self.draining = True


class FakeJournal:
    """Counts how often it was waited for."""

    def __init__(self) -> None:
        self.synced = 0

    async def durable(self) -> None:
        self.synced += 1


class World:
    """
    The API over the fakes.

    Parameters
    ----------
    folder
        Where instances' files lie.
    limits
        Of the API.
    """

    def __init__(self, folder: Path, limits: HttpLimits | None = None, **parts: Any) -> None:
        self.clock = Clock()
        self.engine = FakeEngine(folder)
        self.billing = FakeTill()
        self.manager = FakeManager()
        self.journal = FakeJournal()
        self.listener = self.manager
        given: dict[str, Any] = {
            "engine": self.engine,
            "billing": self.billing,
            "tokens": FakeTokens(),
            "authenticator": FakeAuthenticator(),
            "manager": self.manager,
            "journal": self.journal,
            "clock": self.clock,
            "entropy": Entropy(),
            "limits": limits or HttpLimits(),
        }
        self.api = ServiceApi(ApiDependencies(**(given | parts)))

    def client(self, token: str | None = "all", **more: Any) -> httpx.AsyncClient:
        """Asks the API in process, as whom the token says."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.api, raise_app_exceptions=True),
            base_url="http://localhost/v1",
            headers=headers,
            **more,
        )


def problem(response: httpx.Response) -> api.Problem:
    """The problem that an answer tells of."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    found = msgspec.json.decode(response.content, type=api.Problem)
    assert found.status == response.status_code
    return found


async def say(
    world: World, method: str, target: str, *said: dict[str, Any], token: str = "all"
) -> tuple[int, bytes]:
    """
    Asks without a client that would tidy the address up; status and body of the answer.

    Parameters
    ----------
    said
        What the connection says, as messages of ASGI; afterwards it is lost.
    """
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())],
    }
    coming = iter(said)
    answer: list[Any] = []

    async def receive() -> Any:
        return next(coming, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        answer.append(message)

    await world.api(scope, receive, send)
    status = answer[0]["status"] if answer else 0
    return status, b"".join(message["body"] for message in answer[1:])
