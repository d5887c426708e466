"""A cloud through apache-libcloud, whose blocking calls run in threads."""

import asyncio
import datetime
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bursar.formats.file_text import parse_toml
from bursar.model.cloud import CloudEndpoint, MachinePrice
from bursar.model.errors import InputError, SiteError
from bursar.sites.cloud.provider import (
    OWNER,
    RUN,
    CloudMachine,
    MachineLabel,
    MachineOrder,
    MachineState,
    PurchaseRefused,
    SpotPrice,
    label_of,
)

TIMEOUT = 30.0
"""Seconds that one request to a provider may take."""

T = TypeVar("T")

_THROTTLED = re.compile(r"Throttl|RequestLimitExceeded|rate limit|too many requests", re.IGNORECASE)
_FULL = re.compile(
    r"Insufficient|Capacity|SpotMaxPriceTooLow|(Limit|Count)Exceeded|quota|No valid host"
    r"|ZONE_RESOURCE|PendingVerification",
    re.IGNORECASE,
)
_NO_QUOTA = re.compile(
    r"limit of 0\b|\blimit: 0(\.0)?(?![.\d])|\bof 0 (cores|instances|ram)\b", re.IGNORECASE
)
"""A quota of nothing, in the words of EC2, GCE and OpenStack: waiting for others does not help."""

_FINAL_CODES = (400, 401, 403, 404, 405, 415, 422)
"""Statuses of requests that are wrong, or not allowed: the same answer comes to the next."""

_LIVE_PRICES = ("digitalocean", "linode", "vultr", "upcloud", "scaleway", "cloudscale")
"""Providers whose list of sizes holds prices that they state themselves, not the library."""

_LATENCY_CODES = (408, 425)  # statuses below 500 that leave open what was done


