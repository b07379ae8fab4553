"""One sub has one uid for ever, in whatever order and however many at once people sign in."""

import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spawner.core.model import Code, Person, Refusal
from spawner.records import TROUBLE, Base, Cordon, Records, RecordsError
from tests.core.strategies import NOW, lease

UIDS = range(200_000, 200_010)


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'state' / 'records.sqlite'}"


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    opened = Records.open(url(tmp_path))
    yield opened
    opened.close()


def person(sub: str, uid: int, hub_name: str) -> Person:
    return Person(sub=sub, uid=uid, hub_name=hub_name, home=str(uid))


def test_a_new_person_gets_the_lowest_free_uid_and_a_home_named_by_it(records):
    assert records.assign("s1", "anna", UIDS, ()) == person("s1", 200_000, "anna")
    assert records.assign("s2", "ben", UIDS, ()) == person("s2", 200_001, "ben")


def test_the_same_sub_gets_the_same_uid_after_any_other_and_after_reopening(records, tmp_path):
    first = records.assign("s1", "anna", UIDS, ())
    records.assign("s2", "ben", UIDS, ())
    assert records.assign("s1", "anna", range(500, 600), {200_000}) == first
    again = Records.open(url(tmp_path))
    assert again.assign("s1", "anna", UIDS, ()) == first
    assert again.person_by_sub("s1") == again.person_by_name("anna") == first
    again.close()


def test_nobody_is_found_who_is_not_there(records):
    assert records.person_by_sub("s1") is None
    assert records.person_by_name("anna") is None
    assert records.persons() == ()


def test_a_renamed_account_keeps_uid_and_home(records):
    records.assign("s1", "anna", UIDS, ())
    assert records.assign("s1", "anna.b", UIDS, ()) == person("s1", 200_000, "anna.b")
    assert records.person_by_name("anna") is None
    assert records.person_by_name("anna.b") == person("s1", 200_000, "anna.b")


def test_a_reused_account_name_never_gets_the_old_person_s_home(records):
    records.assign("s1", "anna", UIDS, ())
    assert records.assign("s2", "anna", UIDS, ()) == Refusal.of(Code.PERSON_CONFLICT, name="anna")
    assert records.person_by_sub("s2") is None
    assert records.person_by_name("anna") == person("s1", 200_000, "anna")


def test_a_known_person_cannot_take_another_s_name(records):
    records.assign("s1", "anna", UIDS, ())
    ben = records.assign("s2", "ben", UIDS, ())
    assert records.assign("s2", "anna", UIDS, ()) == Refusal.of(Code.PERSON_CONFLICT, name="anna")
    assert records.person_by_sub("s2") == ben


def test_a_name_is_free_again_when_its_holder_has_another(records):
    records.assign("s1", "anna", UIDS, ())
    records.assign("s1", "anna2", UIDS, ())
    assert records.assign("s2", "anna", UIDS, ()) == person("s2", 200_001, "anna")


def test_uids_in_use_below_the_homes_root_are_never_allotted(records):
    assert records.assign("s1", "anna", UIDS, {200_000, 200_001, 7}) == person("s1", 200_002, "anna")


def test_an_empty_range_is_refused_with_its_ends(records):
    refusal = records.assign("s1", "anna", UIDS, set(UIDS))
    assert refusal == Refusal.of(Code.UIDS_EXHAUSTED, least=200_000, most=200_009)
    assert records.persons() == ()


@pytest.mark.parametrize(("sub", "hub_name"), [("", "anna"), ("s1", ""), ("s" * 256, "anna"), ("s1", "a" * 256)])
def test_an_impossible_sub_or_name_is_the_caller_s_mistake(records, sub, hub_name):
    with pytest.raises(ValueError, match="1 to 255"):
        records.assign(sub, hub_name, UIDS, ())


def test_subs_that_look_alike_are_different_people(records):
    uids = {records.assign(sub, f"n{i}", UIDS, ()).uid for i, sub in enumerate(["s1", "S1", "s1 ", "ｓ1"])}
    assert len(uids) == 4


