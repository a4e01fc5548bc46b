import {
  act,
  fireEvent,
  screen,
  waitFor,
  within
} from '@testing-library/react';

import schemas from '../api/schemas.json';
import type { HistoryEvent, Quotas } from '../api/types';
import { CommandIDs } from '../commands';
import {
  choices,
  draftOf,
  environmentRows,
  filteredEvents,
  readDraft,
  undoOf
} from '../model/admin';
import { AdminView } from '../widgets/admin';
import {
  aLease,
  anEnvironmentQuota,
  aQueuedLease,
  aStatus,
  GIB
} from './support/builders';
import { type IShown, show } from './support/views';

const QUOTAS: Quotas = {
  quotas: [
    anEnvironmentQuota('alice', { gpus: 2, used_gpus: 1, source: 'override' }),
    anEnvironmentQuota('bob', { gpus: 1, memory: null, source: 'group' })
  ],
  default: { gpus: 1, memory: 4 * GIB, weight: 1, gpu_hours: 40 }
};
const USAGE = {
  since: 0,
  until: 1,
  rows: [
    {
      environment: 'gone',
      gpu_seconds_held: 7200,
      gpu_seconds_busy: 3600,
      leases: 3
    }
  ]
};
const EVENT: HistoryEvent = {
  at: 1990,
  kind: 'LeaseEnded',
  environment: 'bob',
  lease: 'l9',
  text: 'ended: revoked, maintenance',
  reason: 'revoked',
  detail: 'maintenance'
};
const EVENTS = [
  EVENT,
  { ...EVENT, kind: 'LeaseGranted', environment: 'alice', text: 'got 1 GPU' },
  { ...EVENT, kind: 'BootSeen', environment: null, text: 'started' }
];

describe('environmentRows', () => {
  it('has everybody who has a quota, a lease, or usage', () => {
    const status = aStatus({
      leases: [
        aLease('a'),
        aQueuedLease('b', 1),
        aLease('c', { environment: 'carol', mine: false }),
        aLease('d', { environment: null, mine: false }),
        aLease('e', { state: 'ended', environment: 'ended-long-ago' })
      ]
    });
    const rows = environmentRows(QUOTAS, USAGE.rows, status);
    expect(rows.map(row => row.environment)).toEqual([
      'alice',
      'bob',
      'carol',
      'gone'
    ]);
    expect(rows[0]).toMatchObject({ leases: 1, waiting: 1, usedGpus: 1 });
    expect(rows[2]).toMatchObject({
      gpus: 1,
      memory: 4 * GIB,
      source: 'default'
    });
    expect(rows[3]).toMatchObject({ held: 7200, busy: 3600 });
  });

  it("keeps a quota's missing limit, whatever the default has", () => {
    const [, bob] = environmentRows(QUOTAS, [], aStatus());
    expect(bob.memory).toBeNull();
  });
});

