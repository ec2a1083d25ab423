-- What the jobs of each queue have lost. A row outlives its queue and its jobs.

CREATE TABLE accounts (queue TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;
