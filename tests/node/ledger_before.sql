-- A ledger as the node manager of commit 23a31f90 wrote it, and the snapshot that it made of that.
-- Quotas, groups, turns, promises, a program that joined, budgets, a pool; leases that were held,
-- kept, pinned, parked, resumed, revoked and queued; GPUs and the node out of service. Do not edit.
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA application_id = 1735423347;
BEGIN TRANSACTION;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "meta" VALUES('floor','3');
INSERT INTO "meta" VALUES('floor_release','0.2.0');
CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, at REAL NOT NULL, wall REAL NOT NULL, environment TEXT, lease TEXT, data TEXT NOT NULL);
INSERT INTO "records" VALUES(1,'BootSeen',37908.921419617,1.79583591002018833158e+09,NULL,NULL,'{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","usage_half_life":3600.0,"quantum":0.2,"v":2}');
INSERT INTO "records" VALUES(2,'GpuFound',37908.921419617,1.79583591002018833158e+09,NULL,NULL,'{"gpu":{"uuid":"GPU-752715b7-d32a-58c0-8dec-44a933863c4a","index":0,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'GpuFound',37908.921419617,1.79583591002018833158e+09,NULL,NULL,'{"gpu":{"uuid":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","index":1,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(4,'GpuFound',37908.921419617,1.79583591002018833158e+09,NULL,NULL,'{"gpu":{"uuid":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","index":2,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(5,'GroupsChanged',37909.010596457,1.79583591010870766632e+09,'root',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "records" VALUES(6,'GroupsChanged',37909.078350409,1.79583591017641925812e+09,'alice',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "records" VALUES(7,'GroupsChanged',37909.134063442,1.79583591023214435584e+09,'bob',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "records" VALUES(8,'GroupsChanged',37909.151170585,1.79583591024927663806e+09,'carol',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "records" VALUES(9,'QuotaOverridden',37909.15773802,1.79583591025587224962e+09,'alice',NULL,'{"quota":{"gpus":2,"memory":21474836480,"weight":2.0,"gpu_hours":0.5,"idle_timeout":300.0,"burst_memory":0.5,"per":"month","turn_offset":1073741824,"reserve":"estimate","pin_turn_limit":3600.0,"interactive":5,"share":50},"by":"root","v":3}');
INSERT INTO "records" VALUES(10,'QuotaOverridden',37909.16869426,1.79583591026678276057e+09,'bob',NULL,'{"quota":{"gpus":2,"memory":25769803776,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"by":"root","v":1}');
INSERT INTO "records" VALUES(11,'GroupQuotaOverridden',37909.17636255,1.7958359102743885517e+09,NULL,NULL,'{"group":"class","quota":{"gpus":2,"memory":null,"weight":1.5,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"by":"root","v":1}');
INSERT INTO "records" VALUES(12,'GroupQuotaOverridden',37909.185070277,1.79583591028320288659e+09,NULL,NULL,'{"group":null,"quota":{"gpus":2,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"by":"root","v":1}');
INSERT INTO "records" VALUES(13,'QuotaOverridden',37909.1895396,1.79583591028762292862e+09,'dora',NULL,'{"quota":{"gpus":1,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"by":"root","v":1}');
INSERT INTO "records" VALUES(14,'QuotaOverrideRemoved',37909.193672676,1.79583591029169392584e+09,'dora',NULL,'{"by":"root","v":1}');
INSERT INTO "records" VALUES(15,'RequestRefused',37909.19722789,1.79583591029539656634e+09,'alice',NULL,'{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10962,"start_time":3790897},"name":"x","kind":"process","kernel_id":null,"path":null},"request":{"gpus":9,"memory":null,"priority_class":"batch","request_id":null,"reserve":"estimate","bounded":true},"reason":"over_quota","message":"You asked for 9 GPUs, but your quota is 2 GPUs. Ask for at most 2, or ask the administrator for more.","v":3}');
INSERT INTO "records" VALUES(16,'LeaseQueued',37909.208764889,1.79583591030778193468e+09,'alice','91a8ca3061437f5e0615e1c71df03eec','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10962,"start_time":3790897},"name":"first.ipynb","kind":"kernel","kernel_id":"k1","path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"interactive","request_id":"a1","live":true,"code":"c0de"},"order":0,"urgent_at":32,"v":3}');
INSERT INTO "records" VALUES(17,'LeaseGranted',37909.208764889,1.79583591030778193468e+09,'alice','91a8ca3061437f5e0615e1c71df03eec','{"gpus":[{"gpu":"GPU-752715b7-d32a-58c0-8dec-44a933863c4a","memory":17179869184}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(18,'TurnsJoined',37909.219043463,1.79583591031726121905e+09,NULL,'91a8ca3061437f5e0615e1c71df03eec','{"v":1}');
INSERT INTO "records" VALUES(19,'TaskForeseen',37909.479962119,1.79583591057800841328e+09,'alice','91a8ca3061437f5e0615e1c71df03eec','{"expected":[{"kind":"Simulated GPU (24 GiB)","share":50,"memory":5153960755,"seconds":50.0,"sure":true}],"v":3}');
INSERT INTO "records" VALUES(20,'LeaseQueued',37909.482235692,1.79583591058079290389e+09,'bob','ff3ec341135ec49187e4cfbbcaacd382','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10964,"start_time":3790898},"name":"train.py","kind":"process","kernel_id":null,"path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"batch","request_id":"b1","persistent":4294967296,"temporary":8589934592,"lasts":600.0,"stops":true},"order":1,"urgent_at":129,"v":3}');
INSERT INTO "records" VALUES(21,'LeaseGranted',37909.482235692,1.79583591058079290389e+09,'bob','ff3ec341135ec49187e4cfbbcaacd382','{"gpus":[{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","memory":17179869184}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(22,'TurnsJoined',37909.485003814,1.79583591058296751976e+09,NULL,'ff3ec341135ec49187e4cfbbcaacd382','{"v":1}');
INSERT INTO "records" VALUES(23,'MemberJoined',37909.745554505,1.79583591084342980388e+09,NULL,'ff3ec341135ec49187e4cfbbcaacd382','{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10965,"start_time":3790899},"v":1}');
INSERT INTO "records" VALUES(24,'LeaseQueued',37909.747610196,1.79583591084631228446e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10966,"start_time":3790899},"name":"x.ipynb","kind":"kernel","kernel_id":"k3","path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"interactive","request_id":"c1"},"order":2,"urgent_at":34,"v":1}');
INSERT INTO "records" VALUES(25,'LeaseGranted',37909.747610196,1.79583591084631228446e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"gpus":[{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","memory":17179869184}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(26,'TurnsJoined',37909.750329051,1795835910.84826,NULL,'665ffba2cc217ae7c23fbbff1cd10800','{"v":1}');
INSERT INTO "records" VALUES(27,'LeaseQueued',37910.015173481,1.79583591111434268949e+09,'alice','b6501fefaeebc032ebccf92db8a1165f','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10963,"start_time":3790897},"name":"second.py","kind":"process","kernel_id":null,"path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"interactive","request_id":"a2"},"order":3,"urgent_at":35,"v":1}');
INSERT INTO "records" VALUES(28,'GpuShared',37910.015173481,1.79583591111434268949e+09,NULL,NULL,'{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","offset":0,"shares":[{"lease":"ff3ec341135ec49187e4cfbbcaacd382","persistent":2147483648,"temporary":4294967296}],"v":1}');
INSERT INTO "records" VALUES(29,'LeaseGranted',37910.015173481,1.79583591111434268949e+09,'alice','b6501fefaeebc032ebccf92db8a1165f','{"gpus":[{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","memory":17179869184}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(30,'TurnsJoined',37910.019502751,1.79583591111793732649e+09,NULL,'b6501fefaeebc032ebccf92db8a1165f','{"v":1}');
INSERT INTO "records" VALUES(31,'TurnGiven',37910.019502751,1.79583591111793732649e+09,NULL,'ff3ec341135ec49187e4cfbbcaacd382','{"gpus":["GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7"],"v":1}');
INSERT INTO "records" VALUES(32,'TurnGiven',37910.407614614,1.79583591150606203083e+09,NULL,'b6501fefaeebc032ebccf92db8a1165f','{"gpus":["GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7"],"v":1}');
INSERT INTO "records" VALUES(33,'PromiseMade',37911.640755588,1.79583591273936963076e+09,'alice','91a8ca3061437f5e0615e1c71df03eec','{"promise":{"deadline":600.0,"rate":null},"named":true,"share":10,"total":100,"v":3}');
INSERT INTO "records" VALUES(34,'PromiseMade',37911.647213387,1.79583591274578952792e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"promise":{"deadline":null,"rate":1000000.0},"named":true,"share":10,"total":null,"v":3}');
INSERT INTO "records" VALUES(35,'PromiseEnded',37912.150036158,1.79583591324888896937e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"state":"ended","named":true,"seconds":0.502822770999046,"why":null,"v":3}');
INSERT INTO "records" VALUES(36,'ActivityChanged',37912.150036158,1.79583591324888896937e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(37,'LeasePinned',37912.163129056,1.79583591326192522049e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"until":37972.163129056,"v":1}');
INSERT INTO "records" VALUES(38,'LeasePinned',37912.166536069,1.79583591326524567603e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"until":37912.166536069,"v":1}');
INSERT INTO "records" VALUES(39,'LeaseQueued',37912.171832859,1.79583591327184247969e+09,'carol','e5ef8dc80a07330707f36fedbc73967f','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10967,"start_time":3790900},"name":"y.ipynb","kind":"kernel","kernel_id":"k4","path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":"c2"},"order":4,"urgent_at":36,"v":1}');
INSERT INTO "records" VALUES(40,'LeaseGranted',37912.171832859,1.79583591327184247969e+09,'carol','e5ef8dc80a07330707f36fedbc73967f','{"gpus":[{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(41,'ActivityChanged',37912.176781686,1.79583591327530169489e+09,'carol','e5ef8dc80a07330707f36fedbc73967f','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(42,'LeaseParked',37912.18072251,1795835913.27941,'carol','e5ef8dc80a07330707f36fedbc73967f','{"rung":"storage","memory":2147483648,"movable":"any","gpus":["GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c"],"seconds":1.5,"v":1}');
INSERT INTO "records" VALUES(43,'LeaseQueued',37912.19631181,1.79583591329773735998e+09,'bob','10d074bbd045d293d624ac29c46549aa','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10964,"start_time":3790898},"name":"big.py","kind":"process","kernel_id":null,"path":null},"request":{"gpus":2,"memory":25769803776,"priority_class":"batch","request_id":"b9","stops":true},"order":5,"urgent_at":133,"v":3}');
INSERT INTO "records" VALUES(44,'ResumeQueued',37912.695741222,1.79583591379530167582e+09,'carol','e5ef8dc80a07330707f36fedbc73967f','{"order":6,"urgent_at":38,"v":1}');
INSERT INTO "records" VALUES(45,'LeaseGranted',37912.695741222,1.79583591379530167582e+09,'carol','e5ef8dc80a07330707f36fedbc73967f','{"gpus":[{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","memory":25769803776}],"activity":"busy","parked":{"rung":"storage","memory":2147483648,"gpus":["GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c"],"movable":"any","stayed":false},"v":1}');
INSERT INTO "records" VALUES(46,'LeaseRestored',37912.699908062,1.79583591379819965368e+09,'carol','e5ef8dc80a07330707f36fedbc73967f','{"memory":2147483648,"seconds":0.7,"v":1}');
INSERT INTO "records" VALUES(47,'GpuTakenOut',37912.703084373,1.79583591380167222019e+09,NULL,NULL,'{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","reason":"a fan is broken","by":"root","v":1}');
INSERT INTO "records" VALUES(48,'GpuPutBack',37913.706495863,1.79583591480604100225e+09,NULL,NULL,'{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","by":"root","v":1}');
INSERT INTO "records" VALUES(49,'NodeTakenOut',37913.712342513,1.79583591481163024907e+09,NULL,NULL,'{"reason":"a new kernel","by":"root","v":3}');
INSERT INTO "records" VALUES(50,'GpuTakenOut',37913.712342513,1.79583591481163024907e+09,NULL,NULL,'{"gpu":"GPU-752715b7-d32a-58c0-8dec-44a933863c4a","reason":"a new kernel","by":"root","with_node":true,"v":3}');
INSERT INTO "records" VALUES(51,'GpuTakenOut',37913.712342513,1.79583591481163024907e+09,NULL,NULL,'{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","reason":"a new kernel","by":"root","with_node":true,"v":3}');
INSERT INTO "records" VALUES(52,'GpuTakenOut',37913.712342513,1.79583591481163024907e+09,NULL,NULL,'{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","reason":"a new kernel","by":"root","with_node":true,"v":3}');
INSERT INTO "records" VALUES(53,'NodePutBack',37913.720474352,1795835914.82025,NULL,NULL,'{"by":"root","v":3}');
INSERT INTO "records" VALUES(54,'GpuPutBack',37913.720474352,1795835914.82025,NULL,NULL,'{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","by":"root","v":1}');
INSERT INTO "records" VALUES(55,'GpuPutBack',37913.720474352,1795835914.82025,NULL,NULL,'{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","by":"root","v":1}');
INSERT INTO "records" VALUES(56,'GpuPutBack',37913.720474352,1795835914.82025,NULL,NULL,'{"gpu":"GPU-752715b7-d32a-58c0-8dec-44a933863c4a","by":"root","v":1}');
INSERT INTO "records" VALUES(57,'LeaseEnded',37913.726022523,1.79583591482933282849e+09,'alice','b6501fefaeebc032ebccf92db8a1165f','{"reason":"released","detail":"","by":null,"v":1}');
INSERT INTO "records" VALUES(58,'LeaseKept',37913.73652182,1.79583591483685135843e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"why":"a thread computes","v":1}');
INSERT INTO "records" VALUES(59,'ClaimMoved',37913.734528988,1.79583591483685135843e+09,NULL,'b6501fefaeebc032ebccf92db8a1165f','{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","phase":"gone","v":1}');
INSERT INTO "records" VALUES(60,'GpuShared',37913.736652567,1.79583591483685135843e+09,NULL,NULL,'{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","offset":0,"shares":[],"v":1}');
INSERT INTO "records" VALUES(61,'BootSeen',37916.028416048,1.79583591712710142138e+09,NULL,NULL,'{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","usage_half_life":3600.0,"quantum":0.2,"v":2}');
INSERT INTO "records" VALUES(62,'BootSeen',37916.991689231,1.7958359180904643536e+09,NULL,NULL,'{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","usage_half_life":3600.0,"quantum":0.2,"v":2}');
INSERT INTO "records" VALUES(63,'QuotaOverridden',37917.112453797,1.795835918211155653e+09,'bob',NULL,'{"quota":{"gpus":2,"memory":25769803776,"weight":1.0,"gpu_hours":0.001,"idle_timeout":null,"burst_memory":null,"per":null},"by":"root","v":1}');
INSERT INTO "records" VALUES(64,'QuotaOverridden',37917.117472654,1.79583591821608519554e+09,'carol',NULL,'{"quota":{"gpus":2,"memory":null,"weight":1.5,"gpu_hours":1.0,"idle_timeout":null,"burst_memory":null,"per":null},"by":"root","v":1}');
INSERT INTO "records" VALUES(65,'BudgetChanged',37917.117152497,1.79583591822391128536e+09,'bob',NULL,'{"level":"spent","spent":0.001198287738694085,"budget":0.001,"v":1}');
INSERT INTO "records" VALUES(66,'BootSeen',37918.776691854,1.79583591987530231471e+09,NULL,NULL,'{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","usage_half_life":3600.0,"quantum":0.2,"v":2}');
INSERT INTO "records" VALUES(67,'PoolJoined',37918.791037881,1.79583591988922500605e+09,NULL,NULL,'{"pool":"lab","v":3}');
INSERT INTO "records" VALUES(68,'BudgetChanged',37918.791037881,1.79583591988922500605e+09,'bob',NULL,'{"level":"ok","spent":0.0016614958975050185,"budget":null,"v":1}');
INSERT INTO "records" VALUES(69,'QuotasLent',37918.852550394,1.79583591995086908335e+09,NULL,NULL,'{"as_of":37918.851808121,"until":37978.251808121,"loans":[{"environment":"alice","quota":{"gpus":1,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"whole":2,"hours":null,"reclaim":false,"since":0.0,"why":"","borrowed":0},{"environment":"bob","quota":{"gpus":1,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"whole":2,"hours":null,"reclaim":false,"since":0.0,"why":"","borrowed":0}],"ended":[],"renewed":[],"all_renewed":true,"v":3}');
INSERT INTO "records" VALUES(70,'LeaseParked',37922.350120557,1.79583592344868278505e+09,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"rung":"driver","memory":3221225472,"movable":"same","gpus":["GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c"],"seconds":0.5,"v":1}');
INSERT INTO "records" VALUES(71,'PromiseEnded',37922.361432867,1.79583592345995831491e+09,'alice','91a8ca3061437f5e0615e1c71df03eec','{"state":"kept","named":true,"seconds":10.720677279001393,"why":null,"v":3}');
INSERT INTO "records" VALUES(72,'LeaseEnded',37922.361432867,1.79583592345995831491e+09,'alice','91a8ca3061437f5e0615e1c71df03eec','{"reason":"revoked","detail":"a lesson begins","by":"root","v":1}');
INSERT INTO "records" VALUES(73,'ClaimMoved',37922.361143182,1.79583592346923112863e+09,NULL,'665ffba2cc217ae7c23fbbff1cd10800','{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","phase":"gone","v":1}');
INSERT INTO "records" VALUES(74,'ClaimMoved',37922.374797181,1.79583592347429013254e+09,NULL,'91a8ca3061437f5e0615e1c71df03eec','{"gpu":"GPU-752715b7-d32a-58c0-8dec-44a933863c4a","phase":"gone","v":1}');
CREATE TABLE runs (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        lease TEXT NOT NULL UNIQUE,
        environment TEXT NOT NULL,
        code TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        memory INTEGER NOT NULL
    , persistent INTEGER, temporary INTEGER, shapes TEXT, kind TEXT, seconds REAL, utilisation INTEGER);
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, wall REAL NOT NULL);
INSERT INTO "schema_version" VALUES(1,1.79583590999703049655e+09);
INSERT INTO "schema_version" VALUES(2,1.79583590999703049655e+09);
INSERT INTO "schema_version" VALUES(3,1.79583590999703049655e+09);
INSERT INTO "schema_version" VALUES(4,1.79583590999703049655e+09);
INSERT INTO "schema_version" VALUES(5,1.79583590999703049655e+09);
CREATE TABLE snapshot (position INTEGER PRIMARY KEY, kind TEXT NOT NULL, at REAL NOT NULL, wall REAL NOT NULL, environment TEXT, lease TEXT, data TEXT NOT NULL);
CREATE TABLE usage_buckets (
        start_wall REAL NOT NULL,
        length REAL NOT NULL,
        environment TEXT NOT NULL,
        held REAL NOT NULL,
        busy REAL NOT NULL,
        leases INTEGER NOT NULL, rested REAL NOT NULL DEFAULT 0, resident REAL NOT NULL DEFAULT 0,
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
    , rests INTEGER NOT NULL DEFAULT 0, memory REAL NOT NULL DEFAULT 0) WITHOUT ROWID
    ;
INSERT INTO "usage_open" VALUES('665ffba2cc217ae7c23fbbff1cd10800','carol',0,0,1.79583592346923112863e+09,37922.361143182,0,0.0);
INSERT INTO "usage_open" VALUES('e5ef8dc80a07330707f36fedbc73967f','carol',1,1,1.79583592346923112863e+09,37922.361143182,0,25769803776.0);
INSERT INTO "usage_open" VALUES('ff3ec341135ec49187e4cfbbcaacd382','bob',1,1,1.79583591483685135843e+09,37913.736652567,0,17179869184.0);
CREATE TABLE usage_spans (
        end_wall REAL NOT NULL,
        seq INTEGER NOT NULL,
        lease TEXT NOT NULL,
        environment TEXT NOT NULL,
        gpus INTEGER NOT NULL,
        busy INTEGER NOT NULL,
        start_wall REAL NOT NULL,
        last INTEGER NOT NULL, rests INTEGER NOT NULL DEFAULT 0, memory REAL NOT NULL DEFAULT 0,
        PRIMARY KEY (end_wall, seq)
    ) WITHOUT ROWID
    ;
INSERT INTO "usage_spans" VALUES(1.79583591111373066899e+09,-1,'ff3ec341135ec49187e4cfbbcaacd382','bob',1,1,1.79583591058079290389e+09,0,0,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.79583591111867189402e+09,-2,'b6501fefaeebc032ebccf92db8a1165f','alice',1,1,1.79583591111434268949e+09,0,0,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.79583591150604915615e+09,-3,'b6501fefaeebc032ebccf92db8a1165f','alice',1,1,1.79583591111793732649e+09,0,1,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.79583591150678372385e+09,-4,'ff3ec341135ec49187e4cfbbcaacd382','bob',1,1,1.79583591111434268949e+09,0,0,2147483648.0);
INSERT INTO "usage_spans" VALUES(1.79583591324873828891e+09,36,'665ffba2cc217ae7c23fbbff1cd10800','carol',1,1,1.79583591084631228446e+09,0,0,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.7958359132706856727e+09,-5,'665ffba2cc217ae7c23fbbff1cd10800','carol',1,0,1.79583591324888896937e+09,0,0,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.79583591327679133412e+09,41,'e5ef8dc80a07330707f36fedbc73967f','carol',1,1,1.79583591327184247969e+09,0,0,0.0);
INSERT INTO "usage_spans" VALUES(1.79583591327924251557e+09,42,'e5ef8dc80a07330707f36fedbc73967f','carol',1,0,1.79583591327530169489e+09,0,0,0.0);
INSERT INTO "usage_spans" VALUES(1795835914.82447,-6,'ff3ec341135ec49187e4cfbbcaacd382','bob',1,1,1.79583591150606203083e+09,0,1,2147483648.0);
INSERT INTO "usage_spans" VALUES(1795835914.82447,57,'b6501fefaeebc032ebccf92db8a1165f','alice',1,1,1.79583591150606203083e+09,1,0,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.79583591483996295925e+09,-7,'ff3ec341135ec49187e4cfbbcaacd382','bob',1,1,1.79583591482933282849e+09,0,0,2147483648.0);
INSERT INTO "usage_spans" VALUES(1.79583592345013022418e+09,70,'665ffba2cc217ae7c23fbbff1cd10800','carol',1,0,1.79583591327184247969e+09,0,0,25769803776.0);
INSERT INTO "usage_spans" VALUES(1.79583592345970535276e+09,-9,'665ffba2cc217ae7c23fbbff1cd10800','carol',0,0,1.79583592344868278505e+09,0,0,25769803776.0);
INSERT INTO "usage_spans" VALUES(1795835923.46045,72,'91a8ca3061437f5e0615e1c71df03eec','alice',1,1,1.79583591030778193468e+09,1,0,17179869184.0);
INSERT INTO "usage_spans" VALUES(1.7958359234607036114e+09,-8,'e5ef8dc80a07330707f36fedbc73967f','carol',1,1,1.79583591379530167582e+09,0,0,0.0);
CREATE INDEX records_by_environment ON records (environment, seq);
CREATE INDEX runs_by_environment ON runs (environment, code, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('records',74);
COMMIT;
-- snapshot
INSERT INTO "snapshot" VALUES(1,'BootSeen',0.0,1800000000.0,NULL,NULL,'{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","usage_half_life":3600.0,"quantum":0.2,"v":2}');
INSERT INTO "snapshot" VALUES(2,'GpuFound',0.0,1800000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-752715b7-d32a-58c0-8dec-44a933863c4a","index":0,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "snapshot" VALUES(3,'GpuFound',0.0,1800000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","index":1,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "snapshot" VALUES(4,'GpuFound',0.0,1800000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","index":2,"name":"Simulated GPU (24 GiB)","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "snapshot" VALUES(5,'QuotaOverridden',0.0,1800000000.0,'alice',NULL,'{"quota":{"gpus":2,"memory":21474836480,"weight":2.0,"gpu_hours":0.5,"idle_timeout":300.0,"burst_memory":0.5,"per":"month","turn_offset":1073741824,"reserve":"estimate","pin_turn_limit":3600.0,"interactive":5,"share":50},"by":"alice","v":3}');
INSERT INTO "snapshot" VALUES(6,'QuotaOverridden',0.0,1800000000.0,'bob',NULL,'{"quota":{"gpus":2,"memory":25769803776,"weight":1.0,"gpu_hours":0.001,"idle_timeout":null,"burst_memory":null,"per":null},"by":"bob","v":1}');
INSERT INTO "snapshot" VALUES(7,'QuotaOverridden',0.0,1800000000.0,'carol',NULL,'{"quota":{"gpus":2,"memory":null,"weight":1.5,"gpu_hours":1.0,"idle_timeout":null,"burst_memory":null,"per":null},"by":"carol","v":1}');
INSERT INTO "snapshot" VALUES(8,'GroupQuotaOverridden',0.0,1800000000.0,NULL,NULL,'{"group":null,"quota":{"gpus":2,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"by":"default","v":1}');
INSERT INTO "snapshot" VALUES(9,'GroupQuotaOverridden',0.0,1800000000.0,NULL,NULL,'{"group":"class","quota":{"gpus":2,"memory":null,"weight":1.5,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"by":"class","v":1}');
INSERT INTO "snapshot" VALUES(10,'GroupsChanged',0.0,1800000000.0,'alice',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "snapshot" VALUES(11,'GroupsChanged',0.0,1800000000.0,'bob',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "snapshot" VALUES(12,'GroupsChanged',0.0,1800000000.0,'carol',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "snapshot" VALUES(13,'GroupsChanged',0.0,1800000000.0,'root',NULL,'{"groups":["class"],"v":1}');
INSERT INTO "snapshot" VALUES(14,'PoolJoined',37918.852550394,1800000000.0,NULL,NULL,'{"pool":"lab","v":3}');
INSERT INTO "snapshot" VALUES(15,'QuotasLent',37918.852550394,1800000000.0,NULL,NULL,'{"as_of":37918.851808121,"until":37978.251808121,"loans":[{"environment":"alice","quota":{"gpus":1,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"whole":2,"hours":null,"reclaim":false,"since":0.0,"why":"","borrowed":0},{"environment":"bob","quota":{"gpus":1,"memory":null,"weight":1.0,"gpu_hours":null,"idle_timeout":null,"burst_memory":null,"per":null},"whole":2,"hours":null,"reclaim":false,"since":0.0,"why":"","borrowed":0}],"ended":[],"renewed":[],"all_renewed":false,"v":3}');
INSERT INTO "snapshot" VALUES(16,'LeaseQueued',37909.482235692,1800000000.0,'bob','ff3ec341135ec49187e4cfbbcaacd382','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10964,"start_time":3790898},"name":"train.py","kind":"process","kernel_id":null,"path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"batch","request_id":"b1","persistent":4294967296,"temporary":8589934592,"lasts":600.0,"stops":true},"order":1,"urgent_at":0,"v":3}');
INSERT INTO "snapshot" VALUES(17,'MemberJoined',37909.482235692,1800000000.0,NULL,'ff3ec341135ec49187e4cfbbcaacd382','{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10965,"start_time":3790899},"v":1}');
INSERT INTO "snapshot" VALUES(18,'LeaseGranted',37909.482235692,1800000000.0,'bob','ff3ec341135ec49187e4cfbbcaacd382','{"gpus":[{"gpu":"GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7","memory":17179869184}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "snapshot" VALUES(19,'LeaseQueued',37909.747610196,1800000000.0,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10966,"start_time":3790899},"name":"x.ipynb","kind":"kernel","kernel_id":"k3","path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"interactive","request_id":"c1"},"order":2,"urgent_at":0,"v":1}');
INSERT INTO "snapshot" VALUES(20,'LeaseGranted',37909.747610196,1800000000.0,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"gpus":[],"activity":"busy","parked":null,"v":1}');
INSERT INTO "snapshot" VALUES(21,'LeaseParked',37922.350120557,1800000000.0,'carol','665ffba2cc217ae7c23fbbff1cd10800','{"rung":"driver","memory":3221225472,"movable":"same","gpus":["GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c"],"seconds":0.0,"v":1}');
INSERT INTO "snapshot" VALUES(22,'LeaseQueued',37912.695741222,1800000000.0,'carol','e5ef8dc80a07330707f36fedbc73967f','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10967,"start_time":3790900},"name":"y.ipynb","kind":"kernel","kernel_id":"k4","path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":"c2"},"order":4,"urgent_at":0,"v":1}');
INSERT INTO "snapshot" VALUES(23,'LeaseGranted',37912.695741222,1800000000.0,'carol','e5ef8dc80a07330707f36fedbc73967f','{"gpus":[{"gpu":"GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "snapshot" VALUES(24,'LeaseQueued',37912.19631181,1800000000.0,'bob','10d074bbd045d293d624ac29c46549aa','{"task":{"process":{"boot_id":"a9988c1f-1b3c-462b-ab3f-4eca8f5ddcc0","pid":10964,"start_time":3790898},"name":"big.py","kind":"process","kernel_id":null,"path":null},"request":{"gpus":2,"memory":25769803776,"priority_class":"batch","request_id":"b9","stops":true},"order":5,"urgent_at":133,"v":3}');
INSERT INTO "snapshot" VALUES(25,'BooksRestored',0.0,1800000000.0,NULL,NULL,'{"grants":6,"arrivals":7,"settled_at":0.0,"accounts":[["alice",14.609628508032422,0,37922.374797181],["bob",13.759810862010186,1,37918.852550394],["carol",14.189138200062281,1,37922.361143182]],"reservations":[["bob","GPU-0aa200d1-dcc5-53a2-b6bb-f66be7d333a7",17179869184],["carol","GPU-11d6e9bd-7dbe-5659-9d5c-2f0bea66ad0c",25769803776]],"bursts":[],"pace":0.5693333333333332,"v":3}');
INSERT INTO "snapshot" VALUES(26,'TurnsJoined',0.0,1800000000.0,NULL,'665ffba2cc217ae7c23fbbff1cd10800','{"v":1}');
INSERT INTO "snapshot" VALUES(27,'TurnsJoined',0.0,1800000000.0,NULL,'ff3ec341135ec49187e4cfbbcaacd382','{"v":1}');