describe('readDraft', () => {
  const good = {
    environment: 'alice',
    gpus: '2',
    memory: '8GiB',
    weight: '1',
    hours: '20',
    per: '',
    idle_timeout: '',
    burst_memory: '',
    turn_offset: '',
    reserve: '',
    pin_turn_limit: '',
    interactive: '',
    share: ''
  };

  it('reads what is right', () => {
    expect(readDraft(good).wish).toEqual({
      gpus: 2,
      memory: 8 * GIB,
      weight: 1,
      gpu_hours: 20,
      per: null,
      idle_timeout: null,
      burst_memory: null,
      turn_offset: null,
      reserve: null,
      pin_turn_limit: null,
      interactive: null,
      share: null
    });
    const own = {
      ...good,
      per: 'month',
      idle_timeout: '7,5',
      burst_memory: '60GiB',
      turn_offset: '1 GiB',
      reserve: 'estimate',
      pin_turn_limit: '10',
      interactive: '2',
      share: '150'
    };
    expect(readDraft(own).wish).toMatchObject({
      per: 'month',
      idle_timeout: 450,
      burst_memory: 60 * GIB,
      turn_offset: GIB,
      reserve: 'estimate',
      pin_turn_limit: 600,
      interactive: 2,
      share: 150
    });
    const share = readDraft({ ...good, burst_memory: '0.9' });
    expect(share.wish?.burst_memory).toBe(0.9);
    const none = { ...good, idle_timeout: '0', turn_offset: '0' };
    expect(readDraft(none).wish).toMatchObject({
      idle_timeout: 0,
      turn_offset: 0
    });
    expect(readDraft({ ...good, memory: ' ' }).wish?.memory).toBeNull();
    // Null, not left out: no budget, where it would stay otherwise.
    expect(readDraft({ ...good, hours: ' ' }).wish?.gpu_hours).toBeNull();
    expect(readDraft({ ...good, hours: '2,5' }).wish?.gpu_hours).toBe(2.5);
    expect(readDraft({ ...good, hours: '0' }).wish?.gpu_hours).toBe(0);
  });

  it.each([
    ['environment', ''],
    ['environment', ' alice'],
    ['environment', 'a\nb'],
    ['environment', 'x'.repeat(257)],
    ['per', 'year'],
    ['per', '2026-10'],
    ['idle_timeout', 'soon'],
    ['idle_timeout', '-1'],
    ['burst_memory', '1.5'],
    ['burst_memory', 'much'],
    ['turn_offset', '1'],
    ['reserve', 'most'],
    ['pin_turn_limit', 'long'],
    ['interactive', '1.5'],
    ['interactive', '4097'],
    ['share', '0.5'],
    ['share', '10001'],
    ['gpus', ''],
    ['gpus', '1.5'],
    ['gpus', '-1'],
    ['gpus', '4097'],
    ['gpus', '1e3'],
    ['memory', '8'],
    ['memory', '0GiB'],
    ['memory', 'many'],
    ['weight', ''],
    ['weight', '0'],
    ['weight', 'NaN'],
    ['weight', 'Infinity'],
    ['hours', '-1'],
    ['hours', 'many'],
    ['hours', '20 h'],
    ['hours', '1e10']
  ])('refuses %s %j', (field, value) => {
    const read = readDraft({ ...good, [field]: value });
    expect(read.wish).toBeNull();
    expect(read.mistakes).toEqual([field]);
  });

  it('has an input for each field of a quota', () => {
    const { QuotaWish } = schemas.components.schemas;
    const { wish } = readDraft({ ...good, per: 'week' });
    expect(Object.keys(wish ?? {}).sort()).toEqual(
      Object.keys(QuotaWish.properties).sort()
    );
  });

  it('reads back every quota that it shows', () => {
    for (const memory of [null, GIB, 16e9, 24 * GIB + 1024, 7 * 1024]) {
      for (const hours of [null, 0, 20, 1 / 3, 1e-7, 1e9]) {
        for (const [per, idle, burst] of [
          [null, null, null],
          ['week', 0, 0],
          ['2026-10-01', 450, 0.9],
          ['month', 60, 60 * GIB]
        ] as const) {
          const rules = {
            idle_timeout: idle,
            burst_memory: burst,
            turn_offset: burst === null ? null : Math.floor(burst),
            reserve: idle === null ? null : 'estimate',
            pin_turn_limit: idle,
            interactive: idle === null ? null : 2,
            share: idle === null ? null : 50
          };
          const quota = { gpus: 3, memory, weight: 2.5 };
          const own = { hours, per, rules };
          const draft = draftOf({ environment: 'a', ...own, ...quota });
          expect(readDraft(draft).wish).toEqual({
            ...quota,
            gpu_hours: hours,
            ...(hours === null ? {} : { per }),
            ...rules
          });
        }
      }
    }
  });
});

it('undoes to the override that was, or to none', () => {
  const before = {
    gpus: 2,
    memory: 8 * GIB,
    weight: 1,
    idle_timeout: null,
    burst_memory: null,
    turn_offset: null,
    reserve: null,
    pin_turn_limit: null,
    interactive: null,
    share: null
  };
  expect(undoOf('alice', QUOTAS)).toEqual({ ...before, gpu_hours: null });
  const budget = {
    hours: 20,
    spent: 3.5,
    window: 604800,
    level: 'ok' as const
  };
  const [alice, ...others] = QUOTAS.quotas;
  const quotas = [{ ...alice, budget }, ...others];
  expect(undoOf('alice', { ...QUOTAS, quotas })).toEqual({
    ...before,
    gpu_hours: 20,
    per: null
  });
  expect(undoOf('bob', QUOTAS)).toBeNull();
  expect(undoOf('new', QUOTAS)).toBeNull();
});

