"""The user's own tables and texts."""

import os

import numpy as np
import pytest
import torch
from experiment_cases import Notes

from cosnorm.study.data import DataError, load
from cosnorm.study.runs.presets import configure, preset
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.predict import predict_file

ROWS = [(i % 3, i, -0.5 * (i % 3)) for i in range(30)]


def _csv(path, text=None, separator=",", split=False):
    head = ["width", "Label", "depth", *(["split"] if split else [])]
    rows = [[x, "abc"[k], d, *(["test" if x > 24 else "Train"] * split)] for k, x, d in ROWS]
    lines = [separator.join(map(str, row)) for row in [head, *rows]]
    path.write_text("\n".join(lines) + "\n" if text is None else text)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table(tmp_path, separator):
    data = load(_csv(tmp_path / "own.csv", separator=separator))
    assert (data.kind, data.classes, data.columns) == (
        "vector",
        ("a", "b", "c"),
        ("width", "depth"),
    )
    assert (len(data.train), len(data.test), data.sample_shape) == (24, 6, (2,))
    assert data.notes[0].startswith("own.csv has no test part: 6 of its 30 examples, a fifth")
    for part in (data.train, data.test):
        assert torch.equal(part.x[:, 0] % 3, part.y.float())
    assert preset(str(tmp_path / "own.csv"), "cosine").network == "mlp"


def test_a_table_that_says_which_rows_test(tmp_path):
    data = load(_csv(tmp_path / "own.csv", split=True))
    assert (len(data.train), len(data.test), data.notes) == (25, 5, ())
    assert data.test.x[:, 0].tolist() == [25, 26, 27, 28, 29]


def test_labels_that_are_numbers_are_in_their_order(tmp_path):
    text = "\ufeffclass,x\n" + "".join(f"{k},{k}.5\n" for k in (10, 9, 1) * 5) + "\n"
    assert load(_csv(tmp_path / "own.csv", text)).classes == ("1", "9", "10")


@pytest.mark.parametrize("names", [("1.0", "2.0"), ("1.5", "1.5b"), ("dose 0.5", "dose 1.5")])
def test_labels_that_are_no_decimals_are_classes(tmp_path, names):
    text = "class,x\n" + "".join(f"{name},1\n" for name in names * 5)
    assert load(_csv(tmp_path / "own.csv", text)).classes == names


