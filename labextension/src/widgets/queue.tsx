import { Button } from '@jupyterlab/ui-components';
import React from 'react';

import type { Status, Waiting } from '../api/types';
import { CommandIDs } from '../commands';
import { about, capital } from '../text/said';
import { useSnapshot, useView } from './host';
import { Skeleton } from './parts';
import { SaidLines, useWords, Words } from './said';

/** Rows of the queue that are shown; who stands further back learns how many are ahead. */
const MOST_ROWS = 50;

/** The queue: my place, the requests ahead, and how long others waited lately. */
export function QueueView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  if (!status) {
    return <Skeleton lines={2} label={trans.__('Loading the queue')} />;
  }
  const { queue } = status;
  const waiting = queue.length + (status.more?.queue ?? 0);
  const longest = queue.reduce<Waiting | null>(
    (found, row) => (found && found.waiting >= row.waiting ? found : row),
    null
  );
  return (
    <div className="jp-gpushare-queue">
      {queue
        .filter(entry => entry.mine)
        .map(entry => (
          <MyPlace key={entry.lease ?? entry.position} entry={entry} />
        ))}
      {about(status, 'queue').map(said => (
        <p key={said.about}>
          <Words says={[said]} />{' '}
          {longest && (
            <>
              {trans.__('The longest:')}{' '}
              <Words says={about(longest, 'waited')} />
            </>
          )}
        </p>
      ))}
      {queue.length > 0 && (
        <>
          <ol className="jp-gpushare-list" aria-label={trans.__('Queue')}>
            {queue.slice(0, MOST_ROWS).map(entry => (
              <QueueRow key={entry.position} entry={entry} />
            ))}
          </ol>
          {waiting > MOST_ROWS && (
            <p>{trans.__('… and %1 more.', waiting - MOST_ROWS)}</p>
          )}
        </>
      )}
      <WaitsLately status={status} />
    </div>
  );
}

/** A request of mine: its place, and why it waits. */
function MyPlace(props: { entry: Waiting }): JSX.Element {
  const { trans } = useView();
  const { entry } = props;
  const ahead = useWords(about(entry, 'ahead'));
  const waited = useWords(about(entry, 'waited'));
  return (
    <div className="jp-gpushare-place">
      <strong>
        <Words says={about(entry, 'place')} />
      </strong>
      <div>
        {ahead && `${capital(ahead)}. `}
        {trans.__('You have waited %1.', waited)}
      </div>
      <SaidLines says={about(entry, 'why')} />
      {entry.lease !== null &&
        (entry.hints ?? []).map(({ host }) => (
          <StartOn key={host} lease={entry.lease ?? ''} host={host} />
        ))}
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

function QueueRow(props: { entry: Waiting }): JSX.Element {
  const { trans } = useView();
  const { entry } = props;
  const waited = useWords(about(entry, 'waited'));
  const who = useWords(about(entry, 'who', 'class', 'asks'));
  const place = useWords(about(entry, 'place', 'takes'));
  return (
    <li data-mine={entry.mine}>
      {trans.__('%1 · waiting %2 · %3', who, waited, place)}
    </li>
  );
}

function WaitsLately(props: { status: Status }): JSX.Element {
  const { trans } = useView();
  const { status } = props;
  const waits = about(status, 'waits');
  return (
    // Those who wait now want to know how long others have waited.
    <details className="jp-gpushare-lately" open={status.queue.length > 0}>
      <summary>{trans.__('Lately')}</summary>
      {waits.length === 0 ? (
        <p>{trans.__('Nothing was granted.')}</p>
      ) : (
        <ul>
          {waits.map(said => (
            <li key={said.label}>
              {said.label}: <Words says={[said]} />
            </li>
          ))}
        </ul>
      )}
    </details>
  );
}
