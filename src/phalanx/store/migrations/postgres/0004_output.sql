-- What tasks write, in chunks: byte `begins` up to byte `ends` of one attempt. Only the last of it is
-- kept. Sizes stand before the bytes, so that they are found without reading them.

CREATE TABLE output (
    job      text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    epoch    bigint NOT NULL,
    begins   bigint NOT NULL,
    ends     bigint NOT NULL,
    attempt  bigint NOT NULL,
    data     bytea NOT NULL,
    PRIMARY KEY (job, position, epoch, begins)
);
