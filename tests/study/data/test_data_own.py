"""The embedded digits and the user's own arrays and pictures."""

import io
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from data_files import labels, pixels
from PIL import Image

from cosnorm.study.data import DataError, load
from cosnorm.study.data.splits import stratified_test_rows
from cosnorm.study.runs.presets import preset


def test_digits_are_split_four_to_one_in_every_class_and_always_alike():
    data = load("digits")
    assert data.sample_shape == (1, 8, 8) and data.train.x.dtype == torch.uint8
    assert len(data.train) + len(data.test) == 1797 and data.train.x.max() == 255
    counts = torch.bincount(data.train.y) + torch.bincount(data.test.y)
    assert torch.equal(torch.bincount(data.test.y), torch.round(counts * 0.2).long())
    assert data.fingerprint == load("digits").fingerprint
    assert data.fingerprint.startswith("d469bb44")  # the split is the same on every machine


def test_stratified_rows():
    y = np.repeat([0, 1, 2, 3], [10, 2, 1, 100])
    mask = stratified_test_rows(y)
    assert np.bincount(y[mask], minlength=4).tolist() == [2, 1, 0, 20]
    assert np.array_equal(mask, stratified_test_rows(y))
    assert not np.array_equal(np.flatnonzero(mask[13:]), np.arange(20))


def _save(path, **arrays):
    np.savez(path, **arrays)
    return path


def _parts(shape=(4,), dtype=np.float32, **changes):
    x = pixels(30, *shape).astype(dtype)
    return {
        "x_train": x[:20],
        "y_train": labels(20, 3),
        "x_test": x[20:],
        "y_test": labels(10, 3),
    } | changes


def test_npz_vectors(tmp_path):
    parts = _parts(dtype=np.float64)
    data = load(_save(tmp_path / "own.npz", **parts))
    assert data.kind == "vector" and data.name == "own" and data.sample_shape == (4,)
    assert data.train.x.dtype == torch.float32 and data.classes == ("0", "1", "2")
    assert np.array_equal(data.test.x.numpy(), parts["x_test"].astype(np.float32))
    assert np.array_equal(data.test.y.numpy(), parts["y_test"])


def test_npz_by_a_name_in_capitals(tmp_path):
    path = _save(tmp_path / "own.npz", **_parts()).rename(tmp_path / "OWN.NPZ")
    assert len(load(path).train) == 20
    assert preset(str(path), "cosine").network == "mlp"


@pytest.mark.parametrize(
    "stored, seen",
    [
        ((8, 6), (1, 8, 6)),
        ((3, 8, 6), (3, 8, 6)),
        ((1, 8, 6), (1, 8, 6)),
        ((8, 6, 3), (3, 8, 6)),
        ((8, 6, 1), (1, 8, 6)),
        ((7, 8, 6), (7, 8, 6)),
    ],
)
def test_npz_images_in_either_order_of_axes(tmp_path, stored, seen):
    parts = _parts(stored, np.uint8)
    data = load(_save(tmp_path / "own.npz", **parts))
    assert data.kind == "image" and data.sample_shape == seen and data.train.x.dtype == torch.uint8
    expected = parts["x_train"].reshape(20, *stored)
    if stored != seen and len(stored) == 3:
        expected = expected.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train.x.numpy().reshape(20, -1), expected.reshape(20, -1))


def test_npz_rows_of_bytes_become_unit_vectors(tmp_path):
    parts = _parts((4,), np.uint8)
    data = load(_save(tmp_path / "own.npz", **parts))
    assert data.kind == "vector"
    assert torch.equal(data.train.x, torch.from_numpy(parts["x_train"]).float() / 255)


def test_npz_with_names(tmp_path):
    names = np.array(["ant", "bee", "cat"])
    text = _parts(y_train=names[labels(20, 3)], y_test=names[labels(10, 3)])
    data = load(_save(tmp_path / "text.npz", **text))
    assert data.classes == ("ant", "bee", "cat") and np.array_equal(data.train.y, labels(20, 3))
    data = load(_save(tmp_path / "names.npz", **_parts(classes=np.array(["x", "y", "z", "never"]))))
    assert data.classes == ("x", "y", "z", "never")


def test_npz_without_a_test_part_holds_out_a_fifth(tmp_path):
    x, y = pixels(50, 4).astype(np.float32), np.repeat(np.arange(5), 10)
    path = _save(tmp_path / "own.npz", x_train=x, y_train=y)
    data = load(path)
    assert torch.bincount(data.test.y).tolist() == [2] * 5 and len(data.train) == 40
    rows = {tuple(row) for row in torch.cat([data.train.x, data.test.x]).tolist()}
    assert len(rows) == len({tuple(row) for row in x.tolist()})
    assert data.fingerprint == load(path).fingerprint


