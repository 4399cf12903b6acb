"""The claims in words: small studies on the embedded digits, made for real."""

import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from experiment_cases import config_for, vector_data

from cosnorm.study.claims import STUDIES, errors, modern, study_named
from cosnorm.study.claims.networks import hidden_variances
from cosnorm.study.claims.study import Setting, conduct, means
from cosnorm.study.runs.errors import ConfigError
from cosnorm.study.train.launchers import InProcess
from cosnorm.study.train.learner import network_for
from cosnorm.study.train.stopping import Stop

PROGRAM = [sys.executable, "-m", "cosnorm", "study"]
TINY = {"epochs": 2, "seeds": 2, "width": 16}


def rows_of(out, name):
    result = json.loads((out / f"{name}.json").read_text())
    assert result["study"] == name and result["findings"] and result["test_rows"] == 359
    return result["rows"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_claim_and_the_plans_setting(name):
    study = study_named(name)
    assert (study.name, study.claim[-1]) == (name, ".")
    full = study.setting(True)
    is_modern, dataset = name.startswith("modern"), name.removeprefix("modern-")
    assert full.dataset == (dataset if is_modern else "mnist")
    assert (full.width, full.seeds) == (1000, 3)
    assert len(full.methods) == (8 if is_modern else 6)
    lengths = {"batch-size": "5 epochs"}
    assert full.length == ("5,000 steps" if is_modern else lengths.get(name, "20 epochs"))
    assert study.setting(True, epochs=7).length == "7 epochs"
    names = [(c.method, c.lr, c.batch_size, c.seed) for c in study.configs(full)]
    assert len(names) == len(set(names))


def test_an_unknown_study():
    with pytest.raises(ConfigError, match=r"must be one of learning-rates, .*; got 'speed'"):
        study_named("speed")


def test_more_seeds_than_anybody_waits_for(tmp_path):
    asked = [*PROGRAM, "input", "--seeds", "1000000000", "--out", str(tmp_path)]
    ended = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2 and "less than or equal to 1000" in ended.stderr


def test_scaled_inputs(tmp_path):
    """Cosine's output stays; a plain network's classes do, but not what it gives them."""
    setting = Setting(**TINY, methods=("pearson", "cosine", "weight"))
    done = conduct(study_named("input"), setting, tmp_path)
    files = [f"{tmp_path}/input{end}" for end in (".json", ".png", ".pdf")]
    assert list(done.files) == files
    rows = rows_of(tmp_path, "input")
    assert len(rows) == 3 * 2 * 2 * 9
    of_scale = means([r for r in rows if r["kind"] == "scale"], "by", "change")
    of_shift = means([r for r in rows if r["kind"] == "shift"], "by", "change")
    assert max(of_scale["cosine"].values()) < 1e-5
    assert max(of_scale["pearson"].values()) < 1e-5
    assert max(of_scale["weight"].values()) > 0.1
    errors_of_weight = means([r for r in rows if r["kind"] == "scale"], "by", "test_error")
    assert len(set(errors_of_weight["weight"].values())) == 1
    assert max(of_shift["pearson"].values()) < 1e-3 < 0.1 < max(of_shift["weight"].values())
    assert any(f.startswith("scale, cosine: the error stays") for f in done.findings)
    assert any(f.startswith("shift, pearson: the error stays") for f in done.findings)


def test_variances_of_pre_activations(tmp_path):
    setting = Setting(**TINY, methods=("pearson", "batch"))
    conduct(study_named("variance"), setting, tmp_path)
    rows = rows_of(tmp_path, "variance")
    assert len(rows) == 2 * 2 * 2 * 2
    for row in rows:
        if row["method"] == "batch":
            assert row["variance"] == pytest.approx(1.0, abs=0.02)
        else:
            assert 0 < row["variance"] < 0.5


@pytest.mark.parametrize("method", ["pearson", "batch", "layer", "weight", "none"])
def test_looking_at_a_network_changes_nothing(method):
    data = vector_data()
    network = network_for(config_for(method), data.sample_shape, 3).eval()
    x = data.test.x
    before = network(x)
    hidden = network[1](x.flatten(1))
    assert (hidden >= 0).all()
    (first, second) = hidden_variances(network, x)
    assert first > 0 and second > 0
    assert not network.training
    if method != "batch":  # whose statistics have seen the rows
        assert torch.equal(network(x), before)
    if method == "none":
        weight = network[1].weight.detach()
        assert first == pytest.approx(float((x.flatten(1) @ weight.T).var()), rel=1e-5)


def test_a_grid_is_widened_until_the_lowest_error_lies_inside():
    study, setting = errors.LearningRates(), Setting(**TINY, methods=("pearson", "none"))
    rates = study.grid()
    assert (rates[0], rates[-1]) == (0.01, 316.0)

    def rows(method, best):
        return [
            {"method": method, "lr": lr, "seed": s, "test_error": 5.0 + abs(i - best)}
            for i, lr in enumerate(rates)
            for s in (0, 1)
        ]

    assert study.more(rows("pearson", 4), setting) == []
    wider = study.more(rows("pearson", 9) + rows("none", 0), setting)
    found = {(c.method, c.lr, c.seed) for c in wider}
    assert found == {
        ("pearson", 1000.0, 0),
        ("pearson", 1000.0, 1),
        ("none", 0.00316, 0),
        ("none", 0.00316, 1),
    }
    nothing = [{**row, "test_error": None} for row in rows("none", 0)]
    assert {c.lr for c in study.more(nothing, setting)} == {0.00316}


def test_usable_rates():
    grid = {"pearson": {0.1: 9.0, 1.0: 2.0, 10.0: 2.1, 100.0: 90.0}, "batch": {0.1: 2.0, 1.0: 9.0}}
    rows = [
        {"method": m, "lr": lr, "seed": 0, "test_error": e}
        for m, errors_of in grid.items()
        for lr, e in errors_of.items()
    ]
    told = errors.LearningRates().findings(rows, 10_000)
    assert "usable (within two test-set standard errors of it) from 1 to 10." in told[0]
    assert told[-1].startswith("The claim holds: the largest usable rate is 10 or more")


def test_batches_of_one_are_not_for_batch_norm(monkeypatch, tmp_path):
    monkeypatch.setattr(errors.BatchSize, "sizes", (1, 100))
    setting = Setting(epochs=1, seeds=1, width=8, methods=("pearson", "batch"))
    done = conduct(study_named("batch-size"), setting, tmp_path)
    sizes = [(r["method"], r["batch_size"], r["lr"]) for r in rows_of(tmp_path, "batch-size")]
    assert sizes == [("pearson", 1, 0.1), ("pearson", 100, 10.0), ("batch", 100, 1.0)]
    assert "batch cannot train with batches of 1." in done.findings


def test_steadiness_needs_more_than_one_evaluation(tmp_path):
    setting = Setting(**TINY, methods=("pearson", "batch"))
    done = conduct(study_named("steadiness"), setting, tmp_path)
    assert all(row["variance"] is None for row in rows_of(tmp_path, "steadiness"))
    assert "pearson against batch: too few seeds for a verdict." in done.findings


def test_verdicts_on_steadiness_and_on_no_normalisation():
    rows = [
        {"method": m, "lr": 0.1, "seed": s, "variance": v * (1 + s / 50), "test_error": e + s / 99}
        for m, v, e in (("pearson", 1e-5, 1.4), ("batch", 1e-2, 1.5), ("none", 1.0, 4.0))
        for s in range(3)
    ]
    told = errors.Steadiness().findings(rows, 10_000)
    assert told[0] == "pearson against batch: steadier, its variance 0.001 to 0.001 times as large."
    told = errors.Normalisation().findings(rows, 10_000)
    assert any(f.startswith("none against pearson: worse, and much") for f in told)


def test_a_study_that_was_stopped_goes_on(tmp_path):
    setting = Setting(**TINY, methods=("pearson", "none"))
    stopped = conduct(
        study_named("steadiness"), setting, tmp_path, launcher=InProcess(stop=Stop(0.0))
    )
    assert (stopped.reason, stopped.files) == ("max_minutes", ())
    told: list[str] = []
    conduct(study_named("steadiness"), setting, tmp_path, tell=told.append)
    assert len(told) == 4 and all("done, " in line for line in told)


class AfterRuns(Stop):
    """Time that is up when so many runs have been begun."""

    def __init__(self, count):
        super().__init__()
        self.left = count

    @contextmanager
    def listening(self):
        self.left -= 1
        yield

    @property
    def reason(self):
        return "max_minutes" if self.left < 0 else None


@pytest.mark.parametrize("name", ["steadiness", "variance"])
def test_one_small_file_is_enough_to_go_on(tmp_path, name):
    setting = Setting(**TINY, methods=("pearson", "none"))
    conduct(study_named(name), setting, tmp_path / "whole")
    launcher = InProcess(stop=AfterRuns(3), keep_checkpoints=False)
    stopped = conduct(study_named(name), setting, tmp_path / "here", launcher=launcher)
    assert stopped.reason == "max_minutes"
    half = json.loads((tmp_path / "here" / f"{name}.json").read_text())
    assert (half["findings"], len(half["runs"])) == (None, 3)
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / f"{name}.json").rename(tmp_path / "there" / f"{name}.json")
    told: list[str] = []
    conduct(study_named(name), setting, tmp_path / "there", tell=told.append)
    assert len(told) == 1
    whole, gone_on = (
        json.loads((tmp_path / place / f"{name}.json").read_text()) for place in ("whole", "there")
    )
    assert whole["rows"] == gone_on["rows"] and whole["findings"] == gone_on["findings"]


