-- Rows are JSON documents; the other columns are those that queries need. Times are microseconds
-- since 1970, UTC.

CREATE TABLE cluster (id TEXT NOT NULL);
INSERT INTO cluster (id) VALUES (lower(hex(randomblob(16))));

-- One row. last_seq is here and not in records, so that retention cannot lower it. writes changes
-- with every transaction.
CREATE TABLE leader (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    term       INTEGER NOT NULL,
    holder     TEXT NOT NULL,
    url        TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    writes     INTEGER NOT NULL
);
INSERT INTO leader (one, term, holder, url, expires_at, last_seq, writes)
VALUES (1, 0, '', '', 0, 0, 0);

CREATE TABLE batches (
    id           TEXT PRIMARY KEY NOT NULL,
    committed_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX batches_by_age ON batches (committed_at);

CREATE TABLE jobs (
    id              TEXT PRIMARY KEY NOT NULL,
    namespace       TEXT NOT NULL,
    queue           TEXT NOT NULL,
    phase           TEXT NOT NULL,
    name            TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    finished_at     INTEGER,
    array_id        TEXT,  -- of an element
    doc             TEXT NOT NULL
);
-- In the order of their creation, because ids are random, and each of them would change another page.
CREATE INDEX jobs_live ON jobs (created_at) WHERE finished_at IS NULL;
-- An array is removed with its elements.
CREATE INDEX jobs_by_array ON jobs (array_id) WHERE array_id IS NOT NULL;
-- Retention removes the jobs that finished first.
CREATE INDEX jobs_by_end ON jobs (finished_at, id)
    WHERE finished_at IS NOT NULL AND array_id IS NULL;
-- Pages of finished jobs, newest first.
CREATE INDEX jobs_finished ON jobs (created_at, id)
    WHERE finished_at IS NOT NULL AND array_id IS NULL;
CREATE INDEX jobs_finished_by_namespace ON jobs (namespace, created_at, id)
    WHERE finished_at IS NOT NULL AND array_id IS NULL;
CREATE INDEX jobs_finished_by_queue ON jobs (queue, created_at, id)
    WHERE finished_at IS NOT NULL AND array_id IS NULL;
CREATE INDEX jobs_finished_by_name ON jobs (name, created_at, id)
    WHERE finished_at IS NOT NULL AND array_id IS NULL;

-- The rows are in the order of their creation. Only their keys are in the order of the random ids.
CREATE TABLE tasks (
    job      TEXT NOT NULL,
    position INTEGER NOT NULL,
    doc      TEXT NOT NULL,
    PRIMARY KEY (job, position)
);

-- The states of the elements of arrays, in blocks.
CREATE TABLE elements (
    array_id TEXT NOT NULL,
    number   INTEGER NOT NULL,
    doc      TEXT NOT NULL,
    PRIMARY KEY (array_id, number)
) WITHOUT ROWID;

CREATE TABLE workers (id TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE queues (name TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE residues (
    task  TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    doc   TEXT NOT NULL,
    PRIMARY KEY (task, epoch)
) WITHOUT ROWID;

CREATE TABLE records (
    seq         INTEGER PRIMARY KEY,
    job         TEXT,
    recorded_at INTEGER NOT NULL,
    doc         TEXT NOT NULL
);
CREATE INDEX records_by_job ON records (job, seq) WHERE job IS NOT NULL;
CREATE INDEX records_of_no_job ON records (recorded_at) WHERE job IS NULL;

CREATE TABLE blobs (
    id   TEXT PRIMARY KEY NOT NULL,
    job  TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX blobs_by_job ON blobs (job);

-- API tokens and the credentials of workers. The document has the digest of a token, not the token
-- itself. The version grows with every change of a document.

CREATE TABLE tokens (
    name    TEXT PRIMARY KEY NOT NULL,
    doc     TEXT NOT NULL,
    used_at INTEGER
) WITHOUT ROWID;
CREATE TABLE tokens_version (number INTEGER NOT NULL);
INSERT INTO tokens_version VALUES (0);

-- Lost work by queue. A row is kept when its queue and its jobs are removed.

CREATE TABLE accounts (queue TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;

-- The output of tasks in chunks: from byte `begins` to byte `ends` of one attempt. Old chunks are
-- removed. The sizes come before the data, so that they can be read without it.

CREATE TABLE output (
    job      TEXT NOT NULL,
    position INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    begins   INTEGER NOT NULL,
    ends     INTEGER NOT NULL,
    data     BLOB NOT NULL,
    PRIMARY KEY (job, position, epoch, begins)
);

-- Crons: jobs that run on a schedule.

CREATE TABLE crons (key TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;

-- Certificate authorities, with their private keys.

CREATE TABLE authorities (number INTEGER PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;

-- Idempotency keys, and the requests that were made with them.

CREATE TABLE used_keys (
    principal TEXT NOT NULL,
    key       TEXT NOT NULL,
    used_at   INTEGER NOT NULL,
    doc       TEXT NOT NULL,
    PRIMARY KEY (principal, key)
) WITHOUT ROWID;
CREATE INDEX used_keys_by_age ON used_keys (used_at);

-- The audit: who changed what, from where.

CREATE TABLE audit (
    recorded_at INTEGER NOT NULL,
    id          TEXT NOT NULL,
    principal   TEXT NOT NULL,
    namespace   TEXT NOT NULL,
    target      TEXT NOT NULL,
    doc         TEXT NOT NULL,
    PRIMARY KEY (recorded_at, id)
) WITHOUT ROWID;
CREATE INDEX audit_by_target ON audit (target, recorded_at, id);

-- Objects that users and administrators keep in the cluster, such as secrets and policies. The values
-- of secrets are encrypted. The version grows with every change.

CREATE TABLE objects (
    kind      TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    doc       TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE objects_version (number INTEGER NOT NULL);
INSERT INTO objects_version VALUES (0);

-- What servers note for people to see, and no decision depends on: which servers there are, how the cluster was used.

CREATE TABLE notes (
    kind     TEXT NOT NULL,
    name     TEXT NOT NULL,
    noted_at INTEGER NOT NULL,
    doc      TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
