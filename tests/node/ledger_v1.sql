-- A ledger as version 1 wrote it. Do not edit: it stands for files on people's disks.
PRAGMA application_id = 1735423347;
PRAGMA journal_mode = WAL;
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, wall REAL NOT NULL);
CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at REAL NOT NULL,
    wall REAL NOT NULL, environment TEXT, lease TEXT, data TEXT NOT NULL);
CREATE INDEX records_by_environment ON records (environment, seq);
CREATE TABLE snapshot (position INTEGER PRIMARY KEY, kind TEXT NOT NULL, at REAL NOT NULL,
    wall REAL NOT NULL, environment TEXT, lease TEXT, data TEXT NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO schema_version VALUES (1, 1700000000.0);
INSERT INTO snapshot VALUES (1, 'QuotaSet', 5.0, 1700000005.0, 'alice', NULL, '{"gpus":2}');
INSERT INTO records VALUES (1, 'QuotaSet', 5.0, 1700000005.0, 'alice', NULL, '{"gpus":2}');
INSERT INTO records VALUES (2, 'LeaseGranted', 10.0, 1700000010.0, 'alice', 'L1',
    '{"gpus":[{"gpu":"GPU-1","memory":1},{"gpu":"GPU-2","memory":1}],"activity":"busy"}');
INSERT INTO records VALUES (3, 'ActivityChanged', 40.0, 1700000040.0, 'alice', 'L1', '{"activity":"idle"}');
INSERT INTO records VALUES (4, 'LeaseEnded', 110.0, 1700000110.0, 'alice', 'L1', '{"reason":"released"}');
INSERT INTO records VALUES (5, 'LeaseGranted', 120.0, 1700000120.0, 'bob', 'L2',
    '{"gpus":[{"gpu":"GPU-1","memory":1}],"activity":"busy"}');
INSERT INTO meta VALUES ('snapshot_seq', '1');
