"""Run folders on an object store. Loads no torch.

A run that is made here has a manifest (`manifest`), and its files are what that names: a file is
put first, read back, and named by the next manifest, which goes through only while the claim holds
(`claim`). What nobody claims (a report, an export, a run folder copied into the bucket) is objects
of those names. A file that the manifest lacks is looked for under its name too, so that it can be
restored by a copy; the next owner makes that the run's own.
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from cosnorm.study.runs.claim import Claim, ClaimLost, claimed
from cosnorm.study.runs.errors import ConfigError, DamagedFile, RunError, StorageError
from cosnorm.study.runs.manifest import FOLDER, MANIFEST, Manifest, Part, epoch_of
from cosnorm.study.runs.objects import Bucket

_LOOKS = 10  # at a run that changes while it is read
_AT_ONCE = 16  # requests for the manifests of many runs


class ObjectStorage:
    """What lies under s3://BUCKET/PREFIX."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.prefix, self._bucket = prefix, bucket
        self.label = f"s3://{bucket.name}/{prefix}".rstrip("/")
        self._claim: Claim | None = None

    @classmethod
    def named(cls, address: str) -> "ObjectStorage":
        """The storage at s3://BUCKET/PREFIX."""
        bucket, *parts = address.removeprefix("s3://").split("/")
        kept = [part for part in parts if part]
        if any(part in (".", "..", FOLDER) for part in (bucket, *kept)):
            raise ConfigError(
                f"an object store is named s3://BUCKET/PREFIX, without . and ..; got {address!r}"
            )
        if not re.fullmatch(r"[A-Za-z0-9._-]+", bucket):  # else there is no address of it
            raise ConfigError(
                "an object store is named s3://BUCKET/PREFIX, with letters of ASCII, digits, dots, "
                f"hyphens and underscores in BUCKET; got {address!r}: give the bucket's own name"
            )
        return cls(Bucket(bucket), "/".join(kept))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return ObjectStorage.named, (self.label,)

    @property
    def key(self) -> str:
        return self.label

    def read(self, name: str) -> bytes | None:
        if self._claim is not None:
            parts = self._claim.manifest.files.get(name)
            return None if parts is None else self._whole(name, parts)
        before: Manifest | None = None
        for _ in range(_LOOKS):
            manifest = self._manifest()
            parts = None if manifest is None else manifest.files.get(name)
            if parts is None or manifest == before:
                there = self._bucket.get(self._key(name))
                return None if there is None else there.content
            if (content := self._joined(name, parts)) is not None:
                return content
            before = manifest  # it names what is gone: it was replaced since, or a part is lost
        raise StorageError(f"{self.label}/{name} changes faster than it can be read: try later")

    def size(self, name: str) -> int | None:
        manifest = self._manifest()
        if manifest is not None and name in manifest.files:
            return sum(part.size for part in manifest.files[name])
        return None if self._claim else self._bucket.size(self._key(name))

    def write(self, name: str, content: bytes) -> None:
        with self._writing() as claim:
            if claim is None:
                self._bucket.put(self._key(name), content)
            else:
                self._put(claim, name, (), content)

    def append(self, name: str, content: bytes) -> None:
        """Add a part, and take those before it that are not twice as large into it.

        So n appends leave about log n parts, and write every byte about log n times.
        """
        with self._writing() as claim:
            if claim is None:
                self._bucket.put(self._key(name), (self.read(name) or b"") + content)
                return
            kept = list(claim.manifest.files.get(name, ()))
            while kept and kept[-1].size <= 2 * len(content):
                content = self._whole(name, [kept.pop()]) + content
            self._put(claim, name, tuple(kept), content)

    def names(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        stem = f"{folder}/" if folder else ""
        found = {
            stem + n.removeprefix(stem).split("/")[0] for n in self._all() if n.startswith(stem)
        }
        return sorted(name for name in found if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._writing() as claim:
            if claim is None:
                self._bucket.delete([self._key(name)])
            elif name in claim.manifest.files:
                self._commit(claim, name, ())

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Own the run, as its manifest says; what earlier owners have left aside goes."""
        claim = claimed(self._bucket, self.label, self._key(MANIFEST))
        try:
            self._tidy(claim)
            self._claim = claim
            yield
        finally:
            self._claim = None
            claim.release()

    def at(self, name: str) -> "ObjectStorage":
        return ObjectStorage(self._bucket, self._key(name))

    def folders(self) -> Iterator[tuple[str, list[str]]]:
        keys = self._keys()
        if not keys:
            raise StorageError(f"{self.label} holds nothing: give run folders, or what holds them")
        runs = sorted(key.removesuffix(MANIFEST) for key in keys if _is_manifest(key))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(lambda run: self.at(run.rstrip("/"))._told(), runs))
        names = {key for key in keys if f"/{FOLDER}/" not in f"/{key}"}
        for run, manifest in zip(runs, found, strict=True):
            names |= {f"{run}config.json"} if manifest is None else _there(manifest, keys, run)
        by_folder: dict[str, list[str]] = {"": []}
        for name in sorted(names):
            folder, _, last = name.rpartition("/")
            by_folder.setdefault(folder, []).append(last)
        yield from sorted(by_folder.items(), key=lambda each: each[0].split("/"))

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.prefix, name)))

    def _keys(self) -> set[str]:
        """All keys here, from here on."""
        stem = self._key("") + "/" if self.prefix else ""
        return {key.removeprefix(stem) for key in self._bucket.keys(self.prefix)}

    def _manifest(self) -> Manifest | None:
        return self._stored() if self._claim is None else self._claim.manifest

    def _stored(self) -> Manifest | None:
        there = self._bucket.look(self._key(MANIFEST))
        place = f"{self.label}/{MANIFEST}"
        return None if there is None else Manifest.from_bytes(there.content, place)

    def _told(self) -> Manifest | None:
        """The manifest, or None where it cannot be read: whoever reads the run then says why."""
        with suppress(RunError):
            return self._manifest()
        return None

    def _all(self) -> set[str]:
        """The names of all files."""
        if self._claim is not None:
            return set(self._claim.manifest.files)
        keys = self._keys()
        plain = {key for key in keys if not key.startswith(f"{FOLDER}/")}
        return plain | _there(self._manifest() if MANIFEST in keys else None, keys)

    @contextmanager
    def _writing(self) -> Iterator[Claim | None]:
        """The claim under which to write; None where this is no run but files of no owner."""
        if self._claim is None and self._bucket.size(self._key(MANIFEST)) is not None:
            with self.claim():
                yield self._claim
        else:
            yield self._claim

    def _put(self, claim: Claim, name: str, kept: tuple[Part, ...], content: bytes) -> None:
        part = Part.of(claim.new_key(name), content)
        self._bucket.put(self._key(part.key), content)
        try:
            self._commit(claim, name, (*kept, part))
        except ClaimLost:
            self._take_back(part.key)
            raise

    def _take_back(self, key: str) -> None:
        """Remove what was put when the run was another's already, who may have no next owner.

        Our last manifest may have been stored before its answer was lost: then the heir has it.
        """
        with suppress(StorageError):
            manifest = self._stored()
            self._forget({key} - (set() if manifest is None else manifest.keys))

    def _commit(self, claim: Claim, name: str, parts: tuple[Part, ...]) -> None:
        """Have `parts` be the file, or none of it; then, and only then, what was it before goes."""
        before = claim.manifest.files
        others = {key: value for key, value in before.items() if key != name}
        claim.commit({**others, name: parts} if parts else others)
        self._forget({part.key for part in before.get(name, ())} - {part.key for part in parts})

    def _forget(self, keys: set[str]) -> None:
        with suppress(StorageError):  # the next owner sees to it
            self._bucket.delete(map(self._key, sorted(keys)))

    def _tidy(self, claim: Claim) -> None:
        """Take in files that were copied here, and remove what nobody will ever name again."""
        keys, manifest = self._keys(), claim.manifest
        files = {n: parts for n, parts in manifest.files.items() if self._has(parts, keys)}
        if manifest.files or {"config.json", "summary.json"} & keys:
            copied = (n for n in keys if "/" not in n or n.startswith("checkpoints/"))
            for name in sorted(set(copied) - set(files)):
                there = self._bucket.get(self._key(name))
                files |= {} if there is None else {name: (Part.of(name, there.content),)}
        if files != manifest.files:
            claim.commit(files)
        stale = {k for k in keys if (epoch_of(k) or manifest.epoch) < manifest.epoch}
        self._forget(stale - claim.manifest.keys)

    def _has(self, parts: tuple[Part, ...], keys: set[str]) -> bool:
        """Whether all parts are there; where the listing lacks one, it is asked for."""
        lacking = (part for part in parts if part.key not in keys)
        return all(self._bucket.size(self._key(part.key)) is not None for part in lacking)

    def _whole(self, name: str, parts: "tuple[Part, ...] | list[Part]") -> bytes:
        content = self._joined(name, parts)
        if content is None:
            if self._claim is not None:
                self._claim.check()  # another owner may have removed it
            raise DamagedFile(f"{self.label}/{name} is damaged: a part of it is gone")
        return content

    def _joined(self, name: str, parts: "tuple[Part, ...] | list[Part]") -> bytes | None:
        """The parts of a file, each as it was written; None where one is not there."""
        contents = []
        for part in parts:
            there = self._bucket.get(self._key(part.key))
            if there is None:
                return None
            if not part.fits(there.content):
                raise DamagedFile(
                    f"{self.label}/{name} is damaged: the checksum of {part.key} does not fit"
                )
            contents.append(there.content)
        return b"".join(contents)


def _is_manifest(key: str) -> bool:
    return f"/{key}".endswith(f"/{MANIFEST}")


def _there(manifest: Manifest | None, keys: set[str], stem: str = "") -> set[str]:
    """The files of a manifest whose parts are all among `keys`; `stem` begins names and keys."""
    files: Mapping[str, tuple[Part, ...]] = {} if manifest is None else manifest.files
    return {
        stem + name
        for name, parts in files.items()
        if keys.issuperset(stem + part.key for part in parts)
    }
