import { Button } from '@jupyterlab/ui-components';
import React from 'react';

import { Connection } from '../model/snapshot';
import { formatMoment } from '../text/format';
import { explain } from '../text/problems';
import { about } from '../text/said';
import { useLook, useSnapshot, useView } from './host';
import { SaidLines } from './said';

/** The problem with the shown status, above it; empty while there is none. */
export function BannerView(): JSX.Element {
  const { trans, model } = useView();
  const { connection, status, problem } = useSnapshot();
  const asOf = useLook(now => formatMoment(status?.node.time ?? now, now));
  // The region stays, so that screen readers hear what comes into it.
  return (
    <div role="status" aria-live="polite" className="jp-gpushare-banner-region">
      {connection === Connection.Stale && status && (
        <div className="jp-gpushare-banner" data-kind="stale">
          <strong>{trans.__('Not up to date: as of %1', asOf)}</strong>
          {problem && <Explained problem={problem} folded />}
        </div>
      )}
      {connection === Connection.Failed && problem && (
        <div className="jp-gpushare-banner" data-kind="error">
          <Explained problem={problem} />
          <Button
            type="button"
            className="jp-mod-styled jp-mod-accept"
            onClick={() => void model.refresh()}
          >
            {trans.__('Try again')}
          </Button>
        </div>
      )}
      {connection === Connection.Live && status?.node.problem && (
        <div className="jp-gpushare-banner" data-kind="error">
          <strong>{trans.__('The node manager reports a problem')}</strong>
          <SaidLines says={about(status, 'problem')} />
        </div>
      )}
      {status && !status.says && (
        <div className="jp-gpushare-banner" data-kind="old">
          {trans.__(
            'The node manager is older than this panel, which shows only what it says. Ask its administrator to restart it.'
          )}
        </div>
      )}
    </div>
  );
}

function Explained(props: {
  problem: Parameters<typeof explain>[0];
  /** The advice is folded up, because the views below need the room. */
  folded?: boolean;
}): JSX.Element {
  const { trans } = useView();
  const { title, advice, detail } = explain(props.problem, trans);
  const more = (
    <>
      {detail && <p>{detail}</p>}
      {advice && <p>{advice}</p>}
    </>
  );
  return props.folded ? (
    <>
      <div>{title}</div>
      <details>
        <summary>{trans.__('Why, and what to do')}</summary>
        {more}
      </details>
    </>
  ) : (
    <>
      <strong>{title}</strong>
      {more}
    </>
  );
}
