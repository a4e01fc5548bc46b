import { Button, HTMLSelect } from '@jupyterlab/ui-components';
import React from 'react';

import type { DailyUsage } from '../api/types';
import { dayName, nodeShares, totals, usageCsv } from '../model/usage';
import { formatGpuHours, formatShare } from '../text/format';
import { Bars, ChartLegend } from './chart';
import { useFetched } from './fetched';
import { useView } from './host';
import { FetchNote } from './parts';

const SPANS = [7, 30, 90];

/** GPU-hours by day, mine and the node's, and a file of them. */
export function HistoryView(): JSX.Element {
  const { trans, model } = useView();
  const [span, setSpan] = React.useState(SPANS[0]);
  const fetch = React.useCallback(
    () => model.api.dailyUsage(span),
    [model, span]
  );
  const { data, error } = useFetched('daily-usage', fetch);
  return (
    <div className="jp-gpushare-history">
      <div className="jp-gpushare-controls">
        <HTMLSelect
          aria-label={trans.__('Span of time')}
          value={span}
          options={SPANS.map(days => ({
            value: days,
            label: trans.__('%1 days', days)
          }))}
          onChange={event => setSpan(Number(event.target.value))}
        />
        <Button
          type="button"
          className="jp-mod-styled"
          disabled={!data}
          onClick={() => data && save(data)}
        >
          {trans.__('Export CSV')}
        </Button>
      </div>
      <FetchNote
        what={trans.__('usage')}
        hasData={data !== null}
        error={error}
      />
      {data && <Charts usage={data} />}
    </div>
  );
}

function Charts(props: { usage: DailyUsage }): JSX.Element {
  const { trans } = useView();
  const { usage } = props;
  const { days } = usage;
  const sum = totals(days);
  const summary =
    sum.share === null
      ? trans.__('You held no GPU in these %1 days.', days.length)
      : trans.__(
          'You held %1 GPU-hours in these %2 days; code ran in %3 of them (%4).',
          formatGpuHours(sum.held),
          days.length,
          formatGpuHours(sum.busy),
          formatShare(sum.share)
        );
  const turns =
    sum.held - sum.charged >= 60
      ? trans.__(
          ' %1 of them count, the time of your turns.',
          formatGpuHours(sum.charged)
        )
      : '';
  const node = days.map(nodeShares);
  const middle = (part: 'held' | 'busy'): string =>
    formatShare(
      node.reduce((all, day) => all + day[part], 0) / Math.max(1, node.length)
    );
  const nodeSummary = trans.__(
    'The GPUs of this node were held %1 of the time and busy %2 of it.',
    middle('held'),
    middle('busy')
  );
  return (
    <>
      <h4>{trans.__('My GPU-hours by day')}</h4>
      <p>
        {summary}
        {turns}
      </p>
      <Bars
        label={trans.__('My GPU-hours by day. %1', summary)}
        format={value => trans.__('%1 h', Math.round(value * 100) / 100)}
        bars={days.map(day => ({
          key: String(day.start),
          outer: day.held / 3600,
          inner: day.busy / 3600,
          title: trans.__(
            '%1: %2 GPU-hours held, %3 busy',
            dayName(day.start, usage),
            formatGpuHours(day.held),
            formatGpuHours(day.busy)
          )
        }))}
      />
      <ChartLegend outer={trans.__('held')} inner={trans.__('busy')} />
      <h4>{trans.__('Use of the node by day')}</h4>
      <p>{nodeSummary}</p>
      <Bars
        label={trans.__('Use of the node by day. %1', nodeSummary)}
        format={formatShare}
        top={1}
        bars={days.map((day, place) => ({
          key: String(day.start),
          outer: node[place].held,
          inner: node[place].busy,
          title: trans.__(
            '%1: %2 held, %3 busy',
            dayName(day.start, usage),
            formatShare(node[place].held),
            formatShare(node[place].busy)
          )
        }))}
      />
      <ChartLegend outer={trans.__('held')} inner={trans.__('busy')} />
      <details>
        <summary>{trans.__('The figures as a table')}</summary>
        <table className="jp-gpushare-figures">
          <thead>
            <tr>
              <th scope="col">{trans.__('Day')}</th>
              <th scope="col">{trans.__('Held (h)')}</th>
              <th scope="col">{trans.__('Busy (h)')}</th>
              <th scope="col">{trans.__('Counts (h)')}</th>
              <th scope="col">{trans.__('Node held')}</th>
              <th scope="col">{trans.__('Node busy')}</th>
            </tr>
          </thead>
          <tbody>
            {days.map((day, place) => (
              <tr key={day.start}>
                <th scope="row">{dayName(day.start, usage)}</th>
                <td>{formatGpuHours(day.held)}</td>
                <td>{formatGpuHours(day.busy)}</td>
                <td>{formatGpuHours(day.charged)}</td>
                <td>{formatShare(node[place].held)}</td>
                <td>{formatShare(node[place].busy)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </>
  );
}

/** Give the days to the browser as a file. */
function save(usage: DailyUsage): void {
  const last = usage.days[usage.days.length - 1];
  const url = URL.createObjectURL(
    new Blob([usageCsv(usage)], { type: 'text/csv;charset=utf-8' })
  );
  const link = document.createElement('a');
  link.href = url;
  link.download = `gpu-usage-${last ? dayName(last.start, usage) : 'empty'}.csv`;
  link.click();
  // The browser has read the link by then, not necessarily before click() returns.
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
