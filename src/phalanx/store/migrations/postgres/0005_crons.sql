-- Jobs that are made again and again.

CREATE TABLE crons (key text COLLATE "C" PRIMARY KEY, doc text NOT NULL);
