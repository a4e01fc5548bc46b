import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { Gpu, Lease } from '../api/types';
import { CommandIDs } from '../commands';
import { memoryParts } from '../model/derive';
import { type ISample, SAMPLES_FOR } from '../model/snapshot';
import {
  formatBytes,
  formatDuration,
  formatShare,
  type Units
} from '../text/format';
import { gpuLiftedHint, gpuLiftedText } from '../text/limits';
import { gpuKindsText, gpuTimeText } from '../text/turns';
import { gpuNumber, stateWord, taskName } from '../text/words';
import { useSettings, useSnapshot, useView } from './host';
import { HostMemory } from './parking';
import { Skeleton, Sparkline } from './parts';
import { GpuPlots } from './plots';

/** The GPUs of this node, one card a GPU. */
export function GpusView(): JSX.Element {
  const { commands, trans } = useView();
  const { status, samples } = useSnapshot();
  const { units } = useSettings();
  if (!status) {
    return <Skeleton lines={4} label={trans.__('Loading the GPUs')} />;
  }
  const leftOut = status.left_out ?? NONE;
  if (!status.gpus.length && !leftOut.length) {
    return (
      <p className="jp-gpushare-empty">
        {trans.__(
          'This node has no GPU. To try with simulated ones, start the server with JUPYTER_GPUSHARE_SIMULATE=2x24GiB.'
        )}
      </p>
    );
  }
  const leases = new Map<string, Lease[]>();
  for (const lease of status.leases) {
    for (const part of lease.gpus) {
      leases.set(part.uuid, [...(leases.get(part.uuid) ?? []), lease]);
    }
  }
  return (
    <>
      {status.node.simulated && (
        <p
          className="jp-gpushare-note"
          title={trans.__('They are shared like real ones.')}
        >
          {trans.__('Simulated: code runs on CPU.')}
        </p>
      )}
      {!status.gpus.length && (
        <p className="jp-gpushare-empty">
          {trans.__('This node has no GPU to share now.')}
        </p>
      )}
      {leftOut.map(text => (
        <p key={text} className="jp-gpushare-advice">
          {text}
        </p>
      ))}
      <HostMemory node={status.node} />
      <ul
        className="jp-gpushare-cards"
        aria-label={trans.__('GPUs of this node')}
      >
        {status.gpus.map(gpu => (
          <GpuCard
            key={gpu.uuid}
            gpu={gpu}
            leases={leases.get(gpu.uuid) ?? NONE}
            samples={samples.get(gpu.uuid) ?? NONE}
            until={status.node.time}
            most={status.node.max_tasks_per_gpu}
            units={units}
            trans={trans}
            onDrain={
              status.admin
                ? () =>
                    void commands.execute(CommandIDs.drain, { gpu: gpu.uuid })
                : undefined
            }
          />
        ))}
      </ul>
    </>
  );
}

const NONE: [] = [];

interface IGpuCard {
  gpu: Gpu;
  leases: readonly Lease[];
  samples: readonly ISample[];
  /** The newest moment of the curve, Unix seconds. */
  until: number;
  /** Tasks that may share one GPU. */
  /** A GPU with so many tasks takes no new environment; `null`: memory decides. */
  most: number | null;
  units: Units;
  trans: TranslationBundle;
  /** Take it out of service, or put it back; only for administrators. */
  onDrain?: () => void;
}

function outOfServiceText(
  out: NonNullable<Gpu['out_of_service']>,
  trans: TranslationBundle
): string {
  const left = out.leases
    ? trans._n(
        '%1 lease is still there',
        '%1 leases are still there',
        out.leases
      )
    : trans.__('it is empty');
  return out.by === null
    ? trans.__('%1 · %2', out.reason, left)
    : trans.__('%1 (%2) · %3', out.reason, out.by, left);
}

