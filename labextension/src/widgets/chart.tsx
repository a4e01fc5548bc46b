/** Plain SVG charts of days. The figures stand beside them in words and in a table. */
import React from 'react';

import { axisTop } from '../model/usage';

const HEIGHT = 90;
const WIDTH = 300;

export interface IBar {
  readonly key: string;
  /** The outer bar, in the axis' unit. */
  readonly outer: number;
  /** The part of it that is drawn stronger. */
  readonly inner: number;
  /** The text under the pointer. */
  readonly title: string;
}

/** Bars in bars: held, and of it busy. */
export function Bars(props: {
  bars: readonly IBar[];
  label: string;
  /** Writes the top of the axis. */
  format: (value: number) => string;
  /** The top of the axis where it is fixed. */
  top?: number;
}): JSX.Element {
  const top =
    props.top ?? axisTop(Math.max(0, ...props.bars.map(bar => bar.outer)));
  const step = WIDTH / Math.max(1, props.bars.length);
  const height = (value: number): number =>
    Math.min(HEIGHT, (value / top) * HEIGHT);
  return (
    <figure className="jp-gpushare-chart">
      <div className="jp-gpushare-axis" aria-hidden="true">
        <span>{props.format(top)}</span>
        <span>0</span>
      </div>
      <svg
        role="img"
        aria-label={props.label}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
      >
        <line x1={0} x2={WIDTH} y1={HEIGHT / 2} y2={HEIGHT / 2} />
        {props.bars.map((bar, place) => (
          <g key={bar.key}>
            <title>{bar.title}</title>
            {/* The whole column answers to the pointer, however small its bar is. */}
            <rect
              className="jp-gpushare-column"
              x={place * step}
              y={0}
              width={step}
              height={HEIGHT}
            />
            <rect
              data-part="outer"
              x={place * step + step * 0.1}
              y={HEIGHT - height(bar.outer)}
              width={step * 0.8}
              height={height(bar.outer)}
            />
            <rect
              data-part="inner"
              x={place * step + step * 0.1}
              y={HEIGHT - height(bar.inner)}
              width={step * 0.8}
              height={height(bar.inner)}
            />
          </g>
        ))}
      </svg>
    </figure>
  );
}

/** The names of the two parts of the bars. */
export function ChartLegend(props: {
  outer: string;
  inner: string;
}): JSX.Element {
  return (
    <ul className="jp-gpushare-legend" aria-hidden="true">
      <li data-part="outer">{props.outer}</li>
      <li data-part="inner">{props.inner}</li>
    </ul>
  );
}
