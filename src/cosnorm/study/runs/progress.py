"""Who looks on while a run goes: the loop tells, and what is shown is the watcher's matter."""

from collections.abc import Mapping
from typing import Any, Protocol

from cosnorm.study.runs.config import Config


class Watcher(Protocol):
    """Called by the loop; must be quick, and must not touch the training."""

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        """A run begins, or goes on at `step` of `total`."""
        ...

    def step(self, step: int) -> None:
        """A step is done (on CUDA: is on its way)."""
        ...

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """A line was added to the metrics."""
        ...

    def warning(self, text: str) -> None:
        """Something the user should know, though the run goes on."""
        ...

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        """The run is "done", "diverged", "untrained" or "stopped"."""
        ...


class Silence:
    """A watcher that shows nothing."""

    def begin(self, config: Config, step: int, total: int, batch_size: int) -> None:
        pass

    def step(self, step: int) -> None:
        pass

    def evaluation(self, evaluation: Mapping[str, Any]) -> None:
        pass

    def warning(self, text: str) -> None:
        pass

    def end(self, status: str, summary: Mapping[str, Any] | None) -> None:
        pass
