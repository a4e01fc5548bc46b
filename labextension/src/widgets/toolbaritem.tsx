import type { NotebookPanel } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import { Menu } from '@lumino/widgets';
import React from 'react';

import { CommandIDs } from '../commands';
import { gpuIcon, stateIcons } from '../icons';
import { leaseOfKernel, restartHelps } from '../model/derive';
import { leaseSummary, stateHint } from '../text/words';
import {
  type IViewServices,
  useSettings,
  useSnapshot,
  useView,
  ViewWidget
} from './host';

/** The toolbar's item: what the open notebook holds or waits for, and what can be done. */
export class LeaseToolbarItem extends ViewWidget {
  constructor(services: IViewServices, notebook: NotebookPanel) {
    super(services, () => <ToolbarItemView notebook={notebook} />);
    this.addClass('jp-gpushare-toolbar-item');
  }
}

function ToolbarItemView(props: { notebook: NotebookPanel }): JSX.Element {
  const { trans, commands } = useView();
  const { status } = useSnapshot();
  const { units } = useSettings();
  const kernel = useKernelId(props.notebook);
  const lease = leaseOfKernel(status, kernel);
  const Icon = lease ? stateIcons[lease.state] : gpuIcon;
  const text = leaseSummary(lease, units, trans);
  const hint = lease
    ? stateHint(lease.state, trans)
    : trans.__('This notebook holds no GPU. Importing torch gets one.');
  return (
    <button
      type="button"
      className="jp-gpushare-toolbar-button"
      data-state={lease?.state ?? 'none'}
      title={hint}
      aria-label={trans.__('GPU of this notebook: %1', text)}
      aria-haspopup="menu"
      onClick={event => {
        const box = event.currentTarget.getBoundingClientRect();
        const menu = leaseMenu(
          commands,
          lease?.id ?? null,
          lease !== null && restartHelps(lease.state)
        );
        menu.open(box.left, box.bottom);
      }}
    >
      <Icon.react tag="span" aria-hidden="true" />
      <span>{text}</span>
    </button>
  );
}

function leaseMenu(
  commands: CommandRegistry,
  lease: string | null,
  restart: boolean
): Menu {
  const menu = new Menu({ commands });
  const args: ReadonlyJSONObject = lease === null ? {} : { lease };
  if (lease !== null) {
    for (const command of [CommandIDs.release, CommandIDs.cancel]) {
      if (commands.isEnabled(command, args)) {
        menu.addItem({ command, args });
      }
    }
    if (restart) {
      menu.addItem({ command: CommandIDs.restartKernel, args });
    }
    menu.addItem({ type: 'separator' });
  }
  menu.addItem({ command: CommandIDs.showPanel });
  menu.aboutToClose.connect(() => {
    // Its command runs after it has closed.
    window.setTimeout(() => menu.dispose(), 0);
  });
  return menu;
}

/** The id of a notebook's kernel, whichever it has now. */
function useKernelId(notebook: NotebookPanel): string | null {
  const context = notebook.sessionContext;
  const subscribe = React.useCallback(
    (changed: () => void) => {
      context.kernelChanged.connect(changed);
      return () => context.kernelChanged.disconnect(changed);
    },
    [context]
  );
  return React.useSyncExternalStore(
    subscribe,
    () => context.session?.kernel?.id ?? null
  );
}
