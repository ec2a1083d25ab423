-- Rows are JSON documents, as text: jsonb cannot store NUL in a string. The other columns are those
-- that queries need. Times are microseconds since 1970, UTC. COLLATE "C" orders ids by code point, as
-- SQLite and Python do.

CREATE TABLE cluster (id text NOT NULL);
INSERT INTO cluster (id) VALUES (replace(gen_random_uuid()::text, '-', ''));

-- One row. last_seq is here and not in records, so that retention cannot lower it. Every transaction
-- updates the row, so its page has space for new versions of it.
CREATE TABLE leader (
    one        smallint PRIMARY KEY CHECK (one = 1),
    term       bigint NOT NULL,
    holder     text NOT NULL,
    url        text NOT NULL,
    expires_at bigint NOT NULL,
    last_seq   bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO leader (one, term, holder, url, expires_at, last_seq) VALUES (1, 0, '', '', 0, 0);

CREATE TABLE batches (
    id           text COLLATE "C" PRIMARY KEY,
    committed_at bigint NOT NULL
);
CREATE INDEX batches_by_age ON batches (committed_at);

CREATE TABLE jobs (
    id              text COLLATE "C" PRIMARY KEY,
    namespace       text COLLATE "C" NOT NULL,
    queue           text COLLATE "C" NOT NULL,
    phase           text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    created_at      bigint NOT NULL,
    finished_at     bigint,
    array_id        text COLLATE "C",  -- of an element
    doc             text NOT NULL
) WITH (fillfactor = 70);
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

CREATE TABLE tasks (
    job      text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    doc      text NOT NULL,
    PRIMARY KEY (job, position)
) WITH (fillfactor = 70);

-- The states of the elements of arrays, in blocks.
CREATE TABLE elements (
    array_id text COLLATE "C" NOT NULL,
    number   bigint NOT NULL,
    doc      text NOT NULL,
    PRIMARY KEY (array_id, number)
) WITH (fillfactor = 70);

CREATE TABLE workers (id text COLLATE "C" PRIMARY KEY, doc text NOT NULL);

CREATE TABLE queues (name text COLLATE "C" PRIMARY KEY, doc text NOT NULL);

CREATE TABLE residues (
    task  text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    doc   text NOT NULL,
    PRIMARY KEY (task, epoch)
);

CREATE TABLE records (
    seq         bigint PRIMARY KEY,
    job         text COLLATE "C",
    recorded_at bigint NOT NULL,
    doc         text NOT NULL
);
CREATE INDEX records_by_job ON records (job, seq) WHERE job IS NOT NULL;
CREATE INDEX records_of_no_job ON records (recorded_at) WHERE job IS NULL;

CREATE TABLE blobs (
    id   text COLLATE "C" PRIMARY KEY,
    job  text COLLATE "C" NOT NULL,
    data bytea NOT NULL
);
-- Checkpoints are mostly compressed already, and are always read as a whole.
ALTER TABLE blobs ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX blobs_by_job ON blobs (job);

-- API tokens and the credentials of workers. The document has the digest of a token, not the token
-- itself. The version grows with every change of a document.

CREATE TABLE tokens (name text COLLATE "C" PRIMARY KEY, doc text NOT NULL, used_at bigint);
CREATE TABLE tokens_version (number bigint NOT NULL);
INSERT INTO tokens_version VALUES (0);

-- Lost work by queue. A row is kept when its queue and its jobs are removed.

CREATE TABLE accounts (queue text COLLATE "C" PRIMARY KEY, doc text NOT NULL);

-- The output of tasks in chunks: from byte `begins` to byte `ends` of one attempt. Old chunks are
-- removed. The sizes come before the data, so that they can be read without it.

CREATE TABLE output (
    job      text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    epoch    bigint NOT NULL,
    begins   bigint NOT NULL,
    ends     bigint NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (job, position, epoch, begins)
);

-- Crons: jobs that run on a schedule.

CREATE TABLE crons (key text COLLATE "C" PRIMARY KEY, doc text NOT NULL);

-- Certificate authorities, with their private keys.

CREATE TABLE authorities (number bigint PRIMARY KEY, doc text NOT NULL);

-- Idempotency keys, and the requests that were made with them.

CREATE TABLE used_keys (
    principal text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    used_at   bigint NOT NULL,
    doc       text NOT NULL,
    PRIMARY KEY (principal, key)
);
CREATE INDEX used_keys_by_age ON used_keys (used_at);

-- The audit: who changed what, from where.

CREATE TABLE audit (
    recorded_at bigint NOT NULL,
    id          text COLLATE "C" NOT NULL,
    principal   text COLLATE "C" NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    target      text COLLATE "C" NOT NULL,
    doc         text NOT NULL,
    PRIMARY KEY (recorded_at, id)
);
CREATE INDEX audit_by_target ON audit (target, recorded_at, id);

-- Objects that users and administrators keep in the cluster, such as secrets and policies. The values
-- of secrets are encrypted. The version grows with every change.

CREATE TABLE objects (
    kind      text NOT NULL,
    namespace text NOT NULL,
    name      text NOT NULL,
    doc       text NOT NULL,
    PRIMARY KEY (kind, namespace, name)
);
CREATE TABLE objects_version (number bigint NOT NULL);
INSERT INTO objects_version VALUES (0);

-- What servers note for people to see, and no decision depends on: which servers there are, how the cluster was used.

CREATE TABLE notes (
    kind     text NOT NULL,
    name     text NOT NULL,
    noted_at bigint NOT NULL,
    doc      text NOT NULL,
    PRIMARY KEY (kind, name)
);
