"""A study: runs that differ in one thing, what is measured of each, and what that says."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cosnorm.methods import STUDIED
from cosnorm.study.claims.figure import Panel, figure_files
from cosnorm.study.data import Dataset
from cosnorm.study.runs.config import Config
from cosnorm.study.runs.environment import environment
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.runs.presets import configure
from cosnorm.study.runs.storage import Storage, storage_at
from cosnorm.study.train.inputs import dataset_for
from cosnorm.study.train.launchers import InProcess, Job, Launcher
from cosnorm.study.train.train import Outcome

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How large a study is: its data, the length of its runs (in epochs or in steps), seeds, the
    network and its width.
    """

    dataset: str = "digits"
    epochs: int | None = 4
    steps: int | None = None
    seeds: int = 2
    network: str = "mlp"
    width: int = 64
    device: str = "cpu"
    methods: tuple[str, ...] = STUDIED

    def config(self, method: str, seed: int, **settings: Any) -> Config:
        own = {key: getattr(self, key) for key in ("device", "epochs", "steps", "network", "width")}
        return configure(self.dataset, method, seed, **own, **settings)

    @property
    def length(self) -> str:
        """
        >>> Setting(epochs=20).length
        '20 epochs'
        """
        count, unit = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{count:,} {unit}{'s' if count != 1 else ''}"


class Study:
    """One claim: its runs, its measurements and its rule.

    name, claim: as the command line and the result give them.
    dataset, network, epochs or steps: of its runs in the plan.
    quick_epochs: the length of its runs where minutes must do.
    methods: those that it compares.
    """

    name: str
    claim: str
    dataset = "mnist"
    network = "mlp"
    epochs: int | None = 20
    steps: int | None = None
    quick_epochs = 4
    methods = STUDIED

    def setting(self, full: bool, **values: Any) -> "Setting":
        """The plan's (MNIST or other data, three seeds), or a quick one; None as it is."""
        own: dict[str, Any] = {"epochs": self.quick_epochs, "methods": self.methods}
        if full:
            own |= {"dataset": self.dataset, "network": self.network, "width": 1000, "seeds": 3}
            own |= {"epochs": self.epochs, "steps": self.steps}
        given = {key: v for key, v in values.items() if v is not None}
        if "epochs" in given:
            own["steps"] = None
        return Setting(**own | given)

    def configs(self, setting: Setting) -> list[Config]:
        """The runs, here every method with every seed."""
        return [setting.config(m, s) for s in range(setting.seeds) for m in setting.methods]

    def more(self, rows: Sequence[Row], setting: Setting) -> list[Config]:
        """Further runs that what was measured asks for; none unless a study says so."""
        return []

    def rows(
        self, config: Config, folder: Storage, dataset: Dataset, outcome: Outcome
    ) -> list[Row]:
        """What is measured of a run that is over."""
        raise NotImplementedError

    def findings(self, rows: Sequence[Row], tested: int) -> list[str]:
        """What the rows say of the claim; `tested` is the number of test rows."""
        raise NotImplementedError

    def panels(self, rows: Sequence[Row]) -> list[Panel]:
        """What the figure shows."""
        raise NotImplementedError


@dataclass(frozen=True)
class Conducted:
    """What came of a study: its files, and what it says; `reason` where it was stopped."""

    files: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    reason: str | None = None


