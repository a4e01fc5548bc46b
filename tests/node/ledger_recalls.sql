-- One ledger after the other, as release 0.1.0 wrote them, with what was asked of tasks on its way.
-- `ledger NAME` begins one, `snapshot` what a snapshot of what it says holds. Do not edit.
-- ledger kept
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'GpuTakenOut',100.0,1700000100.0,NULL,NULL,'{"gpu":"GPU-0","reason":"fan replaced","by":"root","v":1}');
INSERT INTO "records" VALUES(6,'ActivityChanged',3700.0,1700003700.0,'alice','L1','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(7,'LeaseKept',3710.0,1700003710.0,'alice','L1','{"why":"CUDA runs","v":1}');
-- snapshot kept
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ActivityChanged',3700.0,1700003700.0,'alice','L1','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(6,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":1,"arrivals":1,"settled_at":0.0,"accounts":[["alice",null,1,100.0]],"reservations":[["alice","GPU-0",25769803776]],"bursts":[],"v":1}');
INSERT INTO "records" VALUES(7,'GpuTakenOut',0.0,1700000000.0,NULL,NULL,'{"gpu":"GPU-0","reason":"fan replaced","by":"root","v":1}');
-- ledger stayed
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ActivityChanged',100.0,1700000100.0,'alice','L1','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(6,'LeaseParked',100.0,1700000100.0,'alice','L1','{"rung":"release","memory":0,"movable":"any","gpus":["GPU-0"],"seconds":0.0,"v":1}');
INSERT INTO "records" VALUES(7,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(8,'ResidueFound',111.0,1700000111.0,'alice','L1','{"why":"The task reported that it gave its GPU back, but a measurement shows that its process still has memory there. That memory stays reserved. The next cell can use it; restarting the kernel frees it.","v":1}');
-- snapshot stayed
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":25769803776}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'LeaseParked',111.0,1700000111.0,'alice','L1','{"rung":"release","memory":0,"movable":"any","gpus":["GPU-0"],"seconds":0.0,"v":1}');
INSERT INTO "records" VALUES(6,'ResidueFound',111.0,1700000111.0,'alice','L1','{"why":"The task reported that it gave its GPU back, but a measurement shows that its process still has memory there. That memory stays reserved. The next cell can use it; restarting the kernel frees it.","v":1}');
INSERT INTO "records" VALUES(7,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(8,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":1,"arrivals":2,"settled_at":0.0,"accounts":[["alice",null,1,100.0],["bob",null,0,100.0]],"reservations":[["alice","GPU-0",25769803776]],"bursts":[],"v":1}');
-- ledger lowered
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":107374182400,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":21474836480}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ReservationResized',102.0,1700000102.0,'alice',NULL,'{"gpu":"GPU-0","memory":96636764160,"v":1}');
INSERT INTO "records" VALUES(6,'LimitTold',102.0,1700000102.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":96636764160}],"v":1}');
INSERT INTO "records" VALUES(7,'LimitConfirmed',102.1,1700000102.1,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":96636764160}],"live":true,"v":1}');
INSERT INTO "records" VALUES(8,'ClaimMoved',104.1,1700000104.1,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(9,'LeaseQueued',104.1,1700000104.1,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(10,'LimitTold',104.1,1700000104.1,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":75161927680}],"v":1}');
-- snapshot lowered
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":107374182400,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":21474836480}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ClaimMoved',104.1,1700000104.1,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(6,'LeaseQueued',104.1,1700000104.1,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(7,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":1,"arrivals":2,"settled_at":0.0,"accounts":[["alice",null,1,100.0],["bob",null,0,104.1]],"reservations":[["alice","GPU-0",96636764160]],"bursts":[["alice","GPU-0",75161927680]],"v":1}');
INSERT INTO "records" VALUES(8,'LimitTold',104.1,1700000104.1,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":75161927680}],"v":1}');
INSERT INTO "records" VALUES(9,'LimitConfirmed',100.0,1700000100.0,'alice','L1','{"gpus":[],"live":true,"v":1}');
-- ledger confirmed
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":107374182400,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":21474836480}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ReservationResized',102.0,1700000102.0,'alice',NULL,'{"gpu":"GPU-0","memory":96636764160,"v":1}');
INSERT INTO "records" VALUES(6,'LimitTold',102.0,1700000102.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":96636764160}],"v":1}');
INSERT INTO "records" VALUES(7,'LimitConfirmed',102.1,1700000102.1,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":96636764160}],"live":true,"v":1}');
INSERT INTO "records" VALUES(8,'ClaimMoved',104.1,1700000104.1,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(9,'LeaseQueued',104.1,1700000104.1,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(10,'LimitTold',104.1,1700000104.1,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":75161927680}],"v":1}');
INSERT INTO "records" VALUES(11,'LimitConfirmed',1.06199999999999988636e+02,1700000106.2,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":75161927680}],"live":true,"v":1}');
-- snapshot confirmed
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":107374182400,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":21474836480}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ClaimMoved',104.1,1700000104.1,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(6,'LeaseQueued',104.1,1700000104.1,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":null,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(7,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":1,"arrivals":2,"settled_at":0.0,"accounts":[["alice",null,1,100.0],["bob",null,0,104.1]],"reservations":[["alice","GPU-0",96636764160]],"bursts":[["alice","GPU-0",75161927680]],"v":1}');
INSERT INTO "records" VALUES(8,'LimitTold',104.1,1700000104.1,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":75161927680}],"v":1}');
INSERT INTO "records" VALUES(9,'LimitConfirmed',1.06199999999999988636e+02,1700000106.2,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":75161927680}],"live":true,"v":1}');
-- ledger staged
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":4294967296,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":4294967296}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(6,'ProcessFlagged',100.0,1700000100.0,NULL,NULL,'{"gpu":"GPU-0","process":{"boot_id":"boot-1","pid":1,"start_time":10},"kind":"over_limit","memory":10737418240,"v":1}');
INSERT INTO "records" VALUES(7,'ActivityChanged',100.0,1700000100.0,'alice','L1','{"activity":"idle","v":1}');
INSERT INTO "records" VALUES(8,'LeaseParked',100.0,1700000100.0,'alice','L1','{"rung":"driver","memory":10737418240,"movable":"same","gpus":["GPU-0"],"seconds":1.0,"v":1}');
INSERT INTO "records" VALUES(9,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"gone","v":1}');
INSERT INTO "records" VALUES(10,'FlagCleared',100.0,1700000100.0,NULL,NULL,'{"gpu":"GPU-0","process":{"boot_id":"boot-1","pid":1,"start_time":10},"kind":"over_limit","v":1}');
INSERT INTO "records" VALUES(11,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":18253611008,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(12,'LeaseGranted',100.0,1700000100.0,'bob','L2','{"gpus":[{"gpu":"GPU-0","memory":18253611008}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(13,'ClaimMoved',100.0,1700000100.0,NULL,'L2','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(14,'ResumeQueued',100.0,1700000100.0,'alice','L1','{"order":2,"urgent_at":34,"v":1}');
INSERT INTO "records" VALUES(15,'LeaseEnded',100.0,1700000100.0,'bob','L2','{"reason":"released","detail":"","by":null,"v":1}');
INSERT INTO "records" VALUES(16,'ClaimMoved',100.0,1700000100.0,NULL,'L2','{"gpu":"GPU-0","phase":"gone","v":1}');
INSERT INTO "records" VALUES(17,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":4294967296}],"activity":"busy","parked":{"rung":"driver","memory":10737418240,"gpus":["GPU-0"],"movable":"same","stayed":false},"v":1}');
INSERT INTO "records" VALUES(18,'LeaseQueued',100.0,1700000100.0,'bob','L3','{"task":{"process":{"boot_id":"boot-1","pid":3,"start_time":30},"name":"task-3","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"interactive","request_id":null},"order":3,"urgent_at":35,"v":1}');
INSERT INTO "records" VALUES(19,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(20,'ProcessFlagged',100.0,1700000100.0,NULL,NULL,'{"gpu":"GPU-0","process":{"boot_id":"boot-1","pid":1,"start_time":10},"kind":"over_limit","memory":6442450944,"v":1}');
INSERT INTO "records" VALUES(21,'LeaseRestored',100.0,1700000100.0,'alice','L1','{"memory":10737418240,"seconds":1.0,"v":1}');
INSERT INTO "records" VALUES(22,'OverLimitStaged',100.0,1700000100.0,'alice','L1','{"gpu":"GPU-0","process":{"boot_id":"boot-1","pid":1,"start_time":10},"stage":"warned","used":10737418240,"limit":4294967296,"v":1}');
-- snapshot staged
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":4294967296,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":4294967296}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(6,'LeaseQueued',100.0,1700000100.0,'bob','L3','{"task":{"process":{"boot_id":"boot-1","pid":3,"start_time":30},"name":"task-3","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":17179869184,"priority_class":"interactive","request_id":null},"order":3,"urgent_at":35,"v":1}');
INSERT INTO "records" VALUES(7,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":3,"arrivals":4,"settled_at":0.0,"accounts":[["alice",null,1,100.0],["bob",null,0,100.0]],"reservations":[["alice","GPU-0",4294967296]],"bursts":[],"v":1}');
-- ledger turns
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":15032385536,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":15032385536}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'TurnsJoined',100.0,1700000100.0,NULL,'L1','{"v":1}');
INSERT INTO "records" VALUES(6,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(7,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":12884901888,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(8,'GpuShared',100.0,1700000100.0,NULL,NULL,'{"gpu":"GPU-0","offset":107374182,"shares":[{"lease":"L1","persistent":2147483648,"temporary":8589934592}],"v":1}');
INSERT INTO "records" VALUES(9,'LeaseGranted',100.0,1700000100.0,'bob','L2','{"gpus":[{"gpu":"GPU-0","memory":12884901888}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(10,'TurnsJoined',100.0,1700000100.0,NULL,'L2','{"v":1}');
INSERT INTO "records" VALUES(11,'TurnGiven',100.0,1700000100.0,NULL,'L1','{"gpus":["GPU-0"],"v":1}');
-- snapshot turns
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":15032385536,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":15032385536}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(6,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":12884901888,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(7,'LeaseGranted',100.0,1700000100.0,'bob','L2','{"gpus":[{"gpu":"GPU-0","memory":12884901888}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(8,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":2,"arrivals":2,"settled_at":0.0,"accounts":[["alice",null,1,100.0],["bob",null,1,100.0]],"reservations":[["alice","GPU-0",15032385536],["bob","GPU-0",12884901888]],"bursts":[],"v":1}');
INSERT INTO "records" VALUES(9,'GpuShared',0.0,1700000000.0,NULL,NULL,'{"gpu":"GPU-0","offset":107374182,"shares":[{"lease":"L1","persistent":2147483648,"temporary":8589934592}],"v":1}');
INSERT INTO "records" VALUES(10,'TurnsJoined',0.0,1700000000.0,NULL,'L1','{"v":1}');
INSERT INTO "records" VALUES(11,'TurnsJoined',0.0,1700000000.0,NULL,'L2','{"v":1}');
INSERT INTO "records" VALUES(12,'TurnGiven',100.0,1700000100.0,NULL,'L1','{"gpus":["GPU-0"],"v":1}');
-- ledger overrun
INSERT INTO "records" VALUES(1,'BootSeen',100.0,1700000100.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',100.0,1700000100.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":15032385536,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":32,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":15032385536}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'TurnsJoined',100.0,1700000100.0,NULL,'L1','{"v":1}');
INSERT INTO "records" VALUES(6,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(7,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":12884901888,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":33,"v":1}');
INSERT INTO "records" VALUES(8,'GpuShared',100.0,1700000100.0,NULL,NULL,'{"gpu":"GPU-0","offset":107374182,"shares":[{"lease":"L1","persistent":2147483648,"temporary":8589934592}],"v":1}');
INSERT INTO "records" VALUES(9,'LeaseGranted',100.0,1700000100.0,'bob','L2','{"gpus":[{"gpu":"GPU-0","memory":12884901888}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(10,'TurnsJoined',100.0,1700000100.0,NULL,'L2','{"v":1}');
INSERT INTO "records" VALUES(11,'TurnGiven',100.0,1700000100.0,NULL,'L1','{"gpus":["GPU-0"],"v":1}');
INSERT INTO "records" VALUES(12,'TurnGiven',110.0,1700000110.0,NULL,'L2','{"gpus":["GPU-0"],"v":1}');
INSERT INTO "records" VALUES(13,'TurnGiven',120.0,1700000120.0,NULL,'L1','{"gpus":["GPU-0"],"v":1}');
INSERT INTO "records" VALUES(14,'TurnGiven',130.0,1700000130.0,NULL,'L2','{"gpus":["GPU-0"],"v":1}');
INSERT INTO "records" VALUES(15,'TurnGiven',140.0,1700000140.0,NULL,'L1','{"gpus":["GPU-0"],"v":1}');
INSERT INTO "records" VALUES(16,'TurnOverran',170.0,1700000170.0,'alice','L1','{"v":1}');
INSERT INTO "records" VALUES(17,'TurnGiven',170.0,1700000170.0,NULL,'L2','{"gpus":["GPU-0"],"v":1}');
-- snapshot overrun
INSERT INTO "records" VALUES(1,'BootSeen',0.0,1700000000.0,NULL,NULL,'{"boot_id":"boot-1","usage_half_life":3600.0,"v":1}');
INSERT INTO "records" VALUES(2,'GpuFound',0.0,1700000000.0,NULL,NULL,'{"gpu":{"uuid":"GPU-0","index":0,"name":"Pretend GPU","memory":25769803776,"simulated":true},"v":1}');
INSERT INTO "records" VALUES(3,'LeaseQueued',100.0,1700000100.0,'alice','L1','{"task":{"process":{"boot_id":"boot-1","pid":1,"start_time":10},"name":"task-1","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":15032385536,"priority_class":"interactive","request_id":null},"order":0,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(4,'LeaseGranted',100.0,1700000100.0,'alice','L1','{"gpus":[{"gpu":"GPU-0","memory":15032385536}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(5,'ClaimMoved',100.0,1700000100.0,NULL,'L1','{"gpu":"GPU-0","phase":"resident","v":1}');
INSERT INTO "records" VALUES(6,'LeaseQueued',100.0,1700000100.0,'bob','L2','{"task":{"process":{"boot_id":"boot-1","pid":2,"start_time":20},"name":"task-2","kind":"kernel","kernel_id":null,"path":null},"request":{"gpus":1,"memory":12884901888,"priority_class":"interactive","request_id":null},"order":1,"urgent_at":0,"v":1}');
INSERT INTO "records" VALUES(7,'LeaseGranted',100.0,1700000100.0,'bob','L2','{"gpus":[{"gpu":"GPU-0","memory":12884901888}],"activity":"busy","parked":null,"v":1}');
INSERT INTO "records" VALUES(8,'BooksRestored',0.0,1700000000.0,NULL,NULL,'{"grants":2,"arrivals":2,"settled_at":0.0,"accounts":[["alice",null,1,100.0],["bob",null,1,100.0]],"reservations":[["alice","GPU-0",15032385536],["bob","GPU-0",12884901888]],"bursts":[],"v":1}');
INSERT INTO "records" VALUES(9,'GpuShared',0.0,1700000000.0,NULL,NULL,'{"gpu":"GPU-0","offset":107374182,"shares":[{"lease":"L1","persistent":2147483648,"temporary":8589934592}],"v":1}');
INSERT INTO "records" VALUES(10,'TurnsJoined',0.0,1700000000.0,NULL,'L1','{"v":1}');
INSERT INTO "records" VALUES(11,'TurnOverran',0.0,1700000000.0,'alice','L1','{"v":1}');
INSERT INTO "records" VALUES(12,'TurnsJoined',0.0,1700000000.0,NULL,'L2','{"v":1}');
INSERT INTO "records" VALUES(13,'TurnGiven',170.0,1700000170.0,NULL,'L2','{"gpus":["GPU-0"],"v":1}');
