"""20NEWS: TF-IDF against scikit-learn, both sources, the paper's numbers, damaged files."""

import time

import numpy as np
import pytest
import torch
from data_files import GROUPS, real_data, write_news
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import MaxAbsScaler

from cosnorm.study.data import DataError, load, news
from cosnorm.study.data.news import count_words
from cosnorm.study.data.splits import kept_rows


def _counts(folder, part, shape):
    document, word, count = np.loadtxt(folder / f"{part}.data", dtype=int).T
    return csr_matrix((count.astype(float), (document - 1, word - 1)), shape=shape)


@pytest.mark.parametrize("variant, norm", [("raw", None), ("l2", "l2")])
def test_features_equal_scikit_learns(tmp_path, variant, norm):
    folder = write_news(tmp_path)
    data = load("20news", tmp_path, tfidf=variant, min_df=5)
    train, test = _counts(folder, "train", (24, 30)), _counts(folder, "test", (9, 30))
    chosen = np.asarray((train > 0).sum(0)).ravel() >= 5
    assert 5 < chosen.sum() < 30
    weights = TfidfTransformer(norm=norm).fit(train[:, chosen])
    scaler = MaxAbsScaler().fit(weights.transform(train[:, chosen]))
    for split, counts in ((data.train, train), (data.test, test)):
        expected = scaler.transform(weights.transform(counts[:, chosen])).toarray()
        assert split.x.layout == torch.sparse_csr and split.x.dtype == torch.float32
        np.testing.assert_allclose(split.x.to_dense().numpy(), expected, rtol=1e-6)
    assert data.kind == "sparse" and data.sample_shape == (chosen.sum(),)
    assert data.classes == GROUPS and data.train.y.tolist() == [i % 3 for i in range(24)]


def test_each_training_feature_has_maximum_one(tmp_path):
    write_news(tmp_path)
    for variant in ("raw", "l2"):
        dense = load("20news", tmp_path, tfidf=variant).train.x.to_dense()
        assert torch.equal(dense.amax(0), torch.ones(dense.shape[1])) and dense.min() == 0


def test_triples_in_any_order_and_split_in_two_give_the_same(tmp_path):
    folder = write_news(tmp_path)
    before = load("20news", tmp_path).fingerprint
    lines = (folder / "train.data").read_text().splitlines(keepends=True)
    document, word, count = lines[5].split()
    assert int(count) > 1
    lines[5:6] = [f"{document} {word} 1\n", f"{document} {word} {int(count) - 1}\n"]
    np.random.RandomState(0).shuffle(lines)
    (folder / "train.data").write_text("".join(lines))
    assert load("20news", tmp_path).fingerprint == before


def test_a_document_without_a_chosen_word_is_an_empty_row(tmp_path):
    folder = write_news(tmp_path)
    (folder / "test.data").write_text("".join(f"{i} 30 1\n" for i in range(1, 10)))
    train = (folder / "train.data").read_text().splitlines(keepends=True)
    (folder / "train.data").write_text("".join(x for x in train if x.split()[1] != "30"))
    for variant in ("raw", "l2"):
        x = load("20news", tmp_path, tfidf=variant).test.x
        assert x.values().numel() == 0 and x.shape[0] == 9


def test_rows_are_dropped_by_a_fixed_seed():
    rows = kept_rows(11_269, 11_200, 69)
    assert len(rows) == 11_200 and np.all(np.diff(rows) > 0) and rows[-1] < 11_269
    assert np.array_equal(rows, kept_rows(11_269, 11_200, 69))
    assert not np.array_equal(rows, kept_rows(11_269, 11_200, 70))
    assert np.array_equal(kept_rows(5, 7, 0), np.arange(5))
    dropped = np.setdiff1d(np.arange(11_269), rows)
    assert dropped[:5].tolist() == [258, 267, 786, 995, 1565]  # on every machine, for ever


def _write_posts(root):
    bodies = {
        "train": ("Space SPACE orbit", "orbit: 3 rockets, a b moon-rocket"),
        "test": ("space!",),
    }
    for part, texts in bodies.items():
        for group in GROUPS:
            folder = root / f"20news-bydate-{part}" / group
            folder.mkdir(parents=True)
            for number, text in enumerate(texts):
                post = f"From: me@here\nSubject: header words\n\n{text} {group}\n"
                (folder / str(10_000 + number)).write_bytes(post.encode())
    (root / "20news-bydate-train" / GROUPS[0] / "99999").write_bytes(b"From: x\n\n1 2 3\n")


