import json
import signal
import time

import pytest
from cli_cases import assert_same_result, cosnorm, is_one_readable_line, own_data, started, wait_for


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own_data(tmp_path_factory.mktemp("data") / "own.npz")


def command(data, out, *more, epochs=3):
    return (
        *("train", "--dataset", data, "--method", "cosine", "--epochs", epochs, "--seed", 4),
        *("--width", 32, "--batch-size", 20, "--device", "cpu", "--out", out, *more),
    )


def lines_of(out):
    path = out / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_train_then_done_then_refused(data, tmp_path):
    out = tmp_path / "run"
    first = cosnorm(*command(data, out))
    assert (first.returncode, first.stderr) == (0, "")
    names = {"config.json", "metrics.jsonl", "summary.json", "model.safetensors"}
    assert names < {path.name for path in out.iterdir()}
    assert [json.loads(line)["epoch"] for line in lines_of(out)] == [1, 2, 3]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["config"]["seed"] == 4
    assert not summary["diverged"]
    again = cosnorm(*command(data, out))
    assert again.returncode == 0
    assert "done" in again.stdout
    assert len(lines_of(out)) == 3
    other = cosnorm(*command(data, out, "--lr", 0.5))
    assert other.returncode == 1
    assert is_one_readable_line(other.stderr)
    assert "lr 10.0, now 0.5" in other.stderr


def test_json_for_programs(data, tmp_path):
    ended = cosnorm(*command(data, tmp_path / "run", "--json"))
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [e["event"] for e in events] == ["begin", *["evaluation"] * 3, "end"]
    assert events[-1]["status"] == "done"
    assert events[-1]["summary"]["final_test_error"] == events[-2]["test_error"]