def test_a_study_with_other_settings_is_not_gone_on_with(tmp_path):
    setting = Setting(**TINY, methods=("none",))
    conduct(study_named("steadiness"), setting, tmp_path)
    other = Setting(**{**TINY, "epochs": 3}, methods=("none",))
    with pytest.raises(ConfigError, match=r"holds a study with other settings \(epochs 2, now 3\)"):
        conduct(study_named("steadiness"), other, tmp_path)


def program(*words):
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


def test_the_program(tmp_path):
    ended = program("steadiness", "--epochs", 1, "--seeds", 1, "--out", tmp_path / "out")
    assert ended.returncode == 0, ended.stderr
    told = ended.stdout.splitlines()
    assert told[5].startswith("6 of 6: none-lr0.1-batch100-seed0 done, ")
    assert told[6].startswith("The paper: The test error of cosine and Pearson is steadier")
    assert told[-3:] == [
        f"result: {tmp_path}/out/steadiness.json",
        f"figure: {tmp_path}/out/steadiness.png",
        f"figure: {tmp_path}/out/steadiness.pdf",
    ]
    wrong = program("speed", "--out", tmp_path / "other")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "other").exists()


def test_a_program_whose_time_is_up(tmp_path):
    ended = program("steadiness", "--max-minutes", 0, "--out", tmp_path / "out")
    assert ended.returncode == 75
    assert ended.stderr.endswith("give the same command again to go on\n")


