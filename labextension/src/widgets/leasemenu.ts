/** The menu of actions on a lease. */
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import { Menu } from '@lumino/widgets';

import type { Lease, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { restartHelps } from '../model/derive';
import { canKeep, isKept, keepChoices } from '../model/parking';

/** All that can be done with a notebook's lease, or (`null`) without one. */
export function leaseMenu(
  commands: CommandRegistry,
  kernel: string | null,
  lease: Lease | null,
  node: Status['node'] | null,
  now: number
): Menu {
  const menu = disposedWhenClosed(new Menu({ commands }));
  const addEnabled = (command: string, args: ReadonlyJSONObject): void => {
    if (commands.isEnabled(command, args)) {
      menu.addItem({ command, args });
    }
  };
  if (lease?.id && node) {
    const args: ReadonlyJSONObject = { lease: lease.id };
    for (const command of [
      CommandIDs.resume,
      CommandIDs.park,
      CommandIDs.release,
      CommandIDs.cancel
    ]) {
      addEnabled(command, args);
    }
    if (restartHelps(lease.state)) {
      menu.addItem({ command: CommandIDs.restartKernel, args });
    }
    if (canKeep(lease, node)) {
      menu.addItem({ type: 'separator' });
      addKeepItems(menu, lease, node, now);
    }
    menu.addItem({ type: 'separator' });
  }
  if (kernel) {
    addEnabled(CommandIDs.request, { kernel });
  }
  menu.addItem({ command: CommandIDs.showPanel });
  return menu;
}

/** For how long a lease's GPUs may be kept, and no longer. */
export function keepMenu(
  commands: CommandRegistry,
  lease: Lease,
  node: Status['node'],
  now: number
): Menu {
  const menu = disposedWhenClosed(new Menu({ commands }));
  addKeepItems(menu, lease, node, now);
  return menu;
}

function addKeepItems(
  menu: Menu,
  lease: Lease,
  node: Status['node'],
  now: number
): void {
  const command = CommandIDs.keep;
  for (const seconds of keepChoices(node)) {
    menu.addItem({ command, args: { lease: lease.id, seconds } });
  }
  if (isKept(lease, now)) {
    menu.addItem({ command, args: { lease: lease.id, seconds: 0 } });
  }
}

function disposedWhenClosed(menu: Menu): Menu {
  menu.aboutToClose.connect(() => {
    // Its command runs after it has closed.
    window.setTimeout(() => menu.dispose(), 0);
  });
  return menu;
}
