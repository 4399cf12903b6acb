"""Run folders on an object store: the real client, and a loopback server that fails on request."""

import contextlib
import pickle
import random
import re
import sys
import threading
import time

import pytest
from object_server import BUCKET, Fault

from cosnorm.study.runs import claim as claims
from cosnorm.study.runs import objects
from cosnorm.study.runs.claim import ClaimLost
from cosnorm.study.runs.errors import (
    ConfigError,
    DamagedFile,
    InUseError,
    RunError,
    StorageError,
)
from cosnorm.study.runs.manifest import Manifest, part_key
from cosnorm.study.runs.object_storage import ObjectStorage
from cosnorm.study.runs.storage import storage_at

PLACE = f"s3://{BUCKET}/study/run"
MANIFEST = "study/run/.run/manifest.json"


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setenv("COSNORM_LEASE_SECONDS", "0.2")


def manifest_in(store):
    return Manifest.from_bytes(store.objects[MANIFEST][0], "")


def dead(storage):
    """A storage that is claimed for good, from which no sign of life comes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims.Claim, "_stay", lambda claim: None)
        return held(storage)


_claims = []  # a claim that is collected as garbage lets go of its run


def held(storage):
    """A storage that is claimed for good."""
    storage.kept = storage.claim()
    _claims.append(storage.kept)
    storage.kept.__enter__()
    return storage


def once(condition, fault):
    """The fault for the first request that meets the condition."""
    left = [fault]

    def asked(request):
        return left.pop() if left and condition(request) else None

    return asked


def test_files_of_no_owner_are_plain_objects(store):
    storage = storage_at(PLACE)
    assert storage.read("a.json") is None and storage.size("a.json") is None
    assert storage.names("deep/") == []
    storage.write("deep/b ü", b"2")
    storage.write("deep/a", b"1")
    storage.write("deep/a", b"one")
    storage.append("lines", b"1\n")
    storage.append("lines", b"2\n")
    assert storage.names("deep/") == ["deep/a", "deep/b ü"]
    assert storage.names("") == ["deep", "lines"]
    assert (storage.read("deep/a"), storage.size("deep/a")) == (b"one", 3)
    storage.delete("deep/a")
    storage.delete("deep/a")
    assert store.keys_with("") == ["study/run/deep/b ü", "study/run/lines"]


def test_files_of_a_run_are_what_its_manifest_names(store):
    storage = storage_at(PLACE)
    with storage.claim():
        storage.write("config.json", b"one")
        storage.write("config.json", b"two")
        storage.write("checkpoints/step-1", b"state")
        storage.write("checkpoints/step-2", b"state")
        storage.delete("checkpoints/step-1")
        for reader in (storage, storage_at(PLACE)):
            assert reader.read("config.json") == b"two"
            assert reader.size("config.json") == 3
            assert reader.names("checkpoints/step-") == ["checkpoints/step-2"]
            assert reader.names("") == ["checkpoints", "config.json"]
            assert reader.read("checkpoints/step-1") is None
    assert manifest_in(store).owner is None
    hidden = [key.rpartition("/")[2] for key in store.keys_with("/.run/0")]
    assert sorted(hidden) == ["config.json", "step-2"]
    storage.write("config.json", b"three")  # by a claim of its own
    assert storage_at(PLACE).read("config.json") == b"three"
    assert manifest_in(store).epoch == 2


def test_appends_cost_little_more_than_what_they_add(store):
    storage, lines = storage_at(PLACE), [b"%06d %s\n" % (k, b"x" * (k % 7)) for k in range(300)]
    written = []
    store.fault = lambda r: written.append(r) if r.method == "PUT" and "lines" in r.key else None
    with storage.claim():
        for line in lines:
            storage.append("lines", line)
        parts = storage._claim.manifest.files["lines"]
        assert len(parts) <= 10
        assert storage.read("lines") == b"".join(lines)
    assert storage_at(PLACE).read("lines") == b"".join(lines)
    assert len(written) == len(lines)
    assert sum(request.size for request in written) < 12 * sum(map(len, lines))
    assert len(store.keys_with("/lines")) == len(parts)
    assert max(part.size for part in parts) > sum(map(len, lines)) / 2


FAULTS = [
    *(Fault(status) for status in (409, 412, 500, 503)),
    *(Fault(lost=when) for when in ("before", "middle", "after")),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_every_request_fails_once_and_nothing_is_lost_or_doubled(store, fault):
    seen = set()

    def first(request):
        key = (request.method, request.key, request.condition, *request.query)
        return None if key in seen or seen.add(key) else fault

    store.fault = first
    storage = storage_at(PLACE)
    with storage.claim():
        storage.write("config.json", b"settings")
        for k in range(20):
            storage.append("lines", b"%d\n" % k)
        storage.write("model", b"x" * 1000)
        storage.delete("config.json")
    other = storage_at(PLACE)
    assert other.read("lines") == b"".join(b"%d\n" % k for k in range(20))
    assert (other.read("model"), other.read("config.json")) == (b"x" * 1000, None)
    there = manifest_in(store)
    assert (there.epoch, there.owner) == (1, None)
    assert len(store.keys_with("/.run/0")) == len(there.keys)


def test_a_put_that_is_answered_too_late_is_known_as_ones_own(store, monkeypatch):
    monkeypatch.setattr(objects, "_ANSWER_S", 0.3)
    storage, late = storage_at(PLACE), threading.Event()
    with storage.claim():
        manifests = []

        def slow(request):
            if request.key != MANIFEST:
                return None
            manifests.append(request)
            if len(manifests) == 1:
                return Fault(wait=late)
            late.set()  # and the first goes on, to find that it comes too late, or before the look
            return None

        store.fault = slow
        storage.write("config.json", b"settings")
        store.fault = lambda request: None
        storage.write("other.json", b"more")
    assert len(manifests) > 1
    assert storage_at(PLACE).names("") == ["config.json", "other.json"]
    assert manifest_in(store).epoch == 1


def test_a_living_owner_is_left_alone(store, caplog):
    owner, looks, told = storage_at(PLACE), [], []
    with owner.claim():
        before = manifest_in(store).owner

        def look(request):
            looks.append(request)
            if len(looks) == 3 and request.method == "GET":
                owner.write("sign of life", b"1")

        store.fault = look
        with (
            pytest.raises(InUseError, match=r"in use by another process \(process \d+ on .*\)"),
            storage_at(PLACE).claim(),
        ):
            told.append("both")
        store.fault = lambda request: None
        assert manifest_in(store).owner == before and told == []
        assert "for a sign of life" in caplog.text
    with storage_at(PLACE).claim():
        pass
    assert manifest_in(store).epoch == 2


def test_the_owner_gives_signs_of_life_by_itself(store, short_lease):
    with storage_at(PLACE).claim():
        before, renewed = manifest_in(store).number, threading.Event()
        store.fault = lambda r: renewed.set() if r.method == "PUT" and r.condition else None
        assert renewed.wait(60)
        store.fault = lambda request: None
    assert manifest_in(store).number > before


def test_of_many_at_once_one_gets_the_run(store):
    begun, over, got, refused = threading.Barrier(6), threading.Event(), [], []

    def wants():
        storage = storage_at(PLACE)
        begun.wait()
        try:
            with storage.claim():
                got.append(storage._claim.owner)
                while not over.wait(0.05):
                    storage.write("sign of life", b"1")
        except InUseError:
            refused.append(1)
            if len(refused) == 5:
                over.set()

    threads = [threading.Thread(target=wants, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(got) == 1 and len(refused) == 5
    assert manifest_in(store).epoch == 1


@pytest.mark.parametrize("seed", range(3))
def test_many_owners_in_turn_over_a_store_that_fails_at_random(store, monkeypatch, seed):
    """Some lose the run while they write; what was acknowledged is there once, the rest at most."""
    monkeypatch.setenv("COSNORM_LEASE_SECONDS", "0.3")
    chance, lock = random.Random(seed), threading.Lock()

    def sometimes(request):
        with lock:
            return chance.choice(FAULTS) if chance.random() < 0.15 else None

    tried, acknowledged = [], []

    def works(worker):
        storage, left = storage_at(PLACE), 5
        while left:
            line = f"{worker} {left} {len(tried)}".encode()
            with contextlib.suppress(InUseError, ClaimLost), storage.claim():
                if chance.random() < 0.3:  # it falls silent, and comes back
                    with storage._claim._lock:  # without which there is no sign of life
                        time.sleep(0.7)
                tried.append(line)
                storage.append("lines", line + b"\n")
                acknowledged.append(line)
                left -= 1

    store.fault = sometimes
    threads = [threading.Thread(target=works, args=(worker,), daemon=True) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    store.fault = lambda request: None
    there = storage_at(PLACE).read("lines").splitlines()
    assert len(acknowledged) == 15
    assert len(set(there)) == len(there)
    assert set(acknowledged) <= set(there) <= set(tried)


def of_zombies(store):
    return [key for key, (content, _, _) in store.objects.items() if b"zombie" in content]


def test_a_zombie_writes_nothing_that_counts(store, short_lease):
    zombie = dead(storage_at(PLACE))
    zombie.write("config.json", b"settings")
    zombie.append("lines", b"1\n")
    heir = held(storage_at(PLACE))
    heir.append("lines", b"2\n")
    lost = r"taken over by process \d+ on .* after 0\.2 s without a sign of life, so this"
    for act in (
        lambda: zombie.append("lines", b"zombie\n"),
        lambda: zombie.write("summary.json", b"zombie"),
        lambda: zombie.append("summary.json", b"zombie"),
        lambda: zombie.delete("config.json"),
    ):
        with pytest.raises(ClaimLost, match=lost):
            act()
    zombie.kept.__exit__(None, None, None)
    assert manifest_in(store).owner == heir._claim.owner
    assert manifest_in(store).files == heir._claim.manifest.files
    assert heir.read("lines") == b"1\n2\n"
    heir.kept.__exit__(None, None, None)
    assert not of_zombies(store)
    store.put(f"study/run/{part_key(1, 'token', 9, 'lines')}", b"of a zombie that was killed")
    with storage_at(PLACE).claim():  # which tidies up
        pass
    assert not of_zombies(store)
    assert storage_at(PLACE).names("") == ["config.json", "lines"]
    assert storage_at(PLACE).read("config.json") == b"settings"


def test_a_zombie_that_has_not_noticed_yet_loses_the_race_to_the_manifest(store, short_lease):
    """It has put its file when the run is taken, and only its manifest is left to put."""
    zombie, heir = dead(storage_at(PLACE)), storage_at(PLACE)

    def overtake(request):
        if request.method == "PUT" and request.key == MANIFEST:
            store.fault = lambda request: None
            held(heir)

    store.fault = overtake
    with pytest.raises(ClaimLost, match="taken over by"):
        zombie.write("summary.json", b"zombie")
    assert not of_zombies(store)
    heir.write("summary.json", b"heir")
    assert storage_at(PLACE).read("summary.json") == b"heir"
    heir._claim.release()


def test_what_the_heir_of_a_zombie_has_of_it_stays(store, short_lease):
    """The zombie's last manifest was stored, but before it learns so, the run is taken."""
    zombie, heir = dead(storage_at(PLACE)), storage_at(PLACE)

    def overtake(request):
        store.fault = lambda request: None
        held(heir)

    def lose(request):
        if request.method != "PUT" or request.key != MANIFEST:
            return None
        store.fault = overtake
        return Fault(lost="after")

    store.fault = lose
    with pytest.raises(ClaimLost, match="taken over by"):
        zombie.write("lines", b"zombie")
    heir.append("lines", b" and heir")
    assert storage_at(PLACE).read("lines") == b"zombie and heir"
    heir._claim.release()


