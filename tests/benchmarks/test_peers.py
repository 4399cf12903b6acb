"""What stands beside the layers computes what it says, and is timed on real numbers."""

import json

import pytest
import torch

from cosnorm.benchmarks import layers, network, peers, training, verify

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
    options = network.parse([*arguments, "--batch", "1", "--channels", "2"])
    assert network._modes(options) == modes
    asked = []
    monkeypatch.setattr(torch, "compile", lambda net, **how: asked.append(how) or net)
    options.device = "cpu"
    for mode in modes:
        network.step("none", options, mode)
    assert asked == [{"mode": mode, "dynamic": False} for mode in modes if mode]


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


@pytest.mark.slow
def test_compiled_peers_stay_compiled(monkeypatch):
    """However many there were before: torch would leave the ninth of a kind to run uncompiled."""
    for name in ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit"):
        monkeypatch.setattr(torch._dynamo.config, name, getattr(torch._dynamo.config, name))
    make, made = peers.compiled(peers.LINEARS["linear+relu"]), torch._dynamo.utils.counters
    torch._dynamo.reset()
    made.clear()
    for size in range(3, 13):
        assert make(size, 4)(torch.randn(2, size)).shape == (2, 4)
    assert made["stats"]["unique_graphs"] == 10
