import type { NotebookPanel } from '@jupyterlab/notebook';
import React from 'react';

import type { Lease, Said, Status } from '../api/types';
import { gpuIcon, stateIcons } from '../icons';
import { leaseOfKernel } from '../model/derive';
import type { LackingKernels } from '../model/kernels';
import { Connection } from '../model/snapshot';
import { about, besides, capital } from '../text/said';
import { COLUMNS } from './leases';
import { KeepButton } from './parking';
import { useWords, Words } from './said';
import { useKernels } from './kernels';
import { leaseMenu } from './leasemenu';
import {
  type IViewServices,
  useKernelId,
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
  const summary = capital(useWords(about(lease, 'summary')));
  const details = useWords(
    lease && status ? detailsOf(lease, status) : [],
    '\n'
  );
  // The node manager here knows nothing of a kernel on another host.
  const text = host
    ? trans.__('On host %1', host)
    : lease
      ? summary
      : status
        ? trans.__('No GPU')
        : trans.__('GPU: not known');
  const hint = host
    ? trans.__(
        'This kernel runs on host %1 and gets the GPUs there. `%gpushare status` in a cell shows them.',
        host
      )
    : lease
      ? [about(lease, 'state')[0]?.hint, details].join('\n')
      : status
        ? trans.__('This notebook holds no GPU. Importing torch gets one.')
        : trans.__('The panel says why.');
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
          {warned ? <Words says={about(warned, 'countdown')} /> : text}
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

/** All that is said of a lease, and of its place in line, one fact a line. */
function detailsOf(lease: Lease, status: Status): Said[] {
  const entry = status.queue.find(row => row.lease === lease.id);
  return [
    ...about(lease, 'what', 'state', 'where', 'memory'),
    ...besides(lease, ...COLUMNS),
    ...about(lease, 'warning'),
    ...about(entry, 'place', 'ahead', 'why')
  ];
}