def test_an_owner_that_is_long_gone_is_not_waited_for(store, caplog):
    dead(storage_at(PLACE)).write("config.json", b"settings")
    content, etag, when = store.objects[MANIFEST]
    store.objects[MANIFEST] = content, etag, when - 3600
    with storage_at(PLACE).claim():
        pass
    assert caplog.text == "" and manifest_in(store).epoch == 2


def test_an_owner_that_lets_go_is_not_waited_for_to_the_end(store):
    owner, looks = dead(storage_at(PLACE)), []

    def look(request):
        looks.append(request)
        if len(looks) == 3:
            store.fault = lambda request: None
            owner._claim.release()

    store.fault = look
    with storage_at(PLACE).claim():
        assert manifest_in(store).epoch == 2


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_run_that_is_deleted_while_it_is_waited_for_can_be_had(store, short_lease, method):
    """While it is waited for a sign of life, or between the last look and the claim."""
    dead(storage_at(PLACE)).write("config.json", b"settings")
    looks = []

    def delete(request):
        looks.append(request)
        if len(looks) > 2 and request.method == method:
            store.fault = lambda request: None
            store.objects.clear()

    store.fault = delete
    storage = storage_at(PLACE)
    with storage.claim():
        assert manifest_in(store).epoch == 1
        assert storage.names("") == []