it('filters events by text, kind and environment', () => {
  const found = (filter: object): string[] =>
    filteredEvents(EVENTS, {
      text: '',
      kind: '',
      environment: '',
      ...filter
    }).map(event => event.kind);
  expect(found({})).toHaveLength(3);
  expect(found({ text: 'MAINT' })).toEqual(['LeaseEnded']);
  expect(found({ text: 'alice' })).toEqual(['LeaseGranted']);
  expect(found({ kind: 'BootSeen' })).toEqual(['BootSeen']);
  expect(found({ environment: 'bob', kind: 'BootSeen' })).toEqual([]);
  expect(choices(EVENTS, 'environment')).toEqual(['alice', 'bob']);
});

describe('AdminView', () => {
  async function open(admin = true): Promise<IShown> {
    const status = aStatus({
      admin,
      leases: [
        aLease('l1', { environment: 'bob', mine: false, path: 'b/deep.ipynb' })
      ]
    });
    const shown = show(AdminView, status, [CommandIDs.revoke]);
    const { server } = shown.model;
    server.on('GET', 'quotas', 200, QUOTAS);
    server.on('GET', 'usage', 200, USAGE);
    server.on('GET', 'history', 200, { events: EVENTS });
    if (admin) {
      await screen.findByRole('button', { name: 'Edit the quota of alice' });
      await screen.findByText('got 1 GPU');
    }
    return shown;
  }
  const put = (shown: IShown): unknown[] =>
    shown.model.server.asked.filter(({ method }) => method !== 'GET');
  const input = (name: string): HTMLInputElement =>
    screen.getByRole('textbox', { name });
  const type = (name: string, value: string): void =>
    void fireEvent.change(input(name), { target: { value } });

  it('is for administrators', async () => {
    const shown = await open(false);
    expect(shown.container.textContent).toContain('Only an administrator');
    expect(shown.model.server.asked).toEqual([]);
  });

  it('edits a quota in place, and undoes it', async () => {
    const shown = await open();
    const { server } = shown.model;
    server.on('PUT', 'quotas/alice', 200, anEnvironmentQuota('alice'));
    fireEvent.click(
      screen.getByRole('button', { name: 'Edit the quota of alice' })
    );
    expect(input('Memory on each GPU of alice').value).toBe('8 GiB');
    type('GPUs of alice', '4');
    // A status that comes meanwhile must not take away what was typed.
    shown.model.setStatus({ ...aStatus(), admin: true });
    expect(input('GPUs of alice').value).toBe('4');
    fireEvent.keyDown(input('GPUs of alice'), { key: 'Enter' });
    await screen.findByText(/The quota of alice is now 4 GPUs, 8 GiB on each/);
    expect(put(shown)).toEqual([
      {
        method: 'PUT',
        path: 'quotas/alice',
        body: {
          gpus: 4,
          memory: 8 * GIB,
          weight: 1,
          gpu_hours: null,
          idle_timeout: null,
          burst_memory: null,
          turn_offset: null,
          reserve: null,
          pin_turn_limit: null,
          interactive: null,
          share: null
        }
      }
    ]);
    fireEvent.click(screen.getByRole('button', { name: 'Undo' }));
    await waitFor(() => expect(put(shown)).toHaveLength(2));
    expect(put(shown)[1]).toMatchObject({
      path: 'quotas/alice',
      body: {
        gpus: 2,
        memory: 8 * GIB,
        weight: 1,
        gpu_hours: null,
        idle_timeout: null,
        burst_memory: null
      }
    });
    await waitFor(() =>
      expect(screen.queryByRole('button', { name: 'Undo' })).toBeNull()
    );
  });

  it('undoes by removing the override where there was none', async () => {
    const shown = await open();
    const { server } = shown.model;
    server.on('PUT', 'quotas/bob', 200, anEnvironmentQuota('bob'));
    server.on('DELETE', 'quotas/bob', 200, {});
    fireEvent.click(
      screen.getByRole('button', { name: 'Edit the quota of bob' })
    );
    type('Memory on each GPU of bob', '16 GB');
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    fireEvent.click(await screen.findByRole('button', { name: 'Undo' }));
    await waitFor(() => expect(put(shown)).toHaveLength(2));
    expect(put(shown)[1]).toMatchObject({
      method: 'DELETE',
      path: 'quotas/bob'
    });
  });

  it('sets a budget, lifts it, and brings it back', async () => {
    const shown = await open();
    const { server } = shown.model;
    const budget = { hours: 20, spent: 3.5, window: 604800, level: 'ok' };
    const [alice, ...others] = QUOTAS.quotas;
    server.on('PUT', 'quotas/alice', 200, anEnvironmentQuota('alice'));
    const name = 'Budget in GPU-hours of alice';
    const edit = (): void =>
      void fireEvent.click(
        screen.getByRole('button', { name: 'Edit the quota of alice' })
      );
    edit();
    expect(input(name).value).toBe('');
    type(name, 'a lot');
    expect(document.body.textContent).toContain('empty is no budget');
    type(name, '20');
    // What the node says from now on.
    server.on('GET', 'quotas', 200, {
      ...QUOTAS,
      quotas: [{ ...alice, budget }, ...others]
    });
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await screen.findByText(/weight 1, 20 GPU-hours\./);
    await screen.findByText('3.5 of 20');
    edit();
    expect(input(name).value).toBe('20');
    type(name, '');
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await screen.findByText(/is now 2 GPUs, 8 GiB on each, weight 1\./);
    fireEvent.click(screen.getByRole('button', { name: 'Undo' }));
    await waitFor(() => expect(put(shown)).toHaveLength(3));
    const sent = put(shown) as { body: { gpu_hours: number | null } }[];
    expect(sent.map(({ body }) => body.gpu_hours)).toEqual([20, null, 20]);
  });

  it('says what is wrong beside the field, and saves nothing', async () => {
    const shown = await open();
    fireEvent.click(
      screen.getByRole('button', { name: 'Edit the quota of alice' })
    );
    type('Memory on each GPU of alice', '8');
    const field = input('Memory on each GPU of alice');
    expect(field.getAttribute('aria-invalid')).toBe('true');
    const id = field.getAttribute('aria-describedby') ?? '';
    expect(document.getElementById(id)?.textContent).toContain('8GiB');
    expect(screen.getByRole('button', { name: 'Save' })).toHaveProperty(
      'disabled',
      true
    );
    fireEvent.keyDown(field, { key: 'Enter' });
    fireEvent.keyDown(field, { key: 'Escape' });
    expect(screen.queryByRole('button', { name: 'Save' })).toBeNull();
    expect(put(shown)).toEqual([]);
  });

  it("shows the server's refusal and keeps what was typed", async () => {
    const shown = await open();
    shown.model.server.on('PUT', 'quotas/alice', 503, {
      reason: 'unavailable',
      message: 'The disk is full.'
    });
    fireEvent.click(
      screen.getByRole('button', { name: 'Edit the quota of alice' })
    );
    type('GPUs of alice', '3');
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await screen.findByText('Not changed: The disk is full.');
    expect(input('GPUs of alice').value).toBe('3');
  });

  it('adds an environment with the default quota as a start', async () => {
    const shown = await open();
    shown.model.server.on(
      'PUT',
      'quotas/dave',
      200,
      anEnvironmentQuota('dave')
    );
    fireEvent.click(screen.getByRole('button', { name: 'Add' }));
    expect(input('GPUs').value).toBe('1');
    type('Name of the environment', 'dave');
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await waitFor(() => expect(put(shown)).toHaveLength(1));
    expect(put(shown)[0]).toMatchObject({
      path: 'quotas/dave',
      body: { gpu_hours: 40 }
    });
  });

  it("revokes through the command that asks for a reason, and finds bob's task", async () => {
    const { ran } = await open();
    fireEvent.click(
      screen.getByRole('button', {
        name: 'Revoke the lease of bob: deep.ipynb'
      })
    );
    expect(ran).toEqual([
      { command: CommandIDs.revoke, args: { lease: 'l1' } }
    ]);
  });

  it('filters environments and events', async () => {
    await open();
    fireEvent.change(
      screen.getByRole('searchbox', { name: 'Filter the environments' }),
      { target: { value: 'GON' } }
    );
    expect(
      screen.queryByRole('button', { name: /Edit the quota of alice/ })
    ).toBeNull();
    expect(screen.getByText('2 (1 busy)')).toBeTruthy();
    fireEvent.change(screen.getByRole('combobox', { name: 'Kind of event' }), {
      target: { value: 'LeaseEnded' }
    });
    const events = screen.getByRole('region', { name: 'Events' });
    expect(within(events).getAllByRole('row')).toHaveLength(2);
  });

  it('keeps the old figures, marked, when asking again fails', async () => {
    const shown = await open();
    shown.model.server.on('GET', 'quotas', 503, {
      reason: 'unavailable',
      message: 'gone'
    });
    act(() => shown.host.shown.emit());
    await screen.findByText('Not up to date: gone');
    screen.getByRole('button', { name: 'Edit the quota of alice' });
  });
});
