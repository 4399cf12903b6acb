"""A file of a format that this version does not know is refused, by its name, and left alone."""

import json

import pytest
from experiment_cases import StopAfter, config_for, vector_data

from cosnorm._version import __version__
from cosnorm.study.runs.formats import FORMAT, UnknownFormat
from cosnorm.study.runs.sealing import seal, unseal
from cosnorm.study.train.run import load_run, run

TOLD = rf"is stored in format {FORMAT + 1}; cosnorm {__version__} reads format {FORMAT}: use the"


def of_the_next_format(path):
    """Give a stored file the number of the next format, all else as it was."""
    if path.suffix == ".json":
        value = json.loads(path.read_text())
        assert value["format"] == FORMAT
        path.write_text(json.dumps({**value, "format": FORMAT + 1}))
    else:
        tensors, state = unseal(path.read_bytes())
        assert state["format"] == FORMAT
        path.write_bytes(seal(tensors, {**state, "format": FORMAT + 1}))


def content_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_a_run_that_is_over(tmp_path, name):
    run(config_for(), tmp_path, dataset=vector_data())
    of_the_next_format(tmp_path / name)
    before = content_of(tmp_path)
    for use in (
        lambda: run(config_for(), tmp_path, dataset=vector_data()),
        lambda: load_run(tmp_path),
    ):
        with pytest.raises(UnknownFormat, match=rf"{name} {TOLD}"):
            use()
    assert content_of(tmp_path) == before


def test_parameters(tmp_path):
    run(config_for(), tmp_path, dataset=vector_data())
    of_the_next_format(tmp_path / "model.safetensors")
    with pytest.raises(UnknownFormat, match=rf"model.safetensors {TOLD}"):
        load_run(tmp_path)


def test_a_checkpoint_is_neither_passed_over_nor_removed(tmp_path):
    run(config_for(), tmp_path, dataset=vector_data(), stop=StopAfter(10), checkpoint_seconds=0)
    of_the_next_format(max((tmp_path / "checkpoints").iterdir()))
    before = content_of(tmp_path)
    with pytest.raises(UnknownFormat, match=rf"step-0000000010.safetensors {TOLD}"):
        run(config_for(), tmp_path, dataset=vector_data())
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("number", ["1", None, True, [1]])
def test_what_is_no_number_is_no_format(tmp_path, number):
    run(config_for(), tmp_path, dataset=vector_data())
    value = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**value, "format": number}))
    with pytest.raises(UnknownFormat, match=r"config\.json is stored in format"):
        load_run(tmp_path)


def test_without_a_number_it_is_the_first(tmp_path):
    run(config_for(), tmp_path, dataset=vector_data())
    for name in ("config.json", "summary.json"):
        value = json.loads((tmp_path / name).read_text())
        del value["format"]
        (tmp_path / name).write_text(json.dumps(value))
    assert load_run(tmp_path).config == config_for()
    assert run(config_for(), tmp_path, dataset=vector_data()).status == "done"
