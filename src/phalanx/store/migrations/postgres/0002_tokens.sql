-- Who may speak to the server. A token itself is nowhere: the document has its digest.

CREATE TABLE tokens (name text COLLATE "C" PRIMARY KEY, doc text NOT NULL);