def test_raw_posts(tmp_path):
    _write_posts(tmp_path)
    data = load("20news", tmp_path, min_df=1)
    assert data.classes == GROUPS and len(data.train) == 6 and data.test.y.tolist() == [0, 1, 2]
    words = {"space", "orbit", "rockets", "moon", "rocket"}.union(*(g.split(".") for g in GROUPS))
    assert data.sample_shape == (len(words),)
    space = data.train.x.to_dense()[:, 0]
    assert space.tolist() == pytest.approx([2 / 3, 0, 1, 1 / 3, 2 / 3, 0])
    assert data.test.x.to_dense()[:, 0].tolist() == pytest.approx([1 / 3, 2 / 3, 1 / 3])


def test_words_are_lower_case_runs_of_letters_in_the_body(tmp_path):
    path = tmp_path / "post"
    path.write_bytes(b"From: head\r\nX: y\r\n\r\nDon't PANIC, x-ray 42\xe9tude\r\n\r\nDon")
    assert count_words(path) == {b"don": 2, b"panic": 1, b"ray": 1, b"tude": 1}


def test_source_chooses_between_the_two(tmp_path):
    write_news(tmp_path)
    _write_posts(tmp_path)
    assert (
        load("20news", tmp_path).fingerprint
        == load("20news", tmp_path, source="matlab").fingerprint
    )
    assert len(load("20news", tmp_path, source="raw", min_df=1).train) == 6
    with pytest.raises(DataError, match=r"source must be 'auto', 'matlab' or 'raw', received 'x'"):
        load("20news", tmp_path, source="x")


def _last_line(content, new):
    return content.rsplit(b"\n", 2)[0] + b"\n" + new + b"\n"


