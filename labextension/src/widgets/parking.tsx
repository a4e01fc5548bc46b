/** Shows that an idle GPU is about to be taken back, with a button that keeps it. */
import React from 'react';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { countdownStep, secondsLeft, warnedLeases } from '../model/parking';
import { about, nameOf, wordsOf } from '../text/said';
import { useLook, useView } from './host';

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
  // The region stays, so that screen readers hear what comes into it.
  return (
    <div role="status" aria-live="polite" className="jp-gpushare-aloud">
      {warnedLeases(props.status).map(lease => (
        <WarningAloud key={lease.id} lease={lease} />
      ))}
    </div>
  );
}

function WarningAloud(props: { lease: Lease }): JSX.Element {
  const { trans, model } = useView();
  const { lease } = props;
  const at = lease.warning?.at ?? 0;
  const step = useLook(now => countdownStep(secondsLeft(lease, now) ?? 0));
  const told = React.useRef({ at, step: -1, words: '' });
  if (told.current.at !== at || told.current.step !== step) {
    const reader = { trans, now: model.now() };
    const words = wordsOf(about(lease, 'warning'), reader);
    told.current = { at, step, words };
  }
  return (
    <p>
      {nameOf(lease)}: {told.current.words}
    </p>
  );
}
