/** Live plots of one GPU: memory, who computes, utilisation, and what its sensors tell. */
import React from 'react';

import type { Gpu } from '../api/types';
import {
  areaPath,
  type Figure,
  freeOf,
  HEIGHT,
  type IMoment,
  type IPlot,
  linePath,
  momentAt,
  most,
  pieces,
  plotOf,
  RANGES,
  shareOf,
  WIDTH
} from '../model/plot';
import { axisTop } from '../model/usage';
import { formatBytes, gpuNumber } from '../text/format';
import {
  agoText,
  bytesText,
  celsiusText,
  computesText,
  momentText,
  rangeText,
  shareText,
  wattText
} from '../text/plot';
import { useFetched } from './fetched';
import { useLook, useSettings, useView } from './host';

/** The plots, with the choice of the span. */
export function GpuPlots(props: { gpu: Gpu }): JSX.Element {
  const { trans, model } = useView();
  const { gpu } = props;
  const [range, setRange] = React.useState<(typeof RANGES)[number]>(RANGES[0]);
  const fetch = React.useCallback(
    async () => ({
      seconds: range.seconds,
      readings: await model.api.gpuReadings(gpu.uuid, range.seconds)
    }),
    [model, gpu.uuid, range]
  );
  const { data, error } = useFetched(
    `plots-${gpu.uuid}-${range.seconds}`,
    fetch,
    range.every
  );
  const now = useLook(at => at - (at % range.every));
  // What was fetched of another span is not shown in this one.
  const readings = data?.seconds === range.seconds ? data.readings : null;
  const plot = plotOf(readings, gpu, range.seconds, now);
  return (
    <div className="jp-gpushare-plots">
      <Plots gpu={gpu} plot={plot} range={range.seconds}>
        {RANGES.map(one => (
          <button
            key={one.seconds}
            type="button"
            aria-pressed={one === range}
            onClick={() => setRange(one)}
          >
            {rangeText(one.seconds, trans)}
          </button>
        ))}
      </Plots>
      {error !== null && (
        <p className="jp-gpushare-advice" role="alert">
          {trans.__('Not up to date: %1', error)}
        </p>
      )}
    </div>
  );
}

