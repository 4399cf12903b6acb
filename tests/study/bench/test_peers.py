"""What stands beside the layers computes what it says, and is timed on real numbers."""

import json
import re
from functools import partial

import pytest
import torch

from cosnorm.study.bench import layers, linear, network, peers, sparse, training, verify
from cosnorm.study.runs.presets import configure

ROWS = {"conv": (2, 6, 7, 5), "linear": (9, 6)}
KINDS = {"conv": peers.CONVOLUTIONS, "linear": peers.LINEARS}


def made(kind, name):
    torch.manual_seed(0)
    return KINDS[kind][name](6, 4)


SIMILAR = [
    (kind, name) for kind in KINDS for name in KINDS[kind] if name.startswith(("cosine", "pearson"))
]


@pytest.mark.parametrize("kind, name", SIMILAR)
def test_every_way_to_a_similarity_gives_the_same(kind, name):
    x = torch.randn(ROWS[kind])
    layer, peer = made(kind, name.split(",")[0]), made(kind, name)
    with torch.no_grad():
        next(peer.parameters()).copy_(next(layer.parameters()))
    torch.testing.assert_close(peer(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["batch", "layer", "weight", "cosine", "pearson"])
def test_folded_peers_give_the_same_with_less(kind, name):
    x, module = torch.randn(ROWS[kind]), made(kind, name)
    for part in module.modules():
        if hasattr(part, "running_mean"):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    want = module.eval()(x)
    folded = peers.folded(module)
    torch.testing.assert_close(folded(x), want, rtol=1e-4, atol=1e-5)
    kinds = {type(part).__name__ for part in folded.modules()}
    assert not any(word in kind for kind in kinds for word in ("BatchNorm", "Parametriz"))


@pytest.fixture
def unchecked(monkeypatch):
    for module in (layers, network, training):
        monkeypatch.setattr(module, "verify", lambda device, dtypes: print("checked", len(dtypes)))


def test_layers_in_every_mode(unchecked, tmp_path, capsys):
    out = tmp_path / "layers.json"
    modes = ",".join(layers.MODES)
    arguments = ["--kinds", "conv", "--sizes", "1x4x5", "--layouts", "contiguous", "--modes", modes]
    assert layers.main([*arguments, "--rounds", "1", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [result["mode"] for result in report["results"]] == list(layers.MODES)
    assert all(result["providers"]["pearson"]["ratio"] > 0 for result in report["results"])
    assert "checked 1\n" in capsys.readouterr().out


@pytest.mark.parametrize("module", [layers, network, training], ids=lambda m: m.__name__)
def test_nothing_is_timed_where_the_ops_are_wrong(module, monkeypatch, capsys):
    wrong = lambda case, device: [f"{case}: error 2"] if case.centered else []  # noqa: E731
    monkeypatch.setattr(verify, "faults_of", wrong)
    with pytest.raises(AssertionError, match=r"pearson linear .* float32: error 2"):
        module.main([])
    told = capsys.readouterr().out
    assert told.startswith("checking 22 cases") and told.count("\n") == 1


def test_a_network_that_has_diverged_is_not_timed(unchecked, monkeypatch):
    arguments = ["--methods", "none,batch", "--batch", "2", "--channels", "4", "--rounds", "1"]
    assert network.main(arguments) == 0

    def broken(net):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(float("inf"))

    monkeypatch.setattr(network, "_draw", broken)
    with pytest.raises(ArithmeticError, match="none has diverged"):
        network.main(arguments)


@pytest.mark.parametrize(
    "arguments, modes",
    [
        ([], [None]),
        (["--compile"], [None, "default"]),
        (["--compile", "--launches"], [None, "default"]),
        (["--compile", "--device", "cuda"], [None, "default"]),
        (["--launches", "--device", "cuda"], [None]),
        (["--compile", "--launches", "--device", "cuda"], [None, "default", "reduce-overhead"]),
    ],
)
def test_how_a_network_is_compiled(arguments, modes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options = network.parse([*arguments, "--batch", "1", "--channels", "2"])
    assert network._modes(options) == modes
    asked = []
    monkeypatch.setattr(network, "compiled", lambda net, mode: asked.append(mode) or net)
    options.device = "cpu"
    for mode in modes:
        network.step("none", options, mode)
    assert asked == modes[1:]


@pytest.mark.parametrize("methods", ["none", "cosine,batch", "none,nothing", ""])
def test_a_network_needs_the_plain_one_and_others(methods, capsys):
    with pytest.raises(SystemExit) as ended:
        network.parse(["--methods", methods])
    assert ended.value.code == 2
    assert "--methods must be" in capsys.readouterr().err


def test_the_plain_network_keeps_its_signal():
    """Or its time would be that of zeros, or of NaN."""
    options = network.parse(["--batch", "2", "--channels", "16"])
    run, parameters = network.step("none", options)
    before = [p.clone() for p in parameters]
    for _ in range(10):
        run()
    for parameter, start in zip(parameters, before, strict=True):
        assert parameter.isfinite().all() and not torch.equal(parameter, start)


def test_a_run_against_its_step(unchecked, tmp_path):
    out = tmp_path / "training.json"
    sizes = ["--rows", "200", "--steps", "2", "--rounds", "1"]
    assert training.main(["--sets", "mnist", "--methods", "none", *sizes, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["results"]["mnist none"]["ratio"] > 0


@pytest.fixture
def dynamo():
    """Counts of a compiler that has compiled nothing yet, its settings as they come."""
    names = ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    config = torch._dynamo.config
    with config.patch({name: getattr(config, name) for name in names}):
        yield torch._dynamo.utils.counters["stats"]


@pytest.mark.slow
def test_compiled_peers_stay_compiled(dynamo):
    """However many there were before: torch would leave the ninth of a kind to run uncompiled."""
    for size in range(3, 13):
        peer = peers.compiled(peers.LINEARS["linear+relu"](size, 4))
        assert peer(torch.randn(2, size)).shape == (2, 4)
    assert dynamo["unique_graphs"] == 10


@pytest.mark.slow
def test_what_is_folded_is_compiled_after_it(dynamo):
    made = peers.compiled(peers.CONVOLUTIONS["batch"](3, 4))
    x = torch.randn(2, 3, 6, 6)
    want = made.eval()(x)
    after = peers.folded(made)
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in after.modules())
    graphs = dynamo["unique_graphs"]
    torch.testing.assert_close(after(x), want, rtol=1e-4, atol=1e-5)
    assert dynamo["unique_graphs"] == graphs + 1


@pytest.mark.parametrize(
    "command, arguments, told",
    [
        (layers, ["--modes", "both,nope"], "--modes: must be of forward, .* got 'nope'"),
        (layers, ["--kinds", "foo"], "--kinds: must be of conv, linear; got 'foo'"),
        (layers, ["--layouts", "NHWC"], "--layouts: must be of contiguous, channels_last; got"),
        (layers, ["--sizes", "8x8"], "--sizes: must be three numbers .* got '8x8'"),
        (layers, ["--sizes", "8x8x0"], "--sizes: must be three numbers .* got '8x8x0'"),
        (layers, ["--device", "tpu"], "--device: must be cpu or cuda; got 'tpu'"),
        (layers, ["--device", "cuda"], "--device: cuda needs a GPU"),
        (linear, ["--kinds", "conv"], "unrecognized arguments: --kinds"),
        (linear, ["--layouts", "contiguous"], "unrecognized arguments: --layouts"),
        (network, ["--rounds", "0"], "--rounds: must be a number of at least 1; got '0'"),
        (training, ["--sets", "foo"], "--sets: must be of mnist, cifar10; got 'foo'"),
        (training, ["--methods", "foo"], "--methods: must be of .* got 'foo'"),
        (sparse, ["--repeats", "1"], "--repeats: must be a number of at least 2; got '1'"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(
    command, arguments, told, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert re.search(told, said.err)


def test_linear_layers_of_any_size(unchecked, tmp_path):
    out = tmp_path / "linear.json"
    arguments = ["--sizes", "3x4x5", "--rounds", "1", "--only", "cosine", "--out", str(out)]
    assert linear.main(arguments) == 0
    (result,) = json.loads(out.read_text())["results"]
    assert (result["kind"], result["size"]) == ("linear", [3, 4, 5])
    assert "cosine" in result["providers"]


def test_sparse_rows(tmp_path, monkeypatch, capsys):
    out = tmp_path / "sparse.json"
    monkeypatch.setattr(sparse, "synthetic", partial(sparse.synthetic, 120, 300, 9))
    arguments = ["--synthetic", "--methods", "cosine,none", "--repeats", "2", "--out", str(out)]
    assert sparse.main(arguments) == 0
    made = json.loads(out.read_text())
    assert [row["method"] for row in made["results"]] == ["cosine", "none"]
    assert all(row["ratio"]["50%"] > 0 for row in made["results"])
    monkeypatch.setattr(sparse, "configure", wrongly_configured)
    with pytest.raises(AssertionError, match="cosine: after a step, tensor 0 differs by"):
        sparse.main(arguments)


def wrongly_configured(*arguments, sparse, **settings):
    return configure(*arguments, sparse=sparse, seed=int(sparse), **settings)