class LibcloudProvider:
    """
    Carries the contract of a cloud out by a driver of apache-libcloud.

    Parameters
    ----------
    site
        Name of the site, for messages.
    cloud
        The cloud and where its credentials are.
    driver
        Driver to use; None: the one of the cloud's provider, with its credentials.

    Raises
    ------
    InputError
        When apache-libcloud or the credentials are missing, or the provider is unknown or takes
        no user data.
    """

    def __init__(self, site: str, cloud: CloudEndpoint, driver: Any = None) -> None:
        self._site = site
        self._cloud = cloud
        self._secrets: tuple[str, ...] = ()
        if driver is None:
            self._secrets = read_credentials(site, cloud)
            driver = make_driver(site, cloud, self._secrets)
        self._driver = driver
        self._parameters = tuple(inspect.signature(driver.create_node).parameters)
        self._user_data = next((n for n in _USER_DATA if n in self._parameters), "")
        if not self._user_data and cloud.provider != "gce":
            raise InputError(
                f'the driver of "{cloud.provider}" passes no user data, by which machines start',
                where=f"site.{site}.provider",
            )
        self._sizes: dict[str, Any] = {}

    # The contract.

    async def machines(self, owner: str, run: str = "") -> Sequence[CloudMachine]:
        """Return the machines with an owner's tag; see the contract."""
        nodes = await self._call(lambda: self._list(owner, run))
        found = []
        for node in nodes:
            label = label_of(str(node.name))
            if label is not None and label.owner == owner and run in ("", label.run):
                found.append(_machine(node, label, self._cloud.provider))
        return found

    async def create(self, order: MachineOrder) -> CloudMachine:
        """Buy a machine; see the contract."""
        if order.ceiling is not None and not _SPOT.keys() & set(self._parameters):
            raise PurchaseRefused(
                f'the driver of "{self._cloud.provider}" buys no spot machines', final=True
            )
        try:
            size = await self._call(lambda: self._size(order.type))
        except SiteError as error:  # before anything was asked for
            final = not error.transient
            raise PurchaseRefused(str(error), transient=not final, final=final) from None
        try:
            node = await self._call(lambda: self._create(order, size))
        except SiteError as error:
            clear = clear_refusal(error)
            raise (error if clear is None else clear) from None
        return _machine(node, order.label, self._cloud.provider)

    async def destroy(self, machine: str) -> bool:
        """End a machine; see the contract."""
        try:
            return await self._call(lambda: self._destroy(machine))
        except SiteError as error:
            if "NotFound" not in str(error):
                raise
            return False

    async def prices(self, types: Sequence[str]) -> Mapping[str, MachinePrice]:
        """Return the prices that the provider or the library's tables know; 0.0 is unknown."""
        sizes = await self._call(lambda: {type: self._size(type) for type in types})
        is_live = self._cloud.provider in _LIVE_PRICES
        date = datetime.date.today().isoformat() if is_live else table_date()
        source = "provider" if is_live else "table"
        return {
            type: MachinePrice(hourly=float(size.price), source=source, date=date)  # type: ignore[arg-type]
            for type, size in sizes.items()
            if size.price
        }

    async def spot_history(self, type: str, since: float, zone: str = "") -> Sequence[SpotPrice]:
        """Return the history of spot prices; empty where the driver asks for none."""
        if not hasattr(self._driver, "_pathlist") or self._cloud.provider != "ec2":
            return ()
        return await self._call(lambda: self._ec2_history(type, since, zone))

    # In a thread.

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except SiteError:
            raise
        # libcloud raises whatever its drivers and their HTTP library raise, also bare Exception.
        except Exception as error:
            is_refused = type(error).__name__ == "InvalidCredsError"
            code = 403 if is_refused else getattr(error, "code", None)
            raise ProviderError(self._said(error), code=code) from None

    def _said(self, error: Exception) -> str:
        """Return the first line of an error, without credentials."""
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        # Addresses hold what was asked: keys of signed requests, and user data with our secret.
        text = re.sub(r"https?://\S+|with url: \S+|\?\S*=\S*", "(address)", text)
        return f"{self._cloud.provider}: {text[:300]}"

    def _list(self, owner: str, run: str) -> Sequence[Any]:
        if "ex_filters" in inspect.signature(self._driver.list_nodes).parameters:
            filters = {f"tag:{OWNER}": owner} | ({f"tag:{RUN}": run} if run else {})
            return self._driver.list_nodes(ex_filters=filters)  # type: ignore[no-any-return]
        return self._driver.list_nodes()  # type: ignore[no-any-return]

    def _size(self, type: str) -> Any:
        if type not in self._sizes:
            sizes = self._driver.list_sizes()
            self._sizes |= {str(size.id): size for size in sizes}
            # Some providers know sizes by numbers, and people by names.
            self._sizes |= {str(size.name): size for size in sizes if size.name}
        if type not in self._sizes:
            raise SiteError(f'{self._cloud.provider} has no machines of type "{type}"')
        return self._sizes[type]

    def _create(self, order: MachineOrder, size: Any) -> Any:
        from libcloud.compute.base import NodeImage

        label = order.label
        given: dict[str, Any] = {"name": label.name, "size": size}
        given["image"] = NodeImage(id=order.image, name=order.image, driver=self._driver)
        if self._cloud.provider == "gce":
            given["image"] = order.image
            given["ex_metadata"] = {"startup-script": order.user_data}
        else:
            given[self._user_data] = order.user_data
        tags = next(
            (n for n in ("ex_labels", "ex_tags", "ex_metadata") if n in self._parameters), ""
        )
        if tags and tags not in given:
            given[tags] = label.tags
        extra = {"ex_clienttoken": label.name[-64:], "ex_terminate_on_shutdown": True}
        if order.ceiling is not None:
            extra |= _SPOT | {"ex_spot_max_price": order.ceiling}
        given |= {name: value for name, value in extra.items() if name in self._parameters}
        made = self._driver.create_node(**given)
        nodes = made if isinstance(made, list) else [made]
        if not nodes:
            raise SiteError(f"{self._cloud.provider}: an answer without a machine", transient=True)
        return nodes[0]

    def _destroy(self, machine: str) -> bool:
        from libcloud.compute.base import Node
        from libcloud.compute.types import NodeState

        if self._cloud.provider == "ec2":  # which needs no more than the identity
            node = Node(machine, "", NodeState.UNKNOWN, [], [], driver=self._driver)
            self._driver.destroy_node(node)
            return False
        found = [node for node in self._driver.list_nodes() if str(node.id) == machine]
        for node in found:
            self._driver.destroy_node(node)
        return bool(found)

    def _ec2_history(self, type: str, since: float, zone: str) -> list[SpotPrice]:
        connection = self._driver.connection
        answer = connection.request(
            self._driver.path,
            params={
                "Action": "DescribeSpotPriceHistory",
                "InstanceType.1": type,
                "ProductDescription.1": "Linux/UNIX",
                "StartTime": datetime.datetime.fromtimestamp(since, datetime.UTC).strftime(
                    "%Y-%m-%dT%H:%M:%SZ"
                ),
            },
        ).object
        # Of any namespace: services that imitate EC2's write it in different ways.
        zones: dict[str, list[SpotPrice]] = {}
        for item in answer.iterfind("{*}spotPriceHistorySet/{*}item"):
            text = {name: item.findtext(f"{{*}}{name}") for name in _HISTORY}
            if all(text.values()):
                at = datetime.datetime.fromisoformat(text["timestamp"].replace("Z", "+00:00"))
                price = SpotPrice(at.timestamp(), float(text["spotPrice"]))
                zones.setdefault(text["availabilityZone"], []).append(price)
        if zone:
            return sorted(zones.get(zone, []), key=lambda p: p.since)
        # The zone in which machines start is the provider's choice: the dearest one is assumed.
        found = [sorted(prices, key=lambda p: p.since) for prices in zones.values()]
        return max(found, key=lambda prices: max(p.hourly for p in prices), default=[])


