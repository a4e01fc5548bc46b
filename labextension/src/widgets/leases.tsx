import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon, refreshIcon } from '@jupyterlab/ui-components';
import React from 'react';

import type { Lease, Waiting } from '../api/types';
import { CommandIDs } from '../commands';
import { releaseIcon, stateIcons } from '../icons';
import {
  canRelease,
  Level,
  measuredMemory,
  myLeases,
  restartHelps
} from '../model/derive';
import { formatBytes, formatDuration } from '../text/format';
import { gpuNames, stateHint, stateWord, taskName } from '../text/words';
import { useNow, useSettings, useSnapshot, useView } from './host';
import { IconButton, Skeleton, UseBar } from './parts';

/** Code, the same in every language. */
const EXAMPLE = 'import torch';

/** My leases, one row a task. */
export function LeasesView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  const now = useNow(1);
  if (!status) {
    return <Skeleton lines={3} label={trans.__('Loading the leases')} />;
  }
  const leases = myLeases(status);
  if (!leases.length) {
    return (
      <div className="jp-gpushare-empty">
        <p>{trans.__('You hold no GPU and wait for none.')}</p>
        <p>
          {trans.__('Run this in a notebook or a program, and you get one:')}
        </p>
        <pre>
          <code>{EXAMPLE}</code>
        </pre>
        <p>
          {trans.__(
            'It comes back when the kernel ends or you release it here.'
          )}
        </p>
      </div>
    );
  }
  const waiting = new Map(status.queue.map(entry => [entry.lease, entry]));
  return (
    <ul className="jp-gpushare-list" aria-label={trans.__('My leases')}>
      {leases.map(lease => (
        <LeaseRow
          key={lease.id}
          lease={lease}
          waiting={waiting.get(lease.id) ?? null}
          simulated={status.node.simulated}
          since={formatDuration(
            now - (lease.position !== null ? lease.requested : lease.since),
            trans
          )}
        />
      ))}
    </ul>
  );
}

/** Why an idle task that others wait for has its GPU still. */
function keptText(lease: Lease, trans: TranslationBundle): string | undefined {
  return lease.kept === null
    ? undefined
    : trans.__('It was asked for its GPU and keeps it: %1', lease.kept);
}

interface ILeaseRow {
  lease: Lease;
  waiting: Waiting | null;
  /** Nothing is measured on simulated GPUs, and nobody has to wonder why. */
  simulated: boolean;
  since: string;
}

/** One lease. Drawn anew only where something that it shows has changed. */
const LeaseRow = React.memo(
  function LeaseRow(props: ILeaseRow): JSX.Element {
    const { lease, waiting, simulated, since } = props;
    const { trans, commands } = useView();
    const { units } = useSettings();
    const name = taskName(lease, trans);
    const Icon = stateIcons[lease.state];
    const measured = measuredMemory(lease);
    const limit = lease.gpus.reduce((sum, gpu) => sum + gpu.memory, 0);
    const run = (command: string): void =>
      void commands.execute(command, { lease: lease.id });
    const where = gpuNames(lease, trans);
    return (
      <li
        className="jp-gpushare-row"
        data-state={lease.state}
        data-lease={lease.id}
      >
        <span
          className="jp-gpushare-state"
          title={stateHint(lease.state, trans)}
        >
          <Icon.react tag="span" aria-hidden="true" />
        </span>
        <div className="jp-gpushare-row-words">
          <div className="jp-gpushare-row-title">
            {lease.path || lease.kernel_id ? (
              <button
                type="button"
                className="jp-gpushare-link"
                title={trans.__('Open %1', lease.path ?? name)}
                onClick={() => run(CommandIDs.open)}
              >
                {name}
              </button>
            ) : (
              <span title={lease.name ?? undefined}>{name}</span>
            )}
          </div>
          <div title={waiting?.message ?? keptText(lease, trans)}>
            {lease.position !== null
              ? trans.__(
                  '%1: place %2 in line, for %3',
                  stateWord(lease.state, trans),
                  lease.position ?? '?',
                  since
                )
              : where
                ? trans.__(
                    '%1 · %2 · for %3',
                    stateWord(lease.state, trans),
                    where,
                    since
                  )
                : trans.__('%1 for %2', stateWord(lease.state, trans), since)}
          </div>
          {lease.gpus.length > 0 && (
            <>
              <div>
                {measured === null && simulated
                  ? trans.__('May use %1', formatBytes(limit, units))
                  : measured === null
                    ? trans.__(
                        'May use %1; how much it does is unknown',
                        formatBytes(limit, units)
                      )
                    : trans.__(
                        'Uses %1 of %2',
                        formatBytes(measured, units),
                        formatBytes(limit, units)
                      )}
              </div>
              {measured !== null && (
                <UseBar
                  label={trans.__('GPU memory of %1', name)}
                  text={trans.__(
                    '%1 of %2',
                    formatBytes(measured, units),
                    formatBytes(limit, units)
                  )}
                  share={limit ? Math.min(1, measured / limit) : 0}
                  level={measured > limit ? Level.Over : Level.Free}
                />
              )}
            </>
          )}
          {restartHelps(lease.state) && (
            <div className="jp-gpushare-why">
              {stateHint(lease.state, trans)}
            </div>
          )}
        </div>
        <span className="jp-gpushare-actions">
          {restartHelps(lease.state) && lease.kernel_id && (
            <IconButton
              icon={refreshIcon}
              label={trans.__('Restart the kernel of %1', name)}
              onClick={() => run(CommandIDs.restartKernel)}
            />
          )}
          {lease.state === 'queued' && (
            <IconButton
              icon={closeIcon}
              label={trans.__('Cancel waiting: %1', name)}
              onClick={() => run(CommandIDs.cancel)}
            />
          )}
          {canRelease(lease.state) && (
            <IconButton
              icon={releaseIcon}
              label={trans.__('Release the GPU of %1', name)}
              onClick={() => run(CommandIDs.release)}
            />
          )}
        </span>
      </li>
    );
  },
  (before, after) =>
    before.since === after.since &&
    sameJson(before.lease, after.lease, 'age') &&
    sameJson(before.waiting, after.waiting, 'waiting')
);

/** Whether two documents say the same but for one key that changes all the time. */
function sameJson(a: object | null, b: object | null, but: string): boolean {
  const plain = (value: object | null): string =>
    JSON.stringify(value, (key, part) => (key === but ? undefined : part));
  return a === b || plain(a) === plain(b);
}