@pytest.mark.parametrize("name", ["val", "valid", "validation", "dev"])
def test_npz_with_a_validation_part_alone_is_tested_on_it(tmp_path, name):
    parts = _parts()
    changed = {key.replace("test", name): value for key, value in parts.items()}
    data = load(_save(tmp_path / "own.npz", **changed))
    assert np.array_equal(data.test.x, parts["x_test"]) and len(data.train) == 20
    assert data.notes == (f"own.npz has no x_test: x_{name} is the test part",)


@pytest.mark.parametrize(
    "name, told",
    [
        ("x_val", "x_val would not be used: .* test is the test part already; rename it"),
        ("y_validation", "y_validation would not be used"),
        ("X_test", "X_test would not be used: parts are train, test, .* in small letters"),
        ("x_eval", "x_eval would not be used"),
        ("x_unlabelled", "x_unlabelled would not be used"),
    ],
)
def test_npz_parts_that_would_not_be_used_are_refused(tmp_path, name, told):
    with pytest.raises(DataError, match=f"own.npz: {told}"):
        load(_save(tmp_path / "own.npz", **_parts(), **{name: pixels(10, 4)}))


def test_npz_with_a_capital_part_alone_is_refused(tmp_path):
    changed = {key.replace("x_test", "X_test"): value for key, value in _parts().items()}
    with pytest.raises(DataError, match="X_test would not be used"):
        load(_save(tmp_path / "own.npz", **changed))
    two = {key.replace("test", "val"): value for key, value in _parts().items()}
    with pytest.raises(
        DataError, match=r"x_dev would not be used: .* val is the test part already"
    ):
        load(_save(tmp_path / "own.npz", **two, x_dev=two["x_val"]))


def test_other_arrays_are_named(tmp_path):
    data = load(_save(tmp_path / "own.npz", **_parts(), weights=np.ones(20)))
    assert data.notes == ("own.npz: its array weights is not used",)


def _nan(x):
    x = x.copy()
    x[3, 1] = np.nan
    return x


NPZ_DAMAGE = {
    "no labels": ({"y_train": None}, "y_train is missing"),
    "no test labels": ({"y_test": None}, "y_test is missing"),
    "no test rows": ({"x_test": None}, "x_test is missing"),
    "fewer labels": ({"y_train": labels(19, 3)}, "20 examples in x_train and 19 labels"),
    "unknown in test": ({"y_test": labels(10, 3) + 1}, "y_test has the label .*3.* out of range"),
    "fractions": ({"y_train": labels(20, 3) + 0.5}, "integers or text"),
    "one-hot": ({"y_train": np.eye(3)[labels(20, 3)]}, "one an example"),
    "not finite": ({"x_train": _nan(pixels(20, 4).astype(np.float32))}, "not finite"),
    "complex": ({"x_train": np.zeros((20, 4), complex)}, "must be numbers of shape"),
    "one axis": ({"x_train": np.zeros(20)}, "must be numbers of shape"),
    "no features": ({"x_train": np.zeros((20, 0))}, "must be numbers of shape"),
    "other width": ({"x_test": pixels(10, 5).astype(np.float32)}, "they must agree"),
    "too large": ({"x_train": np.full((20, 4), 1e300)}, "not finite numbers in float32"),
    "one class": (
        {"y_train": labels(20, 3) * 0, "y_test": labels(10, 3) * 0},
        "1 class in y_train, at least two needed",
    ),
    "bytes and floats": ({"x_train": pixels(20, 4)}, r"\(uint8\), x_test .*\(float32\), and they"),
    "other type": ({"x_train": pixels(20, 4, 4), "x_test": np.zeros((10, 4, 4))}, "must agree"),
    "nothing": (
        {"x_train": None, "y_train": None, "x_test": None, "y_test": None},
        "none of x_train",
    ),
}


