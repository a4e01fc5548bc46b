import { closeIcon, refreshIcon } from '@jupyterlab/ui-components';
import React from 'react';

import type { Lease, Said, Status, Waiting } from '../api/types';
import { CommandIDs } from '../commands';
import { keepIcon, releaseIcon, stateIcons } from '../icons';
import { canPark, canResume } from '../model/asking';
import { canRelease, myLeases, restartHelps } from '../model/derive';
import { rowsOf } from '../model/jobs';
import { canKeep } from '../model/parking';
import { about, besides, nameOf } from '../text/said';
import { useSnapshot, useView } from './host';
import { JobRow } from './jobs';
import { keepMenu } from './leasemenu';
import { KeepButton, WarningsAloud } from './parking';
import { IconButton, Skeleton } from './parts';
import { Details, Meter, SaidLine, SaidLines, Words } from './said';

/** Code, the same in every language. */
const EXAMPLE = 'import torch';

/** My leases, one row a task or a job. */
export function LeasesView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  if (!status) {
    return <Skeleton lines={3} label={trans.__('Loading the leases')} />;
  }
  const leases = myLeases(status);
  if (!leases.length) {
    return (
      <div className="jp-gpushare-empty">
        <p>
          {status.quota?.pool
            ? trans.__('You hold no GPU of this host and wait for none here.')
            : trans.__('You hold no GPU and wait for none.')}
        </p>
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
    <>
      <WarningsAloud status={status} />
      <ul className="jp-gpushare-list" aria-label={trans.__('My leases')}>
        {rowsOf(leases).map(row => {
          const [lease] = row.leases;
          return row.job !== null ? (
            <JobRow key={row.key} row={row} status={status} />
          ) : (
            <LeaseRow
              key={row.key}
              lease={lease}
              waiting={waiting.get(lease.id) ?? null}
              node={status.node}
            />
          );
        })}
      </ul>
    </>
  );
}

interface ILeaseRow {
  lease: Lease;
  waiting: Waiting | null;
  node: Status['node'];
}

/** What has a place of its own in a row; all else that is said of a lease is a note. */
export const COLUMNS = [
  ...['who', 'what', 'where', 'state', 'memory', 'class', 'held'],
  ...['summary', 'countdown', 'warning']
];

/** One lease. Drawn anew only where something that it shows has changed. */
const LeaseRow = React.memo(
  function LeaseRow(props: ILeaseRow): JSX.Element {
    const { lease, waiting, node } = props;
    const { trans, commands, model } = useView();
    const name = nameOf(lease);
    const Icon = stateIcons[lease.state];
    const run = (command: string): void =>
      void commands.execute(command, { lease: lease.id });
    const notes = besides(lease, ...COLUMNS);
    const [state] = about(lease, 'state');
    const why = about(waiting, 'why');
    return (
      <li
        className="jp-gpushare-row"
        data-state={lease.state}
        data-lease={lease.id}
      >
        <span className="jp-gpushare-state" title={state?.hint}>
          <Icon.react tag="span" aria-hidden="true" />
        </span>
        <div className="jp-gpushare-row-words">
          <div className="jp-gpushare-row-head">
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
            <span className="jp-gpushare-actions">
              {canKeep(lease, node) && (
                <IconButton
                  icon={keepIcon}
                  label={trans.__('How long %1 keeps its GPU', name)}
                  menu
                  onClick={button => {
                    const box = button.getBoundingClientRect();
                    keepMenu(commands, lease, node, model.now()).open(
                      box.left,
                      box.bottom
                    );
                  }}
                />
              )}
              {restartHelps(lease.state) && lease.kernel_id && (
                <IconButton
                  icon={refreshIcon}
                  label={trans.__('Restart the kernel of %1', name)}
                  onClick={() => run(CommandIDs.restartKernel)}
                />
              )}
              {lease.state === 'idle' && canPark(lease) && (
                <IconButton
                  icon={stateIcons.parking}
                  label={trans.__('Park the GPU of %1', name)}
                  onClick={() => run(CommandIDs.park)}
                />
              )}
              {canResume(lease) && (
                <IconButton
                  icon={stateIcons.resuming}
                  label={trans.__('Resume the GPU of %1', name)}
                  onClick={() => run(CommandIDs.resume)}
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
          </div>
          <Details
            title={
              <span title={state?.hint}>
                <Words
                  says={[
                    ...about(lease, 'state'),
                    ...about(lease, 'where'),
                    ...about(waiting, 'takes')
                  ]}
                />
              </span>
            }
          >
            <SaidLines
              says={[...notes.filter(({ tone }) => tone === 'muted'), ...why]}
            />
            {hintsOf([...about(lease, 'state', 'warning'), ...notes]).map(
              hint => (
                <p key={hint}>{hint}</p>
              )
            )}
            <dl className="jp-gpushare-facts">
              <dt>{trans.__('Held')}</dt>
              <dd>
                <Words says={about(lease, 'held')} />
              </dd>
              <dt>{trans.__('Class')}</dt>
              <dd>
                <Words says={about(lease, 'class')} />
              </dd>
            </dl>
          </Details>
          {about(lease, 'warning').map(said => (
            <SaidLine key={said.about} said={said}>
              <KeepButton
                lease={lease}
                label={trans.__('Keep the GPU of %1', name)}
              />
            </SaidLine>
          ))}
          {about(lease, 'memory').map(said =>
            said.share === undefined ? (
              <SaidLine key={said.about} said={said} />
            ) : (
              <Meter
                key={said.about}
                said={said}
                name={trans.__('GPU memory')}
                label={trans.__('GPU memory of %1', name)}
              />
            )
          )}
          <SaidLines says={notes.filter(({ tone }) => tone !== 'muted')} />
          {restartHelps(lease.state) && (
            <div className="jp-gpushare-why">{state?.hint}</div>
          )}
        </div>
      </li>
    );
  },
  (before, after) =>
    before.node.pin_limit === after.node.pin_limit &&
    sameJson(before.lease, after.lease, 'age') &&
    sameJson(before.waiting, after.waiting, 'waiting')
);

/** What the facts mean, each once. */
function hintsOf(says: readonly Said[]): string[] {
  return [...new Set(says.flatMap(({ hint }) => hint || []))];
}

/** Whether two documents are equal apart from one key that changes all the time. */
function sameJson(a: object | null, b: object | null, but: string): boolean {
  const plain = (value: object | null): string =>
    JSON.stringify(value, (key, part) => (key === but ? undefined : part));
  return a === b || plain(a) === plain(b);
}
