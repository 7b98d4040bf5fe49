-- The tables of a store: the layout of Pi Durable, version 2, so that stores travel both ways.
--
-- Sections start with a line `--- name` and are run by `opening.py`, each inside the opening transaction. Comments are
-- taken out before a statement runs, so that no store carries them.
--
-- Two rules hold for every table. `record` and `content` hold the whole truth as compact JSON; every other column
-- repeats a part of it for an index and is kept in step. And strings in indexed columns (tasks.kind,
-- submissions.request_id, documents.kind, documents.key_value) are JSON texts, quotes included: the column of a kind
-- pi.tool holds nine characters. Peers escape what is not ASCII there and we do not, so look-ups name both spellings.

--- durable_schema
-- One row: the version of everything below. Made with version 0 where it is missing, then raised by each migration.
CREATE TABLE IF NOT EXISTS durable_schema (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    version INTEGER NOT NULL CHECK (version >= 0)
) STRICT;
INSERT OR IGNORE INTO durable_schema (singleton, version) VALUES (1, 0);

--- version 1
-- One row. next_id: the smallest id neither minted nor used, in decimal digits (JavaScript readers lose precision
-- beyond 2^53). Id 1 is the root conversation's, so minting starts at 2. next_seq: the number of the next commit.
CREATE TABLE durable_metadata (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    next_id TEXT NOT NULL,
    next_seq INTEGER NOT NULL
) STRICT;
INSERT INTO durable_metadata (singleton, next_id, next_seq) VALUES (1, '2', 1);

-- The one namespace of ids: which of them are used, and for what. Rows stay for ever.
CREATE TABLE record_ids (
    id INTEGER PRIMARY KEY,
    record_type TEXT NOT NULL CHECK (record_type IN ('conversation', 'entry', 'task', 'submission', 'document'))
) STRICT;

-- Written once. The owner is the task that made the conversation, and that task's own conversation.
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY,
    owner_conversation_id INTEGER,
    owner_task_id INTEGER,
    record TEXT NOT NULL CHECK (json_valid(record))
) STRICT;
CREATE INDEX conversations_by_owner_conversation ON conversations (owner_conversation_id, id);
CREATE INDEX conversations_by_owner_task ON conversations (owner_task_id, id);

-- Written once. A head moves the start of what the model sees; only the few heads are in the partial index.
-- commit_seq is the one fact that the record does not repeat: what a fork needs to find documents as they were.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    conversation_id INTEGER NOT NULL,
    head INTEGER,
    commit_seq INTEGER NOT NULL,
    record TEXT NOT NULL CHECK (json_valid(record))
) STRICT;
CREATE INDEX entries_by_conversation ON entries (conversation_id, id DESC);
CREATE INDEX entry_heads_by_conversation ON entries (conversation_id, id DESC) WHERE head IS NOT NULL;

-- Replaced whole on every change.
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    conversation_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'waiting', 'completing', 'terminal')),
    abort_requested INTEGER NOT NULL CHECK (abort_requested IN (0, 1)),
    background INTEGER NOT NULL CHECK (background IN (0, 1)),
    record TEXT NOT NULL CHECK (json_valid(record))
) STRICT;
CREATE INDEX tasks_by_status ON tasks (status, id);
CREATE INDEX tasks_by_conversation ON tasks (conversation_id, id);
CREATE INDEX tasks_by_kind ON tasks (kind, id);
CREATE INDEX tasks_by_abort_requested ON tasks (abort_requested, id);
CREATE INDEX tasks_by_background ON tasks (background, id);

-- Replaced whole on every change. No unique index guards the request id: the session looks first (S1).
CREATE TABLE submissions (
    id INTEGER PRIMARY KEY,
    conversation_id INTEGER NOT NULL,
    request_id TEXT,
    status TEXT NOT NULL CHECK (status IN ('queued', 'placed', 'done', 'unanswered')),
    record TEXT NOT NULL CHECK (json_valid(record))
) STRICT;
CREATE INDEX submissions_by_request ON submissions (conversation_id, request_id);
CREATE INDEX submissions_by_conversation ON submissions (conversation_id, id);
CREATE INDEX submissions_by_status ON submissions (status, id);

-- One row per incarnation; alive from created_at to before retired_at. A singleton has family 0 and the key "" (as a
-- JSON text), a family member family 1. owner_id is 0 for the session.
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    family INTEGER NOT NULL CHECK (family IN (0, 1)),
    key_value TEXT NOT NULL,
    scope_kind TEXT NOT NULL CHECK (scope_kind IN ('session', 'conversation', 'task')),
    owner_id INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    retired_at INTEGER,
    record TEXT NOT NULL CHECK (json_valid(record))
) STRICT;
CREATE INDEX documents_by_address ON documents
    (kind, scope_kind, owner_id, family, key_value, created_at DESC, retired_at);
CREATE INDEX documents_by_scope ON documents (scope_kind, owner_id, id);
CREATE INDEX documents_by_scope_kind ON documents (scope_kind, owner_id, kind, id);

-- At most one per document and commit. A base holds the value, a delta the operations from the one before.
CREATE TABLE document_revisions (
    document_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('base', 'delta')),
    version INTEGER NOT NULL,
    content TEXT NOT NULL CHECK (json_valid(content)),
    PRIMARY KEY (document_id, seq)
) STRICT;
CREATE INDEX document_revisions_by_kind ON document_revisions (document_id, kind, seq DESC);

--- version 2
-- The same, and a task may also sleep. SQLite cannot change a CHECK: the table is made anew and renamed.
CREATE TABLE tasks_v2 (
    id INTEGER PRIMARY KEY,
    conversation_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'waiting', 'sleeping', 'completing', 'terminal')),
    abort_requested INTEGER NOT NULL CHECK (abort_requested IN (0, 1)),
    background INTEGER NOT NULL CHECK (background IN (0, 1)),
    record TEXT NOT NULL CHECK (json_valid(record))
) STRICT;
INSERT INTO tasks_v2 (id, conversation_id, kind, status, abort_requested, background, record)
    SELECT id, conversation_id, kind, status, abort_requested, background, record FROM tasks;
DROP TABLE tasks;
ALTER TABLE tasks_v2 RENAME TO tasks;
CREATE INDEX tasks_by_status ON tasks (status, id);
CREATE INDEX tasks_by_conversation ON tasks (conversation_id, id);
CREATE INDEX tasks_by_kind ON tasks (kind, id);
CREATE INDEX tasks_by_abort_requested ON tasks (abort_requested, id);
CREATE INDEX tasks_by_background ON tasks (background, id);

--- pidurable_store
-- Ours, beside the format, and allowed to be absent. One row, changed by every opening for writing and by nothing else.
-- store_id names this file, and a copy gets another; origin is what idempotency keys are made of, and copies keep it.
-- opening counts, token fences (F5), file is the "device:inode" that the store was last opened as (NULL: not looked at).
CREATE TABLE IF NOT EXISTS pidurable_store (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    store_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    opening INTEGER NOT NULL,
    token INTEGER NOT NULL,
    file TEXT
) STRICT;
