"""Run folders: what a run writes, and whose it is. Loads no torch.

| file | content |
|---|---|
| config.json | every setting that decides the result |
| environment.json | machine, versions, commit |
| metrics.jsonl | an object per evaluation, appended |
| vocabulary.safetensors | 20news: the words that are features, and their weights |
| checkpoints/ | the last two states to go on from |
| model.safetensors, ema.safetensors | final parameters, and their average where there is one |
| summary.json | the result; written last, so its presence means that the run is over |
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cosnorm.study.runs.config import Config
from cosnorm.study.runs.errors import ConfigError, RunError, StorageError
from cosnorm.study.runs.formats import FORMAT
from cosnorm.study.runs.reading import (
    METRICS,
    MOST_SETTINGS,
    RunReader,
    step_of,
    without_format,
)
from cosnorm.study.runs.storage import Storage

VOCABULARY = "vocabulary.safetensors"
MODEL = "model.safetensors"
AVERAGE = "ema.safetensors"


class RunFolder(RunReader):
    """The files of a run that is made: read strictly, and written."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        text = json.dumps(finite(value), indent=2, allow_nan=False)
        self.storage.write(name, f"{text}\n".encode())

    def config(self) -> Config | None:
        return self._settings("config.json", self.read("config.json", MOST_SETTINGS))

    def _settings(self, name: str, fields: dict[str, Any] | None) -> Config | None:
        try:
            return None if fields is None else Config.from_dict(without_format(fields))
        except ConfigError as error:
            raise RunError(
                f"{self.storage.label}/{name} is damaged or of another version or extension of "
                f"cosnorm ({error}): restore it, use that version, name the extension in "
                "COSNORM_EXTENSIONS, or choose another folder"
            ) from error

    def settings(self) -> dict[str, Config]:
        """The settings of the run by the file that tells them: config.json and summary.json.

        Where neither is there, those in the last checkpoint or in the final parameters.
        """
        summary = (self.read("summary.json") or {}).get("config")
        told = {
            "config.json": self.config(),
            "summary.json": self._settings("summary.json", _object(summary)),
        }
        found = {name: config for name, config in told.items() if config is not None}
        for name in () if found else (MODEL, *reversed(self.storage.names("checkpoints/step-"))):
            fields = _object(sealed_state(self.storage.read(name) or b"").get("config"))
            if (config := self._settings(name, fields)) is not None:
                return {name: config}
        return found

    @property
    def is_over(self) -> bool:
        """Whether the run has its result, whatever that is worth."""
        return self.storage.read("summary.json") is not None

    def summary(self) -> dict[str, Any] | None:
        summary = self.read("summary.json")
        if summary is not None and (fault := _fault_of(summary)):
            raise RunError(
                f"{self.storage.label}/summary.json is damaged ({fault}): restore it, or delete it "
                "and give the training command again, which goes on from what is saved"
            )
        return summary

    def append_metrics(self, evaluation: Mapping[str, Any]) -> None:
        line = json.dumps(finite(evaluation), allow_nan=False)
        self.storage.append(METRICS, f"{line}\n".encode())

    def truncate_metrics(self, step: int) -> None:
        """Drop evaluations after `step`: the run is about to make them again."""
        lines = (self.storage.read(METRICS) or b"").split(b"\n")
        kept = [line + b"\n" for line in lines[:-1] if (step_of(line) or math.inf) <= step]
        if lines != [b""] and b"".join(kept) != b"\n".join(lines):
            self.storage.write(METRICS, b"".join(kept))

    @contextmanager
    def begun(self, config: Config, environment: Mapping[str, Any]) -> Iterator[None]:
        """`begin`, taken back where a new run fails before it has anything to show.

        Settings that do not work out (a network too large for its images) must not keep the folder
        from the settings that do.
        """
        is_new = not self.settings()
        try:
            self.begin(config, environment)
            yield
        except BaseException:
            if is_new and not any(map(self.storage.names, ("checkpoints/", METRICS))):
                with suppress(StorageError):
                    for name in ("config.json", "environment.json", VOCABULARY):
                        self.storage.delete(name)
            raise

    def begin(self, config: Config, environment: Mapping[str, Any]) -> None:
        """Make the folder that of `config`, or find that it is."""
        self.check(config)
        if self.read("environment.json") is None:
            self.write("environment.json", environment)
        self.keep_config(config)

    def check(self, config: Config) -> None:
        """Refuse a folder that holds a run with other settings, whichever file tells them."""
        for name, known in self.settings().items():
            if known != config:
                told = "" if name == "config.json" else f", as {name} says"
                raise RunError(
                    f"{self.storage.label} holds a run with other settings{told} "
                    f"({differences(known, config)}): give the same flags to go on with it, "
                    "or choose another folder"
                )

    def check_data(
        self, before: Mapping[str, Any], config: Config, name: str, fingerprint: str
    ) -> None:
        """Refuse data that is not what the run was begun with; `before` is what the run tells."""
        if before.get("fingerprint", fingerprint) != fingerprint:
            path = Path(config.dataset).expanduser()
            data = path.resolve() if path.exists() else name
            raise RunError(
                f"the run {self.storage.label} was begun with other data than {data} is now: "
                "restore the data, or choose another folder"
            )

    def missing(self, config: Config) -> list[str]:
        """The files of final parameters that a run which is over should have, and has not."""
        wanted = [MODEL, AVERAGE] if config.ema_decay else [MODEL]
        return [name for name in wanted if name not in self.storage.names(name)]

    def told_missing(self, config: Config) -> str:
        """What is missing of a run that is over, and how to come by it."""
        saved = self.storage.names("checkpoints/step-")
        how = "goes on from the last checkpoint" if saved else "trains anew: no checkpoint is left"
        return (
            f"without {' and '.join(self.missing(config))}: restore what is missing from a copy, "
            f"or delete summary.json and give the training command again, which {how}"
        )

    def keep_config(self, config: Config) -> None:
        """Write config.json where it is missing."""
        if self.config() is None:
            self.write("config.json", {"format": FORMAT, **config.to_dict()})


