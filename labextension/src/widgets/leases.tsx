import type { TranslationBundle } from '@jupyterlab/translation';
import { closeIcon, refreshIcon } from '@jupyterlab/ui-components';
import React from 'react';

import type { Lease, Status, Waiting } from '../api/types';
import { CommandIDs } from '../commands';
import { keepIcon, releaseIcon, stateIcons } from '../icons';
import { canPark, canResume } from '../model/asking';
import {
  canRelease,
  Level,
  measuredMemory,
  myLeases,
  restartHelps
} from '../model/derive';
import { rowsOf } from '../model/jobs';
import { limitsNow } from '../model/limits';
import { canKeep, secondsLeft } from '../model/parking';
import { waitsForBudget } from '../model/waiting';
import { eachText, formatDuration } from '../text/format';
import {
  abilityText,
  keptUntilText,
  rungText,
  warningReason,
  warningText
} from '../text/parking';
import {
  excessHint,
  excessText,
  liftedHint,
  liftedText,
  stallText,
  survivorText
} from '../text/limits';
import { isLate, lateText, promiseText } from '../text/promises';
import { kindsText, myTurnText, turnHint } from '../text/turns';
import { sharedText, shortEstimate } from '../text/waiting';
import { gpuNames, stateHint, stateWord, taskName } from '../text/words';
import { useNow, useSettings, useSnapshot, useView } from './host';
import { JobRow } from './jobs';
import { keepMenu } from './leasemenu';
import { KeepButton, WarningsAloud } from './parking';
import { IconButton, Skeleton, UseBar } from './parts';

/** Code, the same in every language. */
const EXAMPLE = 'import torch';

/** My leases, one row a task or a job. */
export function LeasesView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  const { units } = useSettings();
  const now = useNow(1);
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
              left={secondsLeft(lease, now)}
              kept={keptUntilText(lease, now, trans)}
              turn={myTurnText(lease, status, now, trans)}
              promise={promiseText(lease, now, trans)}
              over={excessText(lease, now, units, trans)}
              stall={stallText(lease, now, trans) || survivorText(lease, trans)}
              shared={sharedText(lease, status, trans)}
              since={formatDuration(
                now - (lease.position !== null ? lease.requested : lease.since),
                trans
              )}
            />
          );
        })}
      </ul>
    </>
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
  node: Status['node'];
  /** Seconds until its GPUs are taken back; `null`: they are not. */
  left: number | null;
  /** Until when they are kept, in words. */
  kept: string | null;
  /** The state of its turn, in words; empty: it needs none. */
  turn: string;
  /** How far it is, and what it was promised, in words; empty: neither is known. */
  promise: string;
  /** By how much it is over its memory limit, in words; empty: it is not. */
  over: string;
  /** The next step against it when it is stalled, in words; empty: there is none. */
  stall: string;
  /** Which of one's own tasks share its GPUs, in words; empty: none. */
  shared: string;
  /** For how long it has been in its state, or has waited. */
  since: string;
}

