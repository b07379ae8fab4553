"""What is counted and timed while the hub runs; metrics.py shows it.

No label holds a person, a server, a lease or a container: each set of labels is as small as the code that gives it.
"""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram, Metric

__all__ = ["Figures"]

_CALL_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)
_START_BUCKETS_S = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)


class Figures:
    """The figures of one hub process; they begin at 0 with it."""

    def __init__(self) -> None:
        self._refusals = Counter(
            "gpucampus_refusals_total",
            "Starts that were turned down, by the code of the refusal.",
            ["code"],
            registry=None,
        )
        self._notices = Counter(
            "gpucampus_share_notices_total",
            "What users of shared GPUs were told: that they take more than their share, or that a process was ended.",
            ["code"],
            registry=None,
        )
        self._calls = Histogram(
            "gpucampus_engine_call_duration_seconds",
            "Calls to the container engine, by method and by what came of them.",
            ["method", "outcome"],
            buckets=_CALL_BUCKETS_S,
            registry=None,
        )
        self._starts = Histogram(
            "gpucampus_start_duration_seconds",
            "Starts from the home to the first answer of the server, by what came of them.",
            ["outcome"],
            buckets=_START_BUCKETS_S,
            registry=None,
        )

    def refused(self, code: str) -> None:
        """Count a start that was turned down."""
        self._refusals.labels(code).inc()

    def noticed(self, code: str) -> None:
        """Count what the user of a share was told."""
        self._notices.labels(code).inc()

    def called(self, method: str, outcome: str, seconds: float) -> None:
        """Note a call to the engine."""
        self._calls.labels(method, outcome).observe(seconds)

    def started(self, outcome: str, seconds: float) -> None:
        """Note a start, whatever came of it."""
        self._starts.labels(outcome).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Give all of them as they are now."""
        for figure in (self._refusals, self._notices, self._calls, self._starts):
            yield from figure.collect()