def test_a_claim_whose_answer_was_lost_is_ones_own(store):
    store.fault = once(lambda r: r.condition == "create", Fault(lost="after"))
    with storage_at(PLACE).claim():
        assert manifest_in(store).epoch == 1
    assert store.seen("PUT", MANIFEST)[0] == 0


def test_an_interrupted_put_of_ones_own_is_no_loss(store):
    """As by a signal, after the store has the manifest and before this process knows it."""
    storage = storage_at(PLACE)
    with storage.claim():
        storage.write("a", b"1")
        known = storage._claim._etag, storage._claim.manifest
        storage.write("b", b"2")
        storage._claim._etag, storage._claim.manifest = known
        storage.write("c", b"3")
        assert storage.names("") == ["a", "c"]
    assert storage_at(PLACE).read("c") == b"3"


def test_a_run_deleted_while_it_is_written_to_is_not_made_again(store):
    storage = storage_at(PLACE)
    with storage.claim():
        storage.write("a", b"1")
        store.objects.clear()
        with pytest.raises(ClaimLost, match="was deleted, so this process writes nothing more"):
            storage.write("b", b"2")
    assert store.objects == {}


def test_a_store_that_ignores_conditions_is_refused(store):
    store.heeds = False
    with (
        pytest.raises(StorageError, match=r"does not heed conditional puts .*: use a store that"),
        storage_at(PLACE).claim(),
    ):
        pass


