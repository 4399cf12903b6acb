import re

import pytest
import torch
from experiment_cases import config_for
from hypothesis import given, settings
from hypothesis import strategies as st

from cosnorm.study.runs.checkpoint import drop_checkpoints, load_checkpoint, save_checkpoint
from cosnorm.study.runs.local import LocalStorage
from cosnorm.study.runs.sealing import DamagedCheckpoint, seal, unseal

TENSORS = {
    "weight": torch.arange(12.0).view(3, 4),
    "strided": torch.arange(6.0).view(2, 3).t(),
    "count": torch.tensor(3),
    "empty": torch.zeros(0),
}
STATE = {"format": 1, "seconds": 1.5, "data": {"classes": ["a", "ü"]}}
CONTENT = seal(TENSORS, STATE)
CONFIG = config_for()


def test_what_goes_in_comes_out():
    tensors, state = unseal(CONTENT)
    assert state == STATE
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)


def test_any_safetensors_reader_can_read_it(tmp_path):
    from safetensors import safe_open

    (tmp_path / "a.safetensors").write_bytes(CONTENT)
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("weight"), TENSORS["weight"])


@given(length=st.integers(0, len(CONTENT) - 1))
@settings(max_examples=60)
def test_truncation_is_found(length):
    with pytest.raises(DamagedCheckpoint):
        unseal(CONTENT[:length])


@given(place=st.integers(0, len(CONTENT) - 1), change=st.integers(1, 255))
@settings(max_examples=300)
def test_alteration_is_found(place, change):
    altered = bytearray(CONTENT)
    altered[place] ^= change
    try:
        tensors, state = unseal(bytes(altered))
    except DamagedCheckpoint:
        return
    # The header's padding and spacing may change without a change of meaning.
    assert state == STATE
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_other_files_are_no_checkpoints():
    from safetensors.torch import save

    for content in (b"", b"hello", save({"x": torch.zeros(3)}), bytes(1000)):
        with pytest.raises(DamagedCheckpoint):
            unseal(content)


LEAST = {"seconds": 0.5, "data": {}}  # what every state to go on from has


def test_final_parameters_do_not_pass_for_a_checkpoint(tmp_path):
    storage = LocalStorage(tmp_path)
    save_checkpoint(storage, 1, {"x": torch.tensor(1)}, LEAST, CONFIG)
    name = "checkpoints/step-0000000002.safetensors"
    final = {"step": 2, "data": {}, "config": CONFIG.to_dict()}
    storage.write(name, seal({"x": torch.tensor(2)}, final))
    found, (warning,) = load_checkpoint(storage, CONFIG)
    assert found is not None and found[1]["step"] == 1
    assert f"{name} is damaged: it is whole, but no state to go on from: it has no sec" in warning


def test_the_last_two_are_kept(tmp_path):
    storage = LocalStorage(tmp_path)
    for step in (1, 20, 300):
        save_checkpoint(storage, step, {"x": torch.tensor(step)}, LEAST, CONFIG)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-0000000020.safetensors", "step-0000000300.safetensors"]
    found, warnings = load_checkpoint(storage, CONFIG)
    assert found is not None and warnings == []
    assert found[1]["step"] == 300


def test_the_one_before_is_used(tmp_path):
    storage = LocalStorage(tmp_path)
    assert load_checkpoint(storage, CONFIG) == (None, [])
    for step in (1, 2):
        save_checkpoint(storage, step, {"x": torch.tensor(step)}, LEAST, CONFIG)
    newest = tmp_path / "checkpoints" / "step-0000000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    found, warnings = load_checkpoint(storage, CONFIG)
    assert found is not None and found[1]["step"] == 1
    assert len(warnings) == 1 and "0000000002.safetensors is damaged" in warnings[0]


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (CONFIG.override(lr=0.25, seed=3).to_dict(), r"\(lr 0.25, now 1.0, seed 3, now 0\)"),
        ({**CONFIG.to_dict(), "magic": 1}, r"\(unknown settings magic\)"),
        ({"dataset": "clusters"}, r"\(the settings lack lr, method\)"),
        ({**CONFIG.to_dict(), "lr": "fast"}, r"\(lr must be float; got 'fast'\)"),
        (None, r"\(they cannot be read\)"),
    ],
)
def test_one_of_other_settings_is_passed_over(tmp_path, stored, told):
    storage = LocalStorage(tmp_path)
    save_checkpoint(storage, 1, {"x": torch.tensor(1)}, LEAST, CONFIG)
    name = "checkpoints/step-0000000002.safetensors"
    storage.write(name, seal({"x": torch.tensor(2)}, {**LEAST, "step": 2, "config": stored}))
    found, (warning,) = load_checkpoint(storage, CONFIG)
    assert found is not None and found[1]["step"] == 1
    assert re.search(rf"{name} is of a run with other settings .*{told}.* going back", warning)


def test_one_written_before_settings_were_carried_is_taken(tmp_path):
    storage = LocalStorage(tmp_path)
    name = "checkpoints/step-0000000002.safetensors"
    storage.write(name, seal({"x": torch.tensor(2)}, {**LEAST, "step": 2}))
    found, (warning,) = load_checkpoint(storage, CONFIG)
    assert found is not None and found[1]["step"] == 2
    assert f"{name} does not say of which settings it is" in warning


def test_settings_added_since_do_not_make_it_another_run(tmp_path):
    storage = LocalStorage(tmp_path)
    before = {k: v for k, v in CONFIG.to_dict().items() if k != "deterministic"}
    content = seal({}, {**LEAST, "step": 2, "config": before})
    storage.write("checkpoints/step-0000000002.safetensors", content)
    found, warnings = load_checkpoint(storage, CONFIG)
    assert found is not None and warnings == []


def test_drop(tmp_path):
    storage = LocalStorage(tmp_path)
    for step in (1, 2):
        save_checkpoint(storage, step, {"x": torch.tensor(step)}, LEAST, CONFIG)
    drop_checkpoints(storage, after=1)
    assert storage.names("checkpoints/") == ["checkpoints/step-0000000001.safetensors"]
    drop_checkpoints(storage)
    assert storage.names("checkpoints/") == []
