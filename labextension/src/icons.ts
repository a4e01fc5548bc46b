import { LabIcon } from '@jupyterlab/ui-components';

import activeSvg from '../style/icons/active.svg';
import drainingSvg from '../style/icons/draining.svg';
import gpuSvg from '../style/icons/gpu.svg';
import idleSvg from '../style/icons/idle.svg';
import overSvg from '../style/icons/over.svg';
import parkedSvg from '../style/icons/parked.svg';
import queuedSvg from '../style/icons/queued.svg';
import releaseSvg from '../style/icons/release.svg';
import stalledSvg from '../style/icons/stalled.svg';
import type { LeaseState } from './api/types';

const icon = (name: string, svgstr: string): LabIcon =>
  new LabIcon({ name: `jupyter-gpushare:${name}`, svgstr });

export const gpuIcon = icon('gpu', gpuSvg);
export const releaseIcon = icon('release', releaseSvg);

const draining = icon('draining', drainingSvg);

/** A state's picture; it always stands beside its word. */
export const stateIcons: Record<LeaseState, LabIcon> = {
  queued: icon('queued', queuedSvg),
  active: icon('active', activeSvg),
  idle: icon('idle', idleSvg),
  parked: icon('parked', parkedSvg),
  stalled: icon('stalled', stalledSvg),
  over_limit: icon('over-limit', overSvg),
  draining,
  ended: draining
};
