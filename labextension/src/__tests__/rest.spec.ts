import { ApiError, Failure, failureOf } from '../api/rest';
import { BadAnswer } from '../api/validate';
import { aStatus } from './support/builders';
import { FakeServer } from './support/server';

const refusal = { reason: 'over_quota', message: 'Too much.' };

it('asks under the base URL and checks the answer', async () => {
  const server = new FakeServer();
  server.on('GET', 'status', 200, aStatus());
  expect((await server.api.status()).environment).toBe('alice');
  expect(server.asked).toEqual([{ method: 'GET', path: 'status', body: null }]);
});

it('refuses an answer that is not what was promised', async () => {
  const server = new FakeServer();
  server.on('GET', 'status', 200, { gpus: [] });
  await expect(server.api.status()).rejects.toThrow(BadAnswer);
});

it('writes names into paths so that they stay one part', async () => {
  const server = new FakeServer();
  const kept = { lease: 'a/b c', state: 'idle' };
  server.on('POST', 'leases/a%2Fb%20c/pin', 200, kept);
  await server.api.keep('a/b c', 60);
  expect(server.asked[0].path).toBe('leases/a%2Fb%20c/pin');
  expect(server.asked[0].body).toEqual({ seconds: 60 });
});

it('sends what it asks for', async () => {
  const server = new FakeServer();
  server.on('DELETE', 'leases/l1', 200, { lease: 'l1', state: 'ended' });
  server.on('GET', 'usage/daily', 200, { environment: 'a', days: [] });
  await server.api.release('l1');
  await server.api.dailyUsage(7);
  expect(server.asked.map(({ method, path }) => `${method} ${path}`)).toEqual([
    'DELETE leases/l1',
    'GET usage/daily?days=7'
  ]);
});

describe('failures', () => {
  it.each([
    [403, refusal, Failure.Forbidden],
    [403, undefined, Failure.Forbidden],
    [404, undefined, Failure.NotEnabled],
    [404, refusal, Failure.Refused],
    [409, refusal, Failure.Refused],
    [502, refusal, Failure.BadAnswer],
    [502, undefined, Failure.BadAnswer],
    [503, refusal, Failure.NodeDown],
    [504, refusal, Failure.NodeDown]
  ])('HTTP %d with %j is %s', (status, answer, failure) => {
    expect(failureOf(status, answer).failure).toBe(failure);
  });

  it("keep the server's own words", () => {
    expect(failureOf(409, refusal)).toMatchObject({
      message: 'Too much.',
      reason: 'over_quota'
    });
  });

  it('tell an unreachable server from one without gpushare', async () => {
    const server = new FakeServer();
    await expect(server.api.status()).rejects.toMatchObject({
      failure: Failure.NotEnabled
    });
    server.down = true;
    const failed = await server.api.status().catch(error => error);
    expect(failed).toBeInstanceOf(ApiError);
    expect(failed.failure).toBe(Failure.Offline);
  });
});
