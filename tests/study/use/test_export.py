import json
from pathlib import Path

import numpy as np
import pytest
import torch
from experiment_cases import config_for, image_data, sparse_data, vector_data
from safetensors.torch import load

from cosnorm.methods import METHODS
from cosnorm.study.data import Dataset, Split
from cosnorm.study.runs.errors import RunWarning
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.export import export_run

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def agree(path, files, rows):
    session = onnxruntime.InferenceSession(str(files.onnx))
    for count in (1, 2, len(rows)):
        (logits,) = session.run(["logits"], {"rows": rows[:count].numpy()})
        with torch.no_grad():
            loaded = load_run(path)
            expected = loaded.network(loaded.input_of(rows[:count])).numpy()
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["pearson", "batch"])
def test_onnx_and_safetensors_are_the_network(tmp_path, method):
    data = image_data()
    config = config_for(method, network="small_conv", epochs=1, ema_decay=0.9)
    run(config, tmp_path / "run", dataset=data)
    files = export_run(tmp_path / "run", tmp_path / "export")
    agree(tmp_path / "run", files, data.test.x)
    state = load(Path(files.safetensors).read_bytes())
    network = load_run(tmp_path / "run").network
    assert all(torch.equal(state[name], t) for name, t in network.state_dict().items())
    labels = json.loads(Path(files.labels).read_text())
    assert labels == {"classes": ["class 0", "class 1", "class 2"], "sample_shape": [1, 8, 8]}


def test_images_in_floats_stay_floats(tmp_path):
    data = image_data()
    parts = (Split(part.x.float() / 50, part.y) for part in (data.train, data.test))
    data = Dataset("floats", *parts, data.classes, "image")
    run(config_for(epochs=1), tmp_path / "run", dataset=data)
    files = export_run(tmp_path / "run", tmp_path / "export")
    agree(tmp_path / "run", files, data.test.x)


def test_a_diverged_run_is_exported_with_a_warning(tmp_path):
    run(config_for("none", lr=1e30), tmp_path / "run", dataset=vector_data())
    with pytest.warns(RunWarning, match=r"run diverged at step 6: what is exported has not learnt"):
        export_run(tmp_path / "run", tmp_path / "export")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_pipeline(tmp_path, method):
    data = image_data(shape=(3, 26, 26))
    config = config_for(method, network="small_conv", pipeline="tf_cifar", epochs=1)
    run(config, tmp_path / "images", dataset=data)
    files = export_run(tmp_path / "images", tmp_path / "images" / "export")
    agree(tmp_path / "images", files, data.test.x)
    words = sparse_data()
    run(config_for(method, epochs=1), tmp_path / "words", dataset=words)
    files = export_run(tmp_path / "words", tmp_path / "words" / "export")
    agree(tmp_path / "words", files, words.test.x.to_dense())