def test_a_reader_of_a_run_that_changes_reads_one_state_of_it(store):
    owner = storage_at(PLACE)
    with owner.claim():
        owner.write("lines", b"old")

        def replaced(request):
            if request.method == "GET" and request.key.endswith("/lines"):
                store.fault = lambda request: None
                owner.write("lines", b"new")

        store.fault = replaced
        assert storage_at(PLACE).read("lines") == b"new"


def test_what_is_not_as_it_was_written_is_found(store):
    storage = storage_at(PLACE)
    with storage.claim():
        storage.write("config.json", b"settings")
        storage.write("summary.json", b"result")
    (key,) = store.keys_with("/config.json")
    store.put(key, b"settinks")
    with pytest.raises(DamagedFile, match=r"run/config\.json is damaged: the checksum of \.run/.*"):
        storage.read("config.json")
    store.objects.pop(store.keys_with("/summary.json")[0])
    assert storage.read("summary.json") is None
    assert storage.names("") == ["config.json"]
    store.put("study/run/summary.json", b"restored by a copy")
    assert storage.read("summary.json") == b"restored by a copy"
    with storage.claim():
        assert storage.read("summary.json") == b"restored by a copy"
        storage.delete("summary.json")
    assert storage.read("summary.json") is None
    store.put(MANIFEST, b"{}")
    with pytest.raises(StorageError, match=r"manifest\.json is damaged \(KeyError\)"):
        storage.read("config.json")


def test_a_store_that_alters_what_it_is_given_is_found(store, monkeypatch):
    monkeypatch.setattr(objects, "PATIENCE_S", 0.0)
    put = store.put
    store.put = lambda key, content, condition=None: put(key, content[:-1], condition)
    with pytest.raises(StorageError, match="holds something else than it was given"):
        storage_at(PLACE).write("a", b"content")


def test_large_files_go_in_parts(store, monkeypatch):
    monkeypatch.setattr(objects, "_PART", 5 << 20)
    content = bytes(range(256)) * (12 << 12)
    storage = storage_at(PLACE)
    store.fault = once(lambda r: "partNumber" in r.query, Fault(503))
    with storage.claim():
        storage.write("model", content)
    assert len(store.parts) == 1 and storage.read("model") == content


def test_a_copied_run_folder_is_read_and_gone_on_with(store):
    for name in ("config.json", "metrics.jsonl", "checkpoints/step-1", "report/index.html"):
        store.put(f"study/run/{name}", name.encode())
    storage = storage_at(PLACE)
    assert storage.names("checkpoints/") == ["checkpoints/step-1"]
    with storage.claim():
        assert storage.names("") == ["checkpoints", "config.json", "metrics.jsonl"]
        storage.append("metrics.jsonl", b" and more")
        storage.delete("checkpoints/step-1")
    assert storage.read("metrics.jsonl") == b"metrics.jsonl and more"
    plain = [key for key in store.keys_with("") if "/.run/" not in key]
    assert plain == ["study/run/config.json", "study/run/report/index.html"]


def test_folders_of_runs_of_both_kinds(store):
    store.page = 3
    for name in ("a", "b"):
        run = storage_at(f"s3://{BUCKET}/study").at(name)
        with run.claim():
            run.write("config.json", b"1")
            run.write("checkpoints/step-1", b"1")
    store.put("study/c/config.json", b"1")
    store.put("study-not/config.json", b"1")
    found = dict(storage_at(f"s3://{BUCKET}/study/").folders())
    assert found == {
        "": [],
        "a": ["config.json"],
        "a/checkpoints": ["step-1"],
        "b": ["config.json"],
        "b/checkpoints": ["step-1"],
        "c": ["config.json"],
    }
    assert dict(storage_at(f"s3://{BUCKET}/study/a").folders())[""] == ["config.json"]
    with pytest.raises(StorageError, match=r"s3://runs/none holds nothing"):
        list(storage_at(f"s3://{BUCKET}/none").folders())


