import { LabIcon } from '@jupyterlab/ui-components';

import activeSvg from '../style/icons/active.svg';
import drainingSvg from '../style/icons/draining.svg';
import gpuSvg from '../style/icons/gpu.svg';
import idleSvg from '../style/icons/idle.svg';
import keepSvg from '../style/icons/keep.svg';
import overSvg from '../style/icons/over.svg';
import parkedSvg from '../style/icons/parked.svg';
import parkingSvg from '../style/icons/parking.svg';
import queuedSvg from '../style/icons/queued.svg';
import releaseSvg from '../style/icons/release.svg';
import resumingSvg from '../style/icons/resuming.svg';
import stalledSvg from '../style/icons/stalled.svg';
import suspendedSvg from '../style/icons/suspended.svg';
import type { LeaseState } from './api/types';

const icon = (name: string, svgstr: string): LabIcon =>
  new LabIcon({ name: `jupyter-gpushare:${name}`, svgstr });

export const gpuIcon = icon('gpu', gpuSvg);
export const keepIcon = icon('keep', keepSvg);
export const releaseIcon = icon('release', releaseSvg);

const draining = icon('draining', drainingSvg);

/** A state's picture; it always stands beside its word. */
export const stateIcons: Record<LeaseState, LabIcon> = {
  queued: icon('queued', queuedSvg),
  active: icon('active', activeSvg),
  idle: icon('idle', idleSvg),
  parking: icon('parking', parkingSvg),
  parked: icon('parked', parkedSvg),
  resuming: icon('resuming', resumingSvg),
  stalled: icon('stalled', stalledSvg),
  suspended: icon('suspended', suspendedSvg),
  over_limit: icon('over-limit', overSvg),
  draining,
  ended: draining
};
