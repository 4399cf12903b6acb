"""The built wheel in an environment that has torch and nothing else of ours."""

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, cwd=ROOT)
    (built,) = out.glob("cosnorm-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    home = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", home)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "torch==2.13.0")
    run(python, "-m", "pip", "install", "-q", wheel)
    return python


def test_the_wheel_carries_what_it_needs_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "cosnorm/py.typed" in names
    assert any(name.startswith("cosnorm/study/report/assets/") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"cosnorm"}


def test_layers_work_with_torch_and_numpy_alone(python, tmp_path):
    installed = run(python, "-m", "pip", "list", "--format=freeze").lower()
    assert not {"typer", "triton", "scikit-learn"} & {
        line.split("==")[0] for line in installed.splitlines()
    }
    code = """
        import sys, cosnorm
        assert "torch" not in sys.modules
        import torch
        from cosnorm.nn import PearsonConv2d, PearsonLinear
        net = torch.nn.Sequential(
            PearsonConv2d(3, 8, 3, activation="relu"), torch.nn.Flatten(),
            PearsonLinear(8 * 36, 4, learn_scale=True),
        )
        out = net(torch.randn(2, 3, 8, 8))
        out.sum().backward()
        assert out.shape == (2, 4) and all(p.grad is not None for p in net.parameters())
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
        print(cosnorm.convert(model, "cosine"))
        print(cosnorm.fold(model.eval()))
    """
    assert "CosineLinear" in run(python, "-c", textwrap.dedent(code), cwd=tmp_path)


def test_commands_say_what_is_missing_and_work_once_it_is_there(python, wheel, tmp_path):
    command = python.parent / "cosnorm"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "cosnorm[all]" in done.stderr
    assert "Traceback" not in done.stderr
    extras = f"{wheel}[cli,data,report,train]"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", extras)
    run(
        command, "compare", "--dataset", "digits", "--methods", "pearson,batch", "--epochs", "1",
        "--out", tmp_path / "runs", cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "runs" / "report" / "index.html").stat().st_size > 10_000
    assert "ratio" in run(
        command, "bench", "linear", "--rounds", "1", "--only", "cosine", cwd=tmp_path
    )