DAMAGE = {
    "cut line": ("train.data", lambda c: c[:-3], "truncated: its last line has no end"),
    "cut at a line": ("train.data", lambda c: c[: c.index(b"\n23 ") + 1], "last document is 22"),
    "empty": ("train.data", lambda c: b"", "truncated"),
    "letters": ("train.data", lambda c: c + b"a b c\n", "something other than whole numbers"),
    "two on a line": ("train.data", lambda c: c + b"1 2\n", "each line must hold 3"),
    "empty line": ("train.data", lambda c: b"\n" + c, "each line must hold 3"),
    "document 0": ("train.data", lambda c: b"0 1 1\n" + c, "1 or more"),
    "document 25": ("train.data", lambda c: c + b"25 1 1\n", "last document is 25.*24 labels"),
    "word 31": (
        "test.data",
        lambda c: c + b"9 31 1\n",
        r"test\.data: word 31 is beyond the 30 of the vocabulary",
    ),
    "count 0": ("test.data", lambda c: c + b"9 1 0\n", "1 or more"),
    "label 4": (
        "train.label",
        lambda c: _last_line(c, b"4"),
        "label 4 of example 23 is out of range 1…3",
    ),
    "label 0": ("test.label", lambda c: _last_line(c, b"0"), "label 0 of example 8"),
    "label missing": ("test.label", lambda c: c[:-2], "last document is 9.*8 labels"),
    "map": (
        "train.map",
        lambda c: b"alt.atheism 7\n",
        "a group and its number, counting up from 1",
    ),
    "other map": ("test.map", lambda c: b"x 1\ny 2\nz 3\n", "other groups than train.map"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_with_the_file(tmp_path, case):
    name, change, message = DAMAGE[case]
    path = write_news(tmp_path) / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        load("20news", tmp_path)
    assert str(path.parent) in str(caught.value)


@pytest.mark.parametrize("name", ["test.data", "train.label", "test.map"])
def test_missing_files_are_named(tmp_path, name):
    (write_news(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=f"{name} not found.*cosnorm data fetch 20news"):
        load("20news", tmp_path)


def test_without_the_list_of_words_their_number_is_still_bounded(tmp_path):
    folder = write_news(tmp_path)
    expected = load("20news", tmp_path).fingerprint
    (folder.parent / "vocabulary.txt").unlink()
    assert load("20news", tmp_path).fingerprint == expected
    with (folder / "test.data").open("a") as file:
        file.write("9 999999999999999999999999 1\n")
    with pytest.raises(DataError, match=r"is beyond the 16,777,216 of the vocabulary"):
        load("20news", tmp_path)


def test_posts_without_a_test_part_are_refused(tmp_path):
    (tmp_path / "20news-bydate-train" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match=r"20news-bydate-test/ not found"):
        load("20news", tmp_path)
    (tmp_path / "20news-bydate-test" / "b").mkdir(parents=True)
    with pytest.raises(DataError, match=r"must hold the same groups"):
        load("20news", tmp_path)
    (tmp_path / "20news-bydate-test" / "a").mkdir()
    (tmp_path / "20news-bydate-test" / "b").rmdir()
    with pytest.raises(DataError, match=r"20news-bydate-train/a: it holds no posts with words"):
        load("20news", tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_group_without_posts_is_refused(tmp_path, part):
    _write_posts(tmp_path)
    folder = tmp_path / f"20news-bydate-{part}" / GROUPS[1]
    for path in folder.iterdir():
        path.unlink()
    (folder / "no words").write_bytes(b"From: x\n\n1 2 3\n")
    (folder / "folder").mkdir()
    with pytest.raises(DataError, match=rf"{part}/{GROUPS[1]}: it holds no posts with words; unp"):
        load("20news", tmp_path, min_df=1)


def test_the_published_groups_must_have_the_published_posts(tmp_path, monkeypatch):
    def write(part, group, count):
        folder = tmp_path / f"20news-bydate-{part}" / group
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (folder / str(number)).write_bytes(b"From: x\n\nsome words\n")

    for group in news.GROUPS:
        write("train", group, 5)
        write("test", group, 3)
    told = r": 20news has 11,314 training and 7,532 test posts, here are 100 and 60; unpack"
    with pytest.raises(DataError, match=told) as caught:
        load("20news", tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    monkeypatch.setattr(news, "POSTS", ((100, 60), (99, 60)))
    assert len(load("20news", tmp_path).train) == 100
    (tmp_path / "20news-bydate-test" / "sci.med" / "0").unlink()
    with pytest.raises(DataError, match=r"100 training and 60 test posts, here are 100 and 59"):
        load("20news", tmp_path)


def test_the_groups_are_those_of_the_release():
    names = (real_data() / "20news-bydate" / "matlab" / "train.map").read_text().split()[::2]
    assert set(names) == news.GROUPS and len(names) == 20


def test_options_are_checked(tmp_path):
    write_news(tmp_path)
    with pytest.raises(DataError, match=r"tfidf must be 'raw' or 'l2', received 'log'"):
        load("20news", tmp_path, tfidf="log")
    with pytest.raises(DataError, match=r"no word occurs in 100 training documents; lower min_df"):
        load("20news", tmp_path, min_df=100)
    with pytest.raises(DataError, match=r"min_df must be a whole number of at least 1, received 0"):
        load("20news", tmp_path, min_df=0)
    with pytest.raises(
        DataError, match=r"20news has no option 'idf'; it has tfidf, min_df, source"
    ):
        load("20news", tmp_path, idf=True)


def test_the_papers_numbers():
    root = real_data()
    start = time.perf_counter()
    data = load("20news", root)
    assert time.perf_counter() - start < 8  # 0.3 s on an idle core
    assert data.sample_shape == (21_566,)
    assert (len(data.train), len(data.test), len(data.classes)) == (11_200, 7_500, 20)
    assert load("20news", root, tfidf="l2").sample_shape == (21_566,)
    assert load("20news", root, min_df=6).sample_shape == (18_989,)
    values = data.train.x.values()
    assert values.min() > 0 and values.max() == 1


@pytest.mark.slow
def test_posts_rebuilt_from_the_real_counts_give_the_same_features(tmp_path):
    """The words of each document, written out as a post, lead back to the same matrix."""
    folder = real_data() / "20news-bydate" / "matlab"
    words = (folder.parent / "vocabulary.txt").read_text().split()
    for part in ("train", "test"):
        groups = [line.split()[0] for line in (folder / f"{part}.map").read_text().splitlines()]
        labels = np.loadtxt(folder / f"{part}.label", dtype=int)
        texts: list[list[str]] = [[] for _ in labels]
        for document, word, count in np.loadtxt(folder / f"{part}.data", dtype=int).tolist():
            texts[document - 1] += [words[word - 1]] * count
        for number, (label, text) in enumerate(zip(labels, texts, strict=True)):
            path = tmp_path / f"20news-bydate-{part}" / groups[label - 1] / f"{number:06}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("From: someone\n\n" + " ".join(text))
    expected = load("20news", folder.parents[1])
    start = time.perf_counter()
    found = load("20news", tmp_path)
    assert time.perf_counter() - start < 60  # 5 s on an idle core
    assert found.sample_shape == expected.sample_shape == (21_566,)
    for one, other in ((found.train, expected.train), (found.test, expected.test)):
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.x.crow_indices(), other.x.crow_indices())
        assert torch.equal(*(_sorted_rows(split.x) for split in (one, other)))


def _sorted_rows(x):
    """The values of a CSR tensor, sorted within each row: the same whatever the columns' order."""
    rows = np.repeat(np.arange(x.shape[0]), np.diff(x.crow_indices().numpy()))
    return torch.from_numpy(x.values().numpy()[np.lexsort((x.values().numpy(), rows))])