@pytest.mark.parametrize("case", NPZ_DAMAGE)
def test_npz_damage(tmp_path, case):
    changes, message = NPZ_DAMAGE[case]
    arrays = {key: value for key, value in _parts(**changes).items() if value is not None}
    path = _save(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value) and "numpy.savez" in str(caught.value)


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda y: y * 2, "0, 2, 4"),
        (lambda y: y.astype(int) - 1, "-1, 0, 1"),
        (lambda y: y + 2, "2, 3"),
    ],
)
def test_numbers_that_are_no_labels_get_advice_that_works(tmp_path, change, told):
    parts = _parts()
    parts |= {key: change(parts[key]) for key in ("y_train", "y_test")}
    advice = (
        r"from 0 or 1 up, without a gap; found .*; give the labels as text, with y_train.astype"
    )
    with pytest.raises(DataError, match=advice) as caught:
        load(_save(tmp_path / "own.npz", **parts))
    assert told in str(caught.value)
    followed = parts | {key: parts[key].astype(str) for key in ("y_train", "y_test")}
    data = load(_save(tmp_path / "text.npz", **followed))
    assert [data.classes[k] for k in data.test.y] == followed["y_test"].tolist()


@pytest.mark.parametrize("names", [None, ("ant", "bee", "cat")])
def test_labels_from_1(tmp_path, names):
    parts = _parts()
    parts |= {key: parts[key] + 1 for key in ("y_train", "y_test")}
    parts |= {} if names is None else {"classes": np.array(names)}
    data = load(_save(tmp_path / "own.npz", **parts))
    assert data.classes == (names or ("1", "2", "3"))
    assert np.array_equal(data.train.y, parts["y_train"] - 1)
    assert np.array_equal(data.test.y, parts["y_test"] - 1)


def test_arrays_that_memory_cannot_hold_are_refused_before_they_are_expanded(tmp_path, monkeypatch):
    path = tmp_path / "own.npz"
    np.savez_compressed(
        path, **_parts((100, 100), np.uint8) | {"x_train": np.zeros((20, 10**6), "u1")}
    )
    assert path.stat().st_size < 1e6
    monkeypatch.setattr("cosnorm.study.data.memory.memory_here", lambda: 10 << 20)
    with pytest.raises(
        DataError, match=r"own.npz: its arrays need 0.\d GB of memory and 0.0 are free"
    ):
        load(path)


def test_a_header_that_promises_more_than_its_file_is_refused(tmp_path):
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x_train", "y_train"):
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                head, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
            )
            archive.writestr(f"{name}.npy", head.getvalue() + bytes(16))
    with pytest.raises(DataError, match=r"float32 of shape \(1099511627776,\) is more than its"):
        load(path)


class _Calls:
    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return open, (str(self._marker), "w")


def test_npz_with_a_pickle_inside_is_refused_and_nothing_runs(tmp_path):
    marker = tmp_path / "marker"
    malicious = np.array([_Calls(marker)] * 20, dtype=object)
    path = _save(tmp_path / "own.npz", **_parts(y_train=malicious))
    with pytest.raises(
        DataError, match=r"own.npz: its arrays cannot be read \(it holds Python obj"
    ):
        load(path)
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(_Calls(marker)))
    with pytest.raises(
        DataError, match=r"raw\.npz: it is no \.npy or \.npz file; write it with"
    ) as caught:
        load(tmp_path / "raw.npz")
    assert "allow_pickle" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    "change", [lambda c: c[:-300], lambda c: b"", lambda c: b"text", lambda c: c[:90]]
)
def test_npz_that_is_not_whole(tmp_path, change):
    path = _save(tmp_path / "own.npz", **_parts())
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"own.npz: "):
        load(path)


def test_npz_with_a_flipped_byte(tmp_path):
    path = _save(tmp_path / "own.npz", **_parts())
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"own.npz: "):
        load(path)


def test_a_single_array_named_npz(tmp_path):
    path = tmp_path / "own.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"it is one array"):
        load(path)


