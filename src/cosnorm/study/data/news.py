"""20 Newsgroups, sorted by date, from the release's "matlab" files or from the posts themselves.

The matlab release has, for training and test, lines `document word count` (all from 1), a label a
line, and a map of group names to labels. It was made from the bodies of the posts, lower-cased,
as runs of two or more letters; the same is done here to raw posts.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from cosnorm.study.data.dataset import Dataset, Split
from cosnorm.study.data.errors import DataError, damaged
from cosnorm.study.data.paths import first_existing, not_found
from cosnorm.study.data.published import COUNTS, check_counts, check_labels
from cosnorm.study.data.rows import take
from cosnorm.study.data.splits import kept_rows
from cosnorm.study.data.text import TextFeatures, body_of, words_in
from cosnorm.study.data.tfidf import Counts, Variant, features, fitted

# Posts of the release, and of those the ones with a word in them, which the counts are of.
POSTS = ((11_314, 7_532), COUNTS["20news"])
GROUPS = {
    *("alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware"),
    *("comp.sys.mac.hardware", "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles"),
    *("rec.sport.baseball", "rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med"),
    *("sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast"),
    *("talk.politics.misc", "talk.religion.misc"),
}
KEPT = (11_200, 7_500)  # the paper drops the rest at random
DROP_SEED = 69
MOST_WORDS = 1 << 24  # where no list of words says how many there are

Part = tuple[Counts, np.ndarray]
Words = Sequence[bytes] | None  # by number, where they are known


def news(root: Path, tfidf: Variant = "raw", min_df: int = 5, source: str = "auto") -> Dataset:
    """20NEWS as TF-IDF features of the words in at least `min_df` training documents.

    At most 11,200 and 7,500 documents are kept, chosen by a fixed seed; words, idf and maxima are
    fitted to all training documents before that. With the matlab release and min_df = 5 that
    gives 21,566 features.

    Args:
        tfidf: "raw" (tf · idf, as the paper says) or "l2" (each document then of length
            one); either way each feature is divided by its training maximum.
        source: "matlab", "raw" (posts), or "auto": the first of the two that is there.
    """
    if source not in ("auto", "matlab", "raw"):
        raise DataError(f"20news: source must be 'auto', 'matlab' or 'raw', received {source!r}")
    matlab, posts = _matlab_folder(root), _posts_folder(root)
    if matlab and source != "raw":
        train, test, classes, words = _read_matlab(matlab)
    elif posts and source != "matlab":
        train, test, classes, words = _read_posts(posts)
    else:
        raise not_found("20news", root, "20news-bydate/matlab/ or 20news-bydate-train/")
    weighting = fitted(train[0], tfidf, min_df)
    parts = []
    for (counts, y), keep in ((train, KEPT[0]), (test, KEPT[1])):
        x, rows = features(counts, weighting), kept_rows(len(y), keep, DROP_SEED)
        parts.append(
            Split(take(x, torch.from_numpy(rows)), torch.from_numpy(y[rows].astype(np.int64)))
        )
    text = None if words is None else TextFeatures.of(words, weighting)
    return Dataset("20news", parts[0], parts[1], classes, "sparse", text)


def _matlab_folder(root: Path) -> Path | None:
    folders = (root / "20news-bydate" / "matlab", root / "20news" / "matlab", root / "matlab", root)
    return first_existing(folder for folder in folders if (folder / "train.data").exists())


def _posts_folder(root: Path) -> Path | None:
    folders = (root, root / "20news-bydate", root / "20news")
    return first_existing(f for f in folders if (f / "20news-bydate-train").is_dir())


def _read_matlab(folder: Path) -> tuple[Part, Part, tuple[str, ...], Words]:
    classes = _read_map(folder / "train.map")
    if _read_map(folder / "test.map") != classes:
        raise damaged(folder / "test.map", "it names other groups than train.map")
    triples, labels = {}, {}
    for part in ("train", "test"):
        labels[part] = _integers(folder / f"{part}.label", 1)[:, 0]
        check_labels(labels[part], len(classes), folder / f"{part}.label", first=1)
        triples[part] = _read_triples(folder / f"{part}.data", len(labels[part]))
    check_counts("20news", len(labels["train"]), len(labels["test"]), folder)
    known = _vocabulary(folder)
    words = len(known) if known else None
    last = {part: int(triples[part][:, 1].max()) for part in triples}
    most = words or MOST_WORDS
    for part, word in last.items():
        if word > most:
            raise damaged(
                folder / f"{part}.data", f"word {word:,} is beyond the {most:,} of the vocabulary"
            )
    parts = []
    for part in ("train", "test"):
        document, word, count = triples[part].T
        shape = (len(labels[part]), words or max(last.values()))
        parts.append((Counts.from_triples(document - 1, word - 1, count, shape), labels[part] - 1))
    return parts[0], parts[1], classes, known or None


def _read_triples(path: Path, documents: int) -> np.ndarray:
    triples = _integers(path, 3)
    if triples.min() < 1:
        raise damaged(path, "documents, words and counts are 1 or more, here is one below")
    if triples[:, 0].max() != documents:
        raise damaged(
            path,
            f"its last document is {triples[:, 0].max():,}, but there are {documents:,} labels",
        )
    return triples


def _integers(path: Path, columns: int) -> np.ndarray:
    """The (lines, columns) integers of a text file with exactly that many on each line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise not_found("20news", path.parent, path.name) from error
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    if not content.endswith(b"\n"):
        raise damaged(path, "truncated: its last line has no end")
    if content.translate(None, b"0123456789 \t\r\n"):
        raise damaged(path, "it holds something other than whole numbers")
    values = np.fromstring(content, dtype=np.int64, sep=" ")
    if len(values) == 0 or len(values) != columns * content.count(b"\n"):
        raise damaged(path, f"each line must hold {columns} whole number(s), and one does not")
    return values.reshape(-1, columns)


