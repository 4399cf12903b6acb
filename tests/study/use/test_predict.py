import tokenize

import numpy as np
import pytest
from experiment_cases import config_for, image_data, vector_data

from cosnorm.study.data import DataError, load
from cosnorm.study.runs.errors import RunError
from cosnorm.study.train.run import load_run, run
from cosnorm.study.use.predict import predict_file


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    run(config_for(network="small_conv", epochs=6, channels=16), folder, dataset=image_data())
    return folder


@pytest.fixture(scope="module")
def vector_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    run(config_for(epochs=2), folder, dataset=vector_data())
    return folder


@pytest.mark.parametrize("kind", ["npy", "x", "x_test", "only"])
def test_arrays(image_run, tmp_path, kind):
    rows = image_data().test.x.numpy()
    path = tmp_path / ("rows.npy" if kind == "npy" else "rows.npz")
    if kind == "npy":
        np.save(path, rows)
    else:
        np.savez(path, **{kind: rows})
    predicted = list(predict_file(image_run, path))
    assert [row.name for row in predicted] == [str(i) for i in range(len(rows))]
    assert [row.label for row in predicted] == load_run(image_run).predict(rows)
    assert all(1 / 3 <= row.probability <= 1 for row in predicted)


def test_images(image_run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    rows = image_data().test.x.numpy()
    for i in range(3):
        image.fromarray(rows[i, 0]).save(tmp_path / f"{i}.png")
    predicted = list(predict_file(image_run, tmp_path))
    assert [row.label for row in predicted] == load_run(image_run).predict(rows[:3])
    (row,) = predict_file(image_run, tmp_path / "1.png")
    assert row == (str(tmp_path / "1.png"), *predicted[1][1:])


def test_colour_and_size_are_brought_to_those_of_training(image_run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (31, 17), (200, 10, 10)).save(tmp_path / "other.png")
    assert len(list(predict_file(image_run, tmp_path / "other.png"))) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.npy", None, "no.npy: no such file"),
        ("no.png", None, "no.png: no such file"),
        ("bad.png", b"\x89PNG\r\n\x1a\njunk", "bad.png: not a readable picture"),
        ("bad.npz", b"PK\x03\x04junk", "bad.npz: its arrays cannot be read"),
        ("bad.npy", b"junk", "bad.npy: it is no .npy or .npz file; give an image"),
        ("note.txt", b"hello", "note.txt: it is no .npy or .npz file; give an image"),
    ],
)
def test_bad_files_are_named(image_run, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(predict_file(image_run, tmp_path / name))
    assert "pickle" not in str(caught.value)


def test_a_pickle_is_never_loaded(image_run, tmp_path):
    path = tmp_path / "trap.npy"
    np.save(path, np.array([print, "x"], dtype=object), allow_pickle=True)
    told = (
        r"trap\.npy: its arrays cannot be read \(it holds Python objects, which are never loaded\)"
    )
    with pytest.raises(DataError, match=told):
        list(predict_file(image_run, path))


def test_integers_are_pixels_for_images_and_numbers_for_the_rest(image_run, vector_run, tmp_path):
    rows = image_data().test.x.numpy()
    np.save(tmp_path / "wide.npy", rows.astype(np.int64))
    expected = load_run(image_run).predict(rows)
    assert [row.label for row in predict_file(image_run, tmp_path / "wide.npy")] == expected
    np.save(tmp_path / "over.npy", rows.astype(np.int64) + 200)
    with pytest.raises(DataError, match=r"over\.npy: pixels must be whole .*; got 200 to"):
        list(predict_file(image_run, tmp_path / "over.npy"))
    numbers = np.full((2, 6), 300)
    np.save(tmp_path / "numbers.npy", numbers)
    expected = load_run(vector_run).predict(numbers.astype(np.float32))
    assert [row.label for row in predict_file(vector_run, tmp_path / "numbers.npy")] == expected


def own_file(path, kind):
    """Rows that a first layer of any scale does not give away, in each form that training takes."""
    x = np.random.RandomState(0).randint(0, 256, (80, 5, 5)).astype(np.uint8)
    y = np.arange(80) % 2
    x[y == 1, :2] //= 3
    forms = {
        "grey": x,
        "channels first": np.repeat(x[:, None], 3, 1),
        "channels last": np.repeat(x[..., None], 3, 3),
        "bytes": x.reshape(80, 25),
        "floats": x.reshape(80, 25) / 50,
        "image in floats": x / 50,
        "truth": x.reshape(80, 25) > 90,
    }
    rows = forms[kind]
    np.savez(path, x_train=rows[:60], y_train=y[:60], x_test=rows[60:], y_test=y[60:])


@pytest.mark.parametrize(
    "kind",
    [
        *("grey", "channels first", "channels last", "bytes", "floats", "image in floats"),
        "truth",
    ],
)
def test_the_file_that_trained_a_run_is_read_the_same_way(tmp_path, kind):
    path = tmp_path / "own.npz"
    own_file(path, kind)
    config = config_for("none", lr=0.1, bias=True, width=16).override(dataset=str(path))
    errors = run(config, tmp_path / "run").summary["final_test_error"]
    labels = np.load(path)["y_test"].tolist()
    predicted = [int(row.label) for row in predict_file(tmp_path / "run", path)]
    wrong = sum(a != b for a, b in zip(predicted, labels, strict=True))
    assert 100 * wrong / len(labels) == errors
    data = load(path)
    probabilities = load_run(tmp_path / "run").probabilities(data.test.x).max(1).values
    told = [row.probability for row in predict_file(tmp_path / "run", path)]
    assert told == pytest.approx(probabilities.tolist(), rel=1e-6)


def test_rows_on_another_scale_than_that_of_training_are_refused(image_run, vector_run, tmp_path):
    rows = image_data().test.x.numpy()
    np.save(tmp_path / "unit.npy", rows / 255)
    with pytest.raises(DataError, match=r"unit\.npy: pixels must be whole numbers, 0 to 255"):
        list(predict_file(image_run, tmp_path / "unit.npy"))
    np.save(tmp_path / "nan.npy", np.full((1, 6), np.nan))
    with pytest.raises(DataError, match=r"nan\.npy: rows must be finite numbers"):
        list(predict_file(vector_run, tmp_path / "nan.npy"))
    own_file(tmp_path / "floats.npz", "image in floats")
    config = config_for().override(dataset=str(tmp_path / "floats.npz"))
    run(config, tmp_path / "floats")
    np.save(tmp_path / "bytes.npy", np.zeros((1, 5, 5), np.uint8))
    with pytest.raises(DataError, match=r"bytes\.npy: images must be floats, as in training"):
        list(predict_file(tmp_path / "floats", tmp_path / "bytes.npy"))
    with pytest.raises(DataError, match=r"trained on images in floats, whose scale"):
        list(predict_file(tmp_path / "floats", tmp_path / "any.png"))


def test_pictures_of_sixteen_bits_are_refused_as_in_training(image_run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png: more than 8 bits a pixel; save it with 8"):
        list(predict_file(image_run, tmp_path / "deep.png"))


def test_a_bad_image_of_a_folder_does_not_keep_the_others_from_their_classes(image_run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "c"):
        image.new("L", (8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"junk")
    first, second, third = predict_file(image_run, tmp_path)
    assert first.label == third.label is not None
    assert second[:3] == (str(tmp_path / "b.png"), None, None)
    assert "b.png: not a readable picture" in second.error


def test_a_folder_with_the_name_of_an_image_is_passed_over(image_run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "folder.png").mkdir()
    image.new("L", (8, 8)).save(tmp_path / "one.png")
    assert len(list(predict_file(image_run, tmp_path))) == 1


def test_a_diverged_network_classifies_nothing(tmp_path):
    config = config_for("none", lr=1e30)
    assert run(config, tmp_path, dataset=vector_data()).status == "diverged"
    np.save(tmp_path / "rows.npy", vector_data().test.x.numpy())
    with pytest.raises(RunError, match="gives no numbers, so it cannot classify"):
        list(predict_file(tmp_path, tmp_path / "rows.npy"))


def test_arrays_without_rows(image_run, vector_run, tmp_path):
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(DataError, match="no array x, x_test or x_train; it has a, b"):
        list(predict_file(image_run, tmp_path / "two.npz"))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(DataError, match="rows must be numbers; got <U1"):
        list(predict_file(image_run, tmp_path / "text.npy"))
    np.save(tmp_path / "short.npy", np.zeros((2, 5), np.float32))
    with pytest.raises(ValueError, match=r"shape \(N, 6\), as in training; got \(2, 5\)"):
        list(predict_file(vector_run, tmp_path / "short.npy"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image in this folder"):
        list(predict_file(image_run, tmp_path / "empty"))
    with pytest.raises(DataError, match="trained on rows of numbers, not on images"):
        list(predict_file(vector_run, tmp_path / "empty"))


def test_hidden_files_and_odd_images_of_a_folder_do_not_stop_it(image_run, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    for name in ("a.png", "odd.png", "z.png"):
        image.new("L", (8, 8), 99).save(tmp_path / name)
    (tmp_path / "._a.png").write_bytes(b"\0\5\x16\7")
    whole = image.open

    def odd(path, *more):
        if path.name == "odd.png":
            raise RuntimeError("a decoder of its own mind")
        return whole(path, *more)

    monkeypatch.setattr(image, "open", odd)
    rows = list(predict_file(image_run, tmp_path))
    assert [row.name.rpartition("/")[2] for row in rows] == ["a.png", "odd.png", "z.png"]
    assert "odd.png: not a readable picture (a decoder of its own" in rows[1].error
    assert rows[0].label == rows[2].label is not None


def test_a_file_without_a_test_part_that_trained_a_run_can_be_given_to_it(vector_run, tmp_path):
    rows = np.random.RandomState(0).rand(7, 6).astype(np.float32)
    np.savez(tmp_path / "own.npz", x_train=rows, y_train=np.arange(7) % 3)
    predicted = [row.label for row in predict_file(vector_run, tmp_path / "own.npz")]
    assert predicted == load_run(vector_run).predict(rows)


@pytest.mark.parametrize(
    "error",
    [
        AttributeError,
        SystemError,
        NotImplementedError,
        MemoryError,
        tokenize.TokenError,
        RecursionError,
    ],
)
def test_whatever_numpy_raises_is_told_in_our_words(vector_run, tmp_path, monkeypatch, error):
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 6)))

    def fails(*_, **__):
        raise error("inside")

    monkeypatch.setattr(np.lib.format, "read_array", fails)
    with pytest.raises(DataError, match=r"own.npz: its arrays cannot be read \(.*inside"):
        list(predict_file(vector_run, tmp_path / "own.npz"))
