"""What the paper claims in words, each as a small study with a figure: `cosnorm study NAME`.

A study (`study.Study`) names its runs, measures each when it is over, and says what came of its
claim by a rule that was fixed before. `conduct` makes the runs and writes what is measured.
"""

from typing import TYPE_CHECKING

from cosnorm.study.runs.errors import ConfigError

if TYPE_CHECKING:
    from cosnorm.study.claims.study import Study

STUDIES = (
    *("learning-rates", "batch-size", "input", "steadiness", "variance", "normalisation"),
    *("modern-mnist", "modern-20news", "modern-cifar10"),
)


def study_named(name: str) -> "Study":
    """The study of this name."""
    from cosnorm.study.claims import errors, modern, networks

    kinds = (*errors.STUDIES, *networks.STUDIES, *modern.STUDIES)
    found = {kind.name: kind for kind in kinds}
    if name not in found:
        raise ConfigError(f"the study must be one of {', '.join(STUDIES)}; got {name!r}")
    return found[name]()