def test_log_beside_the_run(data, tmp_path):
    out = tmp_path / "run"
    wrong = cosnorm(*command(data, out, "--log", "wandb"))
    assert wrong.returncode == 2
    assert is_one_readable_line(wrong.stderr)
    assert "--log must be one of tensorboard, mlflow; got 'wandb'" in wrong.stderr
    assert not out.exists()
    ended = cosnorm(*command(data, out, "--log", "tensorboard"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert len(list((out / "tensorboard" / "cosine-seed4").glob("events.out.tfevents.*"))) == 1
    assert cosnorm("report", out).returncode == 0


def test_diverged_is_3(data, tmp_path):
    arguments = ("--method", "none", "--lr", "1e30")
    ended = cosnorm(*command(data, tmp_path / "run", *arguments))
    assert ended.returncode == 3
    assert is_one_readable_line(ended.stderr)
    assert "diverged at step 10" in ended.stderr
    assert "diverged" not in ended.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["diverged"]


def test_max_minutes_is_75_and_the_same_command_goes_on(data, tmp_path):
    whole = cosnorm(*command(data, tmp_path / "whole", epochs=40))
    assert whole.returncode == 0
    codes = []
    for minutes in (0, 0.002):
        ended = cosnorm(*command(data, tmp_path / "run", "--max-minutes", minutes, epochs=40))
        codes.append(ended.returncode)
        assert ended.returncode == 0 or is_one_readable_line(ended.stderr)
        assert ended.returncode == 0 or "same command again to go on" in ended.stderr
    assert codes[0] == 75
    assert cosnorm(*command(data, tmp_path / "run", epochs=40)).returncode == 0
    assert_same_result(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_signals_save_and_stop(data, tmp_path, number, code):
    out = tmp_path / "run"
    with started(*command(data, out, epochs=100_000)) as process:
        wait_for(lambda: len(lines_of(out)) > 2)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert is_one_readable_line(told)
    assert len(list((out / "checkpoints").iterdir())) >= 1
    assert not (out / "summary.json").exists()
    before = len(lines_of(out))
    ended = cosnorm(*command(data, out, "--max-minutes", 0.001, epochs=100_000))
    assert ended.returncode == 75
    epochs = [json.loads(line)["epoch"] for line in lines_of(out)]
    assert epochs == list(range(1, len(epochs) + 1))
    assert len(epochs) >= before


def test_two_processes_on_one_folder(data, tmp_path):
    out = tmp_path / "run"
    with started(*command(data, out, epochs=100_000)) as process:
        wait_for(lambda: lines_of(out))
        other = cosnorm(*command(data, out, epochs=100_000))
        process.kill()
    assert other.returncode == 1
    assert is_one_readable_line(other.stderr)
    assert "in use by another process" in other.stderr


def killed_until_done(arguments, out, moments):
    """kill -9 at each moment (seconds after training went on), then let it end."""
    for moment in moments:
        before = lines_of(out)
        with started(*arguments) as process:
            while lines_of(out) == before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(moment)
            process.kill()
    ended = cosnorm(*arguments)
    assert ended.returncode == 0, ended.stderr


def test_killed_twice_the_result_is_the_same(data, tmp_path):
    more = ("--ema-decay", 0.99, "--checkpoint-seconds", 0.02)
    assert cosnorm(*command(data, tmp_path / "whole", *more, epochs=40)).returncode == 0
    arguments = command(data, tmp_path / "run", *more, epochs=40)
    killed_until_done(arguments, tmp_path / "run", (0, 0.1))
    assert_same_result(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_killed_twenty_times_at_random_moments(tmp_path):
    import random

    arguments = (
        *("train", "--dataset", "digits", "--method", "pearson", "--epochs", 60),
        *("--checkpoint-seconds", 0.1, "--out"),
    )
    assert cosnorm(*arguments, tmp_path / "whole").returncode == 0
    random.seed(time.time_ns())
    moments = [random.uniform(0, 0.6) for _ in range(20)]
    print("moments", moments)
    killed_until_done((*arguments, tmp_path / "run"), tmp_path / "run", moments)
    assert_same_result(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_full_disk(data, tmp_path):
    """A real one, of two megabytes, where the system lets us mount it."""
    import shutil
    import subprocess

    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        out = place / "run"
        arguments = command(data, out, "--width", 150, "--checkpoint-seconds", 0, epochs=40)
        stopped = cosnorm(*arguments, "--max-minutes", 0)
        assert stopped.returncode == 75
        filler = place / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(place).free - 60_000))
        before = {p.name: p.read_bytes() for p in out.rglob("*.safetensors")}
        ended = cosnorm(*arguments)
        assert ended.returncode == 1
        assert is_one_readable_line(ended.stderr)
        assert "No space left on device" in ended.stderr
        after = {p.name: p.read_bytes() for p in out.rglob("*.safetensors")}
        assert after == before
        filler.unlink()
        assert cosnorm(*arguments).returncode == 0
        whole = command(data, tmp_path / "whole", "--width", 150, epochs=40)
        assert cosnorm(*whole).returncode == 0
        assert_same_result(tmp_path / "whole", out)
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_reader_that_goes_away_leaves_a_run_to_go_on_with(data, tmp_path):
    cosnorm(*command(data, tmp_path / "whole", epochs=40))
    out = tmp_path / "cut"
    process = started(*command(data, out, "--json", "--checkpoint-seconds", 0, epochs=40))
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 1
    assert is_one_readable_line(process.stderr.read())
    process.stderr.close()
    assert not (out / "summary.json").exists()
    assert cosnorm(*command(data, out, epochs=40)).returncode == 0
    assert_same_result(tmp_path / "whole", out)


def test_one_step_is_one_step(data, tmp_path):
    ended = cosnorm(
        *("train", "--dataset", data, "--method", "cosine", "--steps", 1, "--width", 8),
        *("--out", tmp_path / "run"),
    )
    assert "begins, 1 step on" in ended.stdout
    assert "over the last step (" in ended.stdout
    assert ", 1 step in" in ended.stdout


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("summary.json", "{}", "summary.json is damaged (it has no diverged)"),
        ("config.json", '{"colour": 1}', "unknown settings colour"),
    ],
)
def test_a_damaged_record_is_1_and_named(data, tmp_path, name, content, told):
    out = tmp_path / "run"
    assert cosnorm(*command(data, out)).returncode == 0
    (out / name).write_text(content)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    ended = cosnorm(*command(data, out))
    assert ended.returncode == 1
    assert is_one_readable_line(ended.stderr)
    assert str(out / name) in ended.stderr and told in ended.stderr
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
