"""The workflow files: valid by their schema, and their commands are those of the project."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import cosnorm

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(file):
    jobs = yaml.safe_load(file.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_there_are_two():
    assert [file.name for file in FILES] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_its_schema(file):
    tool = Path(sys.executable).with_name("check-jsonschema")
    done = subprocess.run(
        [tool, "--builtin-schema", "vendor.github-workflows", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_commands_and_actions(file):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(file):
        for target in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE):
            assert target in targets, target
        if "uses" in step:
            assert re.fullmatch(r"(actions|pypa)/[\w-]+@(v\d+|release/v1)", step["uses"])


@pytest.mark.parametrize(
    ("tag", "heading", "passes"),
    [
        ("v{}", "## {} (2026-11-17)", True),
        ("v{}", "## {} (unreleased)", False),
        ("v{}", "## 9.9.9 (2026-11-17)", False),
        ("v{}.1", "## {} (2026-11-17)", False),
    ],
)
def test_a_release_has_one_version_everywhere(tag, heading, passes, tmp_path):
    (step,) = [step for step in steps(FILES[1]) if "tag is the version" in step.get("name", "")]
    version = cosnorm.__version__
    (tmp_path / "src" / "cosnorm").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "cosnorm" / "_version.py", tmp_path / "src" / "cosnorm")
    shutil.copy(ROOT / "CITATION.cff", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading.format(version)}\n")
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env={"TAG": tag.format(version)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == passes, done.stderr
