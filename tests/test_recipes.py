"""The scripts and files that the page on scaling prints can be read by what reads them."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
BLOCKS = re.findall(r"^```(bash|yaml)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
SCRIPTS = [text for kind, text in BLOCKS if kind == "bash" and text.startswith("#!")]


def commands():
    """Every command of ours in the scripts and files, without what comes before it."""
    for _, text in BLOCKS:
        for line in text.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:-m |bin/|srun |-- +)cosnorm ([a-z].*)", line)
            if found:
                yield found[1].split()


def test_there_are_some():
    assert len(SCRIPTS) == 3 and len(list(commands())) == 5


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_one_of_bash(script):
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    directives = [n for n, line in enumerate(script.splitlines()) if line.startswith("#SBATCH")]
    assert directives == list(range(1, len(directives) + 1)), "sbatch reads none after a command"


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_a_command_has_the_flags_it_is_given(words):
    from cosnorm.study.cli import app

    command = get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_file_for_skypilot_is_yaml():
    (text,) = (text for kind, text in BLOCKS if kind == "yaml")
    assert yaml.safe_load(text)["resources"]["use_spot"] is True