function GpuCard(props: IGpuCard): JSX.Element {
  const { gpu, samples, until, units, trans } = props;
  const lost = gpu.health !== 'ok';
  const kinds = gpuKindsText(gpu, units, trans);
  const tasks =
    props.most === null
      ? trans._n('%1 task', '%1 tasks', gpu.tasks)
      : trans.__('%1 of %2 tasks', gpu.tasks, props.most);
  const turn = gpuTimeText(props.leases, until, trans);
  const lifted = gpuLiftedText(gpu, units, trans);
  const [showsPlots, setShowsPlots] = React.useState(false);
  const plots = React.useId();
  return (
    <li
      className="jp-gpushare-card"
      data-health={gpu.health}
      data-gpu={gpu.index}
    >
      <div className="jp-gpushare-card-title">
        <strong>{trans.__('GPU %1', gpuNumber(gpu))}</strong>
        <span className="jp-gpushare-card-model" title={gpu.uuid}>
          {gpu.name}
        </span>
        {lost && (
          <span className="jp-gpushare-chip" data-kind="error">
            {trans.__('Lost')}
          </span>
        )}
        {gpu.out_of_service && (
          <span className="jp-gpushare-chip" data-kind="warning">
            {trans.__('Out of service')}
          </span>
        )}
        {gpu.share_mode === 'time' && (
          <span
            className="jp-gpushare-chip"
            data-kind="turns"
            title={trans.__(
              'Where several tasks can take turns, they compute here one after the other.'
            )}
          >
            {trans.__('By turns')}
          </span>
        )}
        {gpu.squatters.length > 0 && (
          <span className="jp-gpushare-chip" data-kind="warning">
            {trans._n('%1 squatter', '%1 squatters', gpu.squatters.length)}
          </span>
        )}
      </div>
      {gpu.problem && <p className="jp-gpushare-advice">{gpu.problem}</p>}
      {gpu.out_of_service && (
        <p className="jp-gpushare-advice">
          {outOfServiceText(gpu.out_of_service, trans)}
        </p>
      )}
      {props.onDrain && (
        <button
          type="button"
          className="jp-gpushare-link"
          aria-label={
            gpu.out_of_service
              ? trans.__('Put GPU %1 back into service', gpuNumber(gpu))
              : trans.__('Take GPU %1 out of service', gpuNumber(gpu))
          }
          onClick={props.onDrain}
        >
          {gpu.out_of_service
            ? trans.__('Put back into service')
            : trans.__('Take out of service…')}
        </button>
      )}
      <div className="jp-gpushare-card-facts">
        <h4>{trans.__('Memory')}</h4>
        {props.leases.length === 0 ? (
          <span>{tasks}</span>
        ) : (
          <details className="jp-gpushare-residents">
            <summary>{tasks}</summary>
            <ul>
              {props.leases.map((lease, place) => (
                <li key={lease.id ?? `other-${place}`}>
                  {residentLine(lease, gpu, until, units, trans)}
                </li>
              ))}
            </ul>
          </details>
        )}
      </div>
      <MemoryBar gpu={gpu} units={units} trans={trans} />
      {lifted && <div title={gpuLiftedHint(trans)}>{lifted}</div>}
      {kinds && <div>{kinds}</div>}
      <div className="jp-gpushare-card-facts">
        <h4>{trans.__('Time')}</h4>
        <span>
          {gpu.utilisation === null
            ? trans.__('utilisation unknown')
            : trans.__('%1 utilised', formatShare(gpu.utilisation))}
        </span>
        <button
          type="button"
          className="jp-gpushare-link"
          aria-expanded={showsPlots}
          aria-controls={plots}
          aria-label={trans.__('Plots of GPU %1', gpuNumber(gpu))}
          onClick={() => setShowsPlots(!showsPlots)}
        >
          {trans.__('Plots')}
        </button>
      </div>
      {turn && <div className="jp-gpushare-turn">{turn}</div>}
      <div id={plots}>
        {showsPlots ? (
          <GpuPlots gpu={gpu} />
        ) : (
          <Sparkline
            points={samples.map(({ at, utilisation }) => ({
              at,
              value: utilisation
            }))}
            from={until - SAMPLES_FOR}
            until={until}
            label={sparkLabel(samples, trans)}
          />
        )}
      </div>
      {gpu.squatters.map((squatter, place) => (
        <p key={place} className="jp-gpushare-advice">
          {squatterText(squatter, units, trans)}
        </p>
      ))}
    </li>
  );
}

