import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { Quota } from '../api/types';
import {
  budgetUse,
  gpuUse,
  type IUse,
  Level,
  memoryUse
} from '../model/derive';
import { formatBytes, formatGpus, type Units } from '../text/format';
import { budgetText } from '../text/waiting';
import { gpuNumber } from '../text/words';
import { useSettings, useSnapshot, useView } from './host';
import { Skeleton, UseBar } from './parts';

/** My quota: GPUs used of allowed, memory on each, weight. */
export function QuotaView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  const { units } = useSettings();
  if (!status) {
    return <Skeleton lines={3} label={trans.__('Loading the quota')} />;
  }
  const quota = status.quota;
  if (!quota) {
    return (
      <p className="jp-gpushare-empty">
        {trans.__('No quota is known for %1.', status.environment)}
      </p>
    );
  }
  const gpus = gpuUse(quota);
  const memory = memoryUse(status);
  const budget = budgetUse(quota);
  return (
    <div className="jp-gpushare-quota">
      <Row
        label={trans.__('GPUs')}
        text={gpuText(gpus, trans)}
        use={gpus}
        advice={
          quota.pool
            ? poolText(quota.pool, trans)
            : status.gpus.length
              ? gpuAdvice(gpus, trans)
              : trans.__('This node has no GPU to share now.')
        }
      />
      {memory.map(({ gpu, use }) => (
        <Row
          key={gpu.uuid}
          label={trans.__('Memory on GPU %1', gpuNumber(gpu))}
          text={trans.__(
            '%1 of %2',
            formatBytes(use.used, units),
            formatBytes(use.limit ?? gpu.memory, units)
          )}
          use={use}
          advice={
            use.level === Level.Over
              ? trans.__(
                  'The quota was lowered while this was reserved. Nothing is taken from you; new leases get the new limit.'
                )
              : null
          }
        />
      ))}
      {budget && quota.budget && (
        <Row
          label={trans.__('GPU-hours')}
          text={budgetText(quota.budget, trans)}
          use={budget}
          advice={budgetAdvice(quota.budget.level, trans)}
        />
      )}
      <dl className="jp-gpushare-facts">
        {/* Where only memory of several GPUs is left, their bars say so. */}
        {quota.remaining &&
          (quota.remaining.gpus > 0 || quota.remaining.memory.length < 2) && (
            <>
              <dt>{quota.pool ? trans.__('Left here') : trans.__('Left')}</dt>
              <dd>{remainingText(quota.remaining, units, trans)}</dd>
            </>
          )}
        <dt>{trans.__('Memory per GPU')}</dt>
        <dd>
          {quota.memory === null
            ? trans.__('the whole GPU')
            : formatBytes(quota.memory, units)}
        </dd>
        {quota.weight !== 1 && (
          <>
            <dt
              title={trans.__(
                'When several wait, GPUs are shared in proportion to the weights.'
              )}
            >
              {trans.__('Weight')}
            </dt>
            <dd>{quota.weight}</dd>
          </>
        )}
        <dt>{trans.__('Set by')}</dt>
        <dd>{sourceText(quota.source, trans)}</dd>
      </dl>
    </div>
  );
}

function budgetAdvice(
  level: 'ok' | 'warned' | 'spent',
  trans: TranslationBundle
): string | null {
  switch (level) {
    case 'ok':
      return null;
    case 'warned':
      return trans.__(
        'Nearly all are used. When none are left, new requests wait: release GPUs that you do not need.'
      );
    case 'spent':
      return trans.__(
        'New requests wait until the older hours are out of that window. Running code continues; an idle GPU is taken back.'
      );
  }
}

function Row(props: {
  label: string;
  text: string;
  use: IUse;
  advice: string | null;
}): JSX.Element {
  return (
    <div className="jp-gpushare-use" data-level={props.use.level}>
      <div className="jp-gpushare-use-words">
        <span>{props.label}</span>
        <strong>{props.text}</strong>
      </div>
      <UseBar
        label={props.label}
        text={props.text}
        share={props.use.share}
        level={props.use.level}
      />
      {props.advice && <p className="jp-gpushare-advice">{props.advice}</p>}
    </div>
  );
}

/** The rest of the quota: `1 GPU, 2 GiB on GPU 0`. */
function remainingText(
  left: NonNullable<Quota['remaining']>,
  units: Units,
  trans: TranslationBundle
): string {
  const memory = left.memory
    .filter(part => part.bytes > 0)
    .map(part =>
      trans.__('%1 on GPU %2', formatBytes(part.bytes, units), part.index)
    );
  const gpus = left.gpus ? [formatGpus(left.gpus, trans)] : [];
  return [...gpus, ...memory].join(', ') || trans.__('nothing');
}

function gpuText(use: IUse, trans: TranslationBundle): string {
  const text = trans.__('%1 of %2', use.used, use.limit ?? 0);
  return use.level === Level.Over
    ? trans.__('%1, %2 over', text, use.used - (use.limit ?? 0))
    : text;
}

function gpuAdvice(use: IUse, trans: TranslationBundle): string | null {
  switch (use.level) {
    case Level.None:
      return trans.__(
        'Your quota has no GPU: code runs on the CPU. Ask your administrator for one.'
      );
    case Level.Over:
      if (use.limit === 0) {
        return trans.__(
          'The quota was lowered while you held a GPU. Nothing is taken from you, but you get no other.'
        );
      }
      return trans.__(
        'The quota was lowered while you held more. Nothing is taken from you, but %1 must come back before you get another.',
        formatGpus(use.used - (use.limit ?? 0) + 1, trans)
      );
    default:
      return null;
  }
}

/** What the pool lends here of a quota that holds for all its hosts. */
function poolText(
  pool: NonNullable<Quota['pool']>,
  trans: TranslationBundle
): string {
  if (pool.whole === null) {
    return trans.__(
      'The pool %1 has lent you nothing here yet. Your first request asks it.',
      pool.pool
    );
  }
  return [
    trans.__(
      'This quota is for all hosts of the pool %1 together. The pool lends you %2 on this host now.',
      pool.pool,
      formatGpus(pool.lent, trans)
    ),
    pool.borrowed &&
      trans.__(
        '%1 of those you borrow from others, who may take back what is theirs.',
        formatGpus(pool.borrowed, trans)
      ),
    pool.reclaimed && trans.__('What you hold beyond that is asked back.'),
    !pool.valid &&
      trans.__(
        'The pool does not answer now, so nothing new begins here until it does.'
      ),
    pool.why
  ]
    .filter(Boolean)
    .join(' ');
}

export function sourceText(
  source: Quota['source'],
  trans: TranslationBundle
): string {
  switch (source) {
    case 'default':
      return trans.__('default');
    case 'group':
      return trans.__('your group');
    case 'user':
      return trans.__('your own entry');
    case 'override':
      return trans.__('an administrator');
    case 'pool':
      return trans.__('the pool');
  }
}
