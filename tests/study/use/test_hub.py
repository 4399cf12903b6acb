import pickle
import re

import pytest
import torch

from cosnorm.study.runs.errors import RunError
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


def test_a_name_on_the_hub_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="local folder; got 'somebody/network', which is none"):
        HubNetwork.from_pretrained("somebody/network")