def test_thirty_at_once_from_two_processes_worth_of_pools_get_thirty_uids(tmp_path):
    pools = [Records.open(url(tmp_path)) for _ in range(2)]
    uids = range(200_000, 200_030)
    with ThreadPoolExecutor(8) as executor:
        given = list(executor.map(lambda i: pools[i % 2].assign(f"s{i}", f"n{i}", uids, ()), range(30)))
    assert sorted(item.uid for item in given if isinstance(item, Person)) == list(uids)
    for opened in pools:
        opened.close()


def test_one_person_who_signs_in_ten_times_at_once_gets_one_uid(records):
    with ThreadPoolExecutor(8) as executor:
        given = set(executor.map(lambda _: records.assign("s1", "anna", UIDS, ()), range(10)))
    assert given == {person("s1", 200_000, "anna")}


def test_two_who_claim_one_name_at_once_do_not_both_get_it(records):
    with ThreadPoolExecutor(8) as executor:
        given = list(executor.map(lambda i: records.assign(f"s{i}", "anna", UIDS, ()), range(8)))
    assert sum(isinstance(item, Person) for item in given) == 1
    assert len(records.persons()) == 1


def test_a_person_learned_from_a_home_keeps_uid_and_name(records):
    anna = person("s1", 250_000, "anna")
    assert records.learn(anna) == anna
    assert records.learn(anna) == anna
    assert records.assign("s1", "anna", UIDS, ()) == anna


def test_what_is_recorded_wins_over_a_marker(records):
    anna = records.assign("s1", "anna", UIDS, ())
    assert records.learn(person("s1", 250_000, "old-name")) == anna


def test_of_two_homes_with_one_name_the_second_waits_for_its_person(records):
    records.learn(person("s1", 250_000, "anna"))
    kept = records.learn(person("s2", 250_001, "anna"))
    assert isinstance(kept, Person)
    assert (kept.uid, kept.hub_name) == (250_001, "~250001")
    assert records.assign("s2", "anna.b", UIDS, ()) == person("s2", 250_001, "anna.b")


def test_a_marker_for_a_uid_of_somebody_else_is_refused(records):
    records.assign("s1", "anna", UIDS, ())
    refusal = records.learn(person("s2", 200_000, "ben"))
    assert refusal == Refusal.of(Code.PERSON_CONFLICT, name="ben")
    assert records.persons() == (person("s1", 200_000, "anna"),)


def test_the_file_is_for_its_owner_only_and_keeps_a_write_ahead_log(records, tmp_path):
    records.assign("s1", "anna", UIDS, ())
    folder = tmp_path / "state"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "records.sqlite": 0o600,
        "records.sqlite-wal": 0o600,
        "records.sqlite-shm": 0o600,
    }


