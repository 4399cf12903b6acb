"""An extension that lets a test choose the moment at which a process of a run is lost.

COSNORM_HALTS names a folder. A process that comes to its evaluation number E as rank R after A
restarts by torchrun, and finds a file `A-E-R` there, writes its process id into it and goes no
further until the file is gone: the test does with it as it likes. A process that has heard a signal
meanwhile writes `heard` instead.
"""

import os
import signal
import time
from pathlib import Path

from cosnorm import study


def halted(learner) -> float:
    halted.evaluations += 1
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    place = Path(os.environ["COSNORM_HALTS"], f"{attempt}-{halted.evaluations}-{rank}")
    if place.exists():
        place.write_text(str(os.getpid()))
    stop = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    while place.exists():
        if getattr(stop, "reason", None) is not None:
            place.write_text("heard")
            stop = None
        time.sleep(0.05)
    return 0.0


halted.evaluations = 0
study.METRICS.add(study.MetricEntry("halted", "halted", measure=halted))
