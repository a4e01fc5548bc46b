/** Shows that an idle GPU is about to be taken back, with a button that keeps it. */
import React from 'react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { Level } from '../model/derive';
import {
  countdownStep,
  hostMemoryUse,
  secondsLeft,
  warnedLeases
} from '../model/parking';
import {
  hostMemoryText,
  warningNews,
  warningReason,
  warningText
} from '../text/parking';
import { taskName } from '../text/words';
import { useNow, useSettings, useView } from './host';
import { UseBar } from './parts';

/** The seconds that are left, drawn anew each second: for the eye. */
export function Countdown(props: { lease: Lease }): JSX.Element | null {
  const { trans } = useView();
  const left = secondsLeft(props.lease, useNow(1));
  const { warning } = props.lease;
  return left === null || warning === null ? null : (
    <span
      className="jp-gpushare-countdown"
      title={warningReason(warning, trans)}
    >
      {warningText(left, trans)}
    </span>
  );
}

/** Keeps a lease's GPUs for the usual time. */
export function KeepButton(props: {
  lease: Lease;
  label: string;
}): JSX.Element {
  const { trans, commands } = useView();
  return (
    <button
      type="button"
      className="jp-gpushare-keep"
      aria-label={props.label}
      title={props.label}
      onClick={() =>
        void commands.execute(CommandIDs.keep, { lease: props.lease.id })
      }
    >
      {trans.__('Keep')}
    </button>
  );
}

/** Says to those who do not see the countdowns what is left, now and then: not each second. */
export function WarningsAloud(props: { status: Status }): JSX.Element {
  const { trans } = useView();
  const now = useNow(1);
  // The region stays, so that screen readers hear what comes into it.
  return (
    <div role="status" aria-live="polite" className="jp-gpushare-aloud">
      {warnedLeases(props.status).map(
        lease =>
          lease.warning && (
            <p key={lease.id}>
              {warningNews(
                taskName(lease, trans),
                lease.warning,
                countdownStep(secondsLeft(lease, now) ?? 0),
                trans
              )}
            </p>
          )
      )}
    </div>
  );
}

/** The host memory that parked tasks take; empty if they take none, unless `always`. */
export function HostMemory(props: {
  node: Status['node'];
  always?: boolean;
}): JSX.Element | null {
  const { trans } = useView();
  const { units } = useSettings();
  const use = hostMemoryUse(props.node);
  if (use.used === 0 && !props.always) {
    return null;
  }
  const label = trans.__('Host memory of parked tasks');
  const text = hostMemoryText(props.node, units, trans);
  return (
    <div className="jp-gpushare-use jp-gpushare-host-memory">
      <div className="jp-gpushare-use-words">
        <span>{label}</span>
        <span>{text}</span>
      </div>
      {use.limit !== null && (
        <UseBar label={label} text={text} share={use.share} level={use.level} />
      )}
      {use.level === Level.Full || use.level === Level.Over ? (
        <p className="jp-gpushare-advice">
          {trans.__(
            'All of it is used: a task that needs more cannot be parked and keeps its GPU.'
          )}
        </p>
      ) : null}
    </div>
  );
}
