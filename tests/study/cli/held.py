"""Runs that wait in the middle until a test has seen what it wanted to see.

Named in COSNORM_EXTENSIONS. In the folder COSNORM_TEST_GATE, every run that waits has a file; with
the file `open` there, none waits. Runs of the method cosine never do.
"""

import os
import signal
import time
from collections import Counter
from pathlib import Path

from cosnorm import study

evaluations = Counter()


def held(learner):
    """Wait from the second evaluation on; a run that is asked to stop waits no more."""
    gate, name = Path(os.environ["COSNORM_TEST_GATE"]), learner.config.name
    evaluations[name] += 1
    if learner.config.method == "cosine" or evaluations[name] < 2:
        return 0.0
    (gate / name).touch()
    stop = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    while not (gate / "open").exists() and getattr(stop, "reason", None) is None:
        time.sleep(0.01)
    return 0.0


study.METRICS.add(study.MetricEntry("held", "nothing", measure=held))
