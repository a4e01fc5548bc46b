import { HTMLSelect } from '@jupyterlab/ui-components';
import React from 'react';

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Gpu } from '../api/types';
import { choices, filteredEvents } from '../model/admin';
import { formatMoment } from '../text/format';
import { useFetched } from './fetched';
import { useView } from './host';
import { FetchNote } from './parts';

/** Events that are asked for; the search is among them. */
const MOST = 500;

/** The ledger's last events, newest first, filtered. */
export function AdminEvents(): JSX.Element {
  const { trans, model } = useView();
  const [text, setText] = React.useState('');
  const [kind, setKind] = React.useState('');
  const [environment, setEnvironment] = React.useState('');
  const fetch = React.useCallback(() => model.api.history(MOST), [model]);
  const { data, error } = useFetched('events', fetch);
  const note = (
    <FetchNote
      what={trans.__('events')}
      hasData={data !== null}
      error={error}
    />
  );
  if (!data) {
    return note;
  }
  const events = filteredEvents(data.events, { text, kind, environment });
  const now = model.now();
  const gpus = model.snapshot.status?.gpus ?? [];
  return (
    <>
      <div className="jp-gpushare-controls">
        <input
          type="search"
          className="jp-mod-styled"
          placeholder={trans.__('Filter')}
          aria-label={trans.__('Filter the events by text')}
          value={text}
          onChange={event => setText(event.target.value)}
        />
        <HTMLSelect
          aria-label={trans.__('Kind of event')}
          value={kind}
          onChange={event => setKind(event.target.value)}
          options={[
            { value: '', label: trans.__('all kinds') },
            ...choices(data.events, 'kind').map(value => ({ value }))
          ]}
        />
        <HTMLSelect
          aria-label={trans.__('Environment of the event')}
          value={environment}
          onChange={event => setEnvironment(event.target.value)}
          options={[
            { value: '', label: trans.__('all environments') },
            ...choices(data.events, 'environment').map(value => ({ value }))
          ]}
        />
      </div>
      {note}
      <p>
        {trans.__(
          '%1 of the last %2 events',
          events.length,
          data.events.length
        )}
      </p>
      <div
        className="jp-gpushare-scroll"
        tabIndex={0}
        role="group"
        aria-label={trans.__('Table of events')}
      >
        <table className="jp-gpushare-figures">
          <thead>
            <tr>
              <th scope="col">{trans.__('When')}</th>
              <th scope="col">{trans.__('Environment')}</th>
              <th scope="col">{trans.__('What')}</th>
            </tr>
          </thead>
          <tbody>
            {events.map((event, place) => (
              <tr key={`${event.at}-${place}`} title={event.kind}>
                <td>{formatMoment(event.at, now)}</td>
                <td>{event.environment ?? '–'}</td>
                <td>{withNames(event.text, gpus, trans)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** The ledger names GPUs by their UUIDs, people by their numbers. */
function withNames(
  text: string,
  gpus: readonly Gpu[],
  trans: TranslationBundle
): string {
  return gpus.reduce(
    (named, gpu) => named.replaceAll(gpu.uuid, trans.__('GPU %1', gpu.index)),
    text
  );
}
