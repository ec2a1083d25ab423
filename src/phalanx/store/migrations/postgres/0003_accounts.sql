-- What the jobs of each queue have lost. A row outlives its queue and its jobs.

CREATE TABLE accounts (queue text COLLATE "C" PRIMARY KEY, doc text NOT NULL);
