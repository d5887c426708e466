"""JSON Schema (2020-12) of service files, made from the tables that their reader decodes."""

from bursar.formats.schema import Schema, definitions, document, quantities, refer, sites_schema
from bursar.service.config_toml import (
    LimitsTable,
    LogTable,
    MarketTable,
    ServiceFile,
    ServiceTable,
    TasksTable,
    UserTable,
)
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.http_limits import HttpLimits
from bursar.service.quota import Quota


def service_schema() -> Schema:
    """
    Schema of service files.

    Returns
    -------
    dict
        Describes the document a TOML file holds, as JSON.
    """
    defs = definitions(
        [
            ServiceFile,
            ServiceTable,
            MarketTable,
            UserTable,
            TasksTable,
            LimitsTable,
            LogTable,
            EngineLimits,
            HttpLimits,
            Quota,
        ]
    )
    defs |= quantities() | sites_schema()["$defs"]
    for key in ("limit", "directories"):  # are said in [tasks]
        defs["EngineLimits"]["properties"].pop(key)
    for name, key, target in (
        ("ServiceFile", "service", "ServiceTable"),
        ("ServiceFile", "site", "SiteTable"),
        ("ServiceFile", "market", "MarketTable"),
        ("ServiceFile", "tasks", "TasksTable"),
        ("ServiceFile", "limits", "LimitsTable"),
        ("ServiceFile", "log", "LogTable"),
        ("LimitsTable", "tasks", "EngineLimits"),
        ("LimitsTable", "requests", "HttpLimits"),
        ("MarketTable", "credit", "Amount"),
        ("MarketTable", "validity", "Duration"),
        ("UserTable", "credit", "Amount"),
        ("UserTable", "limits", "Quota"),
        ("TasksTable", "limit", "Duration"),
        ("TasksTable", "outlives", "Duration"),
        ("TasksTable", "memory", "Size"),
        ("TasksTable", "file_size", "Size"),
    ):
        refer(defs[name], key, target)
    users = defs["ServiceFile"]["properties"]["users"]
    users["additionalProperties"] = {"$ref": "#/$defs/UserTable"}
    return document("Bursar service", defs, "ServiceFile")
