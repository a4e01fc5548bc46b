import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import type { LackingKernels } from './model/kernels';
import type { IGpuShareModel as Model } from './model/model';
import type { ISettingsValues } from './model/settings';

export type { ISnapshot } from './model/snapshot';

/** This page's knowledge of the node's GPUs; other extensions may use it too. */
export type IGpuShareModel = Model;
export const IGpuShareModel = new Token<IGpuShareModel>(
  'jupyter-gpushare:IGpuShareModel',
  'The state of the shared GPUs: quota, leases, queue.'
);

/** The user's settings, with their defaults where there is no setting registry. */
export interface IGpuShareSettings {
  readonly values: ISettingsValues;
  readonly changed: ISignal<IGpuShareSettings, void>;
}
export const IGpuShareSettings = new Token<IGpuShareSettings>(
  'jupyter-gpushare:IGpuShareSettings',
  'The settings of the shared GPUs panel.'
);

/** Which kernels get no GPU, and which run on another host of the pool. */
export type IGpuShareKernels = LackingKernels;
export const IGpuShareKernels = new Token<IGpuShareKernels>(
  'jupyter-gpushare:IGpuShareKernels',
  'The kernels that get no GPU, and those that run on another host.'
);