def _read_map(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="latin-1").splitlines()
    except FileNotFoundError as error:
        raise not_found("20news", path.parent, path.name) from error
    pairs = [line.split() for line in lines if line.strip()]
    numbers = [pair[1] for pair in pairs if len(pair) == 2]
    if not pairs or numbers != [str(i) for i in range(1, len(pairs) + 1)]:
        raise damaged(path, "each line must be a group and its number, counting up from 1")
    return tuple(pair[0] for pair in pairs)


def _vocabulary(folder: Path) -> list[bytes] | None:
    """The list of words, where it is there (it is a download of its own)."""
    path = first_existing([folder / "vocabulary.txt", folder.parent / "vocabulary.txt"])
    return None if path is None else [word.strip() for word in path.read_bytes().splitlines()]


def _read_posts(root: Path) -> tuple[Part, Part, tuple[str, ...], Words]:
    folders = [root / "20news-bydate-train", root / "20news-bydate-test"]
    if not folders[1].is_dir():
        raise not_found("20news", root, "20news-bydate-test/")
    groups = [sorted(p.name for p in folder.iterdir() if p.is_dir()) for folder in folders]
    if groups[0] != groups[1] or not groups[0]:
        raise damaged(root, "the training and test folders must hold the same groups")
    posts = [{group: _posts(folder / group) for group in groups[0]} for folder in folders]
    _check_posts(root, posts)
    numbers: dict[bytes, int] = {}
    read = [_read_part(folder, part, numbers) for folder, part in zip(folders, posts, strict=True)]
    parts = []
    for triples, labels in read:
        document, word, count = np.frombuffer(triples, np.int64).reshape(-1, 3).T
        shape = (len(labels), len(numbers))
        parts.append((Counts.from_triples(document, word, count, shape), np.array(labels)))
    return parts[0], parts[1], tuple(groups[0]), list(numbers)


def _posts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _check_posts(root: Path, posts: list[dict[str, list[Path]]]) -> None:
    """Refuse the published groups with other than the published number of posts.

    Groups of other names are somebody's own in the same layout, and welcome.
    """
    found = tuple(sum(map(len, part.values())) for part in posts)
    if posts[0].keys() == GROUPS and found not in POSTS:
        (train, test), (here_train, here_test) = POSTS[0], found
        raise damaged(
            root,
            f"20news has {train:,} training and {test:,} test posts, here are {here_train:,} and "
            f"{here_test:,}",
            "unpack 20news-bydate.tar.gz again, or name the groups otherwise if they are your own",
        )


def _read_part(
    folder: Path, groups: dict[str, list[Path]], numbers: dict[bytes, int]
) -> tuple["array[int]", list[int]]:
    """Triples, on end, and labels of one part; new words get the next number.

    Posts without words are left out, as in the release; each group must have others.
    """
    triples = array("q")
    labels: list[int] = []
    for label, (group, posts) in enumerate(groups.items()):
        for path in posts:
            if words := count_words(path):
                for word, count in words.items():
                    triples.extend((len(labels), numbers.setdefault(word, len(numbers)), count))
                labels.append(label)
        if label not in labels[-1:]:
            raise damaged(
                folder / group, "it holds no posts with words", "unpack it again, or add some"
            )
    return triples, labels


def count_words(path: Path) -> Counter[bytes]:
    """The words of a post's body: what follows the first empty line, in lower case."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise damaged(
            path, f"cannot be read ({error})", "check the path and its permissions"
        ) from error
    return words_in(body_of(content))
