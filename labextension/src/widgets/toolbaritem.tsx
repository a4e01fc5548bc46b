import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { Lease, Status, Waiting } from '../api/types';
import { gpuIcon, stateIcons } from '../icons';
import { leaseOfKernel } from '../model/derive';
import type { LackingKernels } from '../model/kernels';
import { Connection } from '../model/snapshot';
import { entryOf, waitsForBudget } from '../model/waiting';
import { turnHint } from '../text/turns';
import { expectationText, sharedText } from '../text/waiting';
import { leaseSummary, stateHint } from '../text/words';
import { Countdown, KeepButton } from './parking';
import { useKernels } from './kernels';
import { leaseMenu } from './leasemenu';
import {
  type IViewServices,
  useKernelId,
  useSettings,
  useSnapshot,
  useView,
  ViewWidget
} from './host';

/** Pixels of the item's picture alone (style/base.css). */
const COUNTED = 28;

/** The toolbar's item: what the open notebook holds or waits for, and what can be done. */
export class LeaseToolbarItem extends ViewWidget {
  /** `kernels` says which kernels run on another host of the pool. */
  constructor(
    services: IViewServices,
    notebook: NotebookPanel,
    kernels: LackingKernels | null = null
  ) {
    super(services, () => (
      <ToolbarItemView notebook={notebook} kernels={kernels} />
    ));
    this.addClass('jp-gpushare-toolbar-item');
    // A toolbar measures its items once, and moves those that have no room into its menu. Only
    // the picture counts: the style sheet gives the words what room is left.
    Object.defineProperty(this.node, 'clientWidth', { value: COUNTED });
  }
}

function ToolbarItemView(props: {
  notebook: NotebookPanel;
  kernels: LackingKernels | null;
}): JSX.Element {
  const { trans, commands, model } = useView();
  const { status, connection } = useSnapshot();
  const { units } = useSettings();
  const kernel = useKernelId(props.notebook);
  const lease = leaseOfKernel(status, kernel);
  const host = useKernels(
    props.kernels,
    () => props.kernels?.elsewhere.find(one => one.kernel === kernel)?.host
  );
  const stale = connection === Connection.Stale;
  // Without a connection the clock is not corrected any more, so there is no countdown.
  const warned = lease?.warning && !stale ? lease : null;
  const Icon = lease ? stateIcons[lease.state] : gpuIcon;
  const entry = entryOf(lease, status);
  // The node manager here knows nothing of a kernel on another host.
  const text = host
    ? trans.__('On host %1', host)
    : status
      ? leaseSummary(lease, units, trans, waitsForBudget(entry))
      : trans.__('GPU: not known');
  const hint = host
    ? trans.__(
        'This kernel runs on host %1 and gets the GPUs there. `%gpushare status` in a cell shows them.',
        host
      )
    : hintText(lease, entry, status, trans);
  const label = trans.__('GPU of this notebook: %1', text);
  return (
    <>
      <button
        type="button"
        className="jp-gpushare-toolbar-button"
        data-state={lease?.state ?? 'none'}
        data-warned={warned !== null}
        data-connection={connection}
        title={`${stale ? trans.__('%1 (not up to date)', text) : text}\n${hint}`}
        aria-label={stale ? trans.__('%1 (not up to date)', label) : label}
        aria-haspopup="menu"
        onClick={event => {
          const box = event.currentTarget.getBoundingClientRect();
          const menu = leaseMenu(
            commands,
            kernel,
            lease,
            status?.node ?? null,
            model.now()
          );
          menu.open(box.left, box.bottom);
        }}
      >
        <Icon.react tag="span" aria-hidden="true" />
        <span className="jp-gpushare-toolbar-text">
          {warned ? <Countdown lease={warned} /> : text}
          {stale && ' ?'}
        </span>
      </button>
      {warned && (
        <KeepButton
          lease={warned}
          label={trans.__('Keep the GPU of this notebook')}
        />
      )}
    </>
  );
}

/** The details behind the words: why it waits and about how long, or who shares its GPU. */
function hintText(
  lease: Lease | null,
  entry: Waiting | null,
  status: Status | null,
  trans: TranslationBundle
): string {
  if (!status) {
    return trans.__('The panel says why.');
  }
  if (!lease) {
    return trans.__('This notebook holds no GPU. Importing torch gets one.');
  }
  if (lease.turn === 'waits') {
    return turnHint(status.node, trans);
  }
  const more = entry
    ? [entry.message ?? '', expectationText(entry, trans)]
    : [sharedText(lease, status, trans)];
  return [stateHint(lease.state, trans), ...more]
    .filter(text => text)
    .join(' ');
}
