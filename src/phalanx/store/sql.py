"""Statements that SQLite and PostgreSQL have in common.

Parameters are written `$1`, and SQLite replaces the dollar sign.
"""

from phalanx.store.pages import Cursor
from phalanx.store.protocol import AuditQuery, JobQuery
from phalanx.store.rows import Table, Value, column

#: The character that sorts last. The ids that begin with a prefix lie between the prefix and the
#: prefix with this character appended, which the index finds.
LAST_CHARACTER = "\U0010ffff"

#: A shorter prefix, such as `j-7`, matches so many ids that it is faster to read jobs in the order
#: of the page and to skip the others.
SELECTIVE_CHARS = 4

CLUSTER_ID = "SELECT id FROM cluster"
TERM_AND_LAST_SEQ = "SELECT term, last_seq FROM leader"

#: Table → the documents that `load` reads.
LIVE = {
    "jobs": "SELECT doc FROM jobs WHERE finished_at IS NULL",
    "tasks": "SELECT t.doc FROM jobs j JOIN tasks t ON t.job = j.id WHERE j.finished_at IS NULL",
    "workers": "SELECT doc FROM workers",
    "queues": "SELECT doc FROM queues",
    "residues": "SELECT doc FROM residues",
    "accounts": "SELECT doc FROM accounts",
    "crons": "SELECT doc FROM crons",
    "elements": """
        SELECT e.doc FROM jobs j JOIN elements e ON e.array_id = j.id WHERE j.finished_at IS NULL
    """,
}

#: A job and its tasks in one statement, so that they are of the same moment; the job comes first.
JOB = """
    SELECT -1 AS position, doc FROM jobs WHERE id = $1
    UNION ALL
    SELECT position, doc FROM tasks WHERE job = $1
    ORDER BY position
"""
ELEMENTS = "SELECT doc FROM elements WHERE array_id = $1 ORDER BY number"
USED_KEY = "SELECT doc FROM used_keys WHERE principal = $1 AND key = $2"

RECORDS = "SELECT doc FROM records WHERE seq > $1 ORDER BY seq LIMIT $2"
RECORDS_OF_JOB = "SELECT doc FROM records WHERE seq > $1 AND job = $3 ORDER BY seq LIMIT $2"

HAS_BATCH = "SELECT count(*) FROM batches WHERE id = $1"
#: To be completed with a condition on the id.
JOB_SUMMARIES = "SELECT id, namespace, phase, finished_at IS NOT NULL FROM jobs WHERE id"
REMOVE_BLOB = "DELETE FROM blobs WHERE id = $1"
BLOB = "SELECT data FROM blobs WHERE id = $1"
PUT_BLOB = """
    INSERT INTO blobs (id, job, data) VALUES ($1, $2, $3)
    ON CONFLICT (id) DO UPDATE SET job = excluded.job, data = excluded.data
"""

PUT_OUTPUT = """
    INSERT INTO output (job, position, epoch, begins, ends, data)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (job, position, epoch, begins)
    DO UPDATE SET ends = excluded.ends, data = excluded.data WHERE excluded.ends > output.ends
"""
OUTPUT_ENDS = """
    SELECT position, epoch, max(ends) FROM output WHERE job = $1
    GROUP BY position, epoch ORDER BY position, epoch
"""
_ATTEMPT = "FROM output WHERE job = $1 AND position = $2 AND epoch = $3"
OUTPUT = f"""
    SELECT begins, data {_ATTEMPT} AND ends > $4
    AND begins >= coalesce((SELECT max(begins) {_ATTEMPT} AND begins <= $4), $4)
    AND begins < $5 + coalesce((SELECT min(begins) {_ATTEMPT} AND begins >= $4), $4)
    ORDER BY begins
"""

ADD_TOKEN = "INSERT INTO tokens (name, doc) VALUES ($1, $2) ON CONFLICT DO NOTHING"  # noqa: S105
REMOVE_TOKEN = "DELETE FROM tokens WHERE name = $1"  # noqa: S105
REPLACE_TOKEN = "UPDATE tokens SET doc = $3 WHERE name = $1 AND doc = $2"  # noqa: S105
TOKENS = "SELECT doc FROM tokens ORDER BY name"
TOKENS_CHANGED = "UPDATE tokens_version SET number = number + 1 RETURNING number"
TOKENS_VERSION = "SELECT number FROM tokens_version"
NOTE_TOKEN_USE = "UPDATE tokens SET used_at = $2 WHERE name = $1"  # noqa: S105
TOKEN_USES = "SELECT name, used_at FROM tokens WHERE used_at IS NOT NULL"  # noqa: S105

ADD_AUTHORITY = "INSERT INTO authorities (number, doc) VALUES ($1, $2) ON CONFLICT DO NOTHING"
REMOVE_AUTHORITY = "DELETE FROM authorities WHERE number = $1"
AUTHORITIES = "SELECT doc FROM authorities ORDER BY number"

PUT_NOTE = """
    INSERT INTO notes (kind, name, noted_at, doc) VALUES ($1, $2, $3, $4)
    ON CONFLICT (kind, name) DO UPDATE SET noted_at = excluded.noted_at, doc = excluded.doc
"""
NOTES = "SELECT kind, name, noted_at, doc FROM notes WHERE kind = $1 ORDER BY name"
REMOVE_NOTES = "DELETE FROM notes WHERE kind = $1 AND noted_at < $2"

