-- A ledger as the release wrote it whose calls are in ../protocol/wire_before.jsonl. Do not edit.
PRAGMA application_id = 1735423347;
PRAGMA journal_mode = WAL;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at REAL NOT NULL, wall REAL NOT NULL, environment TEXT, lease TEXT, data TEXT NOT NULL);
INSERT INTO "records" VALUES(1,'BootSeen',28845.995845338,1.79536235348426771165e+09,NULL,NULL,'{"boot_id":"af789c64-d4c7-48ac-a290-a70e580a2e7c","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',28845.995845338,1.79536235348426771165e+09,NULL,NULL,'{"gpu":{"uuid":"GPU-0f8723cc-ba48-5642-9bd8-278b5f367d07","index":0,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'GroupsChanged',28846.018537834,1.79536235350689435006e+09,'alice',NULL,'{"groups":["alice"],"v":1}');
INSERT INTO "records" VALUES(4,'LeaseQueued',28846.025702518,1.79536235351425576211e+09,'alice','L1','{"task":{"process":{"boot_id":"af789c64-d4c7-48ac-a290-a70e580a2e7c","pid":4711,"start_time":2884436},"name":"train.py","kind":"process","kernel_id":null,"path":"/home/a/train.py"},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":"r1"},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(5,'LeaseGranted',28846.025702518,1.79536235351425576211e+09,'alice','L1','{"gpus":[{"gpu":"GPU-0f8723cc-ba48-5642-9bd8-278b5f367d07","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(6,'ActivityChanged',28846.9859725,1.79536235447427558898e+09,'alice','L1','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(7,'LeaseParked',28847.254947437,1.79536235474335169794e+09,'alice','L1','{"rung":"release","memory":0,"movable":"any","gpus":["GPU-0f8723cc-ba48-5642-9bd8-278b5f367d07"],"seconds":0.0,"v":1}');
INSERT INTO "records" VALUES(8,'ClaimMoved',28847.256582658,1.795362354745595932e+09,NULL,'L1','{"gpu":"GPU-0f8723cc-ba48-5642-9bd8-278b5f367d07","phase":"gone","v":1}');
INSERT INTO "records" VALUES(9,'ResumeQueued',28849.757468805,1.79536235724608230586e+09,'alice','L1','{"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(10,'LeaseGranted',28849.757468805,1.79536235724608230586e+09,'alice','L1','{"gpus":[{"gpu":"GPU-0f8723cc-ba48-5642-9bd8-278b5f367d07","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(11,'ActivityChanged',28849.812471137,1.79536235730073571201e+09,'alice','L1','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(12,'QuotaOverridden',28850.760367926,1.79536235824866652484e+09,'bob',NULL,'{"quota":{"gpus":1,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null},"by":"alice","v":1}');
INSERT INTO "records" VALUES(13,'LeaseEnded',28850.762122903,1.7953623582504580021e+09,'alice','L1','{"reason":"revoked","detail":"for the record","by":null,"v":1}');
INSERT INTO "records" VALUES(14,'ClaimMoved',28850.765195922,1.79536235825724244117e+09,NULL,'L1','{"gpu":"GPU-0f8723cc-ba48-5642-9bd8-278b5f367d07","phase":"gone","v":1}');
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, wall REAL NOT NULL);
INSERT INTO "schema_version" VALUES(1,1.79536235342263936999e+09);
INSERT INTO "schema_version" VALUES(2,1.79536235342263936999e+09);
CREATE TABLE snapshot (position INTEGER PRIMARY KEY, kind TEXT NOT NULL, at REAL NOT NULL, wall REAL NOT NULL, environment TEXT, lease TEXT, data TEXT NOT NULL);
CREATE TABLE usage_buckets (
        start_wall REAL NOT NULL,
        length REAL NOT NULL,
        environment TEXT NOT NULL,
        held REAL NOT NULL,
        busy REAL NOT NULL,
        leases INTEGER NOT NULL,
        PRIMARY KEY (start_wall, length, environment)
    ) WITHOUT ROWID
    ;
CREATE TABLE usage_open (
        lease TEXT PRIMARY KEY,
        environment TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        busy INTEGER NOT NULL,
        since_wall REAL NOT NULL,
        since_at REAL NOT NULL
    ) WITHOUT ROWID
    ;
CREATE TABLE usage_spans (
        end_wall REAL NOT NULL,
        seq INTEGER NOT NULL,
        lease TEXT NOT NULL,
        environment TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        busy INTEGER NOT NULL,
        start_wall REAL NOT NULL,
        last INTEGER NOT NULL,
        PRIMARY KEY (end_wall, seq)
    ) WITHOUT ROWID
    ;
INSERT INTO "usage_spans" VALUES(1.79536235447452569005e+09,6,'L1','alice',1,1,1.79536235351425576211e+09,0);
INSERT INTO "usage_spans" VALUES(1.79536235474325060841e+09,7,'L1','alice',1,0,1.79536235447427558898e+09,0);
INSERT INTO "usage_spans" VALUES(1.7953623573010847568e+09,11,'L1','alice',1,1,1.79536235724608230586e+09,0);
INSERT INTO "usage_spans" VALUES(1.79536235825038743016e+09,13,'L1','alice',1,0,1.79536235730073571201e+09,1);
CREATE INDEX records_by_environment ON records (environment, seq);
