"""Refusals of a run by the processes of torchrun: said once, and not tried again."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cosnorm.study.cli.failures import said

if TYPE_CHECKING:
    from cosnorm.study.train.ranks import Ranks


@contextmanager
def said_once(ranks: "Ranks", let_go: Callable[[], None]) -> Iterator[None]:
    """Have an error that no other start of the processes would mend said by one for all.

    let_go: leaves the terminal as it was.
    """

    try:
        yield
    except Exception as error:
        # Whoever wants to see where it comes from sees it of every process.
        if os.environ.get("COSNORM_TRACEBACK") or not _is_final(error, ranks):
            raise
        refusal = error

        def say() -> int:
            let_go()
            return said(refusal)

        ranks.refuse(say)


def _is_final(error: Exception, ranks: "Ranks") -> bool:
    """Whether the same processes would meet the same error again."""
    from cosnorm.study.data.errors import DataError
    from cosnorm.study.runs.errors import ConfigError, InUseError, RunError, StorageError

    if isinstance(error, InUseError):  # by a lost process of ours, if by another start
        return not ranks.is_restarted
    if isinstance(error, StorageError):  # which may answer the next time
        return False
    return isinstance(error, ConfigError | DataError | RunError)
