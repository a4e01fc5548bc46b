import { fireEvent, screen, within } from '@testing-library/react';

import { Failure } from '../api/rest';
import type { Status } from '../api/types';
import { CommandIDs } from '../commands';
import { withProblem } from '../model/snapshot';
import { BannerView } from '../widgets/banner';
import { GpusView } from '../widgets/gpus';
import { LeasesView } from '../widgets/leases';
import { sparkPath } from '../widgets/parts';
import { QueueView } from '../widgets/queue';
import { QuotaView } from '../widgets/quota';
import { StatusItemView } from '../widgets/statusitem';
import {
  aGpu,
  aLease,
  aQueuedLease,
  aQuota,
  aSaid,
  aStatus,
  aWaiting
} from './support/builders';
import { show } from './support/views';

const COMMANDS = Object.values(CommandIDs);

describe('LeasesView', () => {
  it('teaches where there is nothing', () => {
    show(LeasesView, aStatus());
    expect(screen.getByText('import torch')).toBeTruthy();
  });

  it("shows nothing of other people's", () => {
    const { container } = show(
      LeasesView,
      aStatus({ leases: [aLease('x', { mine: false, name: 'secret' })] })
    );
    expect(container.textContent).not.toContain('secret');
  });

  it('releases, cancels, opens and restarts through commands', () => {
    const { ran } = show(
      LeasesView,
      aStatus({
        leases: [
          aLease('held'),
          aQueuedLease('waits', 1, { path: 'work/other.ipynb' }),
          aLease('stuck', { state: 'stalled', path: 'work/stuck.ipynb' })
        ],
        queue: [
          aWaiting(1, { mine: true, lease: 'waits', message: 'All are taken.' })
        ]
      }),
      COMMANDS
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Release the GPU of train.ipynb' })
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Cancel waiting: other.ipynb' })
    );
    fireEvent.click(screen.getByRole('button', { name: 'train.ipynb' }));
    fireEvent.click(
      screen.getByRole('button', { name: 'Restart the kernel of stuck.ipynb' })
    );
    expect(ran).toEqual([
      { command: CommandIDs.release, args: { lease: 'held' } },
      { command: CommandIDs.cancel, args: { lease: 'waits' } },
      { command: CommandIDs.open, args: { lease: 'held' } },
      { command: CommandIDs.restartKernel, args: { lease: 'stuck' } }
    ]);
  });

  it('offers no release of what drains', () => {
    show(LeasesView, aStatus({ leases: [aLease('a', { state: 'draining' })] }));
    expect(screen.queryByRole('button', { name: /Release/ })).toBeNull();
    expect(screen.getByRole('button', { name: /Restart/ })).toBeTruthy();
  });
});

describe('GpusView', () => {
  it('counts as nvidia-smi does, also the instances of a GPU in MIG mode', () => {
    const gpus = [aGpu(0, { instance: 1 }), aGpu(1, { instance: null })];
    show(GpusView, aStatus({ gpus }));
    expect(screen.getByText('GPU 0:1')).toBeTruthy();
    expect(screen.getByText('GPU 1')).toBeTruthy();
  });

  it('leads an administrator to the form of each GPU', () => {
    const out = { reason: 'its fan is replaced', by: 'carol', leases: 0 };
    const gpus = [aGpu(0, { out_of_service: out }), aGpu(1)];
    const { ran } = show(GpusView, aStatus({ gpus, admin: true }), COMMANDS);
    fireEvent.click(
      screen.getByRole('button', { name: 'Put GPU 0 back into service' })
    );
    fireEvent.click(
      screen.getByRole('button', { name: 'Take GPU 1 out of service' })
    );
    expect(ran).toEqual(
      gpus.map(({ uuid }) => ({
        command: CommandIDs.showAdmin,
        args: { gpu: uuid }
      }))
    );
  });
});

describe('QueueView', () => {
  it('says that nobody waits', () => {
    const says = [aSaid('queue', 'Nobody waits.')];
    show(QueueView, aStatus({ says }));
    expect(screen.getByText('Nobody waits.')).toBeTruthy();
    expect(screen.getByText('Nothing was granted.')).toBeTruthy();
  });

  it('stays short however long the queue is', () => {
    show(
      QueueView,
      aStatus({
        queue: Array.from({ length: 300 }, (_, at) => aWaiting(at + 1))
      })
    );
    const list = screen.getByRole('list', { name: 'Queue' });
    expect(within(list).getAllByRole('listitem')).toHaveLength(50);
    expect(screen.getByText('… and 250 more.')).toBeTruthy();
  });
});

describe('BannerView', () => {
  it('is silent while all is well', () => {
    const { container } = show(BannerView, aStatus());
    expect(container.textContent).toBe('');
  });

  it('marks what is old and says why and what to do', () => {
    const { container, model } = show(BannerView, aStatus());
    model.set(
      withProblem(model.snapshot, {
        failure: Failure.NodeDown,
        message: 'The node manager closed the connection.'
      })
    );
    expect(container.textContent).toMatch(/Not up to date: as of/);
    expect(container.textContent).toContain('closed the connection');
    expect(container.textContent).toContain('jupyter gpushare doctor');
    model.setStatus(aStatus());
    expect(container.textContent).toBe('');
  });

  it.each(Object.values(Failure))(
    'has words for %s, and tries again',
    failure => {
      const { model, container } = show(BannerView);
      model.set(withProblem(model.snapshot, { failure, message: 'details' }));
      expect((container.textContent ?? '').length).toBeGreaterThan(20);
      fireEvent.click(screen.getByRole('button', { name: 'Try again' }));
      expect(model.refreshed).toBe(1);
    }
  );

  it('says that the node manager says nothing', () => {
    const { container } = show(BannerView, aStatus({ says: undefined }));
    expect(container.textContent).toContain('older than this panel');
  });

  it("passes the node manager's own problem on", () => {
    const node = { ...aStatus().node, problem: 'The disk is full.' };
    const says = [aSaid('problem', node.problem)];
    const { container } = show(BannerView, aStatus({ node, says }));
    expect(container.textContent).toContain('The disk is full.');
  });
});

describe('StatusItemView', () => {
  it('shows use of quota, and the panel when clicked', () => {
    const { ran, container } = show(
      StatusItemView,
      aStatus({
        quota: aQuota({ used_gpus: 1 }),
        queue: [aWaiting(1, { mine: true })]
      }),
      COMMANDS
    );
    expect(container.textContent).toContain('1/2 (1 waiting)');
    fireEvent.click(screen.getByRole('button'));
    expect(ran).toEqual([{ command: CommandIDs.showPanel, args: {} }]);
  });
});

it('draws nothing while nobody sees it, and catches up when shown', () => {
  const quota = (text: string): Partial<Status> => ({
    quota: aQuota({ says: [aSaid('held', text, { label: 'GPUs', share: 0 })] })
  });
  const { host, model, container } = show(QuotaView, aStatus(quota('0 of 2')));
  host.isVisible = false;
  model.setStatus(aStatus(quota('0 of 7')));
  expect(container.textContent).toContain('0 of 2');
  host.show();
  expect(container.textContent).toContain('0 of 7');
});

it('draws gaps where a value is unknown', () => {
  const points = [
    { at: 0, value: 0 },
    { at: 5, value: 1 },
    { at: 10, value: null },
    { at: 15, value: 0.5 }
  ];
  expect(sparkPath(points, 0, 20, 100, 20)).toBe(
    'M0.0 19.0L25.0 1.0M75.0 10.0'
  );
});
