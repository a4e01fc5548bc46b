import type { NotebookPanel } from '@jupyterlab/notebook';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import { type ISignal, Signal } from '@lumino/signaling';
import React from 'react';

import type { IGpuShareModel } from '../model/model';
import type { ISettingsValues } from '../model/settings';
import type { ISnapshot } from '../model/snapshot';
import type { IGpuShareSettings } from '../tokens';

/** The services for every view. */
export interface IViewServices {
  readonly model: IGpuShareModel;
  readonly settings: IGpuShareSettings;
  readonly commands: CommandRegistry;
  readonly trans: TranslationBundle;
}

interface IViewContext extends IViewServices {
  readonly host: IHost;
}

/** The host of a view; it draws nothing while the view is hidden. */
export interface IHost {
  readonly isVisible: boolean;
  /** Emitted when the host is shown. */
  readonly shown: ISignal<IHost, void>;
}

const Context = React.createContext<IViewContext | null>(null);

/** The services of the view this is called in. */
export function useView(): IViewContext {
  const context = React.useContext(Context);
  if (context === null) {
    throw new Error('This view needs a <ViewRoot> around it.');
  }
  return context;
}

/** Give the views inside their services. */
export function ViewRoot(
  props: IViewContext & { children: React.ReactNode }
): JSX.Element {
  const { children, ...context } = props;
  return <Context.Provider value={context}>{children}</Context.Provider>;
}

/** The present snapshot. While the host is hidden it stays the last one seen. */
export function useSnapshot(): ISnapshot {
  const { model, host } = useView();
  const seen = React.useRef(model.snapshot);
  const subscribe = React.useCallback(
    (changed: () => void) => {
      model.changed.connect(changed);
      host.shown.connect(changed);
      return () => {
        model.changed.disconnect(changed);
        host.shown.disconnect(changed);
      };
    },
    [model, host]
  );
  return React.useSyncExternalStore(subscribe, () => {
    if (host.isVisible) {
      seen.current = model.snapshot;
    }
    return seen.current;
  });
}

/** The user's settings now. */
export function useSettings(): ISettingsValues {
  const { settings } = useView();
  const subscribe = React.useCallback(
    (changed: () => void) => {
      settings.changed.connect(changed);
      return () => settings.changed.disconnect(changed);
    },
    [settings]
  );
  return React.useSyncExternalStore(subscribe, () => settings.values);
}

/** What looks at the clock, each second while the page is seen. */
const looks = new Set<() => void>();
let clock = 0;

function everySecond(look: () => void): () => void {
  looks.add(look);
  clock ||= window.setInterval(() => {
    if (document.visibilityState !== 'hidden') {
      looks.forEach(one => one());
    }
  }, 1000);
  return () => {
    looks.delete(look);
    if (!looks.size) {
      window.clearInterval(clock);
      clock = 0;
    }
  };
}

/** What `look` finds at the node's time, each second; drawn anew only when that is another. */
export function useLook<T extends string | number>(
  look: (now: number) => T
): T {
  const { model, host } = useView();
  const seen = React.useRef<T | null>(null);
  return React.useSyncExternalStore(everySecond, () => {
    if (host.isVisible || seen.current === null) {
      seen.current = look(model.now());
    }
    return seen.current;
  });
}

/** The id of a notebook's kernel, whichever it has now. */
export function useKernelId(
  notebook: Pick<NotebookPanel, 'sessionContext'>
): string | null {
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

/** A Lumino widget around one view. */
export class ViewWidget extends ReactWidget implements IHost {
  constructor(
    private readonly _services: IViewServices,
    private readonly _View: React.ComponentType
  ) {
    super();
    this.addClass('jp-gpushare-view');
  }

  get shown(): ISignal<this, void> {
    return this._shown;
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._shown.emit();
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this._shown.emit();
  }

  protected render(): JSX.Element {
    const View = this._View;
    return (
      <ViewRoot {...this._services} host={this}>
        <View />
      </ViewRoot>
    );
  }

  private readonly _shown = new Signal<this, void>(this);
}