PUT_OBJECT = """
    INSERT INTO objects (kind, namespace, name, doc) VALUES ($1, $2, $3, $4)
    ON CONFLICT (kind, namespace, name) DO UPDATE SET doc = excluded.doc
"""
REMOVE_OBJECT = "DELETE FROM objects WHERE kind = $1 AND namespace = $2 AND name = $3"
OBJECTS = "SELECT doc FROM objects ORDER BY kind, namespace, name"
OBJECTS_CHANGED = "UPDATE objects_version SET number = number + 1 RETURNING number"
OBJECTS_VERSION = "SELECT number FROM objects_version"

#: Tables with rows that are removed together with their job → the column of the job.
JOB_COLUMNS = {
    "tasks": "job",
    "records": "job",
    "blobs": "job",
    "output": "job",
    "elements": "array_id",
    "jobs": "id",
}
#: To be completed with a condition on the array.
ELEMENT_JOBS = "SELECT id FROM jobs WHERE array_id"
PRUNABLE_JOBS = """
    SELECT id FROM jobs WHERE finished_at IS NOT NULL AND finished_at < $1 AND array_id IS NULL
    ORDER BY finished_at, id LIMIT $2
"""
PRUNE_RECORDS_OF_NO_JOB = "DELETE FROM records WHERE job IS NULL AND recorded_at < $1"
PRUNE_KEYS = """
    DELETE FROM used_keys WHERE (principal, key) IN
    (SELECT principal, key FROM used_keys WHERE used_at < $1 ORDER BY used_at LIMIT $2)
"""
PRUNE_AUDIT = """
    DELETE FROM audit WHERE (recorded_at, id) IN
    (SELECT recorded_at, id FROM audit WHERE recorded_at < $1 ORDER BY recorded_at, id LIMIT $2)
"""
PRUNE_BATCHES = "DELETE FROM batches WHERE committed_at < $1"


def update(table: Table) -> str:
    """The end of an upsert: the new row replaces the stored one if their fixed columns agree."""
    changing = (name for name in table.columns if name not in (*table.key, *table.fixed))
    text = "DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in changing)
    same = " AND ".join(f"{table.name}.{name} = excluded.{name}" for name in table.fixed)
    return f"{text} WHERE {same}" if same else text


def finished_jobs(query: JobQuery, limit: int, cursor: Cursor | None) -> tuple[str, list[Value]]:
    """The statement and its values. It reads one row more than the page has, to find the end."""
    exact: dict[str, Value] = {
        "namespace": query.namespace,
        "queue": query.queue,
        "phase": None if query.phase is None else query.phase.value,
        "name": query.name,
    }
    clauses = ["finished_at IS NOT NULL", "array_id IS NULL"]
    values: list[Value] = []
    for name, value in exact.items():
        if value is not None:
            values.append(column(str(value)))
            clauses.append(f"{name} = ${len(values)}")
    if query.id_prefix is not None:
        prefix = column(query.id_prefix)
        if len(prefix) < SELECTIVE_CHARS:
            values += [len(prefix), prefix]
            clauses.append(f"substr(id, 1, ${len(values) - 1}) = ${len(values)}")
        else:
            values += [prefix, prefix + LAST_CHARACTER]
            clauses.append(f"id >= ${len(values) - 1} AND id < ${len(values)}")
    if query.name_contains is not None:
        values.append(column(query.name_contains))
        clauses.append(f"replace(name, ${len(values)}, '') <> name")
    if cursor is not None:
        values.extend(cursor)
        clauses.append(f"(created_at, id) < (${len(values) - 1}, ${len(values)})")
    values.append(limit + 1)
    text = (
        "SELECT created_at, id, doc FROM jobs WHERE "  # noqa: S608 - only names from above
        f"{' AND '.join(clauses)} ORDER BY created_at DESC, id DESC LIMIT ${len(values)}"
    )
    return text, values


def audit(query: AuditQuery, limit: int, cursor: Cursor | None) -> tuple[str, list[Value]]:
    """The statement and its values. It reads one row more than the page has, to find the end."""
    conditions: list[tuple[str, Value]] = [
        ("recorded_at >=", query.since),
        ("recorded_at <", query.until),
        ("principal =", None if query.principal is None else column(query.principal)),
        ("namespace =", None if query.namespace is None else column(query.namespace)),
        ("target =", None if query.target is None else column(query.target)),
    ]
    given = [(text, value) for text, value in conditions if value is not None]
    clauses = [f"{text} ${number}" for number, (text, _) in enumerate(given, 1)]
    values: list[Value] = [value for _, value in given]
    if cursor is not None:
        values.extend(cursor)
        clauses.append(f"(recorded_at, id) < (${len(values) - 1}, ${len(values)})")
    values.append(limit + 1)
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    text = (
        f"SELECT recorded_at, id, doc FROM audit {where}"  # noqa: S608 - only names from above
        f" ORDER BY recorded_at DESC, id DESC LIMIT ${len(values)}"
    )
    return text, values


def records(job: str | None, after: int, limit: int) -> tuple[str, list[Value]]:
    if job is None:
        return RECORDS, [after, limit]
    return RECORDS_OF_JOB, [after, limit, column(job)]
