import React from 'react';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import { Connection } from '../model/snapshot';
import { about } from '../text/said';
import { useSnapshot, useView } from './host';

/** The status bar's item: GPUs used of the quota; a click shows the panel. */
export function StatusItemView(): JSX.Element {
  const { trans, commands } = useView();
  const { status, connection } = useSnapshot();
  const quota = status?.quota ?? null;
  const [held] = about(quota, 'held');
  const waiting = status?.queue.filter(entry => entry.mine).length ?? 0;
  const text = quota
    ? trans.__('%1/%2', quota.used_gpus, quota.gpus)
    : trans.__('–');
  const title = held
    ? `${held.label}: ${held.text}`
    : trans.__('GPUs: not known');
  return (
    <button
      type="button"
      className="jp-gpushare-status-item"
      data-connection={connection}
      data-tone={held?.tone}
      title={
        connection === Connection.Stale
          ? trans.__('%1 (not up to date)', title)
          : title
      }
      aria-label={title}
      onClick={() => void commands.execute(CommandIDs.showPanel)}
    >
      <gpuIcon.react tag="span" aria-hidden="true" />
      <span>
        {text}
        {waiting > 0 && ` ${trans.__('(%1 waiting)', waiting)}`}
        {connection === Connection.Stale && ' ?'}
      </span>
    </button>
  );
}
