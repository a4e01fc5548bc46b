import React from 'react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { releaseIcon, stateIcons } from '../icons';
import { type IRow, jobOf, jobState, releasable } from '../model/jobs';
import { about, besides, capital } from '../text/said';
import { useView } from './host';
import { IconButton } from './parts';
import { Details, Meter, SaidLines, useWords, Words } from './said';

/** All leases of one job of mine. */
export function JobRow(props: { row: IRow; status: Status }): JSX.Element {
  const { row, status } = props;
  const { trans, commands } = useView();
  const name = row.job ?? '';
  const state = jobState(row.leases);
  const Icon = stateIcons[state];
  const job = jobOf(row, status);
  const told = job ?? row.leases[0];
  const lines = [about(told, 'what'), about(told, 'where')];
  const states = useWords(about(told, 'state'));
  const held = useWords(about(told, 'held'));
  return (
    <li className="jp-gpushare-row" data-state={state} data-job={row.job}>
      <span className="jp-gpushare-state">
        <Icon.react tag="span" aria-hidden="true" />
      </span>
      <div className="jp-gpushare-row-words">
        <div className="jp-gpushare-row-head">
          <div className="jp-gpushare-row-title">
            <span title={name}>{name}</span>
          </div>
          <span className="jp-gpushare-actions">
            {releasable(row).length > 0 && (
              <IconButton
                icon={releaseIcon}
                label={trans.__('Release all GPUs of %1', name)}
                onClick={() =>
                  void commands.execute(CommandIDs.release, { job: row.job })
                }
              />
            )}
          </span>
        </div>
        {lines.map((says, place) => (
          <div key={place}>
            <Words says={says} />
          </div>
        ))}
        <div>{capital(job ? trans.__('%1 for %2', states, held) : states)}</div>
        {about(told, 'memory').map(said => (
          <Meter
            key={said.about}
            said={said}
            name={trans.__('GPU memory')}
            label={trans.__('GPU memory of %1', name)}
          />
        ))}
        {row.leases.map(lease => (
          <SaidLines key={lease.id} says={about(lease, 'over', 'stall')} />
        ))}
        <Details title={trans._n('%1 worker', '%1 workers', row.leases.length)}>
          <ul
            className="jp-gpushare-workers"
            aria-label={trans.__('Workers of %1', name)}
          >
            {row.leases.map(lease => (
              <Worker key={lease.id} lease={lease} />
            ))}
          </ul>
        </Details>
      </div>
    </li>
  );
}

/** What is the same of all workers, or said of the job. */
const OF_JOB = ['who', 'what', 'class', 'held', 'summary', 'countdown'];

/** One worker: where, in which state for how long, with how much memory, and what else there is. */
function Worker(props: { lease: Lease }): JSX.Element {
  const { lease } = props;
  return (
    <li data-state={lease.state}>
      <Words says={besides(lease, ...OF_JOB)} />
    </li>
  );
}
