import { GpuShareModel } from '../model/model';
import { Failure } from '../api/rest';
import { Connection, SAMPLE_STEP, SAMPLES_FOR } from '../model/snapshot';
import { aGpu, aStatus } from './support/builders';
import { FakeServer } from './support/server';
import { FakeWorld } from './support/world';

const readings = { step: 5, times: [], gpus: [] };

function start(): {
  server: FakeServer;
  world: FakeWorld;
  model: GpuShareModel;
  changes: Connection[];
} {
  const server = new FakeServer();
  server.on('GET', 'readings', 200, readings);
  const world = new FakeWorld();
  const model = new GpuShareModel(server.api, () => world.now / 1000, world);
  const changes: Connection[] = [];
  model.changed.connect(() => changes.push(model.snapshot.connection));
  model.start();
  return { server, world, model, changes };
}

/** Let what was asked be answered. */
async function answered(model: GpuShareModel): Promise<void> {
  await new Promise<void>(resolve => {
    const seen = (): void => {
      model.changed.disconnect(seen);
      resolve();
    };
    model.changed.connect(seen);
  });
}

function tell(world: FakeWorld, given = aStatus()): void {
  world.socket.send({ type: 'status', status: given });
}

it('loads, then lives', () => {
  const { world, model } = start();
  expect(model.snapshot.connection).toBe(Connection.Loading);
  tell(world);
  expect(model.snapshot.connection).toBe(Connection.Live);
  expect(model.snapshot.status?.environment).toBe('alice');
  model.dispose();
});

it('keeps what it knew while the node manager is away, marked as old', () => {
  const { world, model } = start();
  tell(world);
  world.socket.send({
    type: 'unavailable',
    reason: 'unavailable',
    message: 'gone'
  });
  expect(model.snapshot.connection).toBe(Connection.Stale);
  expect(model.snapshot.status).not.toBeNull();
  expect(model.snapshot.problem).toEqual({
    failure: Failure.NodeDown,
    message: 'gone'
  });
  tell(world);
  expect(model.snapshot.connection).toBe(Connection.Live);
  expect(model.snapshot.problem).toBeNull();
  model.dispose();
});

it('fails where nothing ever came, and says why', async () => {
  const { world, model } = start();
  world.socket.lose();
  await answered(model);
  expect(model.snapshot.connection).toBe(Connection.Failed);
  expect(model.snapshot.problem?.failure).toBe(Failure.NotEnabled);
  model.dispose();
});

it('shows what HTTP gives where the live connection does not get through', async () => {
  const { server, world, model, changes } = start();
  server.on('GET', 'status', 200, aStatus({ environment: 'by-http' }));
  world.socket.lose();
  await answered(model);
  while (model.snapshot.connection !== Connection.Stale) {
    await answered(model);
  }
  expect(model.snapshot.status?.environment).toBe('by-http');
  expect(model.snapshot.problem?.failure).toBe('not-live');
  expect(changes).not.toContain(Connection.Live);
  model.dispose();
});

it('does not let an old answer overwrite a newer message', async () => {
  const { server, world, model } = start();
  server.on('GET', 'status', 200, aStatus({ environment: 'old' }));
  tell(world);
  const asked = model.refresh();
  world.now += 1000;
  tell(world, aStatus({ environment: 'new' }));
  await asked;
  expect(model.snapshot.status?.environment).toBe('new');
  model.dispose();
});

it("shows ages by the node's clock", () => {
  const { world, model } = start();
  world.now = 5000;
  tell(world);
  world.now = 8000;
  expect(model.now()).toBe(2003);
  model.dispose();
});

it('samples no more often than a step, and forgets what is old', () => {
  const { world, model } = start();
  const at = (time: number, utilisation: number | null): void =>
    tell(
      world,
      aStatus({
        gpus: [aGpu(0, { utilisation })],
        node: { ...aStatus().node, time }
      })
    );
  const curve = (): (number | null)[] =>
    (model.snapshot.samples.get('GPU-00000000') ?? []).map(
      sample => sample.utilisation
    );
  at(1000, 0.1);
  at(1000 + SAMPLE_STEP - 1, 0.2);
  at(1000 + SAMPLE_STEP, null);
  expect(curve()).toEqual([0.1, null]);
  for (let time = 1000; time < 1000 + 3 * SAMPLES_FOR; time += SAMPLE_STEP) {
    at(time, 0.5);
  }
  expect(curve().length).toBeLessThanOrEqual(SAMPLES_FOR / SAMPLE_STEP + 1);
  model.dispose();
});

it("begins its curves with the node's own record, and asks for it once", async () => {
  const { server, world, model } = start();
  server.on('GET', 'readings', 200, {
    step: 5,
    times: [1980, 1985],
    gpus: [{ uuid: 'GPU-00000000', utilisation: [0.3, null], used: [1, 2] }]
  });
  tell(world);
  await answered(model);
  expect(model.snapshot.samples.get('GPU-00000000')).toEqual([
    { at: 1980, utilisation: 0.3, used: 1 },
    { at: 1985, utilisation: null, used: 2 },
    { at: 2000, utilisation: 0, used: 0 }
  ]);
  tell(world);
  tell(world);
  const asked = server.asked.filter(({ path }) => path.startsWith('readings'));
  expect(asked).toHaveLength(1);
  model.dispose();
});

it('tells nothing after it was disposed', async () => {
  const { server, world, model, changes } = start();
  server.on('GET', 'status', 200, aStatus());
  const asked = model.refresh();
  model.dispose();
  await asked;
  world.pass(60_000);
  expect(changes).toEqual([]);
});
