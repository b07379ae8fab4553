"""The SQL record: persons with their uids and homes, the history of leases, and what the operator has closed.

What must hold for persons, whatever happens at the same time and in whatever order people sign in:

- one `sub` has one uid and one home for ever; one uid, one home and one hub name belong to one `sub`;
- a hub name that somebody else's record holds is refused, never taken over: account names get reused, and the new
  person must not get the old one's home;
- a uid that is in use below the homes root is never allotted again, even where this database was lost.

A home's name is the uid in decimal digits. A folder named after the account would have to be renamed with it, and
would let a hostile account name choose a path; a number can do neither.

The history answers who had which address and which GPUs at a time. It is no ledger: nothing is granted or freed by it.
Each of its writes may come twice, or late, and changes nothing then.

The methods block; the hub calls them in a worker thread.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from spawner.core.exits import EndCode
from spawner.core.model import Code, Lease, Person, Refusal
from spawner.core.names import printable
from spawner.sql import READS, RecordsError, migrate, open_sqlite

__all__ = ["MIGRATIONS", "TROUBLE", "Base", "Closed", "Cordon", "PastLease", "Records", "RecordsError"]

Closed = Literal["cordoned", "drained"]
TROUBLE: tuple[type[Exception], ...] = (  # the database cannot be reached or written now; the same call may work later
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.TimeoutError,
    OSError,
)

MIGRATIONS = Path(__file__).parent / "migrations"

_ATTEMPTS = 32  # each lost race means that somebody else got a uid, so this many must win first


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A GPU (by UUID) or a node (by name) that gets no new leases, who closed it, when and why."""

    target: str
    state: Closed
    reason: str
    since: datetime
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLease:
    """A line of the history. `started` and `ended` are None while that has not happened; `code` says why it ended.

    `quarantine` are the engine's words where it did not end the lease when it was told to; else it is empty.
    """

    lease: str
    hub: str
    user: str
    server: str
    variant: str
    mode: str
    gpus: tuple[str, ...]
    node: str
    container: str
    address: str
    granted: datetime
    started: datetime | None
    ended: datetime | None
    code: str
    quarantine: str = ""