def test_a_storage_can_be_made_again_in_another_process(store):
    again = pickle.loads(pickle.dumps(storage_at(PLACE).at("a").at("b")))
    assert isinstance(again, ObjectStorage)
    again.write("x", b"1")
    assert storage_at(f"{PLACE}/a/b").read("x") == b"1"
    assert again.key == again.label == f"{PLACE}/a/b"


def test_an_unreachable_store(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    told = (
        r"cannot read s3://runs/study/run/.*: no answer from http://127\.0\.0\.1:9: check AWS_END"
    )
    with pytest.raises(StorageError, match=told):
        storage_at(PLACE).read("a")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1:19555",
            "nonsense",
            "localhost:9000/foo",
            "http://[bad",
            "http://",
            "http://:9",
        ),
        *(
            "ftp://host",
            "http:host",
            "http://a b",
            " http://host",
            "http://host\n",
            "http://h/?a=b",
        ),
        *("http://host:99999", "http://1.2.3.999", "http://[fe80::1%eth0]:9", "http://a@"),
    ],
)
def test_an_endpoint_that_is_no_address(store, monkeypatch, variable, address):
    monkeypatch.setenv(variable, address)
    told = rf"{variable} must be http://HOST:PORT or https://HOST; got {re.escape(repr(address))}:"
    with pytest.raises(ConfigError, match=told):
        storage_at(PLACE)


def test_an_endpoint_in_capitals_is_the_same(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url.upper())
    storage_at(PLACE).write("a", b"1")
    assert store.keys_with("") == ["study/run/a"]


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_a_line_break_that_was_copied_along_is_told_of(store, monkeypatch, name):
    monkeypatch.setenv(name, "copied\n")
    with pytest.raises(ConfigError, match=f"{name} must be .*; got one with .*: set it") as told:
        storage_at(PLACE)
    assert "copied" not in str(told.value)


def test_wrong_credentials(store, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    told = r"the store answers 403( \(InvalidAccessKeyId\))?: check AWS_ACCESS_KEY_ID, AWS_SECRET"
    for act in (
        lambda: storage_at(PLACE).read("a"),
        lambda: storage_at(PLACE).write("a", b""),
        lambda: storage_at(PLACE).names(""),
        lambda: storage_at(PLACE).claim().__enter__(),
    ):
        with pytest.raises(StorageError, match=told):
            act()
    assert store.objects == {}


def test_a_bucket_that_is_not_there(store):
    for act in (
        lambda: storage_at("s3://none/run").read("a"),
        lambda: storage_at("s3://none/run").claim().__enter__(),
        lambda: list(storage_at("s3://none/run").folders()),
    ):
        with pytest.raises(StorageError, match="there is no bucket none: make it, or give another"):
            act()


def test_a_store_that_stays_busy(store, monkeypatch):
    monkeypatch.setattr(objects, "PATIENCE_S", 0.05)
    store.fault = lambda request: Fault(503)
    told = r"the store answers 503 \(InjectedFault\), again and again: give the same command later"
    with pytest.raises(StorageError, match=told):
        storage_at(PLACE).read("a")
    assert len(store.log) > 2


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(RunError, match=r"needs obstore, .*: pip install 'cosnorm\[s3\]'"):
        storage_at(PLACE)


@pytest.mark.parametrize(
    "place",
    [
        *("s3://", "s3:///run", "s3://runs/../x", "s3://../x", "gs://runs/x", "s3:/a"),
        *("s3://Runs With Space/x", "s3://rüns/x", "s3://a?b/x", "s3://a#b/x", "s3://a%20b"),
    ],
)
def test_places_that_are_none(place):
    with pytest.raises(ConfigError, match=r"s3://BUCKET/PREFIX.*; got"):
        storage_at(place)


@pytest.mark.parametrize("lease", ["none", "0", "-1", "inf", "nan"])
def test_a_lease_that_is_none(store, monkeypatch, lease):
    monkeypatch.setenv("COSNORM_LEASE_SECONDS", lease)
    with pytest.raises(ConfigError, match=r"must be a number above 0; got"):
        storage_at(PLACE).claim().__enter__()
    assert store.objects == {}
