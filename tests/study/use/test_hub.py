import json
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosnorm.study.runs.errors import RunError
from cosnorm.study.runs.presets import configure
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.hub import HubNetwork


@pytest.fixture
def saved(tmp_path):
    network = HubNetwork("mlp", [6], 3, {"method": "pearson", "scale_start": 4.0}, {"width": 8})
    network.save_pretrained(tmp_path / "saved")
    return network, tmp_path / "saved"


def test_there_and_back_without_a_server(saved, monkeypatch):
    network, folder = saved
    asked = []
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(f"socket.socket.{name}", lambda _, address: asked.append(address))
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address))
    again = HubNetwork.from_pretrained(folder)
    assert asked == []
    x = torch.rand(5, 6)
    assert torch.equal(again(x), network.eval()(x))
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file(saved, name):
    (saved[1] / name).unlink()
    with pytest.raises(
        RunError, match=f"lacks {re.escape(name)}: give a folder that save_pretrained wrote"
    ):
        HubNetwork.from_pretrained(saved[1])


def test_a_pickle_is_refused_and_not_loaded(saved):
    (saved[1] / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    (saved[1] / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"holds pytorch_model\.bin, a pickle"):
        HubNetwork.from_pretrained(saved[1])


def test_a_pickle_in_a_folder_inside_counts(saved):
    (saved[1] / "more").mkdir()
    (saved[1] / "more" / "old.PKL").write_bytes(pickle.dumps({}))
    with pytest.raises(RunError, match=r"holds more.old\.PKL, a pickle"):
        HubNetwork.from_pretrained(saved[1])


WHOLE = '{"network": "mlp", "shape": [6], "classes": 3, "recipe": %s, "sizes": {"width": %d}}'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", pickle.dumps({"weight": 1})),
        ("model.safetensors", b"\xff" * 64),
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("config.json", b"[]"),
        ("config.json", b"\xff\xfe\x00"),
        ("config.json", (WHOLE % ('{"method": "pearson"}', 9)).encode()),
        ("config.json", (WHOLE % ('{"method": "pearson", "unknown": 1}', 8)).encode()),
        ("config.json", (WHOLE % ('{"method": "unheard"}', 8)).encode()),
    ],
)
def test_a_damaged_folder(saved, name, content):
    (saved[1] / name).write_bytes(content)
    with pytest.raises(RunError, match="holds no network that save_pretrained wrote, or a damaged"):
        HubNetwork.from_pretrained(saved[1])


@pytest.mark.parametrize("network", ["mlp", "small_conv"])
def test_a_trained_network_comes_from_its_run(network, tmp_path):
    config = configure("digits", "pearson", 0, epochs=1, device="cpu", network=network)
    run(replace(config, width=16, channels=4), tmp_path / "run")
    HubNetwork.from_run(tmp_path / "run").save_pretrained(tmp_path / "saved")
    loaded, again = load_run(tmp_path / "run"), HubNetwork.from_pretrained(tmp_path / "saved")
    rows = torch.randint(0, 17, (5, *loaded.sample_shape), dtype=torch.uint8)
    x = loaded.input_of(rows)
    assert torch.equal(again(x), loaded.network(x))


def test_sizes_that_the_weights_do_not_have_take_no_memory(saved):
    place = saved[1] / "config.json"
    config = json.loads(place.read_text())
    config["sizes"]["width"] = 10**9  # 48 GB of weights, were they made
    place.write_text(json.dumps(config))
    told = r"is \[.*\] by config\.json and \[.*\] in model\.safetensors"
    with pytest.raises(RunError, match=told):
        HubNetwork.from_pretrained(saved[1])


def test_no_option_asks_a_server_or_loads_what_does_not_fit(saved):
    network, folder = saved
    again = HubNetwork.from_pretrained(folder, local_files_only=False)
    assert torch.equal(again(torch.ones(1, 6)), network.eval()(torch.ones(1, 6)))
    with pytest.raises(TypeError, match="folder must be a path; got NoneType None"):
        HubNetwork.from_pretrained(None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_come_back_in_their_dtype(saved, dtype):
    network, folder = saved
    network.to(dtype).save_pretrained(folder)
    again = HubNetwork.from_pretrained(folder).state_dict()
    for key, value in network.state_dict().items():
        assert again[key].dtype == value.dtype and torch.equal(again[key], value)


@pytest.mark.parametrize("some", [slice(None), slice(1)])
def test_weights_that_are_integers_are_refused(saved, some):
    place = saved[1] / "model.safetensors"
    state = load_file(place)
    state |= {key: state[key].long() for key in list(state)[some]}
    save_file(state, place)
    with pytest.raises(RunError, match=r"of one dtype of F64, F32, BF16, F16; got (F32, )?I64"):
        HubNetwork.from_pretrained(saved[1])


def test_a_lone_byte_is_no_pickle(saved):
    (saved[1] / "note").write_bytes(b"\x80")
    HubNetwork.from_pretrained(saved[1])


def test_without_the_package_the_extra_is_named():
    script = (
        "import sys; sys.modules['huggingface_hub'] = None\n"
        "try:\n    import cosnorm.study.use.hub\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert 'pip install "cosnorm[hub]"' in found.stdout


def test_a_name_on_the_hub_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="local folder; got 'somebody/network', which is none"):
        HubNetwork.from_pretrained("somebody/network")


@pytest.mark.parametrize("name", ["model.dill", "weights.pth.tar", "data.npy"])
def test_a_pickle_of_another_name_counts(saved, name):
    (saved[1] / name).write_bytes(pickle.dumps({}))
    with pytest.raises(RunError, match=rf"holds {re.escape(name)}, a pickle"):
        HubNetwork.from_pretrained(saved[1])


def test_an_option_that_is_wrong_is_not_the_folders_fault(saved):
    with pytest.raises(TypeError, match="takes folder and map_location; got foo"):
        HubNetwork.from_pretrained(saved[1], foo=1)
    with pytest.raises(ValueError, match="map_location must be a device of this machine; got 'no'"):
        HubNetwork.from_pretrained(saved[1], map_location="no")
    with pytest.raises(ValueError, match="of this machine; got 'meta'"):
        HubNetwork.from_pretrained(saved[1], map_location="meta")


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_a_device_in_any_form(saved, device):
    again = HubNetwork.from_pretrained(saved[1], map_location=device)
    for name, tensor in saved[0].state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_whatever_the_default_device_is(saved):
    with torch.device("meta"):
        again = HubNetwork.from_pretrained(saved[1])
    assert not any(tensor.is_meta for tensor in again.state_dict().values())