/** Outlines are drawn at once; the keyboard or the pointer chooses the moment that is told. */
function Plots(props: {
  gpu: Gpu;
  plot: IPlot;
  range: number;
  /** The buttons that choose the span. */
  children: React.ReactNode;
}): JSX.Element {
  const { trans } = useView();
  const { units } = useSettings();
  const { gpu, plot, range } = props;
  // By its time, since the plot moves on meanwhile; null: the newest.
  const [chosen, setChosen] = React.useState<number | null>(null);
  const last = plot.moments.length - 1;
  const found = plot.moments.findIndex(
    ({ until }) => until > (chosen ?? NEVER)
  );
  const place = found < 0 ? last : found;
  const moment = plot.moments[place] ?? null;
  const go = (to: number): void => {
    const next = Math.min(last, Math.max(0, to));
    setChosen(next >= last ? null : plot.moments[next].at);
  };
  const keys = (event: React.KeyboardEvent): void => {
    const far = Math.max(1, Math.round(plot.moments.length / 10));
    const to: Record<string, number> = {
      ArrowLeft: place - 1,
      ArrowDown: place - 1,
      ArrowRight: place + 1,
      ArrowUp: place + 1,
      PageDown: place - far,
      PageUp: place + far,
      Home: 0,
      End: last
    };
    if (event.key in to) {
      event.preventDefault();
      go(to[event.key]);
    }
  };
  const point = (event: React.PointerEvent): void => {
    const box = event.currentTarget.getBoundingClientRect();
    if (box.width > 0) {
      go(momentAt(plot, (event.clientX - box.left) / box.width));
    }
  };
  const name = trans.__(
    'GPU %1 over the last %2',
    gpuNumber(gpu),
    rangeText(range, trans)
  );
  const known = (figure: Figure): number | null => most(plot, figure);
  const warmest = known(({ temperature }) => temperature);
  const strongest = known(({ power }) => power);
  const cursor =
    moment && chosen !== null ? shareOf(plot, moment) * WIDTH : null;
  return (
    <>
      <div className="jp-gpushare-ranges">
        <div role="group" aria-label={trans.__('Span of time')}>
          {props.children}
        </div>
        <strong aria-hidden="true">
          {moment ? agoText(moment, plot, trans) : trans.__('Loading…')}
        </strong>
      </div>
      <div
        className="jp-gpushare-plot"
        role="slider"
        tabIndex={0}
        aria-label={name}
        aria-valuemin={0}
        aria-valuemax={Math.max(0, last)}
        aria-valuenow={Math.max(0, place)}
        aria-valuetext={momentText(moment, plot, units, trans)}
        onKeyDown={keys}
      >
        <Memory plot={plot} moment={moment} cursor={cursor} />
        <Time plot={plot} moment={moment} cursor={cursor} />
        <Line
          title={trans.__('Utilisation')}
          value={shareText(moment?.utilisation ?? null, trans)}
          top={shareText(1, trans)}
          plot={plot}
          cursor={cursor}
          figure={({ utilisation }) => utilisation}
          most={1}
        />
        {warmest !== null && (
          <Line
            title={trans.__('Temperature')}
            value={
              moment && moment.temperature !== null
                ? celsiusText(moment.temperature, trans)
                : trans.__('unknown')
            }
            top={celsiusText(Math.max(100, axisTop(warmest)), trans)}
            plot={plot}
            cursor={cursor}
            figure={({ temperature }) => temperature}
            most={Math.max(100, axisTop(warmest))}
          />
        )}
        {strongest !== null && (
          <Line
            title={trans.__('Power')}
            value={
              moment && moment.power !== null
                ? wattText(moment.power, trans)
                : trans.__('unknown')
            }
            top={wattText(axisTop(strongest), trans)}
            plot={plot}
            cursor={cursor}
            figure={({ power }) => power}
            most={axisTop(strongest)}
          />
        )}
        <div
          className="jp-gpushare-plot-over"
          aria-hidden="true"
          onPointerMove={point}
          onPointerDown={point}
          onPointerLeave={() => setChosen(null)}
        />
      </div>
      <div className="jp-gpushare-plot-ends" aria-hidden="true">
        <span>{trans.__('%1 ago', rangeText(range, trans))}</span>
        <span>{trans.__('now')}</span>
      </div>
      {moment && moment.people.length > 0 && (
        <ul className="jp-gpushare-people">
          {moment.people.map(({ environment, memory, computes }) => (
            <li key={environment}>
              {computes > 0
                ? trans.__(
                    '%1: %2, computes',
                    environment,
                    formatBytes(memory, units)
                  )
                : trans.__('%1: %2', environment, formatBytes(memory, units))}
            </li>
          ))}
        </ul>
      )}
      {plot.reserved && (
        <p className="jp-gpushare-note">
          {trans.__('Memory as reserved: use is not measured here.')}
        </p>
      )}
    </>
  );
}

/** Later than every moment. */
const NEVER = Infinity;

interface IDrawn {
  plot: IPlot;
  /** The moment whose figures stand beside the words. */
  moment: IMoment | null;
  /** Where it is marked, of the width; `null`: it is not, being the newest. */
  cursor: number | null;
}

function Memory(props: IDrawn): JSX.Element {
  const { trans } = useView();
  const { units } = useSettings();
  const { plot, moment, cursor } = props;
  const hatch = React.useId();
  const mine: Figure = one => one.mine;
  const both: Figure = one => sum(one.mine, one.others);
  const all: Figure = one => sum(both(one), one.rest);
  const parts = [
    { kind: 'mine', lower: zero, upper: mine, word: trans.__('mine') },
    { kind: 'others', lower: mine, upper: both, word: trans.__('others') },
    { kind: 'unleased', lower: both, upper: all, word: trans.__('no lease') }
  ];
  const values: Record<string, number | null> = {
    mine: moment?.mine ?? null,
    others: moment?.others ?? null,
    unleased: moment?.rest ?? null,
    free: moment && freeOf(moment, plot.capacity)
  };
  const words = [...parts, { kind: 'free', word: trans.__('free') }];
  return (
    <Row
      title={trans.__('Memory')}
      top={formatBytes(plot.capacity, units)}
      words={words.map(({ kind, word }) => ({
        kind,
        text: trans.__('%1 %2', word, bytesText(values[kind], units, trans))
      }))}
    >
      <Drawing tall cursor={cursor}>
        <pattern
          id={hatch}
          width={8}
          height={8}
          patternUnits="userSpaceOnUse"
          patternTransform="rotate(45)"
        >
          <rect className="jp-gpushare-hatch" width={4} height={8} />
        </pattern>
        {parts.map(({ kind, lower, upper }) => (
          <path
            key={kind}
            data-part={kind}
            d={areaPath(plot, lower, upper, plot.capacity)}
            style={kind === 'unleased' ? { fill: `url(#${hatch})` } : undefined}
            vectorEffect="non-scaling-stroke"
          />
        ))}
      </Drawing>
    </Row>
  );
}

