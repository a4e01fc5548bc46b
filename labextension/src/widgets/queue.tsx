import type { TranslationBundle } from '@jupyterlab/translation';
import { Button } from '@jupyterlab/ui-components';
import React from 'react';

import type { Status, Waiting } from '../api/types';
import { CommandIDs } from '../commands';
import { queueSummary } from '../model/derive';
import { waitsForBudget } from '../model/waiting';
import {
  formatBytes,
  formatDuration,
  formatGpus,
  type Units
} from '../text/format';
import { budgetText, expectationText, shortEstimate } from '../text/waiting';
import { useNow, useSettings, useSnapshot, useView } from './host';
import { Skeleton } from './parts';

/** Rows of the queue that are shown; who stands further back learns how many are ahead. */
const MOST_ROWS = 50;

/** The queue: my place, the requests ahead, and how long others waited lately. */
export function QueueView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  const { units } = useSettings();
  const now = useNow(1);
  if (!status) {
    return <Skeleton lines={2} label={trans.__('Loading the queue')} />;
  }
  const { mine, interactive, batch } = queueSummary(status);
  const passed = Math.max(0, now - status.node.time);
  const waiting = status.queue.length + (status.more?.queue ?? 0);
  return (
    <div className="jp-gpushare-queue">
      {mine.map(entry => (
        <div key={entry.lease ?? entry.position} className="jp-gpushare-place">
          <strong>{placeText(entry, trans)}</strong>
          <div>
            {!waitsForBudget(entry) && <>{aheadText(entry.ahead, trans)} </>}
            {trans.__(
              'You have waited %1.',
              formatDuration(entry.waiting + passed, trans)
            )}
          </div>
          {entry.message && (
            <div className="jp-gpushare-why">{entry.message}</div>
          )}
          {entry.lease !== null &&
            (entry.hints ?? []).map(({ host }) => (
              <StartOn key={host} lease={entry.lease ?? ''} host={host} />
            ))}
          {expectationText(entry, trans) && (
            <div className="jp-gpushare-why">
              {expectationText(entry, trans)}
            </div>
          )}
        </div>
      ))}
      {status.queue.length === 0 ? (
        <p>{trans.__('Nobody waits.')}</p>
      ) : (
        <>
          <p>
            {trans.__(
              '%1 waiting: %2 interactive, %3 batch. The longest: for %4.',
              waiting,
              interactive,
              batch,
              formatDuration(
                Math.max(...status.queue.map(entry => entry.waiting)) + passed,
                trans
              )
            )}
          </p>
          <ol className="jp-gpushare-list" aria-label={trans.__('Queue')}>
            {status.queue.slice(0, MOST_ROWS).map(entry => (
              <li key={entry.position} data-mine={entry.mine}>
                {waitingText(entry, passed, units, trans)}
              </li>
            ))}
          </ol>
          {waiting > MOST_ROWS && (
            <p>{trans.__('… and %1 more.', waiting - MOST_ROWS)}</p>
          )}
        </>
      )}
      <WaitsLately
        waits={status.waits}
        open={status.queue.length > 0}
        trans={trans}
      />
    </div>
  );
}

/** One click starts the kernel that waits on a host where it would get a GPU now. */
function StartOn(props: { lease: string; host: string }): JSX.Element | null {
  const { commands, trans } = useView();
  const { host } = props;
  const args = { lease: props.lease, host };
  // A program has no kernel to start again.
  return commands.isEnabled(CommandIDs.startElsewhere, args) ? (
    <Button
      type="button"
      className="jp-mod-styled"
      title={trans.__('Its variables are lost.')}
      onClick={() => void commands.execute(CommandIDs.startElsewhere, args)}
    >
      {trans.__('Start on %1…', host)}
    </Button>
  ) : null;
}

/** The place of a request; a request that waits for GPU-hours has none. */
function placeText(entry: Waiting, trans: TranslationBundle): string {
  if (!waitsForBudget(entry)) {
    return trans.__('You are number %1 in line', entry.position);
  }
  return entry.budget
    ? trans.__('Your GPU-hours are spent: %1', budgetText(entry.budget, trans))
    : trans.__('Your GPU-hours are spent');
}

/** The requests ahead, by priority class. */
export function aheadText(
  ahead: Waiting['ahead'],
  trans: TranslationBundle
): string {
  if (ahead.interactive + ahead.batch === 0) {
    return trans.__('Nobody is ahead of you.');
  }
  if (ahead.batch === 0) {
    return trans._n(
      '%1 interactive request is ahead of you.',
      '%1 interactive requests are ahead of you.',
      ahead.interactive
    );
  }
  if (ahead.interactive === 0) {
    return trans._n(
      '%1 batch request is ahead of you.',
      '%1 batch requests are ahead of you.',
      ahead.batch
    );
  }
  return trans.__(
    'Ahead of you: %1 interactive, %2 batch.',
    ahead.interactive,
    ahead.batch
  );
}

function waitingText(
  entry: Waiting,
  passed: number,
  units: Units,
  trans: TranslationBundle
): string {
  const what =
    entry.memory === null
      ? trans._n('%1 whole GPU', '%1 whole GPUs', entry.gpus)
      : trans.__(
          '%1 with %2',
          formatGpus(entry.gpus, trans),
          entry.gpus > 1
            ? trans.__('%1 each', formatBytes(entry.memory, units))
            : formatBytes(entry.memory, units)
        );
  const who = entry.mine
    ? trans.__('You')
    : (entry.environment ?? trans.__('Someone'));
  const kind =
    entry.priority_class === 'batch'
      ? trans.__('batch')
      : trans.__('interactive');
  const line = trans.__(
    '%1: %2, %3, waiting %4',
    who,
    what,
    kind,
    formatDuration(entry.waiting + passed, trans)
  );
  if (waitsForBudget(entry)) {
    return trans.__('%1, GPU-hours spent', line);
  }
  const about = shortEstimate(entry, trans);
  return about ? trans.__('%1, %2 more', line, about) : line;
}

function WaitsLately(props: {
  waits: Status['waits'];
  /** Those who wait now want to know how long others have waited. */
  open: boolean;
  trans: TranslationBundle;
}): JSX.Element {
  const { waits, trans } = props;
  const span = formatDuration(waits.window, trans);
  const line = (word: string, of: Status['waits']['interactive']): string =>
    of.waited === 0 || of.median === null || of.longest === null
      ? trans.__('%1: %2 granted, none had to wait', word, of.granted)
      : trans.__(
          '%1: %2 granted, %3 after waiting %4 (median), %5 at most',
          word,
          of.granted,
          of.waited,
          formatDuration(of.median, trans),
          formatDuration(of.longest, trans)
        );
  const rows = [
    { word: trans.__('Interactive'), of: waits.interactive },
    { word: trans.__('Batch'), of: waits.batch }
  ].filter(row => row.of.granted > 0);
  return (
    <details className="jp-gpushare-lately" open={props.open}>
      <summary>
        {waits.window === 3600
          ? trans.__('In the last hour')
          : trans.__('In the last %1', span)}
      </summary>
      {rows.length === 0 ? (
        <p>{trans.__('Nothing was granted.')}</p>
      ) : (
        <ul>
          {rows.map(row => (
            <li key={row.word}>{line(row.word, row.of)}</li>
          ))}
        </ul>
      )}
    </details>
  );
}
