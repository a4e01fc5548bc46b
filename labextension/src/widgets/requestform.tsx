import type { Dialog } from '@jupyterlab/apputils';
import { HTMLSelect } from '@jupyterlab/ui-components';
import React from 'react';

import type { IAsk } from '../model/asking';
import { gpuNumber } from '../text/format';
import { about } from '../text/said';
import { type IViewServices, useSnapshot, useView, ViewWidget } from './host';
import { Facts, Words } from './said';

/** The form that asks for GPUs, with what is free now: the body of a dialog. */
export class RequestForm
  extends ViewWidget
  implements Dialog.IBodyWidget<IAsk>
{
  constructor(services: IViewServices) {
    super(services, RequestFormView);
    this.addClass('jp-gpushare-request');
  }

  getValue(): IAsk {
    const typed = (name: string): string =>
      this.node.querySelector<HTMLInputElement>(`[name="${name}"]`)?.value ??
      '';
    return {
      gpus: Number(typed('gpus')),
      memory: typed('memory'),
      priorityClass: typed('class')
    };
  }
}

/** The dialog's button is disabled as long as a field is not valid. */
function RequestFormView(): JSX.Element {
  const { trans } = useView();
  const { status } = useSnapshot();
  const id = React.useId();
  return (
    <>
      <div className="jp-gpushare-form">
        <label htmlFor={`${id}-gpus`}>{trans.__('GPUs')}</label>
        <input
          id={`${id}-gpus`}
          name="gpus"
          className="jp-mod-styled"
          type="number"
          min={1}
          required
          defaultValue={1}
          autoFocus
        />
        <label htmlFor={`${id}-memory`}>{trans.__('Memory on each')}</label>
        <div>
          <input
            id={`${id}-memory`}
            name="memory"
            className="jp-mod-styled"
            pattern="\s*\d+([.,]\d+)?\s*[kmgtKMGT][iI]?[bB]\s*"
            aria-describedby={`${id}-size`}
          />
          <div id={`${id}-size`}>
            {trans.__(
              'A size with its unit, such as 8GiB or 16 GB; empty: what the notebook asks for by itself, or what your quota allows.'
            )}
          </div>
        </div>
        <label htmlFor={`${id}-class`}>{trans.__('Class')}</label>
        <HTMLSelect id={`${id}-class`} name="class" defaultValue="interactive">
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
              <li key={gpu.uuid}>
                {trans.__('GPU %1:', gpuNumber(gpu))}{' '}
                <Words
                  says={about(gpu, 'health', 'part').filter(
                    ({ tone }) => tone !== 'good'
                  )}
                  between=", "
                />
              </li>
            ))}
          </ul>
          <Facts
            says={about(status.quota, 'held', 'more', 'quota', 'left').map(
              // Without bars: this is about what is asked for.
              said => ({ ...said, share: undefined })
            )}
          />
          <p>
            {trans.__('If that is not enough, the request waits.')}{' '}
            {status.queue.length
              ? trans._n(
                  '%1 other request waits now.',
                  '%1 other requests wait now.',
                  status.queue.length
                )
              : trans.__('No other request waits now.')}
          </p>
        </div>
      )}
    </>
  );
}
