-- Jobs that are made again and again.

CREATE TABLE crons (key TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;
