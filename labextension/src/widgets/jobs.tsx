import React from 'react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { releaseIcon, stateIcons } from '../icons';
import { Level, measuredMemory } from '../model/derive';
import { type IRow, jobState, releasable } from '../model/jobs';
import { limitsNow } from '../model/limits';
import { eachText, formatBytes, formatDuration } from '../text/format';
import { excessText, liftedText, rangeHint, stallText } from '../text/limits';
import { jobText, rowName, statesText, workersText } from '../text/jobs';
import { myTurnText } from '../text/turns';
import { gpuNames, stateHint, stateWord } from '../text/words';
import { useNow, useSettings, useView } from './host';
import { IconButton, UseBar } from './parts';

/** All leases of one job of mine. */
export function JobRow(props: { row: IRow; status: Status }): JSX.Element {
  const { row, status } = props;
  const { trans, commands } = useView();
  const { units } = useSettings();
  const now = useNow(1);
  const name = rowName(row, trans);
  const state = jobState(row.leases);
  const Icon = stateIcons[state];
  const limits = row.leases.flatMap(limitsNow);
  const limit = limits.reduce((sum, one) => sum + one, 0);
  const used = usedMemory(row.leases);
  const [range] = row.leases.filter(lease => lease.memory_most);
  const share = range && liftedText(range, units, trans);
  const begun = Math.min(...row.leases.map(begunAt));
  const advice = row.leases.flatMap(lease =>
    [excessText(lease, now, units, trans), stallText(lease, now, trans)].filter(
      text => text
    )
  );
  return (
    <li className="jp-gpushare-row" data-state={state} data-job={row.job}>
      <span className="jp-gpushare-state" title={stateHint(state, trans)}>
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
        <div>{jobText(row, trans)}</div>
        <div>
          {trans.__(
            '%1 for %2',
            statesText(row.leases, trans),
            formatDuration(now - begun, trans)
          )}
        </div>
        {limits.length > 0 && (
          <div>
            {used !== null
              ? trans.__(
                  'Uses %1 of %2 in all',
                  formatBytes(used, units),
                  formatBytes(limit, units)
                )
              : status.node.simulated
                ? trans.__('May use %1', eachText(limits, units, trans))
                : trans.__(
                    'May use %1; how much it does is unknown',
                    eachText(limits, units, trans)
                  )}
          </div>
        )}
        {limits.length > 0 && used !== null && (
          <UseBar
            label={trans.__('GPU memory of %1', name)}
            text={trans.__(
              '%1 of %2',
              formatBytes(used, units),
              formatBytes(limit, units)
            )}
            share={limit ? Math.min(1, used / limit) : 0}
            level={used > limit ? Level.Over : Level.Free}
          />
        )}
        {share && <div title={rangeHint(trans)}>{share}</div>}
        {advice.map((text, place) => (
          <div key={place} className="jp-gpushare-advice">
            {text}
          </div>
        ))}
        <details className="jp-gpushare-details">
          <summary>{workersText(row, trans)}</summary>
          <ul
            className="jp-gpushare-workers"
            aria-label={trans.__('Workers of %1', name)}
          >
            {row.leases.map(lease => (
              <Worker key={lease.id} lease={lease} status={status} now={now} />
            ))}
          </ul>
        </details>
      </div>
    </li>
  );
}

/** One worker: where, in which state for how long, and with how much memory. */
function Worker(props: {
  lease: Lease;
  status: Status;
  now: number;
}): JSX.Element {
  const { lease, status, now } = props;
  const { trans } = useView();
  const { units } = useSettings();
  const state = trans.__(
    '%1 for %2',
    stateWord(lease.state, trans),
    formatDuration(
      now - (lease.position === null ? lease.since : lease.requested),
      trans
    )
  );
  const where = gpuNames(lease.gpus, trans);
  const used = measuredMemory(lease);
  const may = eachText(limitsNow(lease), units, trans);
  return (
    <li data-state={lease.state}>
      {[
        where ? trans.__('%1: %2', where, state) : state,
        may &&
          (used === null
            ? may
            : trans.__('%1 of %2', formatBytes(used, units), may)),
        myTurnText(lease, status, now, trans)
      ]
        .filter(part => part)
        .join(' · ')}
    </li>
  );
}

/** When a worker got its GPU, or began to wait for it. */
function begunAt(lease: Lease): number {
  return lease.granted ?? lease.requested;
}

/** The memory that all of them use, in bytes; `null` where any of it is unknown. */
function usedMemory(leases: readonly Lease[]): number | null {
  const used = leases.map(measuredMemory);
  return used.every(one => one !== null)
    ? used.reduce((sum: number, one) => sum + (one ?? 0), 0)
    : null;
}
