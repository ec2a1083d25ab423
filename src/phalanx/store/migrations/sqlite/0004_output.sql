-- What tasks write, in chunks: byte `begins` up to byte `ends` of one attempt. Only the last of it is
-- kept. Sizes stand before the bytes, so that they are found without reading them.

CREATE TABLE output (
    job      TEXT NOT NULL,
    position INTEGER NOT NULL,
    epoch    INTEGER NOT NULL,
    begins   INTEGER NOT NULL,
    ends     INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    data     BLOB NOT NULL,
    PRIMARY KEY (job, position, epoch, begins)
);
