/** Small pieces that several views share. */
import type { LabIcon } from '@jupyterlab/ui-components';
import { Button } from '@jupyterlab/ui-components';
import React from 'react';

import { useView } from './host';

/** A bar that says how much of something is used. The words stand beside it, not in its colour. */
export function UseBar(props: {
  label: string;
  /** The whole in words, for those who do not see the bar. */
  text: string;
  share: number;
  tone?: string;
}): JSX.Element {
  const percent = Math.round(props.share * 100);
  return (
    <div
      className="jp-gpushare-bar"
      role="meter"
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
      aria-valuetext={props.text}
      data-tone={props.tone}
    >
      <div
        className="jp-gpushare-bar-fill"
        style={{ width: `${props.share * 100}%` }}
      />
    </div>
  );
}

/** A button that is a picture; its words are its title and its label. */
export function IconButton(props: {
  icon: LabIcon;
  label: string;
  /** Is given the button itself, for what opens beside it. */
  onClick: (button: HTMLElement) => void;
  className?: string;
  disabled?: boolean;
  /** It opens a menu. */
  menu?: boolean;
}): JSX.Element {
  return (
    <Button
      minimal
      small
      type="button"
      className={`jp-gpushare-icon-button ${props.className ?? ''}`}
      title={props.label}
      aria-label={props.label}
      aria-haspopup={props.menu ? 'menu' : undefined}
      disabled={props.disabled}
      onClick={event => props.onClick(event.currentTarget)}
    >
      <props.icon.react tag="span" aria-hidden="true" />
    </Button>
  );
}

/** Grey boxes where text will be, while nothing has come yet. */
export function Skeleton(props: { lines: number; label: string }): JSX.Element {
  return (
    <div
      className="jp-gpushare-skeleton"
      role="status"
      aria-label={props.label}
    >
      {Array.from({ length: props.lines }, (_, place) => (
        <div key={place} aria-hidden="true" />
      ))}
    </div>
  );
}

/** A line through values from 0 to 1 over time; gaps where a value is unknown. */
export function Sparkline(props: {
  /** Unix seconds and value, oldest first. */
  points: readonly { at: number; value: number | null }[];
  /** The span of time that the width stands for. */
  from: number;
  until: number;
  label: string;
}): JSX.Element {
  const width = 100;
  const height = 20;
  return (
    <svg
      className="jp-gpushare-sparkline"
      viewBox={`0 0 ${width} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      <path
        d={sparkPath(props.points, props.from, props.until, width, height)}
        vectorEffect="non-scaling-stroke"
      />
    </svg>
  );
}

/** The path's data: one stroke for each run of known values. Pure. */
export function sparkPath(
  points: readonly { at: number; value: number | null }[],
  from: number,
  until: number,
  width: number,
  height: number
): string {
  let path = '';
  let drawing = false;
  for (const { at, value } of points) {
    if (value === null || at < from) {
      drawing = false;
      continue;
    }
    const x = ((at - from) / Math.max(1e-9, until - from)) * width;
    const y = height - 1 - Math.min(1, Math.max(0, value)) * (height - 2);
    path += `${drawing ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    drawing = true;
  }
  return path;
}

/** The state of a fetch: grey boxes at first, then nothing, or the error. */
export function FetchNote(props: {
  /** The name of the fetched data, for screen readers. */
  what: string;
  hasData: boolean;
  error: string | null;
}): JSX.Element | null {
  const { trans } = useView();
  const { what, hasData, error } = props;
  if (error === null) {
    return hasData ? null : (
      <Skeleton lines={4} label={trans.__('Loading: %1', what)} />
    );
  }
  return (
    <p className="jp-gpushare-advice" role="alert">
      {hasData
        ? trans.__('Not up to date: %1', error)
        : trans.__('Could not be read: %1', error)}
    </p>
  );
}
