"""Metrics: what stands is asked for when it is scraped, and names nobody."""

import re

from prometheus_client.parser import text_string_to_metric_families

from bursar.service.service_manager import FIGURES, ServiceMetrics

NOTHING = dict.fromkeys(FIGURES, 0.0)


def test_a_scrape_can_be_read() -> None:
    """By Prometheus's own parser; values are those of the moment."""
    known = {"tasks_submitted_total": 7, "workers": 2, "certificate_remaining_seconds": 60}
    figures = [NOTHING | known]
    metrics = ServiceMetrics(lambda: figures[-1])
    metrics.served(method="GET", route="results", status=200, seconds=0.02, who="ab12")
    metrics.served(method="GET", route="", status=404, seconds=0.001, who="")
    metrics.failed("i-1", "results", ValueError())

    def scraped() -> dict[tuple[str, ...], float]:
        text = metrics.text().decode()
        assert "ab12" not in text
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    told = scraped()
    assert told["bursar_tasks_submitted_total",] == 7
    assert told["bursar_workers",] == 2
    assert told["bursar_ready",] == 0
    assert told["bursar_certificate_remaining_seconds",] == 60
    assert told["bursar_http_requests_total", "200", "GET", "results"] == 1
    assert told["bursar_http_requests_total", "404", "GET", "none"] == 1
    assert told["bursar_http_request_duration_seconds_sum", "results"] == 0.02
    assert told["bursar_http_incidents_total",] == 1
    figures.append(NOTHING | {"tasks_submitted_total": 8})
    assert scraped()["bursar_tasks_submitted_total",] == 8


def test_names_follow_the_rules_of_prometheus() -> None:
    """
    A prefix, base units in the plural, _total for counters and for nothing else; and no series of
    when a series began, which would double their number.
    """
    metrics = ServiceMetrics(lambda: NOTHING)
    metrics.served(method="GET", route="results", status=200, seconds=0.02, who="ab12")
    families = {f.name: f for f in text_string_to_metric_families(metrics.text().decode())}

    for name, family in families.items():
        assert re.fullmatch(r"bursar(_[a-z]+)+", name)
        assert family.documentation.endswith(".")
        assert not name.endswith(
            ("_created", "_total", "_ms", "_milliseconds", "_mb", "_seconds_total")
        )
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
    assert families["bursar_http_request_duration_seconds"].type == "histogram"
    assert families["bursar_accounts_failing"].type == "gauge"
