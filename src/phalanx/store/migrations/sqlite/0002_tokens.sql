-- Who may speak to the server. A token itself is nowhere: the document has its digest.

CREATE TABLE tokens (name TEXT PRIMARY KEY NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;