class ProviderError(SiteError):
    """
    A provider refused or failed; whether anything was done is open.

    Parameters
    ----------
    code
        Status of HTTP; None: there was no answer.
    """

    def __init__(self, message: str, *, code: int | str | None = None) -> None:
        self.code = int(str(code)) if str(code).isdecimal() else None
        super().__init__(message, transient=not _is_final(message, self.code))


_USER_DATA = ("ex_userdata", "ex_user_data", "ex_customdata", "user_data")
_TAGS = ("ex_labels", "ex_tags", "ex_metadata")
_SPOT = {"ex_spot": True, "ex_preemptible": True}
_HISTORY = ("timestamp", "spotPrice", "availabilityZone")


def _is_final(text: str, code: int | None) -> bool:
    """Whether an answer says that the same request will never succeed."""
    if _NO_QUOTA.search(text):
        return True
    return code in _FINAL_CODES and not (_THROTTLED.search(text) or _FULL.search(text))


def clear_refusal(error: SiteError) -> PurchaseRefused | None:
    """Return the refusal where an answer is clear that nothing was bought; else None."""
    text, code = str(error), getattr(error, "code", None)
    if _is_final(text, code):
        return PurchaseRefused(text, final=True)
    if _THROTTLED.search(text) or code == 429:
        return PurchaseRefused(text, transient=True)
    if _FULL.search(text):
        return PurchaseRefused(text)
    if code is not None and 400 <= code < 500 and code not in _LATENCY_CODES:
        return PurchaseRefused(text)
    return None


def _machine(node: Any, label: MachineLabel, provider: str) -> CloudMachine:
    """Return what a driver says of a machine."""
    extra = getattr(node, "extra", None) or {}
    began = getattr(node, "created_at", None) or extra.get("launch_time")
    if isinstance(began, str):
        try:
            began = datetime.datetime.fromisoformat(began.replace("Z", "+00:00"))
        except ValueError:
            began = None
    status = str(extra.get("status") or extra.get("state") or "")
    if provider == "gce":  # whose "TERMINATED" is a machine that stopped, with a disk that is paid
        status = ""
    state = _STATES.get(status.lower()) or _STATES.get(str(node.state).lower(), "running")
    ended = None
    if state == "ended" and (found := _ENDED_AT.search(str(extra.get("reason") or ""))):
        ended = datetime.datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S")
    return CloudMachine(
        id=str(node.id),
        label=label,
        type=str(extra.get("instance_type") or extra.get("flavorId") or ""),
        state=state,
        zone=_zone(extra),
        began=began.timestamp() if isinstance(began, datetime.datetime) else None,
        ended=None if ended is None else ended.replace(tzinfo=datetime.UTC).timestamp(),
    )


def _zone(extra: Mapping[str, Any]) -> str:
    """Return a machine's zone by the words of drivers: EC2's, OpenStack's, GCE's."""
    found = extra.get("availability") or extra.get("availability_zone") or extra.get("zone") or ""
    return str(getattr(found, "name", found))


