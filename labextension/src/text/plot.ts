/** The figures of a GPU's plots in a person's words. */
import type { TranslationBundle } from '@jupyterlab/translation';

import { freeOf, type IMoment, type IPlot } from '../model/plot';
import { formatBytes, formatDuration, formatShare, type Units } from './format';

/** `5 min`, `1 h`, `24 h`. */
export function rangeText(seconds: number, trans: TranslationBundle): string {
  return seconds === 86400 ? trans.__('24 h') : formatDuration(seconds, trans);
}

/** When a moment was: `now`, `40 s ago`. */
export function agoText(
  moment: IMoment,
  plot: IPlot,
  trans: TranslationBundle
): string {
  return plot.moments[plot.moments.length - 1] === moment
    ? trans.__('now')
    : trans.__('%1 ago', formatDuration(plot.until - moment.at, trans));
}

export function bytesText(
  bytes: number | null,
  units: Units,
  trans: TranslationBundle
): string {
  return bytes === null ? trans.__('unknown') : formatBytes(bytes, units);
}

export function shareText(
  share: number | null,
  trans: TranslationBundle
): string {
  return share === null ? trans.__('unknown') : formatShare(share);
}

/** Whether one computes; of a longer step, for how much of it. */
export function computesText(
  share: number | null,
  trans: TranslationBundle
): string {
  if (share === null) {
    return trans.__('unknown');
  }
  if (share <= 0) {
    return trans.__('no');
  }
  return share >= 1 ? trans.__('yes') : formatShare(share);
}

export function celsiusText(value: number, trans: TranslationBundle): string {
  return trans.__('%1 °C', Math.round(value));
}

export function wattText(value: number, trans: TranslationBundle): string {
  return trans.__('%1 W', Math.round(value));
}

/** Everything about one moment, for people who do not see the plots. */
export function momentText(
  moment: IMoment | null,
  plot: IPlot,
  units: Units,
  trans: TranslationBundle
): string {
  if (moment === null) {
    return trans.__('Nothing was measured yet.');
  }
  const memory = trans.__(
    'memory: mine %1, others %2, without a lease %3, free %4',
    bytesText(moment.mine, units, trans),
    bytesText(moment.others, units, trans),
    bytesText(moment.rest, units, trans),
    bytesText(freeOf(moment, plot.capacity), units, trans)
  );
  const time = trans.__(
    'computing: mine %1, others %2',
    computesText(moment.iCompute, trans),
    computesText(moment.othersCompute, trans)
  );
  const more = [
    trans.__('utilisation %1', shareText(moment.utilisation, trans)),
    ...(moment.temperature === null
      ? []
      : [celsiusText(moment.temperature, trans)]),
    ...(moment.power === null ? [] : [wattText(moment.power, trans)]),
    ...moment.people.map(({ environment, memory, computes }) =>
      computes > 0
        ? trans.__(
            '%1: %2, computes',
            environment,
            bytesText(memory, units, trans)
          )
        : trans.__('%1: %2', environment, bytesText(memory, units, trans))
    )
  ].join('; ');
  return trans.__(
    '%1: %2; %3; %4',
    agoText(moment, plot, trans),
    memory,
    time,
    more
  );
}
