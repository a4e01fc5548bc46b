import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { Gpu, Lease, Said, Status } from '../api/types';
import { CommandIDs } from '../commands';
import { type ISample, SAMPLES_FOR } from '../model/snapshot';
import { formatBytes, formatShare, gpuNumber } from '../text/format';
import { about } from '../text/said';
import { useSettings, useSnapshot, useView } from './host';
import { Skeleton, Sparkline } from './parts';
import { GpuPlots } from './plots';
import { Details, Facts, SaidLines, useWords, Words } from './said';

/** The GPUs of this node, one card a GPU. */
export function GpusView(): JSX.Element {
  const { commands, trans } = useView();
  const { status, samples } = useSnapshot();
  if (!status) {
    return <Skeleton lines={4} label={trans.__('Loading the GPUs')} />;
  }
  if (!status.gpus.length && !status.left_out?.length) {
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
      <NodeLine status={status} />
      <SaidLines says={about(status, 'left_out', 'quotas_as_of')} />
      {!status.gpus.length && (
        <p className="jp-gpushare-empty">
          {trans.__('This node has no GPU to share now.')}
        </p>
      )}
      <Facts says={about(status, 'host_memory')} />
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
            onDrain={
              status.admin
                ? () =>
                    void commands.execute(CommandIDs.showAdmin, {
                      gpu: gpu.uuid
                    })
                : undefined
            }
          />
        ))}
      </ul>
      <SaidLines says={about(status, 'others')} />
    </>
  );
}

const NONE: [] = [];

/** Which node it is; more on demand. */
function NodeLine(props: { status: Status }): JSX.Element {
  const { status } = props;
  const node = useWords(about(status, 'node'));
  return (
    <div className="jp-gpushare-node" title={node}>
      <Details title={node}>
        <Facts says={about(status, 'simulated', 'preset', 'walls')} />
      </Details>
    </div>
  );
}

interface IGpuCard {
  gpu: Gpu;
  leases: readonly Lease[];
  samples: readonly ISample[];
  /** The newest moment of the curve, Unix seconds. */
  until: number;
  /** Open the form that takes it out of service, or puts it back; only for administrators. */
  onDrain?: () => void;
}

function GpuCard(props: IGpuCard): JSX.Element {
  const { gpu, leases, samples, until } = props;
  const { trans } = useView();
  const tasks = useWords(about(gpu, 'tasks'));
  const busy = useWords(about(gpu, 'busy'));
  const used = useWords(about(gpu, 'used'));
  const isIdle = ({ tone }: Said): boolean => tone === 'muted';
  const [idle, time] = [
    about(gpu, 'time').filter(isIdle),
    about(gpu, 'time').filter(said => !isIdle(said))
  ];
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
        {about(gpu, 'health', 'turns')
          .filter(({ tone }) => tone !== 'good')
          .map(said => (
            <span
              key={said.about}
              className="jp-gpushare-chip"
              data-tone={said.tone}
              title={said.hint}
            >
              <Words says={[said]} />
            </span>
          ))}
      </div>
      <SaidLines says={about(gpu, 'problem', 'squatter')} />
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
        {leases.length === 0 ? (
          <span>{tasks}</span>
        ) : (
          <Details title={tasks}>
            <SaidLines says={[...about(gpu, 'residents'), ...idle]} />
            <ul>
              {leases.map((lease, place) => (
                <Resident key={lease.id ?? `other-${place}`} lease={lease} />
              ))}
            </ul>
          </Details>
        )}
        <span>{used && trans.__('%1 used', used)}</span>
      </div>
      <MemoryBar gpu={gpu} />
      <SaidLines says={about(gpu, 'figures', 'lifted')} />
      <div className="jp-gpushare-card-facts">
        <span>
          {busy
            ? trans.__('%1 utilised', busy)
            : trans.__('utilisation unknown')}
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
      <SaidLines says={time} />
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
    </li>
  );
}

/** It begins with a person's name, which is written as it is. */
function Resident(props: { lease: Lease }): JSX.Element {
  const { lease } = props;
  return <li>{useWords(about(lease, 'who', 'what', 'state', 'memory'))}</li>;
}

function MemoryBar(props: { gpu: Gpu }): JSX.Element {
  const { gpu } = props;
  const { trans } = useView();
  const { units } = useSettings();
  const parts = about(gpu, 'part');
  return (
    <>
      <div
        className="jp-gpushare-memory"
        role="img"
        aria-label={trans.__(
          'Memory of GPU %1, %2: %3',
          gpuNumber(gpu),
          formatBytes(gpu.memory, units),
          useWords(parts, ', ')
        )}
      >
        {parts.map(({ kind, share = 0 }) => (
          <div
            key={kind}
            data-part={kind}
            style={{ width: `${share * 100}%` }}
          />
        ))}
      </div>
      <ul className="jp-gpushare-legend" aria-hidden="true">
        {parts.map(said => (
          <li key={said.kind} data-part={said.kind}>
            <Words says={[said]} />
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