class _UTC(sa.TypeDecorator[datetime]):
    """A time. SQLite keeps no zone and compares as text, so everything goes in and comes out in UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """The tables as the code knows them; the migrations make them."""

    metadata = sa.MetaData(naming_convention={"uq": "uq_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s"})


class _PersonRow(Base):
    __tablename__ = "person"

    sub: Mapped[str] = mapped_column(sa.String(255), primary_key=True)
    uid: Mapped[int] = mapped_column(sa.BigInteger(), unique=True)
    hub_name: Mapped[str] = mapped_column(sa.String(255), unique=True)
    home: Mapped[str] = mapped_column(sa.String(255), unique=True)
    created: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True))

    def person(self) -> Person:
        return Person(sub=self.sub, uid=self.uid, hub_name=self.hub_name, home=self.home)


class _LeaseRow(Base):
    __tablename__ = "lease_history"
    __table_args__ = (
        sa.Index("ix_lease_history_user", "user", "granted"),
        sa.Index("ix_lease_history_address", "address", "granted"),
    )

    lease: Mapped[str] = mapped_column(sa.String(255), primary_key=True)
    hub: Mapped[str] = mapped_column(sa.String(255))
    user: Mapped[str] = mapped_column(sa.String(255))
    server: Mapped[str] = mapped_column(sa.Text())
    variant: Mapped[str] = mapped_column(sa.Text())
    mode: Mapped[str] = mapped_column(sa.String(32))
    gpus: Mapped[str] = mapped_column(sa.Text())  # UUIDs with commas between, as on the label
    node: Mapped[str] = mapped_column(sa.Text())
    container: Mapped[str] = mapped_column(sa.String(64), default="")
    address: Mapped[str] = mapped_column(sa.String(64), default="")
    granted: Mapped[datetime] = mapped_column(_UTC())
    started: Mapped[datetime | None] = mapped_column(_UTC())
    ended: Mapped[datetime | None] = mapped_column(_UTC())
    code: Mapped[str] = mapped_column(sa.String(32), default="")
    quarantine: Mapped[str] = mapped_column(sa.Text(), default="")

    def past_lease(self) -> PastLease:
        values = {column.key: getattr(self, column.key) for column in self.__table__.columns}
        return PastLease(**values | {"gpus": tuple(filter(None, self.gpus.split(",")))})


class _CordonRow(Base):
    __tablename__ = "cordon"

    target: Mapped[str] = mapped_column(sa.String(255), primary_key=True)
    state: Mapped[Closed] = mapped_column(sa.String(16))
    reason: Mapped[str] = mapped_column(sa.Text())
    since: Mapped[datetime] = mapped_column(_UTC())
    by: Mapped[str] = mapped_column(sa.Text())

    def cordon(self) -> Cordon:
        return Cordon(target=self.target, state=self.state, reason=self.reason, since=self.since, by=self.by)


class Records:
    """An open database with the newest schema. Safe to use from several threads and processes."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._reads = engine.execution_options(**{READS: True})

    @classmethod
    def open(cls, url: str, *, upgrade: bool = False) -> "Records":
        """Open the database, made at the first time; RecordsError where that cannot be.

        One with an older schema is brought up to date only where that is asked for: `gpucampus upgrade` makes a backup
        first, and a command of a newer checkout must change nothing below a hub that runs.
        """
        parsed = sa.make_url(url)
        try:
            if parsed.get_backend_name() == "sqlite":
                engine = open_sqlite(parsed)
            else:
                engine = sa.create_engine(parsed, pool_pre_ping=True)
            migrate(engine, MIGRATIONS, upgrade=upgrade)
        except (OSError, sa.exc.SQLAlchemyError) as error:
            reason = str(error).splitlines()[0]
            raise RecordsError(f"records {parsed.render_as_string(hide_password=True)}: {reason}") from error
        return cls(engine)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def person_by_name(self, hub_name: str) -> Person | None:
        """Find the person who has this account name now."""
        return self._find(_PersonRow.hub_name == hub_name)

    def person_by_sub(self, sub: str) -> Person | None:
        """Find the person by the identifier that never changes."""
        return self._find(_PersonRow.sub == sub)

    def persons(self) -> tuple[Person, ...]:
        """List everybody, by uid."""
        with Session(self._engine) as session:
            return tuple(row.person() for row in session.scalars(sa.select(_PersonRow).order_by(_PersonRow.uid)))

    def assign(self, sub: str, hub_name: str, uid_range: range, taken_uids: Collection[int]) -> Person | Refusal:
        """Give the person of this `sub`, with a uid and a home allotted now if they are new.

        Parameters
        ----------
        sub
            The provider's identifier, 1 to 255 characters (the limit of OpenID Connect).
        hub_name
            The account name as it is now. Where a known person has a new one, the record follows; the home stays.
        uid_range
            The uids to allot from: `range(uid_min, uid_max + 1)`. The lowest free one is taken.
        taken_uids
            Uids that are in use below the homes root, whether or not this database knows by whom.

        Returns
        -------
        The person, or PERSON_CONFLICT (somebody else's record holds the name), or UIDS_EXHAUSTED.

        """
        if not 0 < len(sub) <= 255 or not 0 < len(hub_name) <= 255:
            raise ValueError("sub and hub_name have 1 to 255 characters")
        for _ in range(_ATTEMPTS):
            try:
                with Session(self._engine) as session, session.begin():
                    return self._assign(session, sub, hub_name, uid_range, taken_uids)
            except IntegrityError:
                continue  # somebody else was faster: look again
        raise RecordsError(f"no uid could be assigned to {printable(hub_name)}: {_ATTEMPTS} attempts collided")

    def learn(self, person: Person) -> Person | Refusal:
        """Take over a person known from the marker in a home, and give what is recorded now.

        A record that is there wins over a marker. A hub name that another record holds is not taken over: the person
        is kept under a name that no account can have, until their next sign-in says the name they have now. Refused
        (PERSON_CONFLICT) where the uid is recorded for somebody else.
        """
        for hub_name in (person.hub_name, f"~{person.uid}"):
            known = self.person_by_sub(person.sub)
            if known is not None:
                return known
            try:
                with Session(self._engine) as session, session.begin():
                    row = _new_row(person.sub, person.uid, hub_name)
                    session.add(row)
                    return row.person()
            except IntegrityError:
                continue
        known = self.person_by_sub(person.sub)
        return known or Refusal.of(Code.PERSON_CONFLICT, name=printable(person.hub_name))

    # -- the history of leases -------------------------------------------------------------------------------------

    def lease_granted(self, lease: Lease) -> None:
        """Note a lease; one that is noted already stays as it is."""
        row = _LeaseRow(
            lease=lease.id,
            hub=lease.hub,
            user=lease.user,
            server=lease.server,
            variant=lease.variant,
            mode=lease.mode.value,
            gpus=",".join(lease.gpus),
            node=lease.node,
            granted=lease.granted,
        )
        try:
            with Session(self._engine) as session, session.begin():
                if session.get(_LeaseRow, lease.id) is None:
                    session.add(row)
        except IntegrityError:  # another process noted it between our look and our write
            return

    def lease_started(self, lease_id: str, container: str, address: str, when: datetime) -> None:
        """Note the container of a lease and the address that it has; what is known already stays."""
        with Session(self._engine) as session, session.begin():
            row = session.get(_LeaseRow, lease_id)
            if row is not None:
                row.container, row.address = row.container or container, row.address or address
                row.started = row.started or when

    def lease_ended(self, lease_id: str, code: str, when: datetime) -> None:
        """Note the end of a lease. The first end stands, except that a known reason replaces `gone`."""
        with Session(self._engine) as session, session.begin():
            row = session.get(_LeaseRow, lease_id)
            if row is not None and (row.ended is None or row.code == EndCode.GONE.value):
                row.ended, row.code = row.ended or when, code

    def lease_quarantined(self, lease_id: str, why: str) -> None:
        """Note that the engine does not end a lease, so that the next hub process knows it when it starts."""
        with Session(self._engine) as session, session.begin():
            row = session.get(_LeaseRow, lease_id)
            if row is not None and row.ended is None:
                row.quarantine = why

    def open_leases(self, hub: str) -> tuple[PastLease, ...]:
        """Give the leases of a hub that have no end."""
        with Session(self._reads) as session:
            unended = sa.select(_LeaseRow).where(_LeaseRow.hub == hub, _LeaseRow.ended.is_(None))
            return tuple(row.past_lease() for row in session.scalars(unended.order_by(_LeaseRow.lease)))

    def history(
        self, user: str | None = None, address: str | None = None, at: datetime | None = None, limit: int = 1000
    ) -> tuple[PastLease, ...]:
        """Give past and present leases, the newest first: of a person, of a container's address, at a moment."""
        chosen = sa.select(_LeaseRow).order_by(_LeaseRow.granted.desc(), _LeaseRow.lease).limit(limit)
        if user is not None:
            chosen = chosen.where(_LeaseRow.user == user)
        if address is not None:
            chosen = chosen.where(_LeaseRow.address == address)
        if at is not None:
            chosen = chosen.where(_LeaseRow.granted <= at, sa.or_(_LeaseRow.ended.is_(None), _LeaseRow.ended >= at))
        with Session(self._reads) as session:
            return tuple(row.past_lease() for row in session.scalars(chosen))

    def forget_leases(self, before: datetime) -> int:
        """Delete the leases that ended before a time, and say how many; what has no end stays."""
        old = sa.delete(_LeaseRow).where(_LeaseRow.ended < before)
        with Session(self._engine) as session, session.begin():
            return int(session.connection().execute(old).rowcount)

    # -- what the operator has closed ------------------------------------------------------------------------------

    def cordons(self) -> tuple[Cordon, ...]:
        """List what gets no new leases."""
        with Session(self._reads) as session:
            return tuple(row.cordon() for row in session.scalars(sa.select(_CordonRow).order_by(_CordonRow.target)))

    def cordon(self, target: str, state: Closed, reason: str, by: str, when: datetime) -> None:
        """Close a GPU or a node, or say anew how and why it is closed."""
        with Session(self._engine) as session, session.begin():
            session.merge(_CordonRow(target=target, state=state, reason=reason, since=when, by=by))

    def uncordon(self, target: str) -> bool:
        """Open a GPU or a node again; False where it was not closed."""
        with Session(self._engine) as session, session.begin():
            row = session.get(_CordonRow, target)
            if row is not None:
                session.delete(row)
            return row is not None

    # -- how a person is found and made ----------------------------------------------------------------------------

    def _find(self, condition: sa.ColumnElement[bool]) -> Person | None:
        with Session(self._engine) as session:
            row = session.scalars(sa.select(_PersonRow).where(condition)).one_or_none()
            return None if row is None else row.person()

    @staticmethod
    def _assign(
        session: Session, sub: str, hub_name: str, uid_range: range, taken_uids: Collection[int]
    ) -> Person | Refusal:
        holder = session.scalars(sa.select(_PersonRow).where(_PersonRow.hub_name == hub_name)).one_or_none()
        if holder is not None:
            return holder.person() if holder.sub == sub else Refusal.of(Code.PERSON_CONFLICT, name=printable(hub_name))
        row = session.get(_PersonRow, sub)
        if row is None:
            used = {*taken_uids, *session.scalars(sa.select(_PersonRow.uid))}
            uid = next((uid for uid in uid_range if uid not in used), None)
            if uid is None:
                return Refusal.of(Code.UIDS_EXHAUSTED, least=uid_range.start, most=uid_range.stop - 1)
            row = _new_row(sub, uid, hub_name)
            session.add(row)
        row.hub_name = hub_name
        session.flush()
        return row.person()


def _new_row(sub: str, uid: int, hub_name: str) -> _PersonRow:
    return _PersonRow(sub=sub, uid=uid, hub_name=hub_name, home=str(uid), created=datetime.now(UTC))
