"""What a record says of the software that made it."""

import os
import shutil
import subprocess

from cosnorm.study.runs import environment


def git(folder, *arguments):
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_source_and_of_no_other_project(tmp_path, monkeypatch):
    """A package may lie in a virtual environment within somebody's checkout."""
    monkeypatch.delenv("COSNORM_COMMIT", raising=False)
    installed = tmp_path / ".venv" / "cosnorm" / "environment.py"
    installed.parent.mkdir(parents=True)
    shutil.copy(environment.__file__, installed)
    monkeypatch.setattr(environment, "__file__", str(installed))
    assert environment.commit() is None
    git(tmp_path, "init", "-q")
    (tmp_path / "theirs.txt").write_text("theirs")
    git(tmp_path, "add", "theirs.txt")
    git(tmp_path, "commit", "-qm", "theirs")
    assert environment.commit() is None
    monkeypatch.setenv("COSNORM_COMMIT", "as it is said")
    assert environment.commit() == "as it is said"
    git(tmp_path, "add", ".venv")
    git(tmp_path, "commit", "-qm", "ours")
    found = environment.commit()
    assert found is not None and len(found) == 12
    installed.write_text("changed")
    assert environment.commit() == f"{found}-dirty"


def test_the_checkout_is_not_written_to(tmp_path, monkeypatch):
    """Whoever writes the index holds its lock, which a signal would leave behind."""
    source = tmp_path / "environment.py"
    shutil.copy(environment.__file__, source)
    monkeypatch.setattr(environment, "__file__", str(source))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "ours")
    os.utime(source, (1, 1))  # git looks at the file again, and would note that it is as it was
    before = (tmp_path / ".git" / "index").read_bytes()
    found = environment.commit()
    assert found is not None and not found.endswith("dirty")
    assert (tmp_path / ".git" / "index").read_bytes() == before
