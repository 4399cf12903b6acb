"""A run on documents classifies text by itself, from what is in its folder."""

import os
import shutil

import numpy as np
import pytest
from experiment_cases import Notes, StopAfter, config_for, sparse_data

from cosnorm.study.data import DataError, load
from cosnorm.study.runs.errors import RunError
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.predict import predict_file

TOPICS = {
    "sci.space": "orbit rocket moon shuttle",
    "rec.autos": "engine wheel brake clutch",
    "talk.food": "bread cheese salad onion",
}


def posts(root):
    random = np.random.RandomState(0)
    for part, count in (("train", 12), ("test", 4)):
        for group, words in TOPICS.items():
            folder = root / f"20news-bydate-{part}" / group
            folder.mkdir(parents=True)
            for number in range(count):
                body = " ".join([*random.choice(words.split(), 5), "the", "and"])
                (folder / str(number)).write_text(f"From: me\nSubject: x\n\n{body}\n")
    return root


@pytest.fixture(scope="module")
def news(tmp_path_factory):
    return load("20news", posts(tmp_path_factory.mktemp("news")), min_df=2)


@pytest.fixture(scope="module", params=["raw", "l2"])
def text_run(tmp_path_factory, news, request):
    folder = tmp_path_factory.mktemp("run")
    root = posts(tmp_path_factory.mktemp("posts"))
    data = load("20news", root, min_df=2, tfidf=request.param)
    config = config_for("pearson", epochs=20, min_df=2, tfidf=request.param)
    assert run(config, folder, dataset=data).status == "done"
    shutil.rmtree(root)
    return folder


def test_texts(text_run, tmp_path):
    (tmp_path / "b.txt").write_text("A Rocket to the MOON, and an orbit.")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.txt").write_text("From: x\nSubject: moon\n\nbread, cheese and salad")
    (tmp_path / "note").write_text("the engine and the brake")
    predicted = list(predict_file(text_run, tmp_path))
    assert [(os.path.basename(row.name), row.label) for row in predicted] == [
        ("b.txt", "sci.space"),
        ("a.txt", "talk.food"),
    ]
    (row,) = predict_file(text_run, tmp_path / "note")
    assert (row.name, row.label) == (str(tmp_path / "note"), "rec.autos")
    assert 1 / 3 < row.probability <= 1


def test_a_text_is_classified_as_its_row_is(text_run, news, tmp_path):
    (tmp_path / "one.txt").write_text("orbit orbit wheel bread")
    ((_, label, probability, _),) = predict_file(text_run, tmp_path / "one.txt")
    loaded = load_run(text_run)
    if loaded.config.tfidf == "raw":
        row = news.text.rows([b"orbit orbit wheel bread"])
        assert loaded.predict(row) == [label]
        assert float(loaded.probabilities(row).max()) == pytest.approx(probability, abs=1e-6)
    np.save(tmp_path / "rows.npy", news.test.x.to_dense().numpy())
    assert len(list(predict_file(text_run, tmp_path / "rows.npy"))) == len(news.test)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.txt", None, "no.txt: no such file"),
        ("empty.txt", b"", "empty.txt: none of its words is among the 1. that the run knows"),
        ("strange.txt", b"quux", "strange.txt: none of its words"),
        ("wide.txt", "orbit".encode("utf-16"), "wide.txt: not a text file in UTF-8"),
        ("image.png", b"", "image.png: the run was trained on rows of numbers, not on images"),
    ],
)
def test_bad_texts_are_named(text_run, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(predict_file(text_run, tmp_path / name))


def test_a_bad_text_of_a_folder_does_not_keep_the_others_from_their_classes(text_run, tmp_path):
    texts = {"a": b"orbit moon", "b": b"quux", "c": "moon".encode("utf-16"), "d": b"brake wheel"}
    for name, content in texts.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    rows = list(predict_file(text_run, tmp_path))
    assert [row.name for row in rows] == [str(tmp_path / f"{name}.txt") for name in texts]
    assert [row.label for row in rows] == ["sci.space", None, None, "rec.autos"]
    assert [row.probability is None for row in rows] == [row.error is not None for row in rows]
    assert "b.txt: none of its words is among the 1" in rows[1].error
    assert "c.txt: not a text file" in rows[2].error
    (alone,) = predict_file(text_run, tmp_path / "d.txt")
    assert alone.probability == pytest.approx(rows[3].probability, rel=1e-6)


def test_a_folder_of_strange_texts_only(text_run, tmp_path):
    (tmp_path / "a.txt").write_text("quux")
    assert [row.label for row in predict_file(text_run, tmp_path)] == [None]


def test_a_folder_without_texts(text_run, tmp_path):
    with pytest.raises(DataError, match=r"no \.txt file in this folder"):
        list(predict_file(text_run, tmp_path))


@pytest.mark.filterwarnings("ignore:.* is not over")
def test_a_run_that_was_stopped_has_its_words(news, tmp_path):
    config = config_for("cosine", min_df=2)
    run(config, tmp_path / "run", dataset=news, stop=StopAfter(2))
    (tmp_path / "a.txt").write_text("moon")
    assert len(list(predict_file(tmp_path / "run", tmp_path / "a.txt"))) == 1
    path = tmp_path / "run" / "vocabulary.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(RunError, match=r"vocabulary.safetensors is damaged: .*; restore it"):
        list(predict_file(tmp_path / "run", tmp_path / "a.txt"))
    assert run(config, tmp_path / "run", dataset=news).status == "done"
    assert path.read_bytes() == whole


def test_words_of_another_run_are_refused(news, text_run, tmp_path):
    config = config_for("cosine", min_df=2, epochs=1)
    run(config, tmp_path / "run", dataset=sparse_data(), watcher=(notes := Notes()))
    assert len(notes.warnings) == 1
    assert "came without its list of words" in notes.warnings[0]
    (tmp_path / "a.txt").write_text("moon")
    with pytest.raises(RunError, match=r"has no vocabulary\.safetensors: .* train again with"):
        list(predict_file(tmp_path / "run", tmp_path / "a.txt"))
    shutil.copy(text_run / "vocabulary.safetensors", tmp_path / "run")
    with pytest.raises(RunError, match=r"is of another run: it has 1. words for 40 features"):
        list(predict_file(tmp_path / "run", tmp_path / "a.txt"))


def test_a_run_that_cannot_begin_leaves_no_words(news, tmp_path):
    class Failing(Notes):
        def begin(self, config, step, total, batch_size):
            assert (tmp_path / "vocabulary.safetensors").exists()
            raise OSError("no reader")

    with pytest.raises(OSError, match="no reader"):
        run(config_for(min_df=2), tmp_path, dataset=news, watcher=Failing())
    assert list(tmp_path.iterdir()) == []