def _picture(path, size=(6, 8), colour=(10, 20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def _folders(root, parts=("train", "test"), count=10):
    for part in parts:
        for number, name in enumerate(("cat", "dog")):
            for i in range(count):
                _picture(root / part / name / f"{i:02}.png", colour=(number * 100, i, 7))
    return root


def test_image_folders(tmp_path):
    data = load(_folders(tmp_path / "pets"))
    assert data.name == "pets" and data.classes == ("cat", "dog") and data.kind == "image"
    assert data.train.x.shape == (20, 3, 8, 6) and data.test.y.tolist() == [0] * 10 + [1] * 10
    assert data.train.x[13, :, 0, 0].tolist() == [100, 3, 7]


def test_image_folders_without_a_test_part_hold_out_a_fifth(tmp_path):
    data = load(_folders(tmp_path, parts=(".",)))
    assert len(data.train) == 16 and torch.bincount(data.test.y).tolist() == [2, 2]
    only_train = load(_folders(tmp_path / "b", parts=("train",)))
    assert only_train.fingerprint == data.fingerprint


@pytest.mark.parametrize("name", ["val", "valid", "Validation", "dev", "Test", "TESTING"])
def test_a_part_by_any_of_its_names_is_used_and_told(tmp_path, name):
    data = load(_folders(tmp_path / "pets", parts=("Train", name)))
    assert (len(data.train), len(data.test)) == (20, 20)
    told = (
        ()
        if name.lower().startswith("test")
        else (f"pets has no test folder: {name} is the test part",)
    )
    assert data.notes == told


@pytest.mark.parametrize(
    "parts, told",
    [
        (
            ("train", "val", "test"),
            "val: nothing is chosen by validation here, and test is the test",
        ),
        (("train", "val", "valid"), "valid: a second val part beside val; keep one"),
        (("train", "test", "Test"), "test: a second test part beside Test; keep one"),
        ((".", "test"), "test: a part by its name, but there is no train beside it; the layout is"),
        (("test", "val"), "no train beside it"),
    ],
)
def test_parts_that_cannot_all_be_used_are_refused(tmp_path, parts, told):
    with pytest.raises(DataError, match=told):
        load(_folders(tmp_path, parts=parts))


@pytest.mark.parametrize(
    "parts", [("train", "eval"), ("train", "test", "unlabelled"), ("train", "val", "train2")]
)
def test_folders_of_pictures_beside_the_parts_are_refused(tmp_path, parts):
    told = f"{parts[-1]}: pictures in it, and it is no part by its name, .* or name it test"
    with pytest.raises(DataError, match=told):
        load(_folders(tmp_path, parts=parts))


def test_folders_without_pictures_beside_the_parts_are_named(tmp_path):
    root = _folders(tmp_path / "pets")
    (root / "boxes").mkdir()
    (root / "boxes" / "cat.json").write_text("{}")
    (root / "boxes" / "._cat.png").write_text("x")
    _picture(root / ".cache" / "0.png")
    assert load(root).notes == ("pets: its folder boxes is not used",)


def test_pictures_in_no_class_folder_are_named(tmp_path):
    root = _folders(tmp_path / "pets")
    for place in ("a.png", "b.png", "test/c.png", ".hidden.png"):
        _picture(root / place)
    assert load(root).notes == (
        "pets: pictures in no class folder are not used (2, such as a.png)",
        "test: pictures in no class folder are not used (1, such as c.png)",
    )


def test_pictures_within_class_folders_deeper_are_refused(tmp_path):
    root = _folders(tmp_path, parts=(".",))
    for hidden in ("._0.png", ".thumbnails/0.png", "more/._0.png", "more/.thumbnails/0.png"):
        _picture(root / "cat" / hidden)
    assert len(load(root).train) == 16
    _picture(root / "cat" / "more" / "deep" / "0.png")
    told = r"cat/more/deep/0.png: pictures must lie in the class folder itself; move those in more"
    with pytest.raises(DataError, match=told):
        load(root)


def test_what_is_held_out_is_told(tmp_path):
    (note,) = load(_folders(tmp_path / "pets", parts=(".",))).notes
    assert note.startswith("pets has no test part: 4 of its 20 examples, a fifth of each class by")
    parts = {key: value for key, value in _parts().items() if key.endswith("train")}
    (note,) = load(_save(tmp_path / "own.npz", **parts)).notes
    assert note.startswith("own.npz has no test part: 4 of its 20 examples")
    assert load(_save(tmp_path / "own.npz", **_parts())).notes == ()


def test_pictures_are_turned_as_their_camera_says(tmp_path):
    upright = np.zeros((6, 8, 3), np.uint8)
    upright[:2] = 250  # the sky
    for name in ("a", "b"):
        for i in range(3):
            path = tmp_path / name / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            exif = Image.Exif()
            turned = np.rot90(upright) if i else upright
            exif[0x0112] = 6 if i else 1  # turn it clockwise to see it upright
            Image.fromarray(np.ascontiguousarray(turned)).save(path, exif=exif)
    data = load(tmp_path)
    assert data.sample_shape == (1, 6, 8)
    for picture in torch.cat([data.train.x, data.test.x]):
        assert torch.equal(picture[0], torch.from_numpy(upright[..., 0].copy()))


def test_grey_pictures_have_one_channel_and_stray_files_are_passed_over(tmp_path):
    for name in ("a", "b"):
        for i in range(3):
            _picture(tmp_path / name / f"{i}.PNG", colour=i, mode="L")
        (tmp_path / name / "notes.txt").write_text("x")
        (tmp_path / name / ".hidden.png").write_text("x")
    (tmp_path / ".git").mkdir()
    assert load(tmp_path).sample_shape == (1, 8, 6)


def test_pictures_of_several_sizes_need_the_option(tmp_path):
    _picture(_folders(tmp_path) / "train" / "dog" / "99.png", size=(9, 9))
    with pytest.raises(
        DataError, match=r"99.png: 9 × 9 pixels, but 00.png has 6 × 8.*--image-size"
    ):
        load(tmp_path)
    assert load(tmp_path, size=5).sample_shape == (3, 5, 5)


def test_pictures_of_sixteen_bits_are_refused(tmp_path):
    path = _folders(tmp_path) / "train" / "dog" / "03.png"
    Image.fromarray(np.full((8, 6), 40_000, np.uint16)).save(path)
    with pytest.raises(DataError, match=r"03\.png: more than 8 bits a pixel; save it with 8"):
        load(tmp_path)


def test_a_pipe_named_like_a_picture_is_passed_over(tmp_path):
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.new("L", (4, 4), 50 * number + i).save(tmp_path / name / f"{i}.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    os.mkfifo(tmp_path / "b" / "pipe.png")
    code = "import sys; from cosnorm.study.data import load; d = load(sys.argv[1])"
    code += "; sys.exit(len(d.train) + len(d.test) != 10)"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=60)


def test_image_folder_damage(tmp_path):
    path = _folders(tmp_path) / "train" / "cat" / "03.png"
    content = path.read_bytes()
    for damage in (content[: len(content) // 2], b"", b"text"):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=r"03.png: not a readable picture"):
            load(tmp_path)
    path.write_bytes(content)
    _picture(tmp_path / "test" / "bird" / "0.png")
    with pytest.raises(DataError, match=r"bird: a class that the training part does not have"):
        load(tmp_path)
    (tmp_path / "train" / "bird").mkdir()
    with pytest.raises(DataError, match=r"train/bird: no pictures in it"):
        load(tmp_path)


@pytest.mark.parametrize("size", [0, 8193, 10**7, "12"])
def test_a_size_beyond_reason_is_refused(tmp_path, size):
    with pytest.raises(DataError, match=f"a number of pixels, 1 to 8,192; got {size!r}"):
        load(_folders(tmp_path), size=size)


def test_pictures_that_memory_cannot_hold_are_refused(tmp_path, monkeypatch):
    root = _folders(tmp_path, count=10)
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    with pytest.raises(DataError, match=r"pictures of 200 × 200 pixels need .* --image-size"):
        load(root, size=200)
    assert load(root, size=20).sample_shape == (3, 20, 20)


def test_a_picture_that_claims_a_huge_size_is_refused(tmp_path):
    path = _folders(tmp_path) / "train" / "cat" / "03.png"
    content = bytearray(path.read_bytes())
    content[16:24] = b"\0\0\x30\0" * 2
    import zlib

    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"03.png: .*too large|03.png: not a readable"):
        load(tmp_path)


def test_a_folder_that_holds_no_classes(tmp_path):
    with pytest.raises(DataError, match=r"0 class folder\(s\).*the layout is FOLDER/CLASS/FILE"):
        load(tmp_path)


def test_names_and_paths_that_mean_nothing(tmp_path):
    with pytest.raises(DataError, match=r"imagenet: not a known data set .*digits, mnist"):
        load("imagenet")
    (tmp_path / "x.doc").write_text("1,2")
    with pytest.raises(DataError, match=r"a file of no known kind; give .* an .npz or .csv file"):
        load(tmp_path / "x.doc")
    with pytest.raises(DataError, match=r"digits has no option 'size'; it has none"):
        load("digits", size=3)


BARE = """
import sys
for name in ("scipy", "sklearn", "PIL"):
    sys.modules[name] = None
import cosnorm.study.data
assert "torch" not in sys.modules
from cosnorm.study.data import DataError, load, listing, verify, fetch, take, tf_cifar, unit_range
try:
    load(sys.argv[1])
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["digits", "folder"])
def test_the_room_opens_without_the_extras_and_says_which_is_missing(tmp_path, what):
    target = "digits" if what == "digits" else str(_folders(tmp_path))
    result = subprocess.run(
        [sys.executable, "-c", BARE, target], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'cosnorm[data]'" in result.stdout