def test_the_migrations_make_exactly_the_tables_of_the_code(tmp_path):
    Records.open(url(tmp_path)).close()
    engine = sa.create_engine(url(tmp_path))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused_in_one_line(tmp_path):
    Records.open(url(tmp_path)).close()
    engine = sa.create_engine(url(tmp_path))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(RecordsError, match="newer than this version") as caught:
        Records.open(url(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused_in_one_line_and_kept(tmp_path):
    path = tmp_path / "records.sqlite"
    content = b"this is no database " * 100
    path.write_bytes(content)
    with pytest.raises(RecordsError) as caught:
        Records.open(f"sqlite:///{path}")
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path):
    (tmp_path / "state").touch()
    with pytest.raises(RecordsError, match="records sqlite"):
        Records.open(url(tmp_path))


def minutes(number: int) -> datetime:
    return NOW + timedelta(minutes=number)


def test_a_lease_is_told_from_grant_to_end(records):
    held = lease(1, "GPU-b", "GPU-a", node="node-1")
    records.lease_granted(held)
    records.lease_started(held.id, "c1", "172.30.0.5", minutes(1))
    records.lease_ended(held.id, "stopped", minutes(9))
    (past,) = records.history()
    assert (past.lease, past.hub, past.user, past.server, past.variant) == (
        held.id,
        held.hub,
        held.user,
        held.server,
        held.variant,
    )
    assert (past.mode, past.gpus, past.node) == (held.mode.value, held.gpus, "node-1")
    assert (past.container, past.address) == ("c1", "172.30.0.5")
    assert (past.granted, past.started, past.ended, past.code) == (held.granted, minutes(1), minutes(9), "stopped")


def test_every_write_of_the_history_may_come_twice(records):
    held = lease(1, "GPU-a")
    for _ in range(2):
        records.lease_granted(held)
        records.lease_started(held.id, "c1", "172.30.0.5", minutes(1))
        records.lease_ended(held.id, "stopped", minutes(9))
    before = records.history()
    records.lease_granted(replace(held, node="elsewhere"))
    records.lease_started(held.id, "c2", "172.30.0.6", minutes(2))
    records.lease_ended(held.id, "failed", minutes(10))
    assert records.history() == before
    assert len(before) == 1


def test_a_known_reason_replaces_gone_and_never_the_other_way(records):
    held = lease(1, "GPU-a")
    records.lease_granted(held)
    records.lease_ended(held.id, "gone", minutes(5))
    records.lease_ended(held.id, "out-of-memory", minutes(6))
    records.lease_ended(held.id, "gone", minutes(7))
    (past,) = records.history()
    assert (past.code, past.ended) == ("out-of-memory", minutes(5))


def test_an_address_that_was_not_known_is_filled_in_later(records):
    held = lease(1, "GPU-a")
    records.lease_granted(held)
    records.lease_started(held.id, "c1", "", minutes(1))
    records.lease_started(held.id, "c1", "172.30.0.5", minutes(2))
    (past,) = records.history()
    assert (past.address, past.started) == ("172.30.0.5", minutes(1))


def test_starts_and_ends_of_leases_that_nobody_noted_change_nothing(records):
    records.lease_started("none", "c1", "172.30.0.5", minutes(1))
    records.lease_ended("none", "gone", minutes(1))
    assert records.history() == ()


def test_the_history_answers_who_had_an_address_at_a_moment(records):
    for number, (user, begin, end) in enumerate([("ann", 0, 10), ("bob", 20, 30), ("ann", 40, None)]):
        item = replace(lease(number, f"GPU-{number}", user=user), granted=minutes(begin))
        records.lease_granted(item)
        records.lease_started(item.id, f"c{number}", "172.30.0.5", minutes(begin))
        if end is not None:
            records.lease_ended(item.id, "stopped", minutes(end))

    def who(**asked: object) -> list[str]:
        return [past.user for past in records.history(**asked)]

    assert who(address="172.30.0.5", at=minutes(25)) == ["bob"]
    assert who(address="172.30.0.5", at=minutes(15)) == []
    assert who(address="172.30.0.9", at=minutes(25)) == []
    assert who(at=minutes(500)) == ["ann"], "it has not ended"
    assert who(user="ann") == ["ann", "ann"]
    assert who() == ["ann", "bob", "ann"], "the newest first"
    assert who(limit=1) == ["ann"]
    elsewhere = minutes(25).astimezone(timezone(timedelta(hours=9)))
    assert who(address="172.30.0.5", at=elsewhere) == ["bob"], "a moment is one in every zone"


def test_what_ended_before_the_time_to_keep_is_forgotten_and_what_runs_never(records):
    for number, end in enumerate([10, 20, None]):
        item = replace(lease(number, f"GPU-{number}"), granted=minutes(0))
        records.lease_granted(item)
        if end is not None:
            records.lease_ended(item.id, "stopped", minutes(end))
    assert records.forget_leases(before=minutes(15)) == 1
    assert [past.ended for past in records.history()] == [minutes(20), None]
    assert records.forget_leases(before=minutes(500)) == 1
    assert [past.ended for past in records.history()] == [None]


def test_a_quarantine_is_known_after_reopening_while_the_lease_has_no_end(records, tmp_path):
    records.lease_granted(lease(1, "GPU-a"))
    records.lease_quarantined(lease(1).id, "it hangs")
    records.lease_quarantined("none", "it hangs")
    assert [past.quarantine for past in records.open_leases("campus")] == ["it hangs"]
    records.lease_ended(lease(1).id, "stopped", minutes(1))
    assert records.open_leases("campus") == ()
    records.lease_granted(lease(2, "GPU-a"))
    records.lease_ended(lease(2).id, "stopped", minutes(1))
    records.lease_quarantined(lease(2).id, "late news")
    assert [past.quarantine for past in records.history(limit=9) if past.lease == lease(2).id] == [""]


def test_leases_without_an_end_are_listed_for_their_hub_alone(records):
    records.lease_granted(lease(1, "GPU-a"))
    records.lease_granted(lease(2, "GPU-b", hub="other"))
    records.lease_granted(lease(3, "GPU-c"))
    records.lease_ended(lease(3, "GPU-c").id, "stopped", minutes(1))
    assert [past.lease for past in records.open_leases(lease(1, "GPU-a").hub)] == [lease(1, "GPU-a").id]


def test_what_is_closed_is_known_after_reopening_and_opened_once(records, tmp_path):
    records.cordon("GPU-a", "cordoned", "noisy fan", "root", minutes(0))
    records.cordon("node-1", "drained", "", "root", minutes(0))
    records.cordon("GPU-a", "drained", "fan died", "ann", minutes(1))
    again = Records.open(url(tmp_path))
    assert again.cordons() == (
        Cordon(target="GPU-a", state="drained", reason="fan died", since=minutes(1), by="ann"),
        Cordon(target="node-1", state="drained", reason="", since=minutes(0), by="root"),
    )
    again.close()
    assert records.uncordon("GPU-a") is True
    assert records.uncordon("GPU-a") is False
    assert [item.target for item in records.cordons()] == ["node-1"]


def test_who_reads_does_not_wait_for_who_writes(records, tmp_path):
    records.cordon("GPU-a", "cordoned", "", "root", minutes(0))
    writer = sqlite3.connect(tmp_path / "state" / "records.sqlite", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        assert [item.target for item in records.cordons()] == ["GPU-a"]
        assert records.history() == ()
        assert records.open_leases("campus") == ()
    finally:
        writer.close()


def test_a_database_of_the_first_version_waits_for_the_upgrade_and_keeps_its_persons(tmp_path):
    old = Records.open(url(tmp_path))
    anna = old.assign("s1", "anna", UIDS, ())
    old.close()
    with sqlite3.connect(tmp_path / "state" / "records.sqlite") as database:
        database.executescript(
            "DROP TABLE cordon; DROP TABLE lease_history; UPDATE alembic_version SET version_num = '0001'"
        )
    with pytest.raises(RecordsError, match="run `gpucampus upgrade`"):
        Records.open(url(tmp_path))
    new = Records.open(url(tmp_path), upgrade=True)
    assert new.person_by_sub("s1") == anna
    assert (new.history(), new.cordons()) == ((), ())
    new.close()


def test_a_lost_table_is_trouble_and_not_a_bug(records, tmp_path):
    with sqlite3.connect(tmp_path / "state" / "records.sqlite") as database:
        database.execute("DROP TABLE lease_history")
    with pytest.raises(TROUBLE):
        records.lease_granted(lease(1, "GPU-a"))


class SignIns(RuleBasedStateMachine):
    """People sign in, are renamed and are learned in any order; what was given once holds."""

    def __init__(self) -> None:
        super().__init__()
        self.records = Records.open("sqlite://")
        self.given: dict[str, tuple[int, str]] = {}

    @rule(sub=st.sampled_from("ABCDE"), name=st.sampled_from("abc"), taken=st.sets(st.sampled_from(UIDS)))
    def sign_in(self, sub, name, taken):
        answer = self.records.assign(sub, name, UIDS, taken)
        if isinstance(answer, Refusal):
            return
        assert (answer.sub, answer.hub_name) == (sub, name)
        if sub not in self.given:
            assert answer.uid not in taken
        assert self.given.setdefault(sub, (answer.uid, answer.home)) == (answer.uid, answer.home)

    @rule(sub=st.sampled_from("ABCDE"), uid=st.sampled_from(UIDS), name=st.sampled_from("abc"))
    def learn(self, sub, uid, name):
        answer = self.records.learn(person(sub, uid, name))
        if isinstance(answer, Person):
            assert self.given.setdefault(sub, (answer.uid, answer.home)) == (answer.uid, answer.home)

    @invariant()
    def nothing_belongs_to_two(self):
        people = self.records.persons()
        assert {item.sub: (item.uid, item.home) for item in people} == self.given
        for key in ("uid", "home", "hub_name"):
            assert len({getattr(item, key) for item in people}) == len(people)

    def teardown(self):
        self.records.close()


TestSignIns = SignIns.TestCase
TestSignIns.settings = hypothesis_settings(max_examples=20, stateful_step_count=15, deadline=None)
