import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon, Table } from '@jupyterlab/ui-components';
import React from 'react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import { measuredMemory } from '../model/derive';
import { limitsNow } from '../model/limits';
import {
  eachText,
  formatBytes,
  formatDuration,
  type Units
} from '../text/format';
import { excessText, liftedText, stallText } from '../text/limits';
import { abilityText, rungText } from '../text/parking';
import { gpuNames, stateWord, taskName } from '../text/words';
import { useNow, useSettings, useView } from './host';
import { IconButton } from './parts';

/** Everybody's leases, each of which can be revoked with a reason. */
export function AdminLeases(props: { status: Status }): JSX.Element {
  const { trans, commands } = useView();
  const { units } = useSettings();
  const now = useNow(5);
  const leases = props.status.leases.filter(
    lease => lease.id !== null && lease.state !== 'ended'
  );
  const more = props.status.more?.leases ?? 0;
  const text = (of: (lease: Lease) => string) => (a: Lease, b: Lease) =>
    of(a).localeCompare(of(b));
  const columns: Table.IColumn<Lease>[] = [
    {
      id: 'environment',
      label: trans.__('Environment'),
      renderCell: lease => lease.environment ?? '?',
      sort: text(lease => lease.environment ?? '')
    },
    {
      id: 'task',
      label: trans.__('Task'),
      renderCell: lease => (
        <span title={lease.path ?? undefined}>{taskName(lease, trans)}</span>
      ),
      sort: text(lease => taskName(lease, trans))
    },
    {
      id: 'state',
      label: trans.__('State'),
      renderCell: lease => {
        const Icon = stateIcons[lease.state];
        return (
          <span className="jp-gpushare-cell-state" data-state={lease.state}>
            <span className="jp-gpushare-state">
              <Icon.react tag="span" aria-hidden="true" />
            </span>
            <span title={parkingTitle(lease, units, trans)}>
              {stateWord(lease.state, trans)}
            </span>
          </span>
        );
      },
      sort: text(lease => lease.state)
    },
    {
      id: 'gpus',
      label: trans.__('GPUs'),
      renderCell: lease => gpuNames(lease.gpus, trans) || '–',
      sort: (a, b) => a.gpus.length - b.gpus.length
    },
    {
      id: 'memory',
      label: trans.__('Memory'),
      renderCell: lease => {
        const used = lease.gpus.map(part => part.measured);
        const hint =
          excessText(lease, now, units, trans) ||
          stallText(lease, now, trans) ||
          liftedText(lease, units, trans);
        const words = lease.parked_memory
          ? trans.__(
              '%1 in host memory',
              formatBytes(lease.parked_memory, units)
            )
          : lease.gpus.length
            ? trans.__(
                '%1 of %2',
                used.every(size => size !== null)
                  ? eachText(used, units, trans)
                  : '?',
                eachText(limitsNow(lease), units, trans)
              )
            : '–';
        return <span title={hint || undefined}>{words}</span>;
      },
      sort: (a, b) => (measuredMemory(a) ?? -1) - (measuredMemory(b) ?? -1)
    },
    {
      id: 'since',
      label: trans.__('In this state for'),
      renderCell: lease => formatDuration(now - lease.since, trans),
      sort: (a, b) => b.since - a.since
    },
    {
      id: 'actions',
      label: trans.__('Revoke'),
      renderCell: lease => (
        <IconButton
          icon={closeIcon}
          label={trans.__(
            'Revoke the lease of %1: %2',
            lease.environment ?? '?',
            taskName(lease, trans)
          )}
          onClick={() =>
            void commands.execute(CommandIDs.revoke, { lease: lease.id })
          }
        />
      ),
      sort: () => 0
    }
  ];
  return (
    <div
      className="jp-gpushare-scroll"
      tabIndex={0}
      role="group"
      aria-label={trans.__('Table of leases')}
    >
      <Table
        rows={leases.map(lease => ({ data: lease, key: lease.id ?? '' }))}
        columns={columns}
        sortKey="environment"
        sortDirection={1}
        blankIndicator={() => trans.__('Nobody holds a GPU.')}
      />
      {leases.length === 0 && <p>{trans.__('Nobody holds a GPU.')}</p>}
      {more > 0 && (
        <p>
          {trans.__(
            '… and %1 more; `jupyter gpushare leases` lists all of them.',
            more
          )}
        </p>
      )}
    </div>
  );
}

/** The way in which a lease was parked, or whether it could be. */
function parkingTitle(
  lease: Lease,
  units: Units,
  trans: TranslationBundle
): string | undefined {
  return (
    rungText(lease, units, trans) ||
    (lease.ability ? abilityText(lease.ability, trans) : undefined)
  );
}
