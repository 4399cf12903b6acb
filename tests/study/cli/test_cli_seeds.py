"""`--batch-seeds`: seeds as one, for people, for programs, and after kill -9."""

import json
import signal

import pytest
from cli_cases import assert_same_result, cosnorm, is_one_readable_line, own_data, started, wait_for

NAMES = ["pearson-seed0", "pearson-seed1", "pearson-seed2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own_data(tmp_path_factory.mktemp("data") / "own.npz")


def command(data, out, *more, epochs=3):
    return (
        *("compare", "--dataset", data, "--methods", "pearson", "--seeds", 3),
        *(("--epochs", epochs) if epochs else ()),
        *("--width", 16, "--device", "cpu", "--out", out, *more),
    )


def test_seeds_as_one_for_people_and_for_programs(data, tmp_path):
    ended = cosnorm(*command(data, tmp_path / "people", "--batch-seeds", "on"))
    assert (ended.returncode, ended.stderr) == (0, "")
    told = ended.stdout.splitlines()
    assert told[1].startswith("3 seeds train as one (pearson): the results are those of single")
    assert told[1].endswith("--batch-seeds off for one run at a time")
    ended = cosnorm(*command(data, tmp_path / "programs", "--batch-seeds", "on", "--json"))
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    for name in NAMES:
        own = [event for event in events if event.get("run") == name]
        kinds = [event["event"] for event in own]
        assert kinds == ["begin", "evaluation", "evaluation", "evaluation", "end"]
        assert [e["step"] for e in own if e["event"] == "evaluation"] == [2, 4, 6]
        assert own[-1]["status"] == "done"
        assert_same_result(tmp_path / "people" / name, tmp_path / "programs" / name)


def test_one_run_at_a_time_on_a_cpu_unless_asked(data, tmp_path):
    ended = cosnorm(*command(data, tmp_path, "--json"))
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    ends = [event["run"] for event in told if event["event"] in ("begin", "end") and "run" in event]
    assert ends == [name for name in NAMES for _ in range(2)]


def test_killed_in_the_middle_it_goes_on_to_the_same_bits(data, tmp_path):
    length = ("--batch-seeds", "on", "--steps", 1500)
    arguments = command(data, tmp_path / "killed", *length, epochs=None)
    process = started(*arguments, "--checkpoint-seconds", 0)
    folders = [tmp_path / "killed" / name for name in NAMES]
    wait_for(lambda: all(len([*(f / "checkpoints").glob("step-*")]) == 2 for f in folders))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    assert not any((folder / "summary.json").exists() for folder in folders)
    ended = cosnorm(*arguments, "--json")
    assert ended.returncode == 0
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    begun = {event["step"] for event in events if event["event"] == "begin"}
    assert len(begun) == 1 and begun.pop() > 0  # none from the beginning, all from one step
    cosnorm(*command(data, tmp_path / "whole", *length, epochs=None))
    for name in NAMES:
        assert_same_result(tmp_path / "whole" / name, tmp_path / "killed" / name)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--network", "small_conv"), "seeds train as one only with the network mlp: leave"),
        (("--launcher", "ray"), "--batch-seeds on trains runs as one in this process, and"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(tmp_path, arguments, told):
    basis = ("compare", "--dataset", "digits", "--seeds", 2, "--out", tmp_path / "out")
    ended = cosnorm(*basis, "--batch-seeds", "on", *arguments)
    assert ended.returncode == 2
    assert is_one_readable_line(ended.stderr) and told in ended.stderr
    assert not (tmp_path / "out").exists()
