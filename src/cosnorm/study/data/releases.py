"""Facts about the publishers' releases: where they are, what is in them, their sums.

A digest is written `algorithm:hex`.
"""

from dataclasses import dataclass

SCHEMES = ("https", "http")  # of publishers who may not have the first; what comes is checked


@dataclass(frozen=True)
class File:
    """A file of a set: its path under the data folder and what its content must be.

    The algorithm `documents` is for 20NEWS's counts, of which copies exist whose documents stand
    in another order: see `catalogue.documents_digest`.
    """

    dataset: str
    path: str
    digest: str
    size: int | None = None


@dataclass(frozen=True)
class Download:
    """One thing to download: addresses to try in turn, and the files it is or, unpacked, holds."""

    filename: str
    urls: tuple[str, ...]
    files: tuple[File, ...]
    digest: str = ""
    size: int | None = None
    archive: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Release:
    """A published set."""

    name: str
    title: str
    homepage: str
    terms: str
    downloads: tuple[Download, ...]
    other_layouts: tuple[str, ...] = ()


def _mnist_file(filename: str, sha256: str, size: int) -> Download:
    bases = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )
    digest = f"sha256:{sha256}"
    file = File("mnist", f"mnist/{filename}", digest, size)
    return Download(filename, tuple(base + filename for base in bases), (file,), digest, size)


MNIST = Release(
    "mnist",
    "MNIST handwritten digits, 28 × 28",
    "http://yann.lecun.com/exdb/mnist/",
    "CC BY-SA 3.0",
    (
        _mnist_file(
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            9_912_422,
        ),
        _mnist_file(
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            28_881,
        ),
        _mnist_file(
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            1_648_877,
        ),
        _mnist_file(
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            4_542,
        ),
    ),
    other_layouts=(
        "mnist/train-images-idx3-ubyte",
        "MNIST/raw/train-images-idx3-ubyte",
        "train-images-idx3-ubyte.gz",
        "train-images-idx3-ubyte",
    ),
)


def _cifar(
    name: str, archive: str, sha256: str, size: int, folder: str, sums: dict[str, tuple[str, int]]
) -> Download:
    return Download(
        archive,
        (f"https://www.cs.toronto.edu/~kriz/{archive}",),
        tuple(
            File(name, f"{folder}/{filename}", f"sha256:{file_sha256}", file_size)
            for filename, (file_sha256, file_size) in sums.items()
        ),
        f"sha256:{sha256}",
        size,
        archive=True,
    )


_CIFAR10_SUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

CIFAR10 = Release(
    "cifar10",
    "CIFAR-10 colour images, 32 × 32, 10 classes",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "no licence stated; the authors ask to be cited",
    (
        _cifar(
            "cifar10",
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170_052_171,
            "cifar-10-batches-bin",
            {filename: (sha256, 30_730_000) for filename, sha256 in _CIFAR10_SUMS.items()},
        ),
    ),
    other_layouts=("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10"),
)

CIFAR100 = Release(
    "cifar100",
    "CIFAR-100 colour images, 32 × 32, 100 classes",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "no licence stated; the authors ask to be cited",
    (
        _cifar(
            "cifar100",
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            168_513_733,
            "cifar-100-binary",
            {
                "train.bin": (
                    "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    153_700_000,
                ),
                "test.bin": (
                    "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                    30_740_000,
                ),
            },
        ),
    ),
    other_layouts=("cifar-100-python", "cifar-100-binary", "cifar100"),
)


def _svhn(part: str, sha256: str, size: int, optional: bool = False) -> Download:
    filename, digest = f"{part}_32x32.mat", f"sha256:{sha256}"
    return Download(
        filename,
        tuple(f"{scheme}://ufldl.stanford.edu/housenumbers/{filename}" for scheme in SCHEMES),
        (File("svhn", f"svhn/{filename}", digest, size),),
        digest,
        size,
        optional=optional,
    )


SVHN = Release(
    "svhn",
    "Street View House Numbers, cropped digits, 32 × 32",
    "http://ufldl.stanford.edu/housenumbers/",
    "non-commercial use only",
    (
        _svhn(
            "train",
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            182_040_794,
        ),
        _svhn(
            "test",
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            64_275_384,
        ),
        _svhn(
            "extra",
            "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
            1_329_278_602,
            optional=True,
        ),
    ),
    other_layouts=("train_32x32.mat", "SVHN/train_32x32.mat"),
)


def _news_file(path: str, digest: str) -> File:
    return File("20news", f"20news-bydate/{path}", digest)


def _news_addresses(filename: str) -> tuple[str, ...]:
    return tuple(f"{scheme}://qwone.com/~jason/20Newsgroups/{filename}" for scheme in SCHEMES)


_NEWS_MAP = "sha256:5a9320e52d18d67df8997fea5fd1f8ee8c904281edb514ccacaae059a902f9a3"
_NEWS_VOCABULARY = "sha256:3c0f0d64a814ba8836334a0f23925cef751fb3636baea55772f1f8ede4b791bc"

NEWS = Release(
    "20news",
    "20 Newsgroups sorted by date, word counts",
    "http://qwone.com/~jason/20Newsgroups/",
    "no licence stated",
    (
        Download(
            "20news-bydate-matlab.tgz",
            _news_addresses("20news-bydate-matlab.tgz"),
            (
                _news_file(
                    "matlab/train.data",
                    "documents:2eb5eed28544f6c7d6ee20107e41fa828946fd67309236d2d3b9814939d0eb53",
                ),
                _news_file(
                    "matlab/test.data",
                    "documents:a9e1d5a7c90d9e056a70de6649efb8b4b84485e958c8e205fb1ceb956c569cab",
                ),
                _news_file(
                    "matlab/train.label",
                    "sha256:90e46f67c51005c7bb707a61cd4a49bd996bc98c5c2acaaa36fbd22dc179101f",
                ),
                _news_file(
                    "matlab/test.label",
                    "sha256:5eb0491245caaffb86980dcd7b707e65815ae0a600b214ac99e62fa5a713e6e1",
                ),
                _news_file("matlab/train.map", _NEWS_MAP),
                _news_file("matlab/test.map", _NEWS_MAP),
            ),
            archive=True,
        ),
        Download(
            "vocabulary.txt",
            _news_addresses("vocabulary.txt"),
            (_news_file("vocabulary.txt", _NEWS_VOCABULARY),),
            _NEWS_VOCABULARY,
            494_093,
        ),
    ),
    other_layouts=("20news-bydate-train", "matlab/train.data", "train.data"),
)

RELEASES = {entry.name: entry for entry in (MNIST, NEWS, CIFAR10, CIFAR100, SVHN)}