/** One lease. Drawn anew only where something that it shows has changed. */
const LeaseRow = React.memo(
  function LeaseRow(props: ILeaseRow): JSX.Element {
    const { lease, waiting, node, left, kept, turn, promise, over, stall } =
      props;
    const { shared } = props;
    const { trans, commands, model } = useView();
    const { units } = useSettings();
    const name = taskName(lease, trans);
    const Icon = stateIcons[lease.state];
    const measured = measuredMemory(lease);
    const limits = limitsNow(lease);
    const limit = limits.reduce((sum, one) => sum + one, 0);
    const may = eachText(limits, units, trans);
    const uses = eachText(
      lease.gpus.map(part => part.measured ?? 0),
      units,
      trans
    );
    const lifted = liftedText(lease, units, trans);
    const run = (command: string): void =>
      void commands.execute(command, { lease: lease.id });
    const where = gpuNames(lease.gpus, trans);
    const kinds = kindsText(lease, units, trans);
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
          <div title={waiting?.message ?? keptText(lease, trans)}>
            {stateLine(props, where, trans)}
          </div>
          {lease.warning && left !== null && (
            <div className="jp-gpushare-warning">
              <span
                className="jp-gpushare-countdown"
                title={warningReason(lease.warning, trans)}
              >
                {warningText(left, trans)}
              </span>
              <KeepButton
                lease={lease}
                label={trans.__('Keep the GPU of %1', name)}
              />
            </div>
          )}
          {lease.gpus.length > 0 && (
            <>
              <div>
                {/* Simulated GPUs are not measured, so there is nothing to show. */}
                {measured === null && node.simulated
                  ? trans.__('May use %1', may)
                  : measured === null
                    ? trans.__('May use %1; how much it does is unknown', may)
                    : trans.__('Uses %1 of %2', uses, may)}
              </div>
              {measured !== null && (
                <UseBar
                  label={trans.__('GPU memory of %1', name)}
                  text={trans.__('%1 of %2', uses, may)}
                  share={limit ? Math.min(1, measured / limit) : 0}
                  level={measured > limit ? Level.Over : Level.Free}
                />
              )}
            </>
          )}
          {shared && <div>{shared}</div>}
          {stall && <div className="jp-gpushare-advice">{stall}</div>}
          {lifted && <div title={liftedHint(lease, trans)}>{lifted}</div>}
          {over && (
            <div className="jp-gpushare-advice" title={excessHint(trans)}>
              {over}
            </div>
          )}
          {kinds && <div>{kinds}</div>}
          {turn && (
            <div className="jp-gpushare-turn" title={turnHint(node, trans)}>
              {turn}
            </div>
          )}
          {promise && (
            <div className={isLate(lease) ? 'jp-gpushare-advice' : undefined}>
              {[promise, lateText(lease, trans)]
                .filter(part => part)
                .join('. ')}
            </div>
          )}
          {lease.overran && (
            <div className="jp-gpushare-why">
              {trans.__(
                'It did not give its turn back in time, so it no longer takes turns.'
              )}
            </div>
          )}
          {lease.rung && <div>{rungText(lease, units, trans)}</div>}
          {kept && <div>{kept}</div>}
          {restartHelps(lease.state) && !over && (
            <div className="jp-gpushare-why">
              {stateHint(lease.state, trans)}
            </div>
          )}
          {(over || lifted) && (
            <Details title={trans.__('Memory limit')}>
              {over && <p>{excessHint(trans)}</p>}
              {lifted && <p>{liftedHint(lease, trans)}</p>}
            </Details>
          )}
          {lease.turn === 'waits' && (
            <Details title={trans.__('Turns')}>
              <p>{turnHint(node, trans)}</p>
            </Details>
          )}
          <LeaseDetails lease={lease} />
        </div>
      </li>
    );
  },
  (before, after) =>
    before.since === after.since &&
    before.left === after.left &&
    before.kept === after.kept &&
    before.turn === after.turn &&
    before.promise === after.promise &&
    before.over === after.over &&
    before.shared === after.shared &&
    sameNode(before.node, after.node) &&
    sameJson(before.lease, after.lease, 'age') &&
    sameJson(before.waiting, after.waiting, 'waiting')
);

/** The state, for how long and where; for a request that waits its place and an estimate. */
function stateLine(
  props: ILeaseRow,
  where: string,
  trans: TranslationBundle
): string {
  const { lease, waiting, since } = props;
  const word = stateWord(lease.state, trans);
  if (waitsForBudget(waiting)) {
    return trans.__('%1: GPU-hours spent, waiting %2', word, since);
  }
  if (lease.position !== null) {
    const line = trans.__(
      '%1: place %2 in line, waiting %3',
      word,
      lease.position,
      since
    );
    const about = shortEstimate(waiting, trans);
    return about ? trans.__('%1, %2 more', line, about) : line;
  }
  return where
    ? trans.__('%1 for %2 · %3', word, since, where)
    : trans.__('%1 for %2', word, since);
}

/** More details, shown on demand. */
function Details(props: {
  title: string;
  children: React.ReactNode;
}): JSX.Element {
  return (
    <details className="jp-gpushare-details">
      <summary>{props.title}</summary>
      {props.children}
    </details>
  );
}

/** Further details of a lease, shown on demand: whether it could be parked, why it was not. */
function LeaseDetails(props: { lease: Lease }): JSX.Element | null {
  const { trans } = useView();
  const { ability, kept, kind, phase, warning } = props.lease;
  const isProgram = kind === 'process' && phase === 'held';
  if (!ability && !kept && !warning && !isProgram) {
    return null;
  }
  return (
    <Details title={trans.__('Parking')}>
      {warning && (
        <p>
          {trans.__(
            'Its GPU is taken back because %1 Its variables are kept, and the next cell takes a GPU again.',
            warningReason(warning, trans)
          )}
        </p>
      )}
      {kept && <p>{keptText(props.lease, trans)}</p>}
      {ability && <p>{abilityText(ability, trans)}</p>}
      {isProgram && (
        <p>
          {trans.__(
            'A program keeps its GPU until it ends or you release it here. It is not taken back while it is idle, so there is nothing to keep.'
          )}
        </p>
      )}
    </Details>
  );
}

/** Whether the parts of the node's status that a row shows are the same. */
function sameNode(a: Status['node'], b: Status['node']): boolean {
  return (
    a.simulated === b.simulated &&
    a.pin_limit === b.pin_limit &&
    a.quantum === b.quantum
  );
}

/** Whether two documents are equal apart from one key that changes all the time. */
function sameJson(a: object | null, b: object | null, but: string): boolean {
  const plain = (value: object | null): string =>
    JSON.stringify(value, (key, part) => (key === but ? undefined : part));
  return a === b || plain(a) === plain(b);
}
