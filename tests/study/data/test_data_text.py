"""Documents that come after training become the rows that they would have been in it."""

import numpy as np
import pytest
import torch
from data_files import real_data, write_news

from cosnorm.study.data import load
from cosnorm.study.data.splits import kept_rows
from cosnorm.study.data.text import without_head


def documents_of(folder, part, words):
    """The documents of the matlab files, written out."""
    texts = {}
    for document, word, count in np.loadtxt(folder / f"{part}.data", dtype=int).tolist():
        texts.setdefault(document, []).extend([words[word - 1]] * count)
    return [" ".join(texts[number]).encode() for number in sorted(texts)]


@pytest.mark.parametrize("variant", ["raw", "l2"])
def test_texts_become_the_rows_that_they_were(tmp_path, variant):
    folder = write_news(tmp_path)
    words = [f"word{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(30)]
    (folder.parent / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words))
    data = load("20news", tmp_path, tfidf=variant)
    assert data.text is not None and len(data.text.words) == data.sample_shape[0]
    for part, split in (("train", data.train), ("test", data.test)):
        rows = data.text.rows(documents_of(folder, part, words))
        assert torch.equal(rows.crow_indices(), split.x.crow_indices())
        assert torch.equal(rows.col_indices(), split.x.col_indices())
        assert torch.equal(rows.values(), split.x.values())


def test_unknown_words_are_passed(tmp_path):
    folder = write_news(tmp_path)
    (folder.parent / "vocabulary.txt").write_text("".join(f"{chr(97 + i)}x\n" for i in range(30)))
    text = load("20news", tmp_path).text
    known = text.words[0].decode().upper()
    rows = text.rows([f"never {known}, seen".encode(), b"never seen", b""])
    assert rows.crow_indices().tolist() == [0, 1, 1, 1]
    assert rows.col_indices().tolist() == [0]


@pytest.mark.parametrize("content", [None, b""])
def test_without_the_list_there_is_no_text(tmp_path, content):
    path = write_news(tmp_path).parent / "vocabulary.txt"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert load("20news", tmp_path).text is None


@pytest.mark.parametrize(
    ("document", "body"),
    [
        (b"From: me@here\nSubject: a b\n\nThe text", b"The text"),
        (b"Path: x!y\r\nfrom: me\r\nX-a: b\r\n\tc d\r\n\r\nThe text\r\n", b"The text\r\n"),
        (b"From: me\nSubject: no body\n", b"From: me\nSubject: no body\n"),
        (b"Note: this is it.\n\nMore of it", b"Note: this is it.\n\nMore of it"),
        (b"First part.\n\nSecond part.", b"First part.\n\nSecond part."),
        (b"Quoted\nFrom: me\n\nThe text", b"Quoted\nFrom: me\n\nThe text"),
        (b"", b""),
    ],
)
def test_only_the_head_of_a_post_is_left_out(document, body):
    assert without_head(document) == body


def test_the_words_of_the_real_set():
    root = real_data()
    data = load("20news", root)
    folder = root / "20news-bydate" / "matlab"
    words = (folder.parent / "vocabulary.txt").read_text().split()
    documents = documents_of(folder, "test", words)
    kept = kept_rows(len(documents), 7500, 69)
    assert data.text is not None
    rows = data.text.rows([documents[number] for number in kept])
    assert torch.equal(rows.values(), data.test.x.values())
    assert torch.equal(rows.col_indices(), data.test.x.col_indices())
