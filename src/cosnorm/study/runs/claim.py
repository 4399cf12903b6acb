"""The right to write to a run on an object store: taken, kept and lost by conditional puts.

The manifest names the owner of a run. Whoever wants to own it replaces the manifest on condition
that it still is what was seen, so that one of many succeeds. The owner replaces it again and again,
a sign of life. One that was not replaced for as long as its owner said may be taken: the clock is
that of whoever waits, since clocks of several machines need not agree. And since every write of an
owner ends in such a put, one that comes back too late finds that it no longer can. Loads no torch.
"""

import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from cosnorm.study.runs.errors import ConfigError, InUseError, StorageError
from cosnorm.study.runs.manifest import MANIFEST, Manifest, Owner, Part, part_key
from cosnorm.study.runs.objects import PATIENCE_S, Bucket, Object, Superseded

LEASE_S = 60.0  # unless COSNORM_LEASE_SECONDS says otherwise
_RELEASE_S = 5.0  # for letting go of a run when the store does not answer
_LOOK_S = 1.0  # between two looks for a sign of life
# A store accepts no signature of a clock that is further from its own.
_CLOCKS_DIFFER_S = 900.0

_log = logging.getLogger(__name__)


class ClaimLost(StorageError):
    """The run is another's by now."""


class Claim:
    """A run that is this process's to write, until `release` or until another takes it.

    manifest: as it was last stored. place: of the run, in words. key: of its manifest.
    """

    def __init__(self, bucket: Bucket, place: str, key: str, manifest: Manifest, etag: str) -> None:
        assert manifest.owner is not None
        self.place, self.manifest, self.owner = place, manifest, manifest.owner
        self._bucket, self._key, self._etag = bucket, key, etag
        self._lock, self._over = threading.Lock(), threading.Event()
        self._parts = itertools.count(1)
        self._lost: str | None = None
        threading.Thread(target=self._stay, name=f"lease of {place}", daemon=True).start()

    def commit(self, files: Mapping[str, tuple[Part, ...]]) -> None:
        """Make these the files of the run; `ClaimLost` where it is no longer ours to say."""
        with self._lock:
            self._replace(replace(self.manifest, files=dict(files)), PATIENCE_S)

    def new_key(self, name: str) -> str:
        """Where a part of a file can be put; never the same twice."""
        return part_key(self.manifest.epoch, self.owner.token, next(self._parts), name)

    def check(self) -> None:
        """`ClaimLost` where the run is no longer ours."""
        self.commit(self.manifest.files)

    def release(self) -> None:
        """Let go at once; where that fails, the lease runs out."""
        self._over.set()
        with suppress(StorageError), self._lock:
            self._replace(replace(self.manifest, owner=None), _RELEASE_S)

    def _stay(self) -> None:
        while not self._over.wait(self.owner.lease / 3):
            try:
                with self._lock:
                    if not self._over.is_set():
                        self._replace(self.manifest, patience=0.0)
            except ClaimLost:
                return
            except StorageError:
                continue  # the next time may do better, and until then it may still be ours

    def _replace(self, manifest: Manifest, patience: float) -> None:
        if self._lost is not None:
            raise ClaimLost(self._lost)
        # From what was stored last: an interrupted put may have been stored and not noticed.
        manifest = replace(manifest, number=self.manifest.number + 1)
        while True:
            try:
                content = manifest.to_bytes()
                self._etag = self._bucket.put_if(self._key, content, self._etag, patience)
                self.manifest = manifest
                return
            except Superseded as error:
                there = self._found(error.there)
                self._etag = there.etag
                number = Manifest.from_bytes(there.content, self.place).number
                manifest = replace(manifest, number=number + 1)

    def _found(self, there: Object | None) -> Object:
        """What is there in place of the manifest of before, if it is ours nevertheless."""
        owner = there and Manifest.from_bytes(there.content, f"{self.place}/{MANIFEST}").owner
        if there is not None and owner == self.owner:
            return there
        who = "another process" if owner is None else owner.told
        taken = f"taken over by {who} after {self.owner.lease:g} s without a sign of life"
        how = "deleted" if there is None else taken
        self._lost = (
            f"{self.place} was {how}, so this process writes nothing more: give the same command "
            "again to go on with what is there"
        )
        raise ClaimLost(self._lost)


def claimed(bucket: Bucket, place: str, key: str) -> Claim:
    """Make a run this process's own; `InUseError` where it is that of a living other."""
    there = bucket.look(key)
    before = Manifest() if there is None else Manifest.from_bytes(there.content, place)
    if there is not None and before.owner is not None:
        there = _outwaited(bucket, place, key, there, before.owner)
        before = Manifest() if there is None else Manifest.from_bytes(there.content, place)
    owner = Owner(secrets.token_hex(8), socket.gethostname(), os.getpid(), _lease())
    mine = replace(before, epoch=before.epoch + 1, number=before.number + 1, owner=owner)
    try:
        etag = bucket.put_if(key, mine.to_bytes(), there and there.etag, PATIENCE_S)
    except Superseded as error:
        if error.there is None:  # deleted since it was looked at: now there is nobody to wait for
            return claimed(bucket, place, key)
        other = Manifest.from_bytes(error.there.content, place).owner
        raise _in_use(place, other) from error
    claim = Claim(bucket, place, key, mine, etag)
    try:
        bucket.check_conditions(key, mine.to_bytes())
    except BaseException:
        claim.release()
        raise
    return claim


def _outwaited(bucket: Bucket, place: str, key: str, there: Object, owner: Owner) -> Object | None:
    """The manifest of an owner that has given no sign of life for as long as it said, or let go.

    None where it was deleted meanwhile.
    """
    if there.age > owner.lease + _CLOCKS_DIFFER_S:
        return there
    _log.warning(
        "%s is held by %s: waiting up to %g s for a sign of life", place, owner.told, owner.lease
    )
    end = time.monotonic() + owner.lease
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, owner.lease / 10, _LOOK_S))
        now = bucket.look(key)
        if now is None:
            return None
        if now.etag == there.etag:
            continue
        other = Manifest.from_bytes(now.content, place).owner
        if other is not None:
            raise _in_use(place, other)
        return now
    return there


def _in_use(place: str, owner: Owner | None) -> InUseError:
    who = "another process" if owner is None else f"another process ({owner.told})"
    return InUseError(f"{place} is in use by {who}: wait for it to end, or choose another place")


def _lease() -> float:
    told = os.environ.get("COSNORM_LEASE_SECONDS", "")
    try:
        lease = float(told) if told else LEASE_S
    except ValueError:
        lease = 0.0
    if not 0 < lease < float("inf"):
        raise ConfigError(f"COSNORM_LEASE_SECONDS must be a number above 0; got {told!r}: use 60")
    return lease