/** Who computes: a lane for mine, and one for others. */
function Time(props: IDrawn): JSX.Element {
  const { trans } = useView();
  const { plot, moment, cursor } = props;
  const lanes = [
    {
      kind: 'mine',
      word: trans.__('mine'),
      figure: ({ iCompute }: IMoment) => iCompute
    },
    {
      kind: 'others',
      word: trans.__('others'),
      figure: ({ othersCompute }: IMoment) => othersCompute
    }
  ];
  return (
    <Row
      title={trans.__('Who computes')}
      words={lanes.map(({ kind, word, figure }) => ({
        kind,
        text: trans.__(
          '%1 %2',
          word,
          computesText(moment ? figure(moment) : null, trans)
        )
      }))}
      axis={lanes.map(({ word }) => word)}
    >
      <div className="jp-gpushare-lanes">
        {lanes.map(({ kind, figure }) => (
          <Drawing key={kind} cursor={cursor}>
            {pieces(plot, figure).map(({ x, width, share }) => (
              <rect
                key={x}
                data-part={kind}
                x={x}
                width={width}
                y={HEIGHT * (1 - share)}
                height={HEIGHT * share}
              />
            ))}
          </Drawing>
        ))}
      </div>
    </Row>
  );
}

function Line(props: {
  title: string;
  value: string;
  top: string;
  plot: IPlot;
  cursor: number | null;
  figure: Figure;
  most: number;
}): JSX.Element {
  const { title, value, top, plot, figure } = props;
  return (
    <Row title={title} value={value} top={top}>
      <Drawing cursor={props.cursor}>
        <path
          data-part="line"
          d={linePath(plot, figure, props.most)}
          vectorEffect="non-scaling-stroke"
        />
      </Drawing>
    </Row>
  );
}

/** A heading with the figures of a moment, and below it the axis and the drawing. */
function Row(props: {
  title: string;
  /** Beside the title, where there is one figure only. */
  value?: string;
  top?: string;
  axis?: readonly string[];
  words?: readonly { kind: string; text: string }[];
  children: React.ReactNode;
}): JSX.Element {
  const axis = props.axis ?? [props.top ?? '', '0'];
  return (
    <div className="jp-gpushare-plot-row" aria-hidden="true">
      <div className="jp-gpushare-plot-title">
        <strong>{props.title}</strong>
        <span>{props.value}</span>
      </div>
      {props.words && (
        <ul className="jp-gpushare-legend">
          {props.words.map(({ kind, text }) => (
            <li key={kind} data-part={kind}>
              {text}
            </li>
          ))}
        </ul>
      )}
      <div className="jp-gpushare-plot-axis">
        {axis.map(text => (
          <span key={text}>{text}</span>
        ))}
      </div>
      {props.children}
    </div>
  );
}

function Drawing(props: {
  tall?: boolean;
  cursor: number | null;
  children: React.ReactNode;
}): JSX.Element {
  return (
    <svg
      className="jp-gpushare-drawing"
      data-tall={props.tall}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
    >
      {props.children}
      {props.cursor !== null && (
        <line
          x1={props.cursor}
          x2={props.cursor}
          y1={0}
          y2={HEIGHT}
          vectorEffect="non-scaling-stroke"
        />
      )}
    </svg>
  );
}

function zero(): number {
  return 0;
}

function sum(one: number | null, other: number | null): number | null {
  return one === null || other === null ? null : one + other;
}