def conduct(
    study: Study,
    setting: Setting,
    out: str | Path | Storage,
    *,
    data_dir: Path | None = None,
    launcher: Launcher | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> Conducted:
    """Make the study's runs in OUT/runs and write OUT/NAME.json, .png and .pdf.

    What is measured is in NAME.json whenever the study stops, and is not measured again: that one
    file is enough to go on, here or on another machine. `tell` gets a line for each run.

    launcher: how the runs are made; None for one after another in this process.
    """
    launch = launcher or InProcess(data_dir=data_dir, keep_checkpoints=False)
    storage = storage_at(out)
    configs = study.configs(setting)
    dataset = dataset_for(replace(configs[0], held_out=0.0), data_dir)
    found = _found(study, setting, storage)
    rows: list[Row] = []
    while configs:
        numbers = {label(config): number for number, config in enumerate(configs, 1)}
        jobs = [
            Job(config, storage.at(f"runs/{label(config)}"))
            for config in configs
            if label(config) not in found
        ]
        jobs.sort(key=lambda job: not job.is_over)  # so that a stop loses nothing that was made
        for job, outcome in launch(jobs):
            if outcome.status == "stopped":
                _write(study, setting, storage, found, len(dataset.test))
                return Conducted(reason=outcome.reason)
            name = label(job.config)
            tell(f"{numbers[name]} of {len(configs)}: {name} {_ending(outcome)}")
            found[name] = study.rows(job.config, job.storage, dataset, outcome)
        if jobs:  # in the order of the plan, whichever run was over first
            found |= {name: found.pop(name) for name in numbers}
        rows = [row for measured in found.values() for row in measured]
        configs = study.more(rows, setting)
    findings = study.findings(rows, len(dataset.test))
    _write(study, setting, storage, found, len(dataset.test), findings)
    figures = figure_files(study.panels(rows))
    for end, content in figures.items():
        storage.write(f"{study.name}{end}", content)
    names = (f"{study.name}.json", *(f"{study.name}{end}" for end in figures))
    return Conducted(tuple(f"{storage.label}/{name}" for name in names), tuple(findings))


def _found(study: Study, setting: Setting, storage: Storage) -> dict[str, list[Row]]:
    """What was measured before, by run."""
    content = storage.read(f"{study.name}.json")
    if content is None:
        return {}
    before = json.loads(content)
    known = {key: value for key, value in before["setting"].items() if key != "device"}
    wanted = json.loads(json.dumps(asdict(setting)))
    differing = [key for key in known if known[key] != wanted[key]]
    if differing:
        told = ", ".join(f"{key} {known[key]}, now {wanted[key]}" for key in differing)
        raise ConfigError(
            f"{storage.label}/{study.name}.json holds a study with other settings ({told}): give "
            "the same to go on with it, or choose another folder"
        )
    found: dict[str, list[Row]] = {name: [] for name in before["runs"]}
    for row in before["rows"]:
        name = row.pop("run")
        found[name].append(row)
    return found


def _ending(outcome: Outcome) -> str:
    error = outcome.summary and outcome.summary["test_error_mean"]
    return outcome.status if error is None else f"{outcome.status}, {error:.2f} %"


def label(config: Config) -> str:
    """The name of a run's folder in a study."""
    name = f"{config.method}-lr{config.lr:g}-batch{config.batch_size}-seed{config.seed}"
    return f"{name}-held-out" if config.held_out else name


def _write(
    study: Study,
    setting: Setting,
    storage: Storage,
    found: Mapping[str, Sequence[Row]],
    tested: int,
    findings: Sequence[str] | None = None,
) -> None:
    """NAME.json: what is measured so far and, when all is, what that says."""
    result = {
        "format": 1,
        "study": study.name,
        "claim": study.claim,
        "setting": asdict(setting),
        "test_rows": tested,
        "findings": findings,
        "environment": environment(setting.device),
        "runs": list(found),
        "rows": [{"run": name, **row} for name, rows in found.items() for row in rows],
    }
    storage.write(f"{study.name}.json", f"{_json(result)}\n".encode())


def _json(result: Mapping[str, Any]) -> str:
    """With a line for each row: small, and readable as a difference between versions."""
    rows = ",\n".join(f"    {json.dumps(row, allow_nan=False)}" for row in result["rows"])
    head = json.dumps({**result, "rows": []}, indent=2, allow_nan=False)
    return head.replace('"rows": []', f'"rows": [\n{rows}\n  ]', 1)


def means(rows: Iterable[Row], key: str, value: str) -> dict[str, dict[Any, float]]:
    """The mean over seeds of `value` by method and by `key`; where a seed has none, there is none.

    >>> means([{"method": "cosine", "lr": 1.0, "test_error": 2.0}], "lr", "test_error")
    {'cosine': {1.0: 2.0}}
    """
    found: dict[str, dict[Any, list[float | None]]] = {}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row[key], []).append(row[value])
    return {
        method: {
            at: statistics.fmean([v for v in values if v is not None])
            for at, values in by_key.items()
            if None not in values
        }
        for method, by_key in found.items()
    }
