import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { type ISignal, Signal } from '@lumino/signaling';

import type { Units } from '../text/format';

/** The kinds of notifications; each can be turned off by itself. */
export type NotificationKind =
  'granted' | 'revoked' | 'expired' | 'parking' | 'budget';

export interface ISettingsValues {
  readonly placement: 'left' | 'right';
  /** Seconds between two looks at what is not pushed: usage, history, quotas. */
  readonly refresh: number;
  readonly units: Units;
  readonly notifications: Readonly<Record<NotificationKind, boolean>>;
}

export const DEFAULTS: ISettingsValues = {
  placement: 'right',
  refresh: 30,
  units: 'binary',
  notifications: {
    granted: true,
    revoked: true,
    expired: true,
    parking: true,
    budget: true
  }
};

/** Read the settings registry's composite, which the schema has already checked. Pure. */
export function fromComposite(
  composite: Partial<Record<string, unknown>>
): ISettingsValues {
  return {
    ...DEFAULTS,
    ...(composite as Partial<ISettingsValues>),
    notifications: {
      ...DEFAULTS.notifications,
      ...(composite.notifications as Partial<
        ISettingsValues['notifications']
      > | null)
    }
  };
}

/** The settings as they are now; follows the registry. */
export class GpuShareSettings {
  constructor(settings: ISettingRegistry.ISettings | null) {
    const read = (): void => {
      this._values = fromComposite(settings?.composite ?? {});
      this._changed.emit();
    };
    settings?.changed.connect(read);
    read();
  }

  get values(): ISettingsValues {
    return this._values;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  private _values = DEFAULTS;
  private readonly _changed = new Signal<this, void>(this);
}
