import React from 'react';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import { gpuUse } from '../model/derive';
import { Connection } from '../model/snapshot';
import { useSnapshot, useView } from './host';

/** The status bar's item: GPUs used of the quota; a click shows the panel. */
export function StatusItemView(): JSX.Element {
  const { trans, commands } = useView();
  const { status, connection } = useSnapshot();
  const quota = status?.quota ?? null;
  const use = quota ? gpuUse(quota) : null;
  const waiting = status?.queue.filter(entry => entry.mine).length ?? 0;
  const text = use
    ? trans.__('%1/%2', use.used, use.limit ?? 0)
    : trans.__('–');
  const title = use
    ? trans.__('GPUs: %1 of %2 used', use.used, use.limit ?? 0)
    : trans.__('GPUs: not known');
  return (
    <button
      type="button"
      className="jp-gpushare-status-item"
      data-connection={connection}
      data-level={use?.level}
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