function MemoryBar(props: {
  gpu: Gpu;
  units: Units;
  trans: TranslationBundle;
}): JSX.Element {
  const { gpu, units, trans } = props;
  const parts = memoryParts(gpu);
  const rows = [
    { kind: 'mine', bytes: parts.mine, word: trans.__('mine') },
    { kind: 'others', bytes: parts.others, word: trans.__('others') },
    { kind: 'turns', bytes: parts.turns, word: trans.__('used by turns') },
    {
      kind: 'system',
      bytes: parts.system,
      word: trans.__('used by the system (a screen, monitoring)')
    },
    {
      kind: 'unleased',
      bytes: parts.unleased,
      word: trans.__('not under lease')
    },
    { kind: 'free', bytes: parts.free, word: trans.__('free') }
  ];
  const words = rows
    .filter(row => row.bytes > 0)
    .map(row => trans.__('%1 %2', formatBytes(row.bytes, units), row.word));
  return (
    <>
      <div
        className="jp-gpushare-memory"
        role="img"
        aria-label={trans.__(
          'Memory of GPU %1, %2: %3',
          gpuNumber(gpu),
          formatBytes(gpu.memory, units),
          words.join(', ')
        )}
      >
        {rows.map(row => (
          <div
            key={row.kind}
            data-part={row.kind}
            style={{ width: `${(row.bytes / Math.max(1, gpu.memory)) * 100}%` }}
          />
        ))}
      </div>
      <ul className="jp-gpushare-legend" aria-hidden="true">
        {rows
          .filter(row => row.bytes > 0)
          .map(row => (
            <li key={row.kind} data-part={row.kind}>
              {trans.__('%1 %2', formatBytes(row.bytes, units), row.word)}
            </li>
          ))}
      </ul>
    </>
  );
}

function sparkLabel(
  samples: readonly ISample[],
  trans: TranslationBundle
): string {
  const known = samples
    .map(sample => sample.utilisation)
    .filter((value): value is number => value !== null);
  return known.length
    ? trans.__(
        'Utilisation of the last %1 minutes: %2 at most, %3 now',
        SAMPLES_FOR / 60,
        formatShare(Math.max(...known)),
        formatShare(known[known.length - 1])
      )
    : trans.__('Utilisation of the last %1 minutes: unknown', SAMPLES_FOR / 60);
}

function squatterText(
  squatter: Gpu['squatters'][number],
  units: Units,
  trans: TranslationBundle
): string {
  const memory =
    squatter.memory === null
      ? trans.__('memory')
      : formatBytes(squatter.memory, units);
  const who =
    squatter.pid === null
      ? trans.__('A process')
      : trans.__('Process %1', squatter.pid);
  return squatter.kind === 'over_limit'
    ? trans.__('%1 uses more than its lease: %2', who, memory)
    : trans.__('%1 uses %2 without a lease', who, memory);
}

/** Who has how much of a GPU's memory, since when; others are named only to those who may know. */
function residentLine(
  lease: Lease,
  gpu: Gpu,
  now: number,
  units: Units,
  trans: TranslationBundle
): string {
  const part = lease.gpus.find(other => other.uuid === gpu.uuid);
  const may = part ? formatBytes(part.limit, units) : '';
  const memory =
    part && part.measured !== null
      ? trans.__('%1 of %2', formatBytes(part.measured, units), may)
      : may;
  const since = part?.there_since ?? null;
  const what =
    since === null
      ? trans.__('%1 · %2', memory, stateWord(lease.state, trans))
      : trans.__(
          '%1, for %2 · %3',
          memory,
          formatDuration(now - since, trans),
          stateWord(lease.state, trans)
        );
  if (lease.mine) {
    return trans.__('%1 · %2', taskName(lease, trans), what);
  }
  if (lease.environment !== null) {
    return trans.__(
      '%1: %2 · %3',
      lease.environment,
      taskName(lease, trans),
      what
    );
  }
  return lease.kind === 'process'
    ? trans.__("Someone else's program · %1", what)
    : trans.__("Someone else's notebook · %1", what);
}