_MOST_TOLD = 80  # characters of a value in a message
_NUMBER = (int, float)
_SUMMARY: dict[str, tuple[type, ...]] = {
    "diverged": (bool,),
    "steps": (int,),
    "seconds": _NUMBER,
    "test_error_mean": (*_NUMBER, type(None)),
    "final_test_error": (*_NUMBER, type(None)),
    "window": (dict,),
    "window.unit": (str,),
    "window.count": (int,),
}


def _fault_of(summary: Mapping[str, Any]) -> str | None:
    """The first of the values that every reader needs which is missing or of a wrong type."""
    for key, kinds in _SUMMARY.items():
        value: Any = summary
        for part in key.split("."):
            if part not in value:
                return f"it has no {key}"
            value = value[part]
        if type(value) not in kinds:
            told = json.dumps(value)
            return f"{key} is {told if len(told) <= _MOST_TOLD else told[:_MOST_TOLD] + '…'}"
    return None


def sealed_state(content: bytes) -> dict[str, Any]:
    """The small part of the state in a sealed file, its tensors unread and its seal unchecked.

    Empty where the file is damaged or tells nothing.
    """
    try:
        length = struct.unpack("<Q", content[:8])[0]
        state = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["state"])
    except (ValueError, KeyError, TypeError, RecursionError, struct.error):
        return {}
    return _object(state) or {}


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def differences(before: Config, now: Config) -> str:
    """The settings in which two configurations differ, as `lr 1.0, now 10.0`."""
    old, new = before.to_dict(), now.to_dict()
    return ", ".join(f"{key} {old[key]}, now {new[key]}" for key in old if old[key] != new[key])


def finite(value: Any) -> Any:
    """`value` with every number that JSON does not know (NaN, infinities) as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
