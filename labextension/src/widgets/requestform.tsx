import type { Dialog } from '@jupyterlab/apputils';
import { HTMLSelect } from '@jupyterlab/ui-components';
import React from 'react';

import { type IAskDraft, outlook, readAsk } from '../model/asking';
import { askMistakeText, freeText, outlookText } from '../text/asking';
import { formatBytes } from '../text/format';
import {
  type IViewServices,
  useSettings,
  useSnapshot,
  useView,
  ViewWidget
} from './host';

/** The form that asks for GPUs, with what is free now: the body of a dialog. */
export class RequestForm
  extends ViewWidget
  implements Dialog.IBodyWidget<IAskDraft>
{
  constructor(services: IViewServices, draft: IAskDraft) {
    const typed = { now: draft };
    super(services, () => (
      <RequestFormView first={draft} onChange={now => (typed.now = now)} />
    ));
    this._typed = typed;
    this.addClass('jp-gpushare-request');
  }

  getValue(): IAskDraft {
    return this._typed.now;
  }

  private readonly _typed: { now: IAskDraft };
}

export function RequestFormView(props: {
  first: IAskDraft;
  onChange: (draft: IAskDraft) => void;
}): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  const { units } = useSettings();
  const [draft, setDraft] = React.useState(props.first);
  const id = React.useId();
  const change = (part: Partial<IAskDraft>): void => {
    const now = { ...draft, ...part };
    setDraft(now);
    props.onChange(now);
  };
  const { ask, mistakes } = readAsk(draft);
  const quota = status?.quota ?? null;
  const field = (
    name: 'gpus' | 'memory',
    label: string,
    more: React.InputHTMLAttributes<HTMLInputElement>
  ): JSX.Element => {
    const mistake = mistakes?.[name];
    return (
      <>
        <label htmlFor={`${id}-${name}`}>{label}</label>
        <div>
          <input
            {...more}
            id={`${id}-${name}`}
            className="jp-mod-styled"
            value={draft[name]}
            aria-invalid={mistake !== undefined}
            aria-describedby={mistake && `${id}-${name}-wrong`}
            onChange={event => change({ [name]: event.target.value })}
          />
          {mistake && (
            <div id={`${id}-${name}-wrong`} className="jp-gpushare-advice">
              {askMistakeText(mistake, trans)}
            </div>
          )}
        </div>
      </>
    );
  };
  return (
    <>
      <div className="jp-gpushare-form">
        {field('gpus', trans.__('GPUs'), {
          type: 'number',
          min: 1,
          max: quota ? Math.max(1, quota.gpus) : undefined,
          autoFocus: true
        })}
        {field('memory', trans.__('Memory on each'), {
          type: 'text',
          placeholder:
            quota === null
              ? ''
              : quota.memory === null
                ? trans.__('as the notebook asks, or a whole GPU')
                : trans.__(
                    'as the notebook asks, or %1 (your quota)',
                    formatBytes(quota.memory, units)
                  )
        })}
        <label htmlFor={`${id}-class`}>{trans.__('Class')}</label>
        <HTMLSelect
          id={`${id}-class`}
          value={draft.priorityClass}
          onChange={event =>
            change({
              priorityClass:
                event.target.value === 'batch' ? 'batch' : 'interactive'
            })
          }
        >
          <option value="interactive">
            {trans.__('Interactive: you wait for it')}
          </option>
          <option value="batch">{trans.__('Batch: it may wait longer')}</option>
        </HTMLSelect>
      </div>
      {status && (
        <div className="jp-gpushare-free-now">
          <strong>{trans.__('Free now')}</strong>
          <ul>
            {status.gpus.map(gpu => (
              <li key={gpu.uuid}>{freeText(gpu, units, trans)}</li>
            ))}
          </ul>
          {status.queue.length > 0 && (
            <p>
              {trans._n(
                '%1 request waits already.',
                '%1 requests wait already.',
                status.queue.length
              )}
            </p>
          )}
        </div>
      )}
      <p role="status" className="jp-gpushare-outlook">
        {ask && status
          ? outlookText(ask, outlook(ask, status), units, trans)
          : ''}
      </p>
    </>
  );
}