def rows_for_a_choice(best, tried, held_out=True):
    return [
        {
            "method": method,
            "lr": lr,
            "seed": 0,
            "held_out": held_out,
            "test_error": 5.0 + abs(math.log10(lr / rate)),
        }
        for method, rate in best.items()
        for lr in tried
    ]


def test_a_rate_is_chosen_by_rows_held_out_and_then_tested():
    study, setting = modern.ModernMnist(), Setting(**TINY, methods=("pearson", "batch"))
    first = study.configs(setting)
    assert {c.lr for c in first} == {0.1, 0.316, 1.0, 3.16, 10.0}
    assert {(c.held_out, c.affine, c.seed) for c in first} == {(0.1, True, 0)}
    rows = rows_for_a_choice({"pearson": 10.0, "batch": 1.0}, study.grid())
    (wider,) = study.more(rows, setting)
    assert (wider.method, wider.lr, wider.held_out) == ("pearson", 31.6, 0.1)
    rows += rows_for_a_choice({"pearson": 10.0}, [31.6])
    finals = study.more(rows, setting)
    assert {(c.method, c.lr, c.seed) for c in finals} == {
        ("pearson", 10.0, 0), ("pearson", 10.0, 1), ("batch", 1.0, 0), ("batch", 1.0, 1),
    }  # fmt: skip
    assert {(c.held_out, c.affine) for c in finals} == {(0.0, True)}
    for config in finals:
        key = {"method": config.method, "lr": config.lr, "seed": config.seed, "held_out": False}
        # The lowest test error is at another rate's: nothing may hang on it.
        rows.append({**key, "test_error": 1.0 if config.method == "batch" else 90.0})
    assert study.more(rows, setting) == []
    told = study.findings(rows, 359)
    assert told[0] == ("pearson: rate 10 of 6 by its held-out error of 5.00 %; test error 90.00 %.")
    assert "pearson against batch: worse, +87.98 to +90.02 points (margin 2.63)." in told
    assert told[-1] == "The claim holds for 0 of its 4 pairs."
    lost = [{**row, "test_error": None} if row["seed"] and not row["held_out"] else row
            for row in rows]  # fmt: skip
    told = study.findings(lost, 359)
    assert "test error not a number for every seed." in told[0]
    assert "pearson against batch: too few seeds for a verdict." in told


