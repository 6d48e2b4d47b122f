"""What /metrics shows: counts and times, never a text."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .worker import Worker

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics(Collector):
    """The counters of one server, in a registry of its own."""

    def __init__(self, workers: Mapping[str, Worker]):
        self.registry, self._workers = CollectorRegistry(), workers
        to = self.registry
        self.requests = Counter("pencil_requests", "Requests by route and status.", ["route", "status"], registry=to)
        self.tokens = Counter("pencil_tokens", "Tokens of prompts, and generated ones.", ["model", "kind"], registry=to)
        self.first = Histogram(
            "pencil_first_token_seconds", "From a request to its first token.", ["model"], buckets=SECONDS, registry=to
        )
        self.whole = Histogram(
            "pencil_request_seconds", "From a request to its end.", ["model"], buckets=SECONDS, registry=to
        )
        self.registry.register(self)

    def collect(self):
        """What is counted at the moment of asking."""
        for name, about in (("running", "Sequences that get tokens."), ("waiting", "Sequences in the queue.")):
            gauge = GaugeMetricFamily(f"pencil_{name}", about, labels=["model"])
            for model, worker in self._workers.items():
                gauge.add_metric([model], worker.load()[name])
            yield gauge

    def text(self) -> bytes:
        return generate_latest(self.registry)
