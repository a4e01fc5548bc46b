import { closeIcon, Table } from '@jupyterlab/ui-components';
import React from 'react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { stateIcons } from '../icons';
import { about, nameOf, wordsOf } from '../text/said';
import { useLook, useSettings, useView } from './host';
import { IconButton } from './parts';

/** Everybody's leases, each of which can be revoked with a reason. */
export function AdminLeases(props: { status: Status }): JSX.Element {
  const { trans, commands } = useView();
  const { units } = useSettings();
  const now = useLook(at => Math.floor(at / 5) * 5);
  const words = (lease: Lease, ...subjects: string[]): string =>
    wordsOf(about(lease, ...subjects), { trans, units, now });
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
        <span title={lease.path ?? undefined}>{nameOf(lease)}</span>
      ),
      sort: text(lease => nameOf(lease))
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
            <span title={words(lease, 'ability')}>{words(lease, 'state')}</span>
          </span>
        );
      },
      sort: text(lease => lease.state)
    },
    {
      id: 'gpus',
      label: trans.__('GPUs'),
      renderCell: lease => words(lease, 'where') || '–',
      sort: (a, b) => a.gpus.length - b.gpus.length
    },
    {
      id: 'memory',
      label: trans.__('Memory'),
      renderCell: lease => {
        const notes = words(lease, 'over', 'stall', 'limit', 'parked');
        return <span title={notes}>{words(lease, 'memory')}</span>;
      },
      sort: text(lease => words(lease, 'memory'))
    },
    {
      id: 'since',
      label: trans.__('Held for'),
      renderCell: lease => words(lease, 'held'),
      sort: (a, b) => b.requested - a.requested
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
            nameOf(lease)
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