def test_a_pair_with_a_seed_that_diverged_says_so_and_does_not_count():
    study = modern.ModernMnist()
    rows = rows_for_a_choice({"pearson": 1.0, "cosine": 1.0}, study.grid())
    for method, found in {"pearson": (1.0, 1.0, None), "cosine": (5.0, 5.1, 5.0)}.items():
        rows += [
            {"method": method, "lr": 1.0, "seed": seed, "held_out": False, "test_error": error}
            for seed, error in enumerate(found)
        ]
    told = study.findings(rows, 10_000)
    (pair,) = [line for line in told if line.startswith("pearson against cosine: better")]
    assert pair.endswith("without seeds of which one has no number.")
    assert told[-1] == "The claim holds for 0 of its 4 pairs."


def test_a_grid_that_was_widened_in_vain_says_so():
    study, setting = modern.ModernMnist(), Setting(**TINY, methods=("none",))
    rows, configs = [], study.configs(setting)
    while configs:
        rows += [{"method": "none", "lr": c.lr, "seed": c.seed, "held_out": bool(c.held_out),
                  "test_error": 50 / (1 + c.lr)} for c in configs]  # fmt: skip
        configs = study.more(rows, setting)
    assert (
        "rate 1e+07 of 17 by its held-out error of 0.00 % (the last that was tried"
        in (study.findings(rows, 359)[0])
    )
    low = [{**row, "test_error": None if row["lr"] > 1 else 1 / row["lr"]} for row in rows]
    told = errors.LearningRates().findings([r for r in low if r["held_out"]], 359)
    assert "lowest error 1.00 % at 1; usable" in told[0], "the next rate was tried, and diverged"


def test_a_method_that_trains_at_no_rate_is_told():
    study, setting = modern.ModernMnist(), Setting(**TINY, methods=("none",))
    rows, configs = [], study.configs(setting)
    while configs:
        rows += [{"method": "none", "lr": c.lr, "seed": 0, "held_out": bool(c.held_out),
                  "test_error": None} for c in configs]  # fmt: skip
        configs = study.more(rows, setting)
    assert len(rows) == 5 + study.most
    assert study.findings(rows, 359)[0] == "none: trains at none of 17 rates."


def test_the_modern_reading(tmp_path):
    setting = Setting(**TINY, methods=("pearson", "rms"))
    done = conduct(study_named("modern-mnist"), setting, tmp_path)
    rows = rows_of(tmp_path, "modern-mnist")
    finals = [row for row in rows if not row["held_out"]]
    assert len(finals) == 4 and len({(row["method"], row["lr"]) for row in finals}) == 2
    assert len(rows) >= 4 + 2 * 5
    assert any(told.startswith("rms: rate ") for told in done.findings)
    assert (tmp_path / "modern-mnist.png").stat().st_size > 1000
    held = json.loads(next((tmp_path / "runs").glob("rms-*-held-out/summary.json")).read_text())
    assert (held["data"]["train"], held["data"]["test"]) == (1295, 143)
    assert conduct(study_named("modern-mnist"), setting, tmp_path).findings == done.findings