_STATES: Mapping[str, MachineState] = {
    "pending": "starting",
    "starting": "starting",
    "reconfiguring": "starting",
    # Paid no more from here on, by the rules of EC2 and its like.
    "shutting-down": "ended",
    "terminated": "ended",
    "deleted": "ended",
    # Whether a stopped machine is paid differs; what is stopped is no use to us and is ended.
    "stopping": "running",
    "stopped": "running",
}
"""States by the words of drivers; all others are ``running``: such a machine may cost."""

_ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def read_credentials(site: str, cloud: CloudEndpoint) -> tuple[str, ...]:
    """
    Return key and secret of a cloud, as far as the sites file names them.

    Raises
    ------
    InputError
        When a variable or file that is named does not hold them. No message repeats them.
    """
    if cloud.credentials_file:
        path, where = Path(cloud.credentials_file), f"site.{site}.credentials_file"
        try:
            with path.open("rb") as file:
                # Of the open file, not of the path, which could be exchanged in between.
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise InputError(
                        f"{path} may be read by others", where=where, hint=f"chmod 600 {path}"
                    )
                text = file.read().decode()
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}", where=where) from None
        except UnicodeDecodeError:
            raise InputError(f"{path}: is no text", where=where) from None
        try:
            content = parse_toml(text)
        except InputError:  # which repeats what it found
            raise InputError(f"{path}: is no TOML file", where=where) from None
        found = tuple(content.get(name) for name in ("key", "secret"))
        if not all(isinstance(part, str) and part for part in found):
            raise InputError(f'{path}: expected texts "key" and "secret"', where=where)
        return tuple(str(part) for part in found)
    secrets = []
    for key in ("key_variable", "secret_variable"):
        if name := getattr(cloud, key):
            if not (value := os.environ.get(name)):
                raise InputError(f"{name} is not set", where=f"site.{site}.{key}")
            secrets.append(value)
    return tuple(secrets)


def make_driver(site: str, cloud: CloudEndpoint, secrets: Sequence[str]) -> Any:
    """
    Return the libcloud driver of a cloud.

    Raises
    ------
    InputError
        When apache-libcloud is missing, or knows no such provider or option.
    """
    try:
        from libcloud.compute.providers import get_driver
    except ImportError:
        raise InputError(
            'a site of kind "cloud" needs the package apache-libcloud',
            where=f"site.{site}.kind",
            hint="pip install 'bursar[cloud]'",
        ) from None
    from libcloud.compute.types import Provider

    known = {str(v): v for k, v in vars(Provider).items() if k.isupper() and isinstance(v, str)}
    if cloud.provider not in known:
        from bursar.model.errors import spelling_hint

        raise InputError(
            f'apache-libcloud knows no provider "{cloud.provider}"',
            where=f"site.{site}.provider",
            hint=spelling_hint(cloud.provider, known),
        )
    options: dict[str, Any] = dict(cloud.options)
    if cloud.provider == "openstack":
        # The library's own defaults, Nova 1.1 and Keystone 1.1, have long been gone everywhere.
        options = {"api_version": "2.2"} | options
    if cloud.region:
        named = "ex_force_service_region" if cloud.provider == "openstack" else "region"
        options[named] = cloud.region
    try:
        driver = get_driver(known[cloud.provider])
        try:
            return driver(*secrets, timeout=TIMEOUT, **options)
        except TypeError:  # a driver without a timeout
            return driver(*secrets, **options)
    except Exception as error:
        text = str(error)
        for secret in secrets:
            text = text.replace(secret, "***")
        raise InputError(
            f"the driver does not take these options or credentials: {text.splitlines()[0][:200]}",
            where=f"site.{site}.options",
        ) from None


def table_date() -> str:
    """Return the date of the library's tables of prices; empty where they state none."""
    from libcloud.pricing import get_pricing_file_path

    updated = msgspec.json.decode(
        Path(get_pricing_file_path()).read_bytes(), type=_PriceTable
    ).updated
    if updated is None:
        return ""
    return datetime.datetime.fromtimestamp(updated, datetime.UTC).date().isoformat()


class _PriceTable(msgspec.Struct):
    updated: float | None = None