DAMAGE = {
    "empty": ("", "first line must name every column|no column of numbers"),
    "no labels": (
        "x,z\n1,2\n",
        "no column of labels among x, z; name it label, class, target or y",
    ),
    "two of labels": ("y,class,x\n1,2,3\n", "several columns of labels: class and y; rename"),
    "twice": (
        "x,x,y\n1,2,3\n",
        "must name every column, and no two alike, but 2 are named 'x'; name it",
    ),
    "no name": ("x,,y\n1,2,3\n", "no two alike, but column 2 has no name; name it"),
    "decimals": (
        "x,y\n" + "1,0.5\n2,1.5\n" * 9,
        r"its labels look like numbers to predict \(such as 0.5\), and here only classes are",
    ),
    "numbers": (
        "x,y\n" + "".join(f"1,{i}\n" for i in range(300)),
        r"look like numbers to predict \(300 in 300 rows\).* name them by words",
    ),
    "numbers, some twice": (
        "x,y\n" + "".join(f"1,{min(i, 250)}\n" for i in range(300)),
        r"look like numbers to predict \(251 in 300 rows\)",
    ),
    "no numbers": ("y\na\nb\n", "no column of numbers"),
    "no rows": ("x,y\n", "no row under its first line"),
    "one class": ("x,y\n1,a\n2,a\n", "1 class in it"),
    "short": ("x,z,y\n1,2,a\n1,b\n", "line 3 has 2 values for 3 columns"),
    "a word": (
        "x,y\n1,a\nred,b\n",
        "line 3 has 'red' in the column 'x', which is no finite number",
    ),
    "a gap": ("x,y\n1,a\n,b\n", "line 3 has '' in the column 'x'"),
    "not finite": ("x,y\n1,a\nnan,b\n", "line 3 has 'nan'"),
    "too large": ("x,y\n1,a\n1e300,b\n", "line 3 has '1e300'"),
    "validation": ("x,y,split\n1,a,train\n2,b,train\n3,a,val\n", "split is 'val' in a row"),
    "no test": ("x,y,split\n1,a,train\n2,b,train\n", "split is never test"),
    "untrained": ("x,y,split\n1,a,train\n2,b,test\n", "'b' has no row to train on"),
    "binary": ("x,y\n1,\0a\n", "not a CSV file|1 class"),
    "single": ("x,y\n1,a\n2,b\n", "no class has two examples"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_tables_that_are_none(tmp_path, case):
    text, told = DAMAGE[case]
    with pytest.raises(DataError, match=rf"own.csv: .*({told})"):
        load(_csv(tmp_path / "own.csv", text))


def test_a_table_in_another_encoding(tmp_path):
    (tmp_path / "own.csv").write_bytes(b"x,y\n1,\xe9\n")
    with pytest.raises(DataError, match=r"own.csv: not a CSV file in UTF-8"):
        load(tmp_path / "own.csv")


def test_the_table_that_trained_a_run_can_be_given_to_it(tmp_path):
    path = _csv(tmp_path / "own.csv")
    config = configure(str(path), "none", epochs=40, width=16, lr=0.05)
    notes = Notes()
    run(config, tmp_path / "run", watcher=notes)
    assert notes.warnings[0].startswith("own.csv has no test part")
    expected = load_run(tmp_path / "run").predict(
        np.array([[x, d] for _, x, d in ROWS], np.float32)
    )
    assert [row.label for row in predict_file(tmp_path / "run", path)] == expected
    turned = "\n".join(["depth,width", *(f"{d},{x}" for _, x, d in ROWS)])
    other = _csv(tmp_path / "other.csv", turned + "\n")
    assert [row.label for row in predict_file(tmp_path / "run", other)] == expected
    with pytest.raises(DataError, match=r"no column 'depth', which training had; it has width"):
        list(predict_file(tmp_path / "run", _csv(tmp_path / "less.csv", "width\n3\n")))


def _texts(root, parts=(".",), count=10):
    words = {"ships": "sea wind sail mast", "stars": "sky night light comet"}
    for part in parts:
        for name, text in words.items():
            (root / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                chosen = text.split()[: 2 + i % 3]
                (root / part / name / f"{i}.txt").write_text(f"the {' '.join(chosen)} word{i}\n")
            (root / part / name / "._0.txt").write_bytes(b"\0\1")
    return root


def test_text_folders(tmp_path):
    data = load(_texts(tmp_path / "own"))
    assert (data.kind, data.classes) == ("sparse", ("ships", "stars"))
    assert (len(data.train), len(data.test)) == (16, 4)
    assert data.notes[0].startswith("own has no test part: 4 of its 20 examples")
    assert set(data.text.words) == {*b"the word sea wind sail sky night light".split()}
    both = load(_texts(tmp_path / "both", parts=("train", "Test")), min_df=1, tfidf="l2")
    assert (len(both.train), len(both.test), both.notes) == (20, 20, ())
    assert torch.equal(
        both.train.x.to_dense(),
        both.text.rows(
            [
                p.read_bytes()
                for c in both.classes
                for p in sorted((tmp_path / "both/train" / c).glob("[0-9]*"))
            ]
        ).to_dense(),
    )


def test_texts_that_would_not_be_used_are_refused(tmp_path):
    deep = _texts(tmp_path / "deep") / "ships" / "old"
    deep.mkdir()
    (deep / "0.txt").write_text("sail")
    with pytest.raises(DataError, match=r"old/0.txt: texts must lie in the class folder itself"):
        load(tmp_path / "deep")
    with pytest.raises(DataError, match=r"eval: texts in it, and it is no part by its name"):
        load(_texts(tmp_path / "beside", parts=("train", "eval")))


def test_text_folders_that_say_nothing(tmp_path):
    with pytest.raises(DataError, match=r"no word occurs in 50 training documents; lower min_df"):
        load(_texts(tmp_path / "rare"), min_df=50)
    for path in _texts(tmp_path / "digits").rglob("*.txt"):
        path.write_text("1 2 3")
    with pytest.raises(DataError, match=r"digits: no words of two or more letters"):
        load(tmp_path / "digits")
    (_texts(tmp_path / "odd") / "ships" / "0.txt").write_bytes(b"a\0b")
    with pytest.raises(DataError, match=r"0.txt: not a text file"):
        load(tmp_path / "odd")


def test_a_run_on_texts_classifies_texts(tmp_path):
    folder = _texts(tmp_path / "own")
    config = configure(str(folder), "cosine", epochs=30, width=16, min_df=2)
    assert config.network == "mlp"
    assert run(config, tmp_path / "run").summary["final_test_error"] == 0
    (tmp_path / "new.txt").write_text("From: me\nSubject: stars\n\nWind and sail at sea")
    (row,) = predict_file(tmp_path / "run", tmp_path / "new.txt")
    assert row.label == "ships"
    rows = list(predict_file(tmp_path / "run", folder))
    assert len(rows) == 20 and {row.error for row in rows} == {None}


def test_a_pipe_named_like_a_text_is_passed_over(tmp_path):
    os.mkfifo(_texts(tmp_path) / "ships" / "pipe.txt")
    assert len(load(tmp_path).train) == 16
