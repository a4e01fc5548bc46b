/** Views with everything around them that they need, and no page. */
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import {
  act,
  configure,
  render,
  type RenderResult
} from '@testing-library/react';
import React from 'react';

import type { Status } from '../../api/types';
import type { IGpuShareModel } from '../../model/model';
import { GpuShareSettings } from '../../model/settings';
import { EMPTY, type ISnapshot, withStatus } from '../../model/snapshot';
import { type IHost, type IViewServices, ViewRoot } from '../../widgets/host';
import { FakeServer } from './server';

// A machine with other work to do is slow, and what is waited for comes at last.
configure({ asyncUtilTimeout: 20_000 });

/** A model that a test sets; its API asks a server that a test sets too. */
export class FakeModel implements IGpuShareModel {
  readonly server = new FakeServer();
  readonly changed = new Signal<this, void>(this);
  readonly api = this.server.api;
  snapshot: ISnapshot = EMPTY;
  refreshed = 0;

  now(): number {
    return this.snapshot.status?.node.time ?? 0;
  }

  async refresh(): Promise<void> {
    this.refreshed += 1;
  }

  set(snapshot: ISnapshot): void {
    act(() => {
      this.snapshot = snapshot;
      this.changed.emit();
    });
  }

  setStatus(status: Status): void {
    this.set(withStatus(this.snapshot, status));
  }
}

export class FakeHost implements IHost {
  isVisible = true;
  readonly shown = new Signal<this, void>(this);

  show(): void {
    act(() => {
      this.isVisible = true;
      this.shown.emit();
    });
  }
}

export interface IShown extends RenderResult {
  readonly model: FakeModel;
  readonly host: FakeHost;
  readonly services: IViewServices;
  /** The commands that were run, with their arguments. */
  readonly ran: { command: string; args: unknown }[];
}

/** Show a view of `status`; `commands` are those that it may run. */
export function show(
  View: React.ComponentType,
  status: Status | null = null,
  commands: readonly string[] = []
): IShown {
  const model = new FakeModel();
  const host = new FakeHost();
  const registry = new CommandRegistry();
  const ran: IShown['ran'] = [];
  for (const command of commands) {
    registry.addCommand(command, {
      describedBy: { args: { type: 'object' } },
      execute: args => void ran.push({ command, args })
    });
  }
  if (status) {
    model.snapshot = withStatus(EMPTY, status);
  }
  const services: IViewServices = {
    model,
    settings: new GpuShareSettings(null),
    commands: registry,
    trans: nullTranslator.load('')
  };
  const result = render(
    <ViewRoot {...services} host={host}>
      <View />
    </ViewRoot>
  );
  return { ...result, model, host, services, ran };
}
