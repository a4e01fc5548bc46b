import { act, fireEvent, screen, waitFor } from '@testing-library/react';
import { Clipboard } from '@jupyterlab/apputils';
import React from 'react';

import type { LackingKernel } from '../api/types';
import { CommandIDs } from '../commands';
import { byPython, LackingKernels } from '../model/kernels';
import { KernelsView } from '../widgets/kernels';
import { QueueView } from '../widgets/queue';
import { aStatus, aWaiting } from './support/builders';
import { FakeServer } from './support/server';
import { show } from './support/views';

const FIX = '/envs/torch/bin/python -m pip install /dist/client.whl';

function lacking(
  name: string,
  python = `/envs/${name}/bin/python`
): LackingKernel {
  return { name, title: `Python (${name})`, python, fix: `${python} -m pip` };
}

describe('kernels whose Python lacks the hook', () => {
  it('are one entry for each Python, those that run first', () => {
    const kernels = [
      lacking('a'),
      lacking('b'),
      lacking('c', '/envs/b/bin/python')
    ];
    const entries = byPython(kernels, new Set(['c', 'mine']));
    expect(entries.map(({ titles, running }) => [titles, running])).toEqual([
      [['Python (b)', 'Python (c)'], true],
      [['Python (a)'], false]
    ]);
  });

  it('are asked for again when another kernelspec runs, not for each kernel', async () => {
    const { server, kernels, running } = world([lacking('torch')]);
    await kernels.refresh();
    expect(kernels.shown[0].running).toBe(false);
    running.push('torch', 'torch');
    const asked = new Promise<void>(resolve => {
      kernels.changed.connect(() => resolve());
    });
    kernels.observe();
    await asked;
    expect(kernels.shown[0].running).toBe(true);
    kernels.observe();
    running.pop();
    kernels.observe();
    expect(server.asked).toHaveLength(2);
  });

  it('stay known while the server does not answer, and are none for an older one', async () => {
    const { server, kernels } = world([lacking('torch')]);
    await kernels.refresh();
    server.down = true;
    await kernels.refresh();
    expect(kernels.shown).toHaveLength(1);
    const older = new LackingKernels(new FakeServer().api, () => []);
    await older.refresh();
    expect(older.shown).toEqual([]);
  });

  it('are not told of again once dismissed, but others are', async () => {
    const { kernels, tell } = world([lacking('torch')]);
    await kernels.refresh();
    kernels.dismiss();
    expect(kernels.shown).toEqual([]);
    expect(kernels.dismissed).toEqual(['/envs/torch/bin/python']);
    tell([lacking('jax'), lacking('torch')]);
    await kernels.refresh();
    expect(kernels.shown.map(({ titles }) => titles[0])).toEqual([
      'Python (jax)'
    ]);
    kernels.restore(['/envs/jax/bin/python']);
    expect(kernels.shown).toEqual([]);
  });
});

describe('the notice', () => {
  it('says which kernel gets no GPU, and copies the command', async () => {
    const copied = jest
      .spyOn(Clipboard, 'copyToSystem')
      .mockImplementation(() => undefined);
    const { kernels } = await shown(
      [{ ...lacking('torch'), fix: FIX }],
      ['torch']
    );
    const notice = screen.getByText('Python (torch): no GPU').parentElement;
    expect(notice?.textContent).toContain('then restart the kernel');
    expect(screen.getByText(FIX).tagName).toBe('CODE');
    fireEvent.click(screen.getByRole('button', { name: 'Copy the command' }));
    expect(copied).toHaveBeenCalledWith(FIX);
    expect(screen.getByRole('button', { name: 'Copied' })).toBeTruthy();
    act(() => kernels.dismiss());
    expect(screen.queryByText(FIX)).toBeNull();
  });

  it('folds up kernels that do not run, and goes when they are mended', async () => {
    const { tell } = await shown([lacking('torch'), lacking('jax')], []);
    const details = screen
      .getByText(/^2 kernels that you can start get no GPU/)
      .closest('details');
    expect(details?.open).toBe(false);
    tell([]);
    fireEvent.click(screen.getByRole('button', { name: 'Check again' }));
    await waitFor(() => expect(screen.queryByText('Check again')).toBeNull());
  });
});

describe('kernels on other hosts', () => {
  it('are told of by host, and are looked for again when kernels change', async () => {
    const { server, kernels } = await shown([], []);
    const on = (...hosts: string[]): void =>
      server.on('GET', 'kernels', 200, {
        lacking: [],
        elsewhere: hosts.map((host, n) => ({ kernel: `k${n}`, host, why: '' }))
      });
    on('b', 'b');
    await act(() => kernels.refresh());
    expect(screen.getByRole('status').textContent).toContain(
      '2 kernels of yours run on host b;'
    );
    on('c');
    await act(async () => {
      const changed = new Promise<void>(resolve => {
        kernels.changed.connect(() => resolve());
      });
      kernels.observe();
      await changed;
    });
    expect(screen.getByRole('status').textContent).toContain(
      'A kernel of yours runs on host c;'
    );
  });
});

describe('a request that waits', () => {
  const waits = aWaiting(1, {
    mine: true,
    lease: 'w',
    hints: [{ host: 'b', gpus: 1, kind: 'H100', text: 'b has a free GPU now.' }]
  });

  it('is started where a GPU is free by one click', () => {
    const { ran } = show(QueueView, aStatus({ queue: [waits] }), [
      CommandIDs.startElsewhere
    ]);
    fireEvent.click(screen.getByRole('button', { name: 'Start on b…' }));
    expect(ran).toEqual([
      {
        command: CommandIDs.startElsewhere,
        args: { lease: 'w', host: 'b' }
      }
    ]);
  });

  it('of a program, or of somebody else, is left where it is', () => {
    show(QueueView, aStatus({ queue: [waits] }));
    expect(screen.queryByRole('button')).toBeNull();
  });
});

function world(first: LackingKernel[]): {
  server: FakeServer;
  kernels: LackingKernels;
  running: string[];
  tell: (kernels: LackingKernel[]) => void;
} {
  const server = new FakeServer();
  const running: string[] = [];
  const tell = (kernels: LackingKernel[]): void =>
    server.on('GET', 'kernels', 200, { lacking: kernels });
  tell(first);
  return {
    server,
    running,
    tell,
    kernels: new LackingKernels(server.api, () => running)
  };
}

async function shown(
  first: LackingKernel[],
  running: string[]
): Promise<ReturnType<typeof world>> {
  const made = world(first);
  made.running.push(...running);
  await made.kernels.refresh();
  show(() => <KernelsView kernels={made.kernels} />);
  return made;
}
