import { Clipboard } from '@jupyterlab/apputils';
import { copyIcon } from '@jupyterlab/ui-components';
import React from 'react';

import type { Server } from '../api/types';
import { about, nameOf } from '../text/said';
import { useFetched } from './fetched';
import { useView } from './host';
import { FetchNote, IconButton } from './parts';
import { Details, Words } from './said';

/** The model servers that I may use, asleep or awake, with Python that asks them. */
export function ServersView(): JSX.Element {
  const { trans, model } = useView();
  const fetch = React.useCallback(() => model.api.servers(), [model]);
  const { data, error } = useFetched('servers', fetch);
  return (
    <>
      <FetchNote
        what={trans.__('servers')}
        hasData={data !== null}
        error={error}
      />
      {data?.length === 0 && (
        <p className="jp-gpushare-empty">
          {trans.__('There is no model server that you may use.')}
        </p>
      )}
      <ul className="jp-gpushare-list" aria-label={trans.__('Servers')}>
        {data?.map(server => (
          <ServerRow
            key={`${server.environment} ${server.address}`}
            server={server}
          />
        ))}
      </ul>
    </>
  );
}

function ServerRow(props: { server: Server }): JSX.Element {
  const { server } = props;
  const { trans } = useView();
  const [copied, setCopied] = React.useState(false);
  const [state] = about(server, 'state');
  return (
    <li className="jp-gpushare-row" data-server={server.address}>
      <div className="jp-gpushare-row-words">
        <div className="jp-gpushare-row-head">
          <span className="jp-gpushare-row-title" title={server.name}>
            {nameOf(server)}
          </span>
          <span className="jp-gpushare-actions">
            <IconButton
              icon={copyIcon}
              label={
                copied
                  ? trans.__('Copied')
                  : trans.__('Copy Python that asks %1', nameOf(server))
              }
              onClick={() => {
                Clipboard.copyToSystem(server.snippet);
                setCopied(true);
              }}
            />
          </span>
        </div>
        <Details
          title={
            <span title={state?.hint}>
              <Words
                says={[
                  ...about(server, 'state'),
                  ...about(server, 'where'),
                  ...about(server, 'who')
                ]}
              />
            </span>
          }
        >
          <pre>
            <code>{server.snippet}</code>
          </pre>
        </Details>
      </div>
    </li>
  );
}
